"""--dry-run against what the count then took, on four unlike corpora, from a small sample."""

import dataclasses
import json

import numpy as np
import pytest
from counting import start_count
from strategies import write_corpus

import signatures.estimate
from benchmarks.unlike_corpora import CORPORA, write_unlike
from signatures.cost import CostModel, slowness
from signatures.count import CountOptions, count_next_token
from signatures.estimate import estimate_next_token
from workflows.cli import run

SAMPLE = 1 << 18
TOKENS = 4_000_000


@pytest.fixture(scope="module", params=CORPORA)
def corpus(request, tmp_path_factory):
    return write_unlike(tmp_path_factory.mktemp("unlike"), request.param, TOKENS)


def test_entries_and_disk_within_a_factor_of_two(tmp_path, corpus):
    options = CountOptions(workers=1, partition_tokens=1_000_000)
    out = tmp_path / "s"
    predicted = estimate_next_token(corpus, out=out, options=options, sample_tokens=SAMPLE)
    assert list(tmp_path.iterdir()) == []
    assert predicted["fits"] is True
    result = count_next_token(corpus, out=out, options=options)
    assert result["tokens"] == predicted["tokens"] > 4 * SAMPLE
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    assert 0.5 <= predicted["entries"] / result["entries"] <= 2
    assert 0.5 <= predicted["disk_bytes"] / disk <= 2
    assert predicted["partitions"] == result["partitions"]


def printed(*arguments):
    """What a process of its own prints: what other tests left in this one would be measured."""
    process = start_count(*arguments, "--json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(output)


def test_memory_within_a_factor_of_two(tmp_path, corpus):
    command = [corpus, "--out", tmp_path / "s", "--workers", "1"]
    predicted, result = printed(*command, "--dry-run"), printed(*command)
    assert 0.5 <= predicted["memory_bytes"] / result["peak_memory_bytes"] <= 2


def test_a_row_of_as_many_pairs_as_tokens(tmp_path):
    corpus = write_corpus(tmp_path, [[0] * 10], vocab_size=9)
    options = CountOptions(workers=1)
    predicted = estimate_next_token(corpus, out=tmp_path / "s", options=options)
    assert predicted["entries"] == count_next_token(corpus, out=tmp_path / "s")["entries"] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_of_many_tokens_within_a_factor_of_two(tmp_path, workers):
    corpus = write_corpus(tmp_path, [np.resize(np.arange(5_000), 50_000_000)])
    command = [corpus, "--out", tmp_path / "s", "--workers", str(workers)]
    predicted, result = printed(*command, "--dry-run"), printed(*command)
    assert predicted["workers"] == workers
    assert 0.5 <= predicted["memory_bytes"] / result["peak_memory_bytes"] <= 2
    assert predicted["entries"] == pytest.approx(result["entries"], rel=0.01)


WORK = {"tokens": 10**9, "entries": 10**7, "partials": 4 * 10**7}


def test_time_is_the_sum_of_its_terms():
    model = CostModel(
        tokens_per_second=1e8,
        token_bytes=2,
        hash_bytes_per_second=1e9,
        merge_seconds=1e-8,
        write_seconds=1e-7,
        start_seconds=2,
        finish_seconds=0.5,
    )
    assert model.seconds(**WORK, workers=1) == pytest.approx(0.5 + 10 + 2 + 0.4 + 1)
    assert model.seconds(**WORK, workers=4) == pytest.approx(2.5 + 13.4 / 4)
    slow = dataclasses.replace(model, slowness=3)
    assert slow.seconds(**WORK, workers=4) == pytest.approx(3 * 2.5 + (10 + 3 * 3.4) / 4)
    twice = {name: 2 * number for name, number in WORK.items()}
    assert model.seconds(**twice, workers=1) == pytest.approx(0.5 + 2 * 13.4)


def test_time_follows_the_measured_rate_the_tokens_and_the_workers(tmp_path, monkeypatch):
    """With the kernels' rate and the machine's speed known, the rest is arithmetic."""
    monkeypatch.setattr(signatures.estimate, "slowness", lambda: 1.0)

    def seconds(tokens, rate, workers=1):
        monkeypatch.setattr(signatures.estimate, "counting_rate", lambda *_, **__: rate)
        corpus = write_corpus(tmp_path, [np.resize(np.arange(500), tokens)])
        options = CountOptions(workers=workers, partition_tokens=tokens // 4)
        found = estimate_next_token(corpus, out=tmp_path / "s", options=options)
        assert found["workers"] == workers
        return found["seconds"]

    base = seconds(400_000, 1e4)
    assert base == pytest.approx(40, rel=0.05)
    assert seconds(400_000, 2e4) == pytest.approx(base / 2, rel=0.05)
    assert seconds(800_000, 1e4) == pytest.approx(2 * base, rel=0.05)
    assert seconds(400_000, 1e4, workers=2) == pytest.approx(base / 2 + 2.5, rel=0.05)


def test_the_rate_is_measured_on_every_token_of_the_range(tmp_path, monkeypatch):
    """A clock that moves one second a call: the rate is the tokens of the last range."""
    ticks = iter(range(100))
    monkeypatch.setattr(signatures.estimate, "slowness", lambda: 2.0)
    monkeypatch.setattr("signatures.cost.time.perf_counter", lambda: next(ticks))
    found = []
    monkeypatch.setattr(
        signatures.estimate,
        "CostModel",
        lambda **fields: found.append(fields) or CostModel(**fields),
    )
    corpus = write_corpus(tmp_path, [np.resize(np.arange(500), 300_000)])
    estimate_next_token(corpus, out=tmp_path / "s")
    assert found == [{"tokens_per_second": 300_000, "token_bytes": 2, "slowness": 2.0}]


def test_a_busy_machine_is_slower(monkeypatch):
    clock = iter([10.0, 10.09, 11.0, 11.04, 12.0, 13.0])  # of three turns the middle one
    monkeypatch.setattr("signatures.cost.time.perf_counter", lambda: next(clock))
    assert slowness() == pytest.approx(2.0)


def test_a_small_corpus_is_sampled_whole(tmp_path, capsys):
    corpus = write_corpus(tmp_path, [[1, 2, 3, 1, 2], [], [4]])
    command = ["count", "next-token", str(corpus), "--out", str(tmp_path / "s"), "--dry-run"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["entries"], found["fits"]) == (6, 3, True)
    assert found["seconds"] > 0
    assert run([*command, "--halves", "--scope", "packed", "--seq-length", "2"]) == 0
    assert "it fits" in capsys.readouterr().err
    assert run([*command, "--window", "2"]) == 2


def test_an_empty_corpus(tmp_path):
    corpus = write_corpus(tmp_path, [[]], vocab_size=3)
    found = estimate_next_token(corpus, out=tmp_path / "s")
    assert (found["tokens"], found["entries"]) == (0, 0)
