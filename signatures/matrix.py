"""Matrices of counts that lie on disk: single rows, chosen rows, or a scan in bounded blocks.

Nothing here knows a file format: an ``Array`` is whatever has a shape and answers slices.

Shapes: R rows, E entries of a block, N chosen rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from signatures.kernels import grows
from signatures.layout import IntArray
from signatures.spec import SignatureFormatError

BLOCK_ENTRIES = 1 << 22
"""Entries read at a time by a scan: 32 to 64 MB in memory."""

_GAP = 1 << 17
"""Rows closer together than this many entries are read at once: an inner chunk holds more."""

_FEW_ROWS = 8
"""Up to so many rows ``indptr`` is read row by row, above it once, whole, and kept."""


class Array(Protocol):
    """A one- or two-dimensional array on disk, sliced along its first axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Width and sign of an element."""

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        """Read a contiguous part."""


class Counts(Protocol):
    """Integer counts as a sparse matrix; exact at any size."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def take(self, rows: npt.ArrayLike) -> csr_array[Any]:
        """Return the rows with these numbers, in this order."""

    def blocks(self, entries: int = BLOCK_ENTRIES) -> Iterator[tuple[int, csr_array[Any]]]:
        """Yield all rows in order, as (number of the first, matrix of some)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole rows as they lie on disk, not yet trusted."""

    first_row: int
    indptr_R1: npt.NDArray[np.int64]
    """Starts at 0."""
    indices_E: IntArray
    data_E: IntArray

    def matrix(self, columns: int) -> csr_array[Any]:
        """Return the block as a matrix of that many columns."""
        shape = (self.indptr_R1.size - 1, columns)
        return csr_array((self.data_E, self.indices_E, self.indptr_R1), shape=shape)


