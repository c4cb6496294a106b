"""The commands of `staircase signatures`, as a user runs them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
from scipy.sparse import load_npz
from test_store_kinds import write_first_order, write_projected
from tokenizers import Tokenizer, models, pre_tokenizers

from corpus.tokenizer import tokenizer_hash
from workflows.cli import run

DOCUMENTS = [[0, 2, 1, 2, 0, 3], [1, 2, 3, 3], [4, 3, 4, 4], []]
VOCAB = 6


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "s.zarr"
    stores.write_next_token(path, DOCUMENTS, VOCAB, halves=True, eod=4, special=(4,))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"the": 0, "a": 1, "cat": 2, "sat": 3, "7": 4, "?": 5}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    assert run(["signatures", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run what must fail as the user's error, and return its one line."""
    assert run(["signatures", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert "Traceback" not in captured.err
    assert lines[-1].startswith("staircase: ")
    return lines[-1]


def test_inspect_prints_the_root_attribute(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    found = run_json(capsys, "inspect", out)
    root = json.loads((out / "zarr.json").read_text())["attributes"]["staircase"]
    assert {key: found[key] for key in root} == root
    assert found["totals"]["tokens"] == 14
    assert found["totals"]["empty_documents"] == 1
    assert found["matrices"]["counts"]["shape"] == [VOCAB, VOCAB]
    assert found["fingerprint"] > 0
    assert run(["signatures", "inspect", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "totals.tokens  14" in lines
    assert "kind  next-token" in lines


def test_verify_says_ok_or_what_is_wrong(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    assert run_json(capsys, "verify", out) == {"ok": True, "problems": []}
    assert run(["signatures", "verify", str(out)]) == 0
    assert "sound" in capsys.readouterr().out
    (out / "counts/data/c/0").unlink()
    found = run_json(capsys, "verify", out, code=1)
    assert found["ok"] is False
    assert "array counts/data, shard 0 is missing" in found["problems"][0]
    assert run(["signatures", "verify", str(out)]) == 1
    assert "1 problem(s)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "verify", "neighbors", "export"])
def test_a_path_without_a_store_is_the_users_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    more: list[Any] = {"neighbors": ["1"], "export": ["--out", tmp_path / "e.npz"]}.get(command, [])
    assert "no such store" in complaint(capsys, command, tmp_path / "none.zarr", *more)
    if command != "verify":
        (tmp_path / "none.zarr").write_text("")
        assert "a file; a signature store" in complaint(
            capsys, command, tmp_path / "none.zarr", *more
        )


def test_export_is_what_scipy_reads(
    capsys: pytest.CaptureFixture[str], out: Path, tmp_path: Path
) -> None:
    file = tmp_path / "counts.npz"
    found = run_json(capsys, "export", out, "--out", file)
    counts = stores.pair_counts(DOCUMENTS, VOCAB)
    assert found["entries"] == counts.nnz
    loaded = load_npz(file)
    assert loaded.dtype == np.uint32
    assert (loaded.toarray() == counts.toarray()).all()
    assert "choose another --out" in complaint(capsys, "export", out, "--out", file)
    assert "end in .npz" in complaint(capsys, "export", out, "--out", tmp_path / "counts.csv")
    wrong = complaint(capsys, "export", out, "--out", tmp_path / "x.npz", "--anchor", 1)
    assert "first-order store is needed" in wrong
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts.npz", "s.zarr"]


def test_export_of_an_anchor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = tmp_path / "f.zarr"
    options: dict[str, Any] = {"vocab_size": 4, "anchors": (2, 1), "context": (3, 1, 2)}
    write_first_order(first, [[1, 2, 1, 3]], **options)
    run_json(capsys, "export", first, "--out", tmp_path / "a.npz", "--anchor", 1)
    assert load_npz(tmp_path / "a.npz").toarray()[3].tolist() == [0, 1, 1]
    run_json(capsys, "export", first, "--out", tmp_path / "all.npz")
    assert load_npz(tmp_path / "all.npz").shape == (8, 3)
    assert "not among the 2 anchors" in complaint(
        capsys, "export", first, "--out", tmp_path / "b.npz", "--anchor", 3
    )
    write_projected(tmp_path / "p.zarr")
    assert "no matrix of counts" in complaint(
        capsys, "export", tmp_path / "p.zarr", "--out", tmp_path / "b.npz"
    )


def test_neighbors_are_the_largest_cosines(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    counts = stores.pair_counts(DOCUMENTS, VOCAB).toarray().astype(float)
    for token in range(5):
        found = run_json(capsys, "neighbors", out, token, "--top", 3)
        cosines = {
            other: counts[token]
            @ counts[other]
            / np.linalg.norm(counts[token])
            / np.linalg.norm(counts[other])
            for other in range(5)
            if other != token
        }
        expected = sorted(cosines, key=lambda t: (-round(cosines[t], 12), t))[:3]
        assert [row["token"] for row in found] == expected
        assert np.allclose([row["cosine"] for row in found], [cosines[t] for t in expected])
        assert {row["text"] for row in found} == {None}
    assert "token 5 is never followed" in complaint(capsys, "neighbors", out, 5)
    assert "6 is asked for, ids 0 to 5" in complaint(capsys, "neighbors", out, 6)
    assert "for text name a --tokenizer" in complaint(capsys, "neighbors", out, "cat")


def test_neighbors_of_equal_rows_tie_by_id(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "ties.zarr"
    documents = [[row, label] for row in (3, 1, 2) for label in (0, 4, 5) for _ in range(row)]
    stores.write_next_token(path, documents, VOCAB)
    found = run_json(capsys, "neighbors", path, 2)
    assert [row["token"] for row in found] == [1, 3]
    assert all(1 - 1e-15 <= row["cosine"] <= 1 for row in found)


def test_neighbors_by_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tokenizer: Path
) -> None:
    path = tmp_path / "text.zarr"
    stores.write_next_token(path, DOCUMENTS, VOCAB, tokenizer=tokenizer_hash(tokenizer))
    found = run_json(capsys, "neighbors", path, "cat", "--tokenizer", tokenizer)
    same = run_json(capsys, "neighbors", path, "2", "--tokenizer", tokenizer)
    assert found == same
    words = Tokenizer.from_file(str(tokenizer))
    assert [row["text"] for row in found] == [words.decode([row["token"]]) for row in found]
    assert "'the cat' is 2 tokens" in complaint(
        capsys, "neighbors", path, "the cat", "--tokenizer", tokenizer
    )
    other = tmp_path / "other.zarr"
    stores.write_next_token(other, DOCUMENTS, VOCAB, tokenizer="0" * 64)
    assert "counted with 000000000000" in complaint(
        capsys, "neighbors", other, "cat", "--tokenizer", tokenizer
    )
    assert run(["signatures", "neighbors", str(path), "cat", "--tokenizer", str(tokenizer)]) == 0
    assert "'sat'" in capsys.readouterr().out


def test_merge_adds_corpora(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    for path, documents in zip(paths, (DOCUMENTS, DOCUMENTS[:1]), strict=True):
        stores.write_next_token(path, documents, VOCAB)
    merged = tmp_path / "m.zarr"
    result = run_json(capsys, "merge", *paths, "--out", merged, "--workers", 1)
    assert result["tokens"] == 20
    run_json(capsys, "verify", merged)
    run_json(capsys, "export", merged, "--out", tmp_path / "m.npz")
    expected = stores.pair_counts([*DOCUMENTS, DOCUMENTS[0]], VOCAB).toarray()
    assert (load_npz(tmp_path / "m.npz").toarray() == expected).all()
    assert "pass --overwrite" in complaint(capsys, "merge", *paths, "--out", merged)
