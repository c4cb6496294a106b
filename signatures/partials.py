"""Sparse counts on scratch disk: one partial per partition, and what they merge into.

A partial named P is three files: ``P.columns`` and ``P.counts`` hold the entries row by row, and
``P.npz``, written last, says which rows they belong to. All are written aside and renamed, so a
task that runs twice, even at the same time, leaves the same partial.

Nearly all counts are small: 16 bits of each lie in ``P.counts``, and ``P.npz`` has the places and
the counts of those that need more.

Shapes: E entries, L large counts, R rows that have any, T tokens that occur.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from signatures.kernels import Int64s, Ints
from signatures.keys import MODULUS, Keys

_NARROW = np.dtype(np.uint16)
_BUFFER = 1 << 18  # elements that are widened at a time: in cache


@dataclass(frozen=True, slots=True)
class PartialRecord:
    """What a partial adds up to; small and picklable."""

    entries: int
    total: int
    """Sum of the counts: pairs."""
    largest: int
    """Largest count."""
    fingerprint: int
    """Of the counts, as in the store; additive over partials."""
    tokens: int
    """Positions counted in ``token_counts``."""


class Partial:
    """A finished partial, read by rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _index(path).open("rb") as index, np.load(index) as file:
            self.rows_R: Ints = file["rows"]
            self.entries_R: npt.NDArray[np.uint32] = file["entries"]
            self.tokens_T: npt.NDArray[np.uint32] = file["tokens"]
            self.token_counts_T: Int64s = file["token_counts"]
            self._large_places_L: Int64s = file["large_places"]
            self._large_counts_L: npt.NDArray[np.uint64] = file["large_counts"]
            facts = json.loads(str(file["facts"]))
        self.record = PartialRecord(**facts["record"])
        self.total = self.record.total
        self.column_dtype = np.dtype(facts["column_dtype"])
        self.count_dtype = np.dtype(facts["count_dtype"])  # holds every count
        self._ends_R = np.cumsum(self.entries_R, dtype=np.int64)

    def span(self, first_row: int, last_row: int) -> tuple[slice, int, int]:
        """Which of ``rows_R`` lie in the range of rows, and from which entry to which."""
        low, high = np.searchsorted(self.rows_R, [first_row, last_row])
        start = int(self._ends_R[low - 1]) if low else 0
        return slice(int(low), int(high)), start, int(self._ends_R[high - 1]) if high else 0

    def columns(self, start: int, out_E: Ints) -> None:
        """Read columns of entries from ``start`` on into ``out_E``, which may be wider."""
        _read_into(_columns(self._path), self.column_dtype, start, out_E)

    def counts(self, start: int, out_E: Ints) -> None:
        """Read counts of entries from ``start`` on into ``out_E``, which must be wide enough."""
        _read_into(_counts(self._path), _NARROW, start, out_E)
        low, high = np.searchsorted(self._large_places_L, [start, start + out_E.size])
        out_E[self._large_places_L[low:high] - start] = self._large_counts_L[low:high]


def finished(path: Path) -> PartialRecord | None:
    """Record of the partial at ``path``, or None unless all of it is there."""
    try:
        partial = Partial(path)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    for file, dtype in (
        (_columns(path), partial.column_dtype),
        (_counts(path), _NARROW),
    ):
        with suppress(FileNotFoundError):
            if file.stat().st_size == partial.record.entries * dtype.itemsize:
                continue
        return None
    return partial.record


