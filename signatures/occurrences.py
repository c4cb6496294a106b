"""Occurrences of anchors on scratch disk: what one partition lists, before anything is added up.

An occurrence partial named P is some ``P.NAME.npy`` arrays, mapped when they are read, and
``P.npz``, written last, which says what they add up to. All are written aside and renamed, so a
task that runs twice, even at the same time, leaves the same partial.

Shapes: I items, H hits in order of their rows, R rows that have any, A anchors, T tokens.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from signatures.kernels import Int64s, Ints
from signatures.partials import write_all

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OccurrenceRecord:
    """What a partial adds up to; small and picklable."""

    hits: int
    """Occurrences whose context has context tokens."""
    pairs: int
    """Occurrences of anchors with a label."""
    increments: int
    """Sum of the sizes of all contexts, at most: the work of adding them up."""
    tokens: int
    fingerprint: int
    dropped_fingerprint: int
    lengths: tuple[int, int]
    """Items and rows."""


class OccurrencePartial:
    """A finished partial; arrays are mapped when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.with_name(path.name + ".npz").open("rb") as index, np.load(index) as file:
            self.occurrences_A: Int64s = file["occurrences"]
            self.dropped_A: Int64s = file["dropped"]
            self.tokens_T: npt.NDArray[np.uint32] = file["tokens"]
            self.token_counts_T: Int64s = file["token_counts"]
            facts = json.loads(str(file["facts"]))
        self.sizes: dict[str, int] = facts["sizes"]
        record = facts["record"]
        self.record = OccurrenceRecord(**record | {"lengths": tuple(record["lengths"])})

    @cached_property
    def rows_R(self) -> Int64s:
        """Rows with hits, ascending."""
        return self._map("rows")

    @cached_property
    def ends_R(self) -> Int64s:
        """Exclusive end of each row's hits."""
        return self._map("ends")

    @cached_property
    def sizes_R(self) -> Int64s:
        """Sum of the sizes of each row's contexts, at most."""
        return self._map("sizes")

    @cached_property
    def items_I(self) -> Ints:
        """Numbers of context tokens, list after list."""
        return self._map("items")

    @cached_property
    def links_I(self) -> npt.NDArray[np.uint32]:
        """Where the list of an item begins; with a window, where its token stood before."""
        return self._map("links")

    @cached_property
    def lasts_H(self) -> npt.NDArray[np.uint32]:
        """Last item of each hit's context."""
        return self._map("lasts")

    @cached_property
    def firsts_H(self) -> npt.NDArray[np.uint32]:
        """First item of each hit's window."""
        return self._map("firsts")

    def span(self, first_row: int, last_row: int) -> tuple[slice, int, int]:
        """Which of ``rows_R`` lie in the range of rows, and from which hit to which."""
        low, high = np.searchsorted(self.rows_R, [first_row, last_row])
        start = int(self.ends_R[low - 1]) if low else 0
        return slice(int(low), int(high)), start, int(self.ends_R[high - 1]) if high else 0

    def file(self, name: str) -> Path:
        """Path of one array."""
        return self._path.with_name(f"{self._path.name}.{name}.npy")

    def _map(self, name: str) -> Array:
        mode: Literal["r"] | None = "r" if self.sizes[name] else None  # nothing cannot be mapped
        array: Array = np.asarray(np.load(self.file(name), mmap_mode=mode))
        return array


def finished_occurrences(path: Path) -> OccurrenceRecord | None:
    """Record of the partial at ``path``, or None unless all of it is there."""
    try:
        partial = OccurrencePartial(path)
        for name, size in partial.sizes.items():
            array = partial._map(name)  # maps it: a file that is cut short is refused
            if array.nbytes != size:
                return None
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile):
        return None
    return partial.record


def write_occurrences(
    path: Path,
    record: OccurrenceRecord,
    arrays: Mapping[str, Array],
    *,
    occurrences_A: Int64s,
    dropped_A: Int64s,
    token_counts_V: Int64s,
) -> None:
    """Write all arrays, then the index; whatever goes wrong, no temporary file stays behind."""
    mark = f".{uuid.uuid4().hex}.tmp"
    names = [f"{path.name}.{name}.npy" for name in arrays] + [f"{path.name}.npz"]
    tokens = np.flatnonzero(token_counts_V)
    facts = {
        "record": asdict(record),
        "sizes": {name: array.nbytes for name, array in arrays.items()},
    }
    try:
        for name, array in zip(names, arrays.values(), strict=False):
            save_array(path.with_name(name + mark), array)
        with path.with_name(names[-1] + mark).open("xb") as index:
            np.savez(
                index,
                occurrences=occurrences_A,
                dropped=dropped_A,
                tokens=tokens.astype(np.uint32),
                token_counts=token_counts_V[tokens],
                facts=np.array(json.dumps(facts)),
            )
        for name in names:
            path.with_name(name + mark).replace(path.with_name(name))
    finally:
        for name in names:
            path.with_name(name + mark).unlink(missing_ok=True)


def save_array(path: Path, array: Array) -> None:
    """Write an ``.npy`` file; a full disk is said with its error and the file."""
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    with path.open("xb", buffering=0) as file:
        np.lib.format.write_array_header_1_0(file, header)
        if array.size:
            write_all(file, array)
