"""Which tokens top:N, rank:A-B, all and a file of ids mean."""

from pathlib import Path

import numpy as np
import pytest
import stores
from hypothesis import given
from hypothesis import strategies as st

from signatures.store import open_signatures, top_tokens

COUNTS = np.array([3, 9, 0, 3, 7, 9])


@pytest.mark.parametrize(
    ("which", "special", "expected"),
    [
        ("top:2", (), [1, 5]),
        ("top:4", (), [1, 5, 4, 0]),
        ("top:100", (), [1, 5, 4, 0, 3]),
        ("rank:2-4", (), [5, 4, 0]),
        ("rank:1-5", (), [1, 5, 4, 0, 3]),
        ("rank:5-5", (), [3]),
        ("top:2", (1, 4), [5, 0]),
        ("all", (1,), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_by_hand(which: str, special: tuple[int, ...], expected: list[int]) -> None:
    found = top_tokens(COUNTS, which, special=special)
    assert found.tolist() == expected
    assert found.dtype == np.int64


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.sets(st.integers(0, 39)))
def test_ranks_agree_with_plain_sorting(counts: list[int], some: set[int]) -> None:
    special = {token for token in some if token < len(counts)}
    eligible = [t for t in range(len(counts)) if counts[t] and t not in special]
    expected = sorted(eligible, key=lambda t: (-counts[t], t))
    array = np.array(counts)
    assert top_tokens(array, "top:1000", special=tuple(special)).tolist() == expected
    for first in range(1, len(expected) + 1):
        which = f"rank:{first}-{len(expected)}"
        assert top_tokens(array, which, special=tuple(special)).tolist() == expected[first - 1 :]
    assert array.tolist() == counts


def test_a_store_names_its_special_tokens(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[1, 1, 2, 0], [3, 2, 0]], 6, eod=0, special=(0, 3))
    assert top_tokens(open_signatures(out), "top:5").tolist() == [1, 2]


def test_a_file_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("5\n\n 2 \n0\n")
    assert top_tokens(COUNTS, str(path)).tolist() == [5, 2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\nx\n", "line 2: found 'x', a token id is needed"),
        ("1\n-2\n", "line 2: found '-2'"),
        ("1 2\n", "line 1: found '1 2'"),
        ("1\n\n6\n", "line 3: id 6 is not below the vocabulary size 6"),
        ("1\n2\n1\n", "line 3: id 1 stands in line 1 already"),
        ("\n", "holds no token id"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        top_tokens(COUNTS, str(path))


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("top:0", "names no token"),
        ("top:x", "is not understood"),
        ("rank:3", "is not understood"),
        ("rank:0-2", "ranks count from 1"),
        ("rank:3-2", "ranks count from 1"),
        ("rank:4-6", "rank 6 is asked for, only 5 eligible tokens occur"),
    ],
)
def test_a_bad_word_is_refused(which: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_tokens(COUNTS, which)


def test_a_missing_file_names_the_forms(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="top:N, rank:A-B, all, or a file"):
        top_tokens(COUNTS, str(tmp_path / "none.txt"))
