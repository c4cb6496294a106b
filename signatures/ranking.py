"""Which tokens a user means by ``top:N``, ``rank:A-B``, ``all`` or a file of ids."""

import re
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from signatures.layout import IntArray
from signatures.spec import StoreSpec

Int64s = npt.NDArray[np.int64]


class Counted(Protocol):
    """Anything that knows how often each token occurs, such as `Signatures`."""

    @property
    def spec(self) -> StoreSpec:
        """Names the special tokens."""

    @property
    def token_counts(self) -> Int64s:
        """Occurrences of each token: (V,)."""


def top_tokens(
    signatures_or_counts: Counted | IntArray, which: str, *, special: tuple[int, ...] = ()
) -> Int64s:
    """Token ids that ``which`` names.

    Parameters
    ----------
    signatures_or_counts : Signatures, or integers (V,)
        Occurrences of each token; signatures also say which tokens are special.
    which : str
        ``top:N``: at most the N most frequent eligible tokens. ``rank:A-B``: those of ranks A to
        B, from 1, inclusive. ``all``: every id below V. Else a file, one id a line.
    special : tuple of int
        Ids that are not eligible, besides those of the signatures.

    Returns
    -------
    int64 (N,)
        By falling count, ties by rising id; for ``all`` and files, in their own order.

    Raises
    ------
    ValueError
        A word that means nothing, ranks beyond the eligible tokens, or a bad line of the file.
    FileNotFoundError
        ``which`` is neither a form above nor a file.

    Notes
    -----
    Eligible is every token that occurs, less special tokens (end of document included).
    """
    if isinstance(signatures_or_counts, np.ndarray):
        counts_V = signatures_or_counts
    else:
        counts_V = signatures_or_counts.token_counts
        special = (*special, *signatures_or_counts.spec.special)
    if which == "all":
        return np.arange(counts_V.size, dtype=np.int64)
    if match := re.fullmatch(r"top:(\d+)", which):
        return _ranked(counts_V, special)[: _positive(int(match[1]), which)]
    if match := re.fullmatch(r"rank:(\d+)-(\d+)", which):
        return _rank_range(_ranked(counts_V, special), int(match[1]), int(match[2]), which)
    if which.startswith(("top:", "rank:")):
        raise ValueError(f"{which!r} is not understood; write top:200 or rank:1-200")
    return _read_ids(Path(which), counts_V.size)


def _ranked(counts_V: IntArray, special: tuple[int, ...]) -> Int64s:
    """Return the eligible ids, most frequent first, ties by rising id."""
    eligible_V = counts_V > 0
    eligible_V[list(special)] = False
    ids = np.flatnonzero(eligible_V)
    falling = np.lexsort((ids, -counts_V[ids].astype(np.int64)))
    return ids[falling].astype(np.int64)


def _rank_range(ranked: Int64s, first: int, last: int, which: str) -> Int64s:
    if not 1 <= first <= last:
        raise ValueError(f"{which!r}: ranks count from 1 and rise, such as rank:1-200")
    if last > ranked.size:
        raise ValueError(
            f"{which!r}: rank {last} is asked for, only {ranked.size} eligible tokens occur "
            "(special tokens are left out)"
        )
    return ranked[first - 1 : last]


def _positive(number: int, which: str) -> int:
    if number < 1:
        raise ValueError(f"{which!r} names no token; at least top:1 is needed")
    return number


def _read_ids(path: Path, vocab_size: int) -> Int64s:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; tokens are named by top:N, rank:A-B, all, or a file with one "
            "token id a line"
        )
    seen: dict[int, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        where = f"{path}, line {number}"
        if not re.fullmatch(r"\d+", text, re.ASCII):
            raise ValueError(f"{where}: found {text[:40]!r}, a token id is needed")
        token = int(text)
        if token >= vocab_size:
            raise ValueError(f"{where}: id {token} is not below the vocabulary size {vocab_size}")
        if token in seen:
            raise ValueError(f"{where}: id {token} stands in line {seen[token]} already")
        seen[token] = number
    if not seen:
        raise ValueError(f"{path}: holds no token id; one a line is needed")
    return np.fromiter(seen, np.int64, len(seen))
