"""The second task of a first-order count: add up the contexts of some rows over all partitions.

Rows with little are collected and sorted, rows with much have a counter each; which it is, and so
how many rows are added up at once, is what keeps memory bounded.

Shapes: B rows of the range that have any hit, A anchors, C context tokens, D dense counters,
E entries.
"""

import json
import time
import uuid
from collections.abc import Sequence
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
from signatures.segments import Half
from signatures.sum_kernels import add_prefixes, add_windows, emit_kept, emit_rows

_OUT_ENTRIES = 1 << 20
ROW_BYTES = 96
"""Of a row with hits, beside its counts."""


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
    slots = _Slots.of(every, first_row, last_row, contexts)
    whole = slots.add(every, windowed=job.count.scope.window is not None)
    even = (
        slots.add(parts["even"], windowed=job.count.scope.window is not None)
        if job.count.halves
        else None
    )
    summed = _emit(job, contexts, slots, whole, even, (first_row, last_row), out)
    _save(out, summed)
    return replace(summed, seconds=time.perf_counter() - started)


def is_light(sizes_R: Int64s, num_columns: int) -> npt.NDArray[np.bool_]:
    """Which rows are collected: it takes less time and memory than a counter."""
    light: npt.NDArray[np.bool_] = sizes_R <= num_columns // 2
    return light


def row_bytes(sizes_R: Int64s, contexts: Contexts, *, halves: bool) -> Int64s:
    """Memory that rows with these sums of context sizes take while they are added up."""
    columns = contexts.keys.num_columns
    collected_R = contexts.item_dtype.itemsize * sizes_R
    counters_R = np.where(is_light(sizes_R, columns), collected_R, 4 * columns)
    bytes_R: Int64s = np.where(sizes_R > 0, ROW_BYTES + counters_R * (1 + halves), 0)
    return bytes_R


@dataclass(frozen=True, slots=True)
class _Counters:
    """Sums of the rows: a counter, or a stretch of collected items."""

    dense_DC: Ints
    light_L: Ints
    begins_B: Int64s
    fills_B: Int64s


@dataclass(frozen=True, slots=True)
class _Slots:
    """The rows of a range that have any hit, and how each is added up."""

    rows_B: Int64s
    first_row: int
    last_row: int
    light_B: npt.NDArray[np.bool_]
    contexts: Contexts
    count_dtype: type[np.unsignedinteger[Any]]

    @classmethod
    def of(
        cls, parts: Sequence[OccurrencePartial], first_row: int, last_row: int, contexts: Contexts
    ) -> "_Slots":
        """Look at the rows of all partitions."""
        spans = [part.span(first_row, last_row) for part in parts]
        rows = [part.rows_R[span] for part, (span, _, _) in zip(parts, spans, strict=True)]
        rows_B = np.unique(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64))
        sizes_B = np.zeros(rows_B.size, np.int64)
        for part, (span, _, _), rows_R in zip(parts, spans, rows, strict=True):
            sizes_B[np.searchsorted(rows_B, rows_R)] += part.sizes_R[span]
        hits = sum(stop - start for _, start, stop in spans)
        wide = hits >= 2**32
        light_B = is_light(sizes_B, contexts.keys.num_columns)
        count_dtype = np.uint64 if wide else np.uint32
        return cls(rows_B, first_row, last_row, light_B, contexts, count_dtype)

    def add(self, parts: Sequence[OccurrencePartial], *, windowed: bool) -> _Counters:
        """Add up the contexts of ``parts``."""
        sizes_B = np.zeros(self.rows_B.size, np.int64)
        for part in parts:
            span, _, _ = part.span(self.first_row, self.last_row)
            sizes_B[self._slots(part, span)] += part.sizes_R[span]
        sizes_B[~self.light_B] = 0
        begins_B = np.cumsum(sizes_B) - sizes_B
        dense = np.flatnonzero(~self.light_B)
        fills_B = begins_B.copy()
        fills_B[dense] = -1 - np.arange(dense.size)
        counters = _Counters(
            np.zeros((dense.size, self.contexts.keys.num_columns), self.count_dtype),
            np.empty(int(sizes_B.sum()), self.contexts.item_dtype),
            begins_B,
            fills_B,
        )
        for part in parts:
            self._add_part(part, counters, windowed=windowed)
        return counters

    def _add_part(self, part: OccurrencePartial, counters: _Counters, *, windowed: bool) -> None:
        span, start, stop = part.span(self.first_row, self.last_row)
        if start == stop:
            return
        hits = slice(start, stop)
        places = (part.ends_R[span], start, self._slots(part, span))
        out = (counters.dense_DC, counters.light_L, counters.fills_B)
        if windowed:
            firsts_H, lasts_H = part.firsts_H[hits], part.lasts_H[hits]
            add_windows(part.items_I, part.links_I, firsts_H, lasts_H, *places, *out)
        else:
            add_prefixes(part.items_I, part.links_I, part.lasts_H[hits], *places, *out)

    def _slots(self, part: OccurrencePartial, span: slice) -> Int64s:
        return np.searchsorted(self.rows_B, part.rows_R[span]).astype(np.int64)


