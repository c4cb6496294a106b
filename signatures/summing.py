"""The second task of a first-order count: add up the contexts of some rows over all partitions.

Rows with little are collected and sorted, rows with much have a counter each. So many are added up
at once as a buffer of fixed size holds; it is used again for the next.

Shapes: B rows of the range that have any hit, A anchors, C context tokens, D dense counters,
E entries.
"""

import json
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from signatures.contexts import Contexts, load_contexts
from signatures.job import ContextJob
from signatures.kernels import Int64s, Ints, bitmap_words
from signatures.occurrences import OccurrencePartial
from signatures.partials import PartialRecord, PartialWriter, finished, writing
from signatures.reduction import row_ranges
from signatures.segments import Half
from signatures.sum_kernels import add_prefixes, add_windows, emit_kept, emit_rows

_OUT_ENTRIES = 1 << 20
_BLOCK_BYTES = 1 << 24  # counters of rows that are added up together: they stay in cache
ROW_BYTES = 96
"""Memory of a row with hits, beside its counts."""


@dataclass(frozen=True, slots=True)
class Summed:
    """What a range of rows adds up to."""

    whole: PartialRecord
    even: PartialRecord | None
    left_out: dict[int, int]
    """Counts below ``min_count``, by number of the anchor."""
    even_left_out: dict[int, int]
    left_out_fingerprint: int
    reused: bool
    seconds: float


def counts_path(out: Path, half: Half) -> Path:
    """Partial of a range: of all documents, or of the even ones."""
    return out if half == "whole" else out.with_name(f"{out.name}-{half}")


def sum_rows(job: ContextJob, first_row: int, last_row: int, out: Path) -> Summed:
    """Add up rows ``first_row`` to ``last_row`` into the partial ``out``, unless it is there."""
    if (found := _finished(out, halves=job.count.halves)) is not None:
        return found
    started = time.perf_counter()
    contexts = load_contexts(job.count.run, job.count.scratch, job.count.vocab_size)
    parts = {
        half: [OccurrencePartial(path) for path in job.count.sources((half,))]
        for half in job.count.division
    }
    every = [part for half in job.count.division for part in parts[half]]
    rows = _Rows.of(every, first_row, last_row, contexts)
    windowed = job.count.scope.window is not None
    whole, even = _Tally(every, rows, rows.sizes_B, windowed=windowed), None
    if job.count.halves:
        even_sizes_R = _sizes(parts["even"], first_row, last_row)
        even_sizes_B = even_sizes_R[rows.rows_B - first_row]
        even = _Tally(parts["even"], rows, even_sizes_B, windowed=windowed)
    summed = _write(job, rows, whole, even, out)
    _save(out, summed)
    return replace(summed, seconds=time.perf_counter() - started)


