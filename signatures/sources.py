"""What can be merged: partials on scratch and matrices of finished stores, seen alike.

A reference to a source is small and travels to workers; `open_source` opens it there.

Shapes: R rows that have entries, E entries.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from signatures.kernels import Ints
from signatures.layout import EVEN
from signatures.matrix import StoredCounts
from signatures.partials import Partial, row_dtype
from signatures.store import open_signatures


@dataclass(frozen=True, slots=True)
class StoreMatrix:
    """One matrix of a complete store."""

    store: Path
    name: str


Reference = Path | StoreMatrix
"""Of a partial, or of a matrix in a store."""


class Source(Protocol):
    """Sparse counts on disk, read by ranges of rows."""

    rows_R: Ints
    """Rows with entries, ascending."""
    entries_R: npt.NDArray[np.uint32]
    """Entries of each."""
    total: int
    """No less than the sum of all counts."""
    column_dtype: np.dtype[Any]
    count_dtype: np.dtype[Any]

    def span(self, first_row: int, last_row: int) -> tuple[slice, int, int]:
        """Which of ``rows_R`` lie in the range of rows, and from which entry to which."""

    def columns(self, start: int, out_E: Ints) -> None:
        """Read columns of entries from ``start`` on into ``out_E``."""

    def counts(self, start: int, out_E: Ints) -> None:
        """Read counts of entries from ``start`` on into ``out_E``."""


class StoreSource:
    """A matrix of a store as a source."""

    def __init__(self, reference: StoreMatrix) -> None:
        signatures = open_signatures(reference.store)
        if reference.name == EVEN:
            signatures = signatures.half("even")
        stored = signatures.counts
        assert isinstance(stored, StoredCounts), "one store, and no odd half"
        self._stored = stored
        self._indptr_R1 = stored.indptr[0 : stored.shape[0] + 1].astype(np.int64)
        entries = np.diff(self._indptr_R1)
        self.rows_R: Ints = np.flatnonzero(entries).astype(row_dtype(entries.size))
        self.entries_R = entries[self.rows_R].astype(np.uint32)
        self.total = signatures.spec.totals.pairs
        self.column_dtype: np.dtype[Any] = np.dtype(np.uint32)
        self.count_dtype: np.dtype[Any] = np.dtype(
            np.uint32 if stored.data.dtype.itemsize == 4 else np.uint64
        )

    def span(self, first_row: int, last_row: int) -> tuple[slice, int, int]:
        """Which of ``rows_R`` lie in the range of rows, and from which entry to which."""
        low, high = np.searchsorted(self.rows_R, [first_row, last_row])
        last = self._indptr_R1.size - 1
        start, stop = (int(self._indptr_R1[min(row, last)]) for row in (first_row, last_row))
        return slice(int(low), int(high)), start, stop

    def columns(self, start: int, out_E: Ints) -> None:
        """Read columns of entries from ``start`` on into ``out_E``."""
        out_E[:] = self._stored.indices[start : start + out_E.size]

    def counts(self, start: int, out_E: Ints) -> None:
        """Read counts of entries from ``start`` on into ``out_E``."""
        out_E[:] = self._stored.data[start : start + out_E.size]


def open_source(reference: Reference) -> Source:
    """Open a partial or a matrix of a store."""
    if isinstance(reference, StoreMatrix):
        return StoreSource(reference)
    return Partial(reference)
