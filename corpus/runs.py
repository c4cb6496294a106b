"""Tokens that lie in many buffers: rows of arrow lists, and runs of them read as one stream.

Shapes: D rows, R runs (stretches of rows that lie end to end in one buffer).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corpus.parts import CorpusFormatError, Tokens

Ints = npt.NDArray[np.int64]
Read = Callable[[int, int], Tokens]
_NULL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where the tokens of each row lie."""

    dtype: np.dtype[np.integer[Any]]
    buffers: list[Tokens]
    buffer_D: Ints
    """Number of the row's buffer."""
    start_D: Ints
    length_D: Ints
    """-1: a null row."""

    def take(self, order: Ints) -> "Rows":
        """Rows in the order of an index map."""
        return self._at(order)

    def without_nulls(self) -> "Rows":
        """Rows that are documents."""
        return self._at(np.flatnonzero(self.length_D != _NULL))

    def _at(self, places: Ints) -> "Rows":
        return Rows(
            dtype=self.dtype,
            buffers=self.buffers,
            buffer_D=self.buffer_D[places],
            start_D=self.start_D[places],
            length_D=self.length_D[places],
        )


def join_rows(parts: Sequence[Rows], dtype: np.dtype[np.integer[Any]]) -> Rows:
    """Rows of several chunks, one behind the other; the buffers stay apart."""
    first = np.cumsum([0, *(len(part.buffers) for part in parts)])
    none = np.empty(0, np.int64)
    return Rows(
        dtype=dtype,
        buffers=[buffer for part in parts for buffer in part.buffers],
        buffer_D=np.concatenate(
            [none, *(part.buffer_D + at for part, at in zip(parts, first, strict=False))]
        ),
        start_D=np.concatenate([none, *(part.start_D for part in parts)]),
        length_D=np.concatenate([none, *(part.length_D for part in parts)]),
    )


def rows_of(chunk: pa.Array, path: Path, first_row: int) -> Rows:
    """Rows of one chunk of a list, large_list or fixed_size_list column, sliced or not.

    ``first_row`` is the number of the chunk's first row, for messages.

    Raises
    ------
    CorpusFormatError
        A null id inside a row that is not null.
    """
    values = chunk.values  # what lies under the slice and under the nulls is in it, too
    if pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        starts = (np.arange(len(chunk), dtype=np.int64) + chunk.offset) * size
        length_D = np.full(len(chunk), size, np.int64)
    else:
        offsets = chunk.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        starts, length_D = offsets[:-1], np.diff(offsets)
    if chunk.null_count:
        length_D = np.where(chunk.is_null().to_numpy(zero_copy_only=False), _NULL, length_D)
    if values.null_count:
        _refuse_null_ids(values, starts, length_D, path, first_row)
    return Rows(
        dtype=np.dtype(values.type.to_pandas_dtype()),
        buffers=[_as_numpy(values)],
        buffer_D=np.zeros(len(chunk), np.int64),
        start_D=starts,
        length_D=length_D,
    )


def _refuse_null_ids(
    values: pa.Array, starts: Ints, length_D: Ints, path: Path, first_row: int
) -> None:
    nulls = np.cumsum(np.append(0, values.is_null().to_numpy(zero_copy_only=False)))
    inside = nulls[starts + np.maximum(length_D, 0)] - nulls[starts]
    if inside.any():
        row = int(np.argmax(inside > 0))
        raise CorpusFormatError(
            f"{path}: row {first_row + row} holds a null where a token id is needed; write the "
            "column again without nulls inside its lists"
        )


def _as_numpy(values: pa.Array) -> Tokens:
    """View the values, whatever stands for the nulls among them."""
    dtype = np.dtype(values.type.to_pandas_dtype())
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


class Runs:
    """Documents as one stream; those that lie end to end in a buffer are read at once."""

    def __init__(self, rows: Rows) -> None:
        """Take rows without nulls."""
        held = np.flatnonzero(rows.length_D > 0)
        buffer, start, length = rows.buffer_D[held], rows.start_D[held], rows.length_D[held]
        goes_on = (buffer[1:] == buffer[:-1]) & (start[1:] == start[:-1] + length[:-1])
        heads = np.flatnonzero(np.concatenate([np.ones(min(1, held.size), bool), ~goes_on]))
        self.dtype = rows.dtype
        self._buffers = rows.buffers
        self._buffer_R, self._start_R = buffer[heads], start[heads]
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)])
        self._first_R = before[heads]

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens ``start`` to ``stop``: a view when one run holds them, else a copy."""
        if start == stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._first_R, start, side="right")) - 1
        last = int(np.searchsorted(self._first_R, stop, side="left"))
        edges = [start, *self._first_R[first + 1 : last].tolist(), stop]
        pieces = [self._piece(first + at, edges[at], edges[at + 1]) for at in range(len(edges) - 1)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _piece(self, run: int, start: int, stop: int) -> Tokens:
        origin = int(self._start_R[run]) - int(self._first_R[run])
        return self._buffers[int(self._buffer_R[run])][origin + start : origin + stop]


def grouped_reader(
    group_ends: Ints, load: Callable[[int], Read], dtype: np.dtype[np.integer[Any]]
) -> Read:
    """Read over groups that are loaded when they are needed; ``group_ends`` are exclusive."""
    starts = np.concatenate([np.zeros(1, np.int64), group_ends])

    def read(start: int, stop: int) -> Tokens:
        pieces = [np.empty(0, dtype)]
        group = int(np.searchsorted(group_ends, start, side="right"))
        while start < stop:
            end = min(stop, int(group_ends[group]))
            if end > start:
                origin = int(starts[group])
                pieces.append(load(group)(start - origin, end - origin))
            start, group = end, group + 1
        return pieces[-1] if len(pieces) <= 2 else np.concatenate(pieces)

    return read
