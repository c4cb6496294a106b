"""``staircase corpus``: what it prints, and what it finds wrong."""

import json

import numpy as np
import pytest

from corpus import inspection
from corpus.inspection import inspect_corpus
from corpus.store import InputOptions, open_corpus
from tests.strategies import write_corpus
from workflows.cli import run


def json_of(capsys, *arguments) -> dict:
    assert run([str(one) for one in (*arguments, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *arguments) -> str:
    assert run([str(one) for one in arguments]) == 2
    err = capsys.readouterr().err
    (line,) = [one for one in err.splitlines() if one.startswith("staircase: ")]
    assert "Traceback" not in err
    return line


@pytest.fixture
def built(tmp_path, capsys):
    source = tmp_path / "my text.jsonl"
    texts = ["the cat sat on the mat", "", "<|endoftext|>", "the end"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = tmp_path / "tokenizer.json"
    train = ["corpus", "train-tokenizer", source, "--vocab-size", 270, "--out", tokenizer]
    assert json_of(capsys, *train)["documents"] == 3
    prefix = tmp_path / "out" / "my corpus"
    build = ["corpus", "build", source, "--tokenizer", tokenizer, "--out", prefix, "--workers", 1]
    return prefix, tokenizer, build, json_of(capsys, *build)


def test_build_and_inspect_say_the_same(built, capsys):
    prefix, tokenizer, _, result = built
    found = json_of(capsys, "corpus", "inspect", prefix, "--tokenizer", tokenizer)
    for key in ("format", "dtype", "documents", "empty_documents", "skipped_documents", "tokens",
                "max_token", "vocab_size", "borders", "problems"):  # fmt: skip
        assert found[key] == result[key], key
    assert (found["format"], found["documents"], found["empty_documents"]) == ("megatron", 4, 1)
    assert found["borders"] == "known"
    assert found["vocab_source"] == "tokenizer"
    assert found["problems"] == []
    assert found["fingerprint"] == open_corpus(prefix).fingerprint
    assert {"token": 0, "count": 3, "text": "<|endoftext|>"} in found["top_tokens"]


def test_lines_for_people(built, capsys):
    prefix, tokenizer, _, _ = built
    assert run(["corpus", "inspect", str(prefix), "--tokenizer", str(tokenizer)]) == 0
    out = capsys.readouterr().out
    assert "4 (1 empty, 0 skipped)" in out
    assert "<|endoftext|>" in out


def test_build_refuses_to_overwrite_and_to_guess(built, capsys, tmp_path):
    _, _, build, _ = built
    assert "pass --overwrite" in error_of(capsys, *build)
    assert json_of(capsys, *build, "--overwrite")["documents"] == 4
    assert "no token '</s>'" in error_of(capsys, *build, "--overwrite", "--eod-token", "</s>")
    missing = error_of(capsys, "corpus", "build", tmp_path / "none", *build[3:])
    assert "not found" in missing


def test_another_tokenizer_is_refused(built, capsys, tmp_path):
    prefix, tokenizer, *_ = built
    other = json.loads(tokenizer.read_text())
    other["model"]["merges"] = other["model"]["merges"][:-1]
    (tmp_path / "other.json").write_text(json.dumps(other))
    line = error_of(capsys, "corpus", "inspect", prefix, "--tokenizer", tmp_path / "other.json")
    assert "made with the tokenizer" in line


def test_percentiles_counts_and_extremes(tmp_path):
    prefix = write_corpus(tmp_path, [[1] * at for at in range(101)] + [[5, 5, 2]])
    found = inspect_corpus(prefix, top=2)
    assert found["length_percentiles"]["p0"] == 0
    assert found["length_percentiles"]["p100"] == 100
    assert found["length_percentiles"]["p50"] in (49, 50)
    assert found["top_tokens"] == [
        {"token": 1, "count": 5050, "text": None},
        {"token": 5, "count": 2, "text": None},
    ]
    assert (found["min_token"], found["max_token"], found["distinct_tokens"]) == (1, 5, 3)


def test_blocks_do_not_change_what_is_found(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    prefix = write_corpus(tmp_path, [rng.integers(0, 60, 50).tolist() for _ in range(20)])
    options = InputOptions(vocab_size=40)
    whole = inspect_corpus(prefix, options)
    monkeypatch.setattr(inspection, "_BLOCK", 7)
    assert inspect_corpus(prefix, options) == whole


class TestProblems:
    def test_ids_outside_the_vocabulary_are_named(self, tmp_path):
        prefix = write_corpus(tmp_path, [[1, 2], [], [3, 9, 9]])
        (problem,) = inspect_corpus(prefix, InputOptions(vocab_size=9))["problems"]
        assert f"{prefix}: id 9 at document 2, position 1 is outside the vocabulary of 9" in problem
        assert "(2 such ids)" in problem

    def test_negative_ids(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(np.array([1, -5, 3], "<i4").tobytes())
        found = inspect_corpus(path, InputOptions(dtype="int32", eod=3))
        assert "id -5 at document 0, position 1 is negative" in found["problems"][0]
        assert found["top_tokens"] == [
            {"token": 1, "count": 1, "text": None},
            {"token": 3, "count": 1, "text": None},
        ]

    def test_one_wild_id_costs_no_memory(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(np.array([1, 2**32 - 1, 3], "<u4").tobytes())
        found = inspect_corpus(path, InputOptions(dtype="uint32", eod=3))
        assert "ids reach 4294967295" in found["problems"][0]
        assert found["max_token"] == 2**32 - 1

    def test_borders_end_tokens_and_emptiness(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(np.array([1, 2], "<u2").tobytes())
        found = inspect_corpus(path, InputOptions(dtype="uint16"))
        assert found["borders"] == "unknown"
        assert "borders unknown" in found["problems"][0]
        found = inspect_corpus(path, InputOptions(dtype="uint16", eod=7))
        assert "the end token 7 never occurs" in found["problems"][-1]
        empty = inspect_corpus(write_corpus(tmp_path, [[], []]))
        assert (empty["max_token"], empty["tokens"], empty["empty_documents"]) == (None, 0, 2)
        assert "every document is empty" in empty["problems"][0]
        assert inspect_corpus(write_corpus(tmp_path, []))["problems"] == ["no documents"]

    def test_the_same_file_twice(self, tmp_path):
        prefix = write_corpus(tmp_path, [[1, 2]])
        found = inspect_corpus([prefix, prefix])
        assert found["tokens"] == 4
        assert "given twice" in found["problems"][0]


class TestOptions:
    def test_flat_file_by_its_options(self, tmp_path, capsys):
        path = tmp_path / "pile.bin"
        path.write_bytes(np.array([5, 6, 0, 7], "<u2").tobytes())
        found = json_of(capsys, "corpus", "inspect", path, "--dtype", "uint16", "--eod", 0)
        assert (found["documents"], found["borders"], found["eod"]) == (2, "known", 0)
        assert "--dtype" in error_of(capsys, "corpus", "inspect", path)
        assert "uint16" in error_of(
            capsys, "corpus", "inspect", path, "--dtype", "uint16", "--vocab-size", 151936
        )

    def test_special_ids_or_a_tokenizer(self, built, capsys, tmp_path):
        prefix, tokenizer, *_ = built
        found = json_of(capsys, "corpus", "inspect", prefix, "--special", "4, 5")
        assert found["special"] == [0, 4, 5]
        found = json_of(capsys, "corpus", "inspect", prefix, "--special", tokenizer)
        assert found["special"] == [0]
        assert "neither token ids" in error_of(
            capsys, "corpus", "inspect", prefix, "--special", "x"
        )

    def test_a_size_and_a_tokenizer_are_one_too_many(self, built, capsys):
        prefix, tokenizer, *_ = built
        arguments = ["corpus", "inspect", prefix, "--vocab-size", 9, "--tokenizer", tokenizer]
        assert "both" in error_of(capsys, *arguments)

    def test_what_is_not_there(self, tmp_path, capsys):
        assert "not found" in error_of(capsys, "corpus", "inspect", tmp_path / "none")
        (tmp_path / "half.idx").write_bytes(b"MMIDIDX\0\0")
        line = error_of(capsys, "corpus", "inspect", tmp_path / "half")
        assert "half.bin: not found" in line