def _emit(
    job: ContextJob,
    contexts: Contexts,
    slots: _Slots,
    whole: _Counters,
    even: _Counters | None,
    rows: tuple[int, int],
    out: Path,
) -> Summed:
    """Write the rows of the range out, those of the even half beside them."""
    emission = _Emission(job, contexts, slots, whole, even)
    dtypes = contexts.item_dtype, slots.count_dtype
    even_found: PartialRecord | None
    with writing(out, rows, contexts.keys, *dtypes) as writer:
        if even is None:
            emission.run(writer, None)
            found, even_found = writer.finish(), None
        else:
            aside = counts_path(out, "even")
            with writing(aside, rows, contexts.keys, *dtypes) as even_writer:
                emission.run(writer, even_writer)
                found, even_found = writer.finish(), even_writer.finish()
    return Summed(
        found,
        even_found,
        left_out=emission.by_anchor(emission.left_out_B),
        even_left_out=emission.by_anchor(emission.even_left_out_B),
        left_out_fingerprint=int(emission.sums[0]),
        reused=False,
        seconds=0.0,
    )


class _Emission:
    """Reads the counters off, a buffer at a time."""

    def __init__(
        self,
        job: ContextJob,
        contexts: Contexts,
        slots: _Slots,
        whole: _Counters,
        even: _Counters | None,
    ) -> None:
        self._min_count, self._contexts, self._slots = job.min_count, contexts, slots
        self._whole, self._even = whole, even
        columns = contexts.keys.num_columns
        size = max(columns, min(_OUT_ENTRIES, columns * max(1, slots.rows_B.size)))
        self._columns_E = np.empty(size, contexts.item_dtype)
        self._counts_E = np.empty(size, slots.count_dtype)
        self._work_C = np.zeros(columns, slots.count_dtype)
        self._bitmap_W = np.zeros(bitmap_words(columns), np.uint64)
        self._keys_B = contexts.keys.row_keys(slots.rows_B)
        self._entries_B = np.zeros(slots.rows_B.size, np.int64)
        self.left_out_B = np.zeros(slots.rows_B.size, np.int64)
        self.even_left_out_B = np.zeros(slots.rows_B.size, np.int64)
        self.sums = np.zeros(1, np.uint64)

    def run(self, writer: PartialWriter, even_writer: PartialWriter | None) -> None:
        """Write every row."""
        slot = 0
        while slot < self._slots.rows_B.size:
            first = slot
            slot, entries = emit_rows(
                self._whole.dense_DC, self._whole.light_L, self._whole.begins_B,
                self._whole.fills_B, first, self._work_C, self._bitmap_W, self._min_count,
                self._keys_B, self._contexts.keys.hashes_C, self._columns_E, self._counts_E,
                self._entries_B, self.left_out_B, self.sums,
            )  # fmt: skip
            columns_E, counts_E = self._columns_E[:entries], self._counts_E[:entries]
            self._append(writer, first, slot, self._entries_B, columns_E, counts_E)
            if even_writer is not None:
                self._append_even(even_writer, first, slot, columns_E)

    def by_anchor(self, left_out_B: Int64s) -> dict[int, int]:
        """Sum over the rows of each anchor, where there is any."""
        anchors_B = self._slots.rows_B // self._contexts.vocab_size
        found = np.flatnonzero(left_out_B)
        sums: dict[int, int] = {}
        for a in np.unique(anchors_B[found]).tolist():
            sums[a] = int(left_out_B[found][anchors_B[found] == a].sum())
        return sums

    def _append(
        self,
        writer: PartialWriter,
        first: int,
        last: int,
        entries_B: Int64s,
        columns_E: Ints,
        counts_E: Ints,
    ) -> None:
        rows = self._slots.rows_B[first:last]
        entries_R = np.zeros(int(rows[-1] - rows[0]) + 1, np.int64)
        entries_R[rows - rows[0]] = entries_B[first:last]
        writer.append(int(rows[0]), entries_R, columns_E, counts_E)

    def _append_even(
        self, writer: PartialWriter, first: int, last: int, kept_columns_E: Ints
    ) -> None:
        assert self._even is not None
        columns_E, counts_E = np.empty_like(kept_columns_E), np.empty_like(self._counts_E)
        entries_B = np.zeros(self._slots.rows_B.size, np.int64)
        entries = emit_kept(
            self._even.dense_DC, self._even.light_L, self._even.begins_B, self._even.fills_B,
            first, last, self._work_C, kept_columns_E, self._entries_B,
            columns_E, counts_E, entries_B, self.even_left_out_B,
        )  # fmt: skip
        self._append(writer, first, last, entries_B, columns_E[:entries], counts_E[:entries])


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