def _is_light(sizes_R: Int64s, num_columns: int) -> npt.NDArray[np.bool_]:
    """Which rows are collected: it takes less time and memory than a counter."""
    light: npt.NDArray[np.bool_] = sizes_R <= num_columns // 2
    return light


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a range that have any hit, and how each is added up."""

    rows_B: Int64s
    first_row: int
    last_row: int
    slots_R: Int64s
    """Place in ``rows_B`` of each row of the range that is there."""
    sizes_B: Int64s
    light_B: npt.NDArray[np.bool_]
    contexts: Contexts
    count_dtype: type[np.unsignedinteger[Any]]
    blocks: list[tuple[int, int]]
    """Rows that are added up together: first, and exclusive last, of ``rows_B``."""

    @classmethod
    def of(
        cls, parts: Sequence[OccurrencePartial], first_row: int, last_row: int, contexts: Contexts
    ) -> "_Rows":
        """Look at the rows of all partitions."""
        sizes_R = _sizes(parts, first_row, last_row)
        rows = np.flatnonzero(sizes_R)
        slots_R = np.empty(sizes_R.size, np.int64)
        slots_R[rows] = np.arange(rows.size)
        spans = [part.span(first_row, last_row) for part in parts]
        hits = sum(stop - start for _, start, stop in spans)
        count_dtype = np.uint64 if hits >= 2**32 else np.uint32
        columns, sizes_B = contexts.keys.num_columns, sizes_R[rows]
        light_B = _is_light(sizes_B, columns)
        counter = columns * np.dtype(count_dtype).itemsize
        bytes_B = np.where(light_B, sizes_B * contexts.item_dtype.itemsize, counter)
        return cls(
            rows + first_row, first_row, last_row, slots_R, sizes_B, light_B, contexts,
            count_dtype, row_ranges(bytes_B, _BLOCK_BYTES),
        )  # fmt: skip

    def cut(self, part: OccurrencePartial, low: int, high: int) -> tuple[Int64s, slice, Int64s]:
        """Rows ``low`` to ``high`` in a partition: their slots from ``low`` on, hits, and ends."""
        span, start, stop = part.span(int(self.rows_B[low]), int(self.rows_B[high - 1]) + 1)
        slots = self.slots_R[part.rows_R[span] - self.first_row] - low
        return slots, slice(start, stop), part.ends_R[span]


class _Tally:
    """Sums of one block of rows at a time over some partitions.

    A row has a counter, or a stretch of collected items; the same memory serves every block.
    """

    def __init__(
        self, parts: Sequence[OccurrencePartial], rows: _Rows, sizes_B: Int64s, *, windowed: bool
    ) -> None:
        self._parts, self._rows, self._windowed = parts, rows, windowed
        self._sizes_B = np.where(rows.light_B, sizes_B, 0)
        dense = max((int((~rows.light_B[a:b]).sum()) for a, b in rows.blocks), default=0)
        light = max((int(self._sizes_B[a:b].sum()) for a, b in rows.blocks), default=0)
        contexts = rows.contexts
        self.dense_DC: Ints = np.zeros((dense, contexts.keys.num_columns), rows.count_dtype)
        self.light_L: Ints = np.empty(light, contexts.item_dtype)
        self.begins_B = self.fills_B = np.empty(0, np.int64)

    def add(self, low: int, high: int) -> None:
        """Add up rows ``low`` to ``high``; whoever reads the counters off leaves them zero."""
        sizes_B = self._sizes_B[low:high]
        self.begins_B = np.cumsum(sizes_B) - sizes_B
        dense = np.flatnonzero(~self._rows.light_B[low:high])
        self.fills_B = self.begins_B.copy()
        self.fills_B[dense] = -1 - np.arange(dense.size)
        for part in self._parts:
            slots_R, hits, ends_R = self._rows.cut(part, low, high)
            if hits.start == hits.stop:
                continue
            items_I, links_I, lasts_H = part.items_I, part.links_I, part.lasts_H[hits]
            out = (ends_R, hits.start, slots_R, self.dense_DC, self.light_L, self.fills_B)
            if self._windowed:
                add_windows(items_I, links_I, part.firsts_H[hits], lasts_H, *out)
            else:
                add_prefixes(items_I, links_I, lasts_H, *out)


def _sizes(parts: Sequence[OccurrencePartial], first_row: int, last_row: int) -> Int64s:
    """Sum of the sizes of the contexts of each row, at most."""
    sizes_R = np.zeros(last_row - first_row, np.int64)
    for part in parts:
        span, _, _ = part.span(first_row, last_row)
        sizes_R[part.rows_R[span] - first_row] += part.sizes_R[span]
    return sizes_R


class _Emission:
    """Reads the counters of one block of rows after the other off, a buffer at a time."""

    def __init__(self, job: ContextJob, rows: _Rows, whole: _Tally, even: _Tally | None) -> None:
        self._min_count, self._rows, self._whole, self._even = job.min_count, rows, whole, even
        contexts = rows.contexts
        columns = contexts.keys.num_columns
        size = max(columns, min(_OUT_ENTRIES, columns * max(1, rows.rows_B.size)))
        self._columns_E = np.empty(size, contexts.item_dtype)
        self._counts_E = np.empty(size, rows.count_dtype)
        self._work_C = np.zeros(columns, rows.count_dtype)
        self._bitmap_W = np.zeros(bitmap_words(columns), np.uint64)
        self.left_out_B = np.zeros(rows.rows_B.size, np.int64)
        self.even_left_out_B = np.zeros(rows.rows_B.size, np.int64)
        self.sums = np.zeros(1, np.uint64)

    def run(
        self, low: int, high: int, writer: PartialWriter, even_writer: PartialWriter | None
    ) -> None:
        """Write rows ``low`` to ``high``, which have been added up."""
        whole, keys = self._whole, self._rows.contexts.keys
        row_keys_B = keys.row_keys(self._rows.rows_B[low:high])
        entries_B = np.zeros(high - low, np.int64)
        slot = 0
        while slot < high - low:
            first = slot
            slot, entries = emit_rows(
                whole.dense_DC, whole.light_L, whole.begins_B, whole.fills_B, first,
                self._work_C, self._bitmap_W, self._min_count, row_keys_B, keys.hashes_C,
                self._columns_E, self._counts_E, entries_B, self.left_out_B[low:high], self.sums,
            )  # fmt: skip
            rows_B = self._rows.rows_B[low + first : low + slot]
            columns_E, counts_E = self._columns_E[:entries], self._counts_E[:entries]
            _append(writer, rows_B, entries_B[first:slot], columns_E, counts_E)
            if even_writer is not None:
                self._append_even(even_writer, low, (first, slot), entries_B, columns_E)

    def by_anchor(self, left_out_B: Int64s) -> dict[int, int]:
        """Sum over the rows of each anchor, where there is any."""
        anchors_B = self._rows.rows_B // self._rows.contexts.vocab_size
        found = np.flatnonzero(left_out_B)
        sums: dict[int, int] = {}
        for a in np.unique(anchors_B[found]).tolist():
            sums[a] = int(left_out_B[found][anchors_B[found] == a].sum())
        return sums

    def _append_even(
        self,
        writer: PartialWriter,
        low: int,
        slots: tuple[int, int],
        kept_entries_B: Int64s,
        kept_columns_E: Ints,
    ) -> None:
        even = self._even
        assert even is not None
        first, last = slots
        columns_E, counts_E = np.empty_like(kept_columns_E), np.empty_like(self._counts_E)
        entries_B = np.zeros(kept_entries_B.size, np.int64)
        entries = emit_kept(
            even.dense_DC, even.light_L, even.begins_B, even.fills_B, first, last, self._work_C,
            kept_columns_E, kept_entries_B, columns_E, counts_E, entries_B,
            self.even_left_out_B[low : low + kept_entries_B.size],
        )  # fmt: skip
        rows_B = self._rows.rows_B[low + first : low + last]
        _append(writer, rows_B, entries_B[first:last], columns_E[:entries], counts_E[:entries])


def _write(job: ContextJob, rows: _Rows, whole: _Tally, even: _Tally | None, out: Path) -> Summed:
    """Add up and write block by block, what the even half has beside the whole."""
    emission = _Emission(job, rows, whole, even)
    contexts = rows.contexts
    kind = (rows.first_row, rows.last_row), contexts.keys, contexts.item_dtype, rows.count_dtype
    with ExitStack() as stack:
        writer = stack.enter_context(writing(out, *kind))
        even_writer = None
        if even is not None:
            even_writer = stack.enter_context(writing(counts_path(out, "even"), *kind))
        for low, high in rows.blocks:
            whole.add(low, high)
            if even is not None:
                even.add(low, high)
            emission.run(low, high, writer, even_writer)
        found = writer.finish()
        even_found = even_writer.finish() if even_writer is not None else None
    return Summed(
        found,
        even_found,
        left_out=emission.by_anchor(emission.left_out_B),
        even_left_out=emission.by_anchor(emission.even_left_out_B),
        left_out_fingerprint=int(emission.sums[0]),
        reused=False,
        seconds=0.0,
    )


def _append(
    writer: PartialWriter, rows_B: Int64s, entries_B: Int64s, columns_E: Ints, counts_E: Ints
) -> None:
    entries_R = np.zeros(int(rows_B[-1] - rows_B[0]) + 1, np.int64)
    entries_R[rows_B - rows_B[0]] = entries_B
    writer.append(int(rows_B[0]), entries_R, columns_E, counts_E)


def _facts(out: Path) -> Path:
    return out.with_name(out.name + ".summed.json")


def _save(out: Path, summed: Summed) -> None:
    """Say, last, what a resumed run needs beside the counts."""
    aside = _facts(out).with_suffix(f".{uuid.uuid4().hex}.tmp")
    aside.write_text(json.dumps(asdict(summed)))
    aside.replace(_facts(out))


def _finished(out: Path, *, halves: bool) -> Summed | None:
    """Return what an earlier run made of this range."""
    try:
        facts = json.loads(_facts(out).read_text())
        whole = finished(out)
        even = finished(counts_path(out, "even")) if halves else None
    except (OSError, ValueError, BadZipFile):
        return None
    if whole is None or (halves and even is None):
        return None
    left_out, even_left_out = (
        {int(a): mass for a, mass in facts[name].items()} for name in ("left_out", "even_left_out")
    )
    fingerprint = facts["left_out_fingerprint"]
    return Summed(whole, even, left_out, even_left_out, fingerprint, reused=True, seconds=0.0)
