"""--dry-run against what the count then took, on four unlike corpora, from a small sample."""

import email
import json
import re
from pathlib import Path

import numpy as np
import pytest
from counting import start_count
from strategies import write_corpus

from signatures.count import CountOptions, count_next_token
from signatures.estimate import estimate_next_token
from workflows.cli import run

SAMPLE = 1 << 18


def text_corpus():
    """Sentences of a grammar with a long-tailed lexicon, in documents on topics."""
    numbers = np.random.default_rng(0)
    documents = []
    for _ in range(2_500):
        topic = int(numbers.integers(40))
        nouns = (numbers.zipf(1.3, 400) * 17 + topic * 50) % 8_000 + 100
        verbs = numbers.zipf(1.4, 400) % 3_000 + 9_000
        links = numbers.zipf(1.6, 400) % 90
        documents.append(np.stack([links, nouns, verbs, links[::-1] + 10], 1).ravel())
    return documents


def code_corpus():
    """The standard library's own sources."""
    files = sorted(Path(email.__file__).parents[1].glob("*/*.py"))[:500]
    numbers: dict[str, int] = {}
    pieces = (re.findall(r"\w+|[^\w]", file.read_text(errors="replace")) for file in files)
    return [
        np.array([numbers.setdefault(piece, len(numbers)) for piece in found], np.int64)
        for found in pieces
    ]


def zipf_corpus():
    """Independent tokens of Zipf frequency."""
    tokens = np.random.default_rng(0).zipf(1.2, 4_000_000) % 30_000
    return np.array_split(tokens, 2_000)


def repeated_corpus():
    """One document, over and over."""
    document = np.random.default_rng(0).integers(0, 20_000, 100_000)
    return [document] * 40


@pytest.mark.parametrize("make", [text_corpus, code_corpus, zipf_corpus, repeated_corpus])
def test_within_a_factor_of_two(tmp_path, make):
    corpus = write_corpus(tmp_path, make(), np.int32)
    options = CountOptions(workers=1, partition_tokens=1_000_000)
    out = tmp_path / "s"
    predicted = estimate_next_token(corpus, out=out, options=options, sample_tokens=SAMPLE)
    assert list(tmp_path.glob("s*")) == []
    assert predicted["fits"] is True
    result = count_next_token(corpus, out=out, options=options)
    assert result["tokens"] == predicted["tokens"] > 4 * SAMPLE
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    assert 0.5 <= predicted["entries"] / result["entries"] <= 2
    assert 0.5 <= predicted["disk_bytes"] / disk <= 2
    assert predicted["partitions"] == result["partitions"]


def test_memory_within_a_factor_of_two(tmp_path):
    corpus = write_corpus(tmp_path, [np.resize(np.arange(5_000), 50_000_000)])
    command = [corpus, "--out", tmp_path / "s", "--workers", "1", "--json"]
    found = []
    for extra in (["--dry-run"], []):
        process = start_count(*command, *extra)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        found.append(json.loads(output))
    predicted, result = found
    assert 0.5 <= predicted["memory_bytes"] / result["peak_memory_bytes"] <= 2
    assert predicted["entries"] == pytest.approx(result["entries"], rel=0.01)


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