@dataclass(frozen=True)
class StoredCounts:
    """A CSR matrix on disk; a row costs three small reads."""

    where: str
    """Store and matrix, for messages."""
    name: str
    """Path in the store: ``counts`` or ``halves/even``."""
    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]

    @property
    def entries(self) -> int:
        """Stored counts."""
        return self.data.shape[0]

    @cached_property
    def _row_borders(self) -> npt.NDArray[np.int64]:
        """Row borders, whole, checked: they may only grow, from 0 to the number of entries."""
        indptr_R1 = self.indptr[0 : self.shape[0] + 1].astype(np.int64, copy=False)
        if indptr_R1[0] != 0 or indptr_R1[-1] != self.entries or not grows(indptr_R1):
            raise SignatureFormatError(
                f"{self.where}: indptr runs from {indptr_R1[0]} to {indptr_R1[-1]} and must grow "
                f"from 0 to {self.entries}, the entries stored; count the corpus again"
            )
        return indptr_R1

    def take(self, rows: npt.ArrayLike) -> csr_array[Any]:
        """Return the rows with these numbers; neighbouring rows are read together."""
        rows_N = _row_numbers(rows, self.shape[0])
        if rows_N.size > _FEW_ROWS and (np.diff(rows_N) == 1).all():
            return self.raw_block(int(rows_N[0]), int(rows_N[-1]) + 1).matrix(self.shape[1])
        starts_N, stops_N = self._borders(rows_N)
        lengths_N = stops_N - starts_N
        out_indptr = np.concatenate([[0], np.cumsum(lengths_N)])
        data = np.empty(out_indptr[-1], self.data.dtype)
        indices = np.empty(out_indptr[-1], self.indices.dtype)
        for start, stop, members in _joined(starts_N, stops_N):
            data_E, indices_E = self.data[start:stop], self.indices[start:stop]
            for n in members:
                source = slice(starts_N[n] - start, stops_N[n] - start)
                target = slice(out_indptr[n], out_indptr[n + 1])
                data[target], indices[target] = data_E[source], indices_E[source]
        return csr_array((data, indices, out_indptr), shape=(rows_N.size, self.shape[1]))

    def raw_blocks(self, entries: int = BLOCK_ENTRIES) -> Iterator[Block]:
        """Yield all rows in order, about ``entries`` at a time (a longer row comes whole)."""
        for first, last in self.row_ranges(entries):
            yield self.raw_block(first, last)

    def raw_block(self, first: int, last: int) -> Block:
        """Read rows ``first`` to ``last`` (exclusive)."""
        indptr_R1 = self._row_borders[first : last + 1]
        part = slice(int(indptr_R1[0]), int(indptr_R1[-1]))
        return Block(first, indptr_R1 - indptr_R1[0], self.indices[part], self.data[part])

    def row_ranges(self, entries: int = BLOCK_ENTRIES) -> list[tuple[int, int]]:
        """Cut the rows into ranges of about ``entries`` entries, and never too many rows."""
        marks = np.arange(entries, self.entries, entries)
        edges = np.searchsorted(self._row_borders, marks, side="right") - 1
        every = np.arange(0, self.shape[0], entries)
        borders = np.unique(np.concatenate([edges, every, [0, self.shape[0]]]))
        return [(int(first), int(last)) for first, last in pairwise(borders)]

    def blocks(self, entries: int = BLOCK_ENTRIES) -> Iterator[tuple[int, csr_array[Any]]]:
        """Yield all rows in order, as (number of the first, matrix of some)."""
        for block in self.raw_blocks(entries):
            yield block.first_row, block.matrix(self.shape[1])

    def _borders(
        self, rows_N: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if rows_N.size > _FEW_ROWS or "_row_borders" in self.__dict__:
            return self._row_borders[rows_N], self._row_borders[rows_N + 1]
        pairs = np.array([self.indptr[r : r + 2] for r in rows_N.tolist()], np.int64)
        starts_N, stops_N = pairs.reshape(-1, 2).T
        if (starts_N < 0).any() or (stops_N < starts_N).any() or (stops_N > self.entries).any():
            raise SignatureFormatError(
                f"{self.where}: indptr of rows {rows_N.tolist()} is {pairs.tolist()}, which must "
                f"grow within 0 to {self.entries}; count the corpus again"
            )
        return starts_N, stops_N


@dataclass(frozen=True, slots=True)
class SummedCounts:
    """Several corpora counted apart, seen as one."""

    terms: Sequence[Counts]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of every term."""
        return self.terms[0].shape

    def take(self, rows: npt.ArrayLike) -> csr_array[Any]:
        """Return the sum of the terms' rows."""
        first, *others = (_wide(term.take(rows)) for term in self.terms)
        return sum(others, start=first)

    def blocks(self, entries: int = BLOCK_ENTRIES) -> Iterator[tuple[int, csr_array[Any]]]:
        """Follow the first term's blocks and add the others' rows to them."""
        lead, *others = self.terms
        for first_row, matrix in lead.blocks(entries):
            rows = np.arange(first_row, first_row + matrix.shape[0])
            terms = (_wide(other.take(rows)) for other in others)
            yield first_row, sum(terms, start=_wide(matrix))


@dataclass(frozen=True, slots=True)
class OddCounts:
    """Counts of the odd documents (samples): the whole less the even ones."""

    whole: Counts
    even: Counts

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.whole.shape

    def take(self, rows: npt.ArrayLike) -> csr_array[Any]:
        """Return the differences of the rows, without stored zeros."""
        return _difference(self.whole.take(rows), self.even.take(rows))

    def blocks(self, entries: int = BLOCK_ENTRIES) -> Iterator[tuple[int, csr_array[Any]]]:
        """Follow the blocks of the whole."""
        for first_row, matrix in self.whole.blocks(entries):
            rows = np.arange(first_row, first_row + matrix.shape[0])
            yield first_row, _difference(matrix, self.even.take(rows))


def row_sums(matrix: csr_array[Any]) -> npt.NDArray[np.uint64]:
    """Sum of each row, exact (not through floats)."""
    return np.asarray(matrix.sum(axis=1, dtype=np.uint64), np.uint64)


def _wide(matrix: csr_array[Any]) -> csr_array[Any]:
    return matrix.astype(np.uint64, copy=False)


def _difference(whole: csr_array[Any], even: csr_array[Any]) -> csr_array[Any]:
    return csr_array(_wide(whole) - _wide(even))  # scipy keeps no zero of a difference


def _row_numbers(rows: npt.ArrayLike, num_rows: int) -> npt.NDArray[np.int64]:
    rows_N = np.atleast_1d(np.asarray(rows))
    if rows_N.size and not np.issubdtype(rows_N.dtype, np.integer):
        raise ValueError(f"ids are {rows_N.dtype}, integers are needed")
    rows_N = rows_N.astype(np.int64)
    if rows_N.size and not (rows_N.min() >= 0 and rows_N.max() < num_rows):
        wrong = rows_N[(rows_N < 0) | (rows_N >= num_rows)][0]
        raise ValueError(f"id {wrong} is asked for, ids 0 to {num_rows - 1} are stored")
    return rows_N


def _joined(
    starts_N: npt.NDArray[np.int64], stops_N: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int, list[int]]]:
    """Group the rows into reads: (first entry, last entry, the rows that lie in between)."""
    members: list[int] = []
    start = stop = 0
    for n in np.argsort(starts_N, kind="stable").tolist():
        if starts_N[n] == stops_N[n]:
            continue
        far = starts_N[n] > stop + _GAP or stop - start > BLOCK_ENTRIES
        if members and far:
            yield start, stop, members
            members = []
        if not members:
            start = stop = int(starts_N[n])
        members.append(n)
        stop = max(stop, int(stops_N[n]))
    if members:
        yield start, stop, members
