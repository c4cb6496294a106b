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
from signatures import memory
from signatures.count import CountOptions, count_next_token

if __name__ == "__main__":
    memory.SLACK, memory._SHARD_BYTES = int(sys.argv[3]), 2**20  # few entries: small shards
    options = CountOptions(workers=1, memory=int(sys.argv[4]))
    print(json.dumps(count_next_token(sys.argv[1], out=Path(sys.argv[2]), options=options)))
"""


def test_the_peak_of_a_count_is_within_the_promise(tmp_path):
    """240 MB of labels alone would not fit: they are counted in several partitions.

    In a process of its own, since what other tests have left in this one would be measured too.
    """
    slack, memory = 200 * MIB, 250 * MIB
    tokens = np.resize(text_like(4_000_000, 70_000), 60_000_000)
    corpus = write_corpus(tmp_path, [tokens], np.int32)
    script = tmp_path / "count.py"
    script.write_text(_COUNT)
    command = [sys.executable, script, corpus, tmp_path / "s", str(slack), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["peak_memory_bytes"] <= memory + slack
    assert result["partitions"] >= 2
    assert result["pairs"] == tokens.size - 1
