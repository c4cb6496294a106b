"""Partial sparse counts added up, row range by row range, in bounded memory.

Shapes: K partials, R rows of a range, E entries, V vocabulary, C columns.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from signatures.kernels import Int64s, Ints, bitmap_words, merge_rows
from signatures.keys import Keys
from signatures.partials import Partial, PartialRecord, PartialWriter, writing
from signatures.sources import Reference, Source, open_source

_OUT_ENTRIES = 1 << 20
MOST_PARTS = 256


def fan_in(num_columns: int, memory: int) -> int:
    """How many partials may be merged at once: one full row of each must fit into ``memory``."""
    return int(np.clip(memory // 2 // (12 * num_columns), 2, MOST_PARTS))


def merge_partials(
    sources: Sequence[Reference],
    rows: tuple[int, int] | None,
    out: Path,
    *,
    keys: Keys,
    memory: int,
) -> PartialRecord:
    """Add up rows ``rows[0]`` to ``rows[1]`` of ``sources`` into the partial ``out``.

    Without ``rows`` all of them, and the token counts as well.

    Parameters
    ----------
    keys : Keys
        Of the matrix, and so its shape.
    memory : int
        Bytes that may be used beside a constant of some megabytes.
    """
    partials = [open_source(source) for source in sources]
    total = sum(partial.total for partial in partials)
    column_dtype = partials[0].column_dtype
    count_dtype = np.uint32 if total < 2**32 else np.uint64
    token_counts_V = np.zeros(keys.vocab_size, np.int64)
    if rows is None:
        for partial in partials:
            if isinstance(partial, Partial):
                token_counts_V[partial.tokens_T] += partial.token_counts_T
    within = rows or (0, keys.num_rows)
    with writing(out, within, keys, column_dtype, count_dtype) as writer:
        for first, last in _cut(partials, within, memory):
            _merge_range(partials, first, last, keys.num_columns, writer)
        return writer.finish(token_counts_V)


def entries_by_row(sources: Sequence[Reference], num_rows: int) -> Int64s:
    """Entries of all ``sources`` together in each row."""
    entries_R = np.zeros(num_rows, np.int64)
    for source in sources:
        partial = open_source(source)
        entries_R[partial.rows_R] += partial.entries_R
    return entries_R


def row_ranges(entries_R: Int64s, most_entries: int) -> list[tuple[int, int]]:
    """Cut all rows into ranges of at most ``most_entries``; a longer row stands alone."""
    ends_R = np.cumsum(entries_R)
    edges = [0]
    while edges[-1] < entries_R.size:
        done = int(ends_R[edges[-1] - 1]) if edges[-1] else 0
        edge = int(np.searchsorted(ends_R, done + most_entries, side="right"))
        edges.append(min(max(edge, edges[-1] + 1), entries_R.size))
    return list(pairwise(edges))


def _cut(partials: list[Source], rows: tuple[int, int], memory: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose entries, and table of entries, fit into memory."""
    first, last = rows
    entries_R = np.zeros(last - first, np.int64)
    for partial in partials:
        chosen, _, _ = partial.span(first, last)
        entries_R[partial.rows_R[chosen] - first] += partial.entries_R[chosen]
    table = 4 * len(partials)
    bytes_R = entries_R * _entry_bytes(partials) + table
    for low, high in row_ranges(bytes_R, max(1, memory // 2)):
        yield first + low, first + high


def _entry_bytes(partials: list[Source]) -> int:
    count_bytes = max(partial.count_dtype.itemsize for partial in partials)
    return int(partials[0].column_dtype.itemsize + count_bytes)


def _merge_range(
    partials: list[Source], first: int, last: int, num_columns: int, writer: PartialWriter
) -> None:
    columns_E, counts_E, entries_KR, places_K = _load(partials, first, last)
    capacity = max(num_columns, min(_OUT_ENTRIES, columns_E.size))
    out_columns = np.empty(capacity, columns_E.dtype)
    out_counts = np.empty(capacity, np.uint64)
    dense_C = np.zeros(num_columns, np.uint64)
    bitmap_W = np.zeros(bitmap_words(num_columns), np.uint64)
    row_entries_R = np.zeros(last - first, np.int64)
    row = 0
    while row < last - first:
        begin = row
        row, entries = merge_rows(
            columns_E, counts_E, entries_KR, places_K, begin, dense_C, bitmap_W,
            out_columns, out_counts, row_entries_R,
        )  # fmt: skip
        writer.append(
            first + begin, row_entries_R[begin:row], out_columns[:entries], out_counts[:entries]
        )


def _load(
    partials: list[Source], first: int, last: int
) -> tuple[Ints, Ints, npt.NDArray[np.uint32], Int64s]:
    """Entries of the rows, one partial after the other, and how many each row has of each."""
    spans = [partial.span(first, last) for partial in partials]
    sizes_K = np.array([stop - start for _, start, stop in spans], np.int64)
    places_K = np.cumsum(sizes_K) - sizes_K
    entries_KR = np.zeros((len(partials), last - first), np.uint32)
    count_dtype = max((partial.count_dtype for partial in partials), key=lambda d: d.itemsize)
    columns_E = np.empty(int(sizes_K.sum()), partials[0].column_dtype)
    counts_E = np.empty(columns_E.size, count_dtype)
    for k, (partial, (chosen, start, stop)) in enumerate(zip(partials, spans, strict=True)):
        place = slice(places_K[k], places_K[k] + stop - start)
        entries_KR[k, partial.rows_R[chosen] - first] = partial.entries_R[chosen]
        partial.columns(start, columns_E[place])
        partial.counts(start, counts_E[place])
    return columns_E, counts_E, entries_KR, places_K