class PartialWriter:
    """Takes entries in row order; `finish` makes the partial whole."""

    def __init__(
        self,
        path: Path,
        rows: tuple[int, int],
        keys: Keys,
        column_dtype: npt.DTypeLike,
        count_dtype: npt.DTypeLike,
    ) -> None:
        self._path = path
        self._first_row = rows[0]
        self._keys = keys
        self._mark = f".{uuid.uuid4().hex}.tmp"
        self._column_dtype = np.dtype(column_dtype)
        self._count_dtype = np.dtype(count_dtype)
        self._entries_R = np.zeros(rows[1] - rows[0], np.int64)
        self._total = self._largest = self._fingerprint = self._entries = 0
        self._large_places: list[Int64s] = []
        self._large_counts: list[npt.NDArray[np.uint64]] = []
        self._files: list[IO[bytes]] = []

    def open(self) -> None:
        """Create the two files of entries, under temporary names."""
        for path in (_columns(self._path), _counts(self._path)):
            self._files.append(self._aside(path).open("xb", buffering=0))

    def append(self, first_row: int, entries_R: Int64s, columns_E: Ints, counts_E: Ints) -> None:
        """Write the entries of the rows from ``first_row`` on."""
        place = first_row - self._first_row
        self._entries_R[place : place + entries_R.size] = entries_R
        indptr_R1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(entries_R)])
        self._fingerprint += self._keys.fingerprint(first_row, indptr_R1, columns_E, counts_E)
        self._total += int(counts_E.sum(dtype=np.uint64))
        largest = int(counts_E.max(initial=0))
        self._largest = max(self._largest, largest)
        if largest > np.iinfo(_NARROW).max:
            large = np.flatnonzero(counts_E > np.iinfo(_NARROW).max)
            self._large_places.append(large + self._entries)
            self._large_counts.append(counts_E[large].astype(np.uint64))
        self._entries += counts_E.size
        write_all(self._files[0], columns_E.astype(self._column_dtype, copy=False))
        write_all(self._files[1], counts_E.astype(_NARROW))

    def finish(self, token_counts_V: Int64s | None = None) -> PartialRecord:
        """Close, rename, and write the index last."""
        token_counts_V = np.empty(0, np.int64) if token_counts_V is None else token_counts_V
        for file in self._files:
            file.close()
        record = PartialRecord(
            entries=int(self._entries_R.sum()),
            total=self._total,
            largest=self._largest,
            fingerprint=self._fingerprint % MODULUS,
            tokens=int(token_counts_V.sum()),
        )
        rows, tokens = np.flatnonzero(self._entries_R), np.flatnonzero(token_counts_V)
        last_row = self._first_row + self._entries_R.size
        facts = {
            "record": asdict(record),
            "column_dtype": self._column_dtype.name,
            "count_dtype": self._count_dtype.name,
        }
        with self._aside(_index(self._path)).open("xb") as index:
            np.savez(
                index,
                rows=(rows + self._first_row).astype(row_dtype(last_row)),
                entries=self._entries_R[rows].astype(np.uint32),
                tokens=tokens.astype(np.uint32),
                token_counts=token_counts_V[tokens],
                large_places=np.concatenate([*self._large_places, np.empty(0, np.int64)]),
                large_counts=np.concatenate([*self._large_counts, np.empty(0, np.uint64)]),
                facts=np.array(json.dumps(facts)),
            )
        for path in (_columns(self._path), _counts(self._path), _index(self._path)):
            self._aside(path).replace(path)
        return record

    def discard(self) -> None:
        """Close and remove what was not finished."""
        for file in self._files:
            file.close()
        for path in (_columns(self._path), _counts(self._path), _index(self._path)):
            self._aside(path).unlink(missing_ok=True)

    def _aside(self, path: Path) -> Path:
        return path.with_name(path.name + self._mark)


@contextmanager
def writing(
    path: Path,
    rows: tuple[int, int],
    keys: Keys,
    column_dtype: npt.DTypeLike,
    count_dtype: npt.DTypeLike,
) -> Iterator[PartialWriter]:
    """Open a writer of some rows; whatever goes wrong, no temporary file stays behind."""
    writer = PartialWriter(path, rows, keys, column_dtype, count_dtype)
    try:
        writer.open()
        yield writer
    finally:
        writer.discard()


def row_dtype(last_row: int) -> np.dtype[Any]:
    """Narrowest of two integers that holds the numbers of rows below ``last_row``."""
    return np.dtype(np.uint32 if last_row <= 2**32 else np.int64)


def _columns(path: Path) -> Path:
    return path.with_name(path.name + ".columns")


def _counts(path: Path) -> Path:
    return path.with_name(path.name + ".counts")


def _index(path: Path) -> Path:
    return path.with_name(path.name + ".npz")


def _read_into(path: Path, dtype: np.dtype[Any], start: int, out_E: Ints) -> None:
    """Read elements of ``dtype`` from ``start`` on, through a buffer if ``out_E`` is wider."""
    narrow = None if dtype == out_E.dtype else np.empty(min(_BUFFER, out_E.size), dtype)
    with path.open("rb", buffering=0) as file:
        file.seek(start * dtype.itemsize)
        if narrow is None:
            _read_all(file, path, out_E)
            return
        for at in range(0, out_E.size, _BUFFER):
            piece = narrow[: out_E.size - at]
            _read_all(file, path, piece)
            out_E[at : at + piece.size] = piece


def _read_all(file: FileIO, path: Path, out_E: Ints) -> None:
    view = out_E.data.cast("B")
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise RuntimeError(
                f"{path}: cut short at {file.tell()} bytes; scratch files were altered while "
                "they were in use: start again with --overwrite"
            )
        done += got


def write_all(file: IO[bytes], values: npt.NDArray[Any]) -> None:
    """Write every byte: a raw write may stop short, and says a full disk with its error."""
    view = np.ascontiguousarray(values).data.cast("B")
    done = 0
    while done < len(view):
        try:
            done += file.write(view[done : done + (1 << 30)])
        except OSError as error:
            error.filename = error.filename or file.name
            raise
