"""The promise of --memory: plans that fit, a sampled peak within it, predictions."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from counting import text_like
from strategies import write_corpus

from corpus.progress import SILENT
from corpus.store import InputOptions
from signatures.count import CountOptions, Scope
from signatures.memory import MIB, SLACK, MemorySampler, plan_memory, private_bytes
from signatures.planning import partition_units, resolve, share_memory


def plan(memory, workers=1, **changes):
    size = {"vocab_size": 60_416, "token_bytes": 2.1, "pairs": 10**9, "corpus_bytes": 0}
    return plan_memory(memory, workers, **(size | changes))


@pytest.mark.parametrize("memory", [10**9, 4 * 10**9, 10**11])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_a_plan_stays_within_its_memory(memory, workers):
    made = plan(memory, workers)
    assert 1 <= made.workers <= workers
    assert made.peak(made.most_tokens) <= memory + SLACK
    assert 1 <= made.shard_writers <= made.workers


def test_more_memory_is_used():
    assert plan(4 * 10**9).most_tokens > 1.5 * plan(2 * 10**9).most_tokens
    assert plan(10**9, 64).workers < plan(10**10, 64).workers


def test_too_little_memory_says_how_much_is_needed():
    with pytest.raises(ValueError, match=r"at least \d+MB is needed"):
        plan(10**6)
    with pytest.raises(ValueError, match="too little"):
        plan(10**9, vocab_size=2 * 10**7)


def test_a_partition_that_cannot_fit_is_refused(tmp_path):
    corpus = write_corpus(tmp_path, [np.zeros(3_000_000, int)])
    options = CountOptions(workers=1, partition_tokens=2_900_000)
    question = resolve((corpus,), InputOptions(vocab_size=5), Scope(), options, SILENT)
    tight = plan(10**9, token_bytes=400.0)
    with pytest.raises(ValueError, match="--partition-tokens 2900000"):
        partition_units(question, options, tight)
    roomy = share_memory(question, options, 1)
    assert partition_units(question, options, roomy) == 2_900_000


def test_the_sampler_sees_children_and_forgets_them():
    code = "import sys; block = bytearray(200_000_000); print(1, flush=True); sys.stdin.read()"
    with MemorySampler() as sampler:
        before = sampler.peak
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout.readline()
        assert private_bytes(child.pid) > 190 * MIB
        for _ in range(200):
            if sampler.peak > before + 190 * MIB:
                break
            time.sleep(0.01)
        child.communicate()
    assert sampler.peak > before + 190 * MIB
    assert private_bytes(child.pid) == 0


_COUNT = """
import json, sys
from pathlib import Path
from signatures import count, memory, run

out, (slack, limit, workers) = Path(sys.argv[2]), map(int, sys.argv[3:])
opened, used = run.open_runner, []


def recording(workers, *others, **settings):
    used.append(workers)
    return opened(workers, *others, **settings)


if __name__ == "__main__":  # worker processes import this file
    memory.SLACK, memory._SHARD_BYTES = slack, 2**20  # few entries: small shards
    run.open_runner = recording
    options = count.CountOptions(workers=workers, memory=limit)
    result = count.count_next_token(sys.argv[1], out=out, options=options)
    print(json.dumps(result | {"workers": used[0]}))
"""


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory):
    """240 MB of labels."""
    tokens = np.resize(text_like(4_000_000, 70_000), 60_000_000)
    return write_corpus(tmp_path_factory.mktemp("large"), [tokens], np.int32)


@pytest.mark.parametrize(("workers", "memory"), [(1, 250 * MIB), (2, 410 * MIB), (3, 620 * MIB)])
def test_the_peak_of_a_count_is_within_the_promise(tmp_path, large_corpus, workers, memory):
    """The labels alone would not fit beside the processes: they are counted in partitions.

    In a process of its own, since what other tests have left in this one would be measured too.
    """
    slack = 200 * MIB
    script = tmp_path / "count.py"
    script.write_text(_COUNT)
    sizes = map(str, (slack, memory, workers))
    command = [sys.executable, script, large_corpus, tmp_path / "s", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["workers"] == workers
    assert result["peak_memory_bytes"] <= memory + slack
    assert result["partitions"] >= 2 * workers
    assert result["pairs"] == 60_000_000 - 1
