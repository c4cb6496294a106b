import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from probes.semantics import (
    CATEGORIES_ZH,
    NUMERALS_ZH,
    WEEKDAYS,
    WordSet,
    find_sets,
    structure_score,
)
from probes.tokens import TokenTexts
from tests.probe_series import write_checkpoint
from tests.stores import write_next_token
from workflows.cli import run

WORDS = [*map(str, range(8)), *(f" {day}" for day in WEEKDAYS), *NUMERALS_ZH,
         *(word for words in CATEGORIES_ZH.values() for word in words), "monday"]  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    vocab = {word: token for token, word in enumerate(WORDS)}
    Tokenizer(models.WordLevel(vocab, unk_token="0")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_sets_are_found_in_english_and_chinese(tokenizer: Path) -> None:
    counts = np.full(len(WORDS), 100)
    counts[WORDS.index("monday")] = 30
    counts[WORDS.index("三")] = 3
    found = {words.name: words for words in find_sets(TokenTexts(tokenizer), counts)}
    assert set(found) == {"numbers", "weekdays", "numerals, Chinese", "categories, Chinese"}
    assert [WORDS[token] for token in found["weekdays"].tokens] == [f" {day}" for day in WEEKDAYS]
    assert found["weekdays"].period == 7
    assert found["numerals, Chinese"].places.tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert found["categories, Chinese"].categories == tuple(CATEGORIES_ZH)


def test_command(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    documents = [generator.integers(len(WORDS), size=300).tolist() for _ in range(20)]
    write_next_token(tmp_path / "s.zarr", documents, len(WORDS))
    command = ["signatures", "semantics", str(tmp_path / "s.zarr"), "--tokenizer", str(tokenizer)]
    assert run([*command, "--out", str(tmp_path / "sem"), "--json"]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert {"numbers", "weekdays"} <= {found["set"] for found in sets}
    assert all(0 < row["p"] <= 1 for found in sets for row in found["scores"])
    assert (tmp_path / "sem" / "weekdays.svg").is_file()
    assert run([*command, "--out", str(tmp_path / "sem")]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoints", "{0}", "{1}"],
        ["--checkpoints", "{0}", "--checkpoints", "{1}"],
        ["--checkpoints", "{0}", "{1}", "--json"],
    ],
)
def test_several_checkpoints_after_one_flag_or_after_each(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    sources = scored_checkpoints(tokenizer, tmp_path)
    given = [flag.format(*sources) for flag in flags]
    command = ["signatures", "semantics", str(tmp_path / "s.zarr"), *given, "--tokenizer",
               str(tokenizer), "--out", str(tmp_path / "sem"), "--json"]  # fmt: skip
    assert run(command) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert all(len(found["scores"]) == 3 for found in sets)


def test_the_store_may_stand_behind_other_options(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = map(str, scored_checkpoints(tokenizer, tmp_path))
    command = ["signatures", "semantics", "--json", "--tokenizer", str(tokenizer),
               str(tmp_path / "s.zarr"), "--out", str(tmp_path / "sem"),
               "--checkpoints"]  # fmt: skip
    assert run([*command, *sources]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert all(len(found["scores"]) == 3 for found in sets)


def test_one_checkpoint_may_stand_before_the_store(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = scored_checkpoints(tokenizer, tmp_path)
    options = ["--checkpoints", str(first), "--tokenizer", str(tokenizer), "--json"]
    command = ["signatures", "semantics", *options, "--out", str(tmp_path / "sem")]
    assert run([*command, str(tmp_path / "s.zarr")]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert all(len(found["scores"]) == 2 for found in sets)


def scored_checkpoints(tokenizer: Path, folder: Path) -> list[Path]:
    """A store, and two checkpoints of its vocabulary."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(len(WORDS), size=300).tolist() for _ in range(20)]
    write_next_token(folder / "s.zarr", documents, len(WORDS))
    return [
        write_checkpoint(
            folder, step, generator.normal(size=(len(WORDS), 16)), vocab_size=len(WORDS)
        )
        for step in (4, 8)
    ]


def words(kind: str, n: int, period: int = 0) -> WordSet:
    places = np.arange(n) if kind != "category" else np.arange(n) % 2
    return WordSet(name="x", kind=kind, tokens=np.arange(n), places=places, period=period)  # type: ignore[arg-type]


def test_a_line_is_in_order_and_a_ring_is_a_cycle() -> None:
    angle = np.arange(12) / 12 * np.pi / 2
    arc = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert structure_score(arc, words("order", 12)).value == pytest.approx(1)
    turn = np.arange(12) / 12 * 2 * np.pi
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    cycle = structure_score(ring, words("cycle", 12, period=12))
    assert cycle.value == pytest.approx(1)
    assert cycle.p == 1 / 1000
    assert structure_score(ring, words("order", 12)).value < 0.75


def test_clusters_have_a_silhouette_near_one() -> None:
    generator = np.random.default_rng(0)
    centres = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    rows = centres[np.arange(10) % 2] + generator.normal(scale=0.01, size=(10, 3))
    found = structure_score(rows, words("category", 10))
    assert found.value > 0.95
    assert found.p < 0.02


def test_nothing_is_found_in_noise_more_often_than_p_says() -> None:
    generator = np.random.default_rng(1)
    p = [
        structure_score(generator.normal(size=(7, 20)), words("cycle", 7, 7), permutations=99).p
        for _ in range(200)
    ]
    assert np.mean(np.array(p) <= 0.1) < 0.1 + 4 * np.sqrt(0.1 * 0.9 / 200)


def test_equal_rows_have_no_score() -> None:
    found = structure_score(np.ones((6, 3)), words("order", 6))
    assert np.isnan(found.value)
    assert np.isnan(found.p)
