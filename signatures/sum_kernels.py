"""Numba kernels that add up contexts, row by row: counts, or sums of a matrix over them.

A row is a pair of anchor and label. Its hits, listed by ``context_kernels``, are added up in one
counter that stays in cache, or collected and sorted where there are few. The twins are in
``tests/context_reference.py``.

Shapes: I items, H hits, R rows of one partition, B rows that are added up together, C context
tokens, D rows with a counter of their own, L collected items, E entries, W words of an occupancy
bitmap, Q columns of a projection.
"""

import numpy as np
import numpy.typing as npt

from signatures.kernels import (
    Int64s,
    Ints,
    Uint64s,
    _emit_dense,
    _emit_marked,
    _hash,
    _mark,
    kernel,
)

_ONE = np.uint64(1)
_DENSE_SHARE = 8  # a row of more than C / 8 collected items is read off without a bitmap


@kernel
def add_prefixes(
    items_I: Ints,
    begins_I: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
    hit_ends_R: Int64s,
    first_hit: int,
    slots_R: Int64s,
    dense_DC: Ints,
    light_L: Ints,
    fills_B: Int64s,
) -> None:
    """Add the contexts of R rows of one partition to the counters of their slots.

    Slot b with ``fills_B[b] < 0`` has the dense counter ``-1 - fills_B[b]``; another collects its
    items in ``light_L`` from there on. Hits of one row in one list share prefixes: with ends
    l1 <= l2 <= .. <= ln the items up to l1 are added n at a time, those from there to l2 n - 1 at
    a time, and so on.
    """
    one = dense_DC.dtype.type(1)
    start = first_hit
    for r in range(slots_R.size):
        stop = hit_ends_R[r]
        slot = slots_R[r]
        fill = fills_B[slot]
        if fill >= 0:
            for h in range(start, stop):
                last = np.int64(lasts_H[h - first_hit])
                for i in range(np.int64(begins_I[last]), last + 1):
                    light_L[fill] = items_I[i]
                    fill += 1
            fills_B[slot] = fill
        else:
            counter_C = dense_DC[-1 - fill]
            h = stop - 1
            while h >= start:
                last = np.int64(lasts_H[h - first_hit])
                begin = np.int64(begins_I[last])
                weight = one
                while h > start and np.int64(lasts_H[h - 1 - first_hit]) >= begin:
                    h -= 1
                    shorter = np.int64(lasts_H[h - first_hit])
                    for i in range(shorter + 1, last + 1):
                        counter_C[items_I[i]] += weight
                    last = shorter
                    weight += one
                for i in range(begin, last + 1):
                    counter_C[items_I[i]] += weight
                h -= 1
        start = stop


@kernel
def add_windows(
    items_I: Ints,
    previous_I: npt.NDArray[np.uint32],
    firsts_H: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
    hit_ends_R: Int64s,
    first_hit: int,
    slots_R: Int64s,
    dense_DC: Ints,
    light_L: Ints,
    fills_B: Int64s,
) -> None:
    """Like `add_prefixes`, for hits whose context is what the window holds."""
    one = dense_DC.dtype.type(1)
    start = first_hit
    for r in range(slots_R.size):
        stop = hit_ends_R[r]
        slot = slots_R[r]
        fill = fills_B[slot]
        for h in range(start - first_hit, stop - first_hit):
            first = np.int64(firsts_H[h])
            for i in range(first, np.int64(lasts_H[h]) + 1):
                if np.int64(previous_I[i]) > first:
                    continue
                if fill >= 0:
                    light_L[fill] = items_I[i]
                    fill += 1
                else:
                    dense_DC[-1 - fill, items_I[i]] += one
        if fill >= 0:
            fills_B[slot] = fill
        start = stop


@kernel
def emit_rows(
    dense_DC: Ints,
    light_L: Ints,
    begins_B: Int64s,
    fills_B: Int64s,
    first_slot: int,
    work_C: Ints,
    bitmap_W: Uint64s,
    min_count: int,
    row_keys_B: Int64s,
    hashes_C: Uint64s,
    columns_E: Ints,
    counts_E: Ints,
    entries_B: Int64s,
    left_out_B: Int64s,
    sums: Uint64s,
) -> tuple[int, int]:
    """Turn slots into sorted columns and counts of at least ``min_count``, and clear them.

    Works from ``first_slot`` on until the next row might not fit into ``columns_E``, which holds
    at least C. ``left_out_B`` gets the counts below ``min_count`` of each row, ``sums[0]`` their
    share of the fingerprint. ``work_C`` and ``bitmap_W`` are all zero before and after.

    Returns
    -------
    tuple of int
        The slot to go on with (B when done) and the number of entries written.
    """
    num_columns = work_C.size
    num_words = (num_columns + 63) >> 6
    entries = 0
    for b in range(first_slot, fills_B.size):
        if entries + num_columns > columns_E.size:
            return b, entries
        before = entries
        if fills_B[b] < 0:
            entries = _emit_dense(dense_DC[-1 - fills_B[b]], columns_E, counts_E, entries)
        elif (fills_B[b] - begins_B[b]) * _DENSE_SHARE >= num_columns:
            for i in range(begins_B[b], fills_B[b]):
                work_C[light_L[i]] += work_C.dtype.type(1)
            entries = _emit_dense(work_C, columns_E, counts_E, entries)
        else:
            for i in range(begins_B[b], fills_B[b]):
                column = np.int64(light_L[i])
                work_C[column] += work_C.dtype.type(1)
                _mark(bitmap_W, num_words, column)
            entries = _emit_marked(work_C, bitmap_W, columns_E, counts_E, entries)
        if min_count > 1:
            entries = _keep_frequent(
                before, entries, min_count, hashes_C, columns_E, counts_E, b, row_keys_B,
                left_out_B, sums,
            )  # fmt: skip
        entries_B[b] = entries - before
    return fills_B.size, entries


@kernel
def _keep_frequent(
    before: int,
    entries: int,
    min_count: int,
    hashes_C: Uint64s,
    columns_E: Ints,
    counts_E: Ints,
    b: int,
    row_keys_B: Int64s,
    left_out_B: Int64s,
    sums: Uint64s,
) -> int:
    """Move the entries that stay together; account for those that do not."""
    place = before
    row_sum = np.uint64(0)
    for e in range(before, entries):
        count = np.uint64(counts_E[e])
        if count >= np.uint64(min_count):
            columns_E[place] = columns_E[e]
            counts_E[place] = counts_E[e]
            place += 1
        else:
            left_out_B[b] += np.int64(count)
            row_sum += count * hashes_C[columns_E[e]]
    sums[0] += row_sum * _hash(_ONE, np.uint64(row_keys_B[b]))
    return place


@kernel
def emit_kept(
    dense_DC: Ints,
    light_L: Ints,
    begins_B: Int64s,
    fills_B: Int64s,
    first_slot: int,
    last_slot: int,
    work_C: Ints,
    kept_columns_E: Ints,
    kept_entries_B: Int64s,
    columns_E: Ints,
    counts_E: Ints,
    entries_B: Int64s,
    left_out_B: Int64s,
) -> int:
    """Turn slots into counts at the columns that `emit_rows` kept for them, and clear them.

    The kept columns of slots ``first_slot`` to ``last_slot`` stand one after the other from 0 on.

    Returns
    -------
    int
        Entries written; a count of zero is none.
    """
    entries = 0
    kept = np.int64(0)
    for b in range(first_slot, last_slot):
        before = entries
        fill = fills_B[b]
        counter_C = work_C if fill >= 0 else dense_DC[-1 - fill]
        if fill >= 0:
            for i in range(begins_B[b], fill):
                counter_C[light_L[i]] += counter_C.dtype.type(1)
        for e in range(kept, kept + kept_entries_B[b]):
            column = kept_columns_E[e]
            if counter_C[column] != 0:
                columns_E[entries] = column
                counts_E[entries] = counter_C[column]
                counter_C[column] = 0
                entries += 1
        kept += kept_entries_B[b]
        entries_B[b] = entries - before
        if fill >= 0:
            for i in range(begins_B[b], fill):
                left_out_B[b] += np.int64(counter_C[light_L[i]])
                counter_C[light_L[i]] = 0
        else:
            for c in range(counter_C.size):
                left_out_B[b] += np.int64(counter_C[c])
                counter_C[c] = 0
    return entries


@kernel
def project_prefixes(
    items_I: Ints,
    begins_I: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
    slots_H: Int64s,
    matrix_CQ: npt.NDArray[np.int8],
    running_Q: Int64s,
    sums_BQ: Int64s,
) -> None:
    """Add the sum of ``matrix_CQ`` over the context of each hit to its row; hits in list order."""
    begin, done = np.int64(-1), np.int64(0)
    for h in range(lasts_H.size):
        last = np.int64(lasts_H[h])
        if np.int64(begins_I[last]) != begin:
            begin = np.int64(begins_I[last])
            done = begin
            running_Q[:] = 0
        while done <= last:
            item = items_I[done]
            for q in range(running_Q.size):
                running_Q[q] += np.int64(matrix_CQ[item, q])
            done += 1
        slot = slots_H[h]
        for q in range(running_Q.size):
            sums_BQ[slot, q] += running_Q[q]


@kernel
def project_windows(
    items_I: Ints,
    firsts_H: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
    slots_H: Int64s,
    matrix_CQ: npt.NDArray[np.int8],
    present_C: Int64s,
    running_Q: Int64s,
    sums_BQ: Int64s,
) -> None:
    """Like `project_prefixes`, for hits whose context is what the window holds.

    Both ends only move forward; ``present_C`` counts each token inside and is all zero before
    and after.
    """
    first, done = np.int64(0), np.int64(0)
    running_Q[:] = 0
    for h in range(lasts_H.size):
        low, last = np.int64(firsts_H[h]), np.int64(lasts_H[h])
        if low >= done:  # nothing in common with the hit before
            first, done = _forget(items_I, first, done, present_C, running_Q, low)
        while done <= last:
            item = items_I[done]
            present_C[item] += 1
            if present_C[item] == 1:
                for q in range(running_Q.size):
                    running_Q[q] += np.int64(matrix_CQ[item, q])
            done += 1
        while first < low:
            item = items_I[first]
            present_C[item] -= 1
            if present_C[item] == 0:
                for q in range(running_Q.size):
                    running_Q[q] -= np.int64(matrix_CQ[item, q])
            first += 1
        slot = slots_H[h]
        for q in range(running_Q.size):
            sums_BQ[slot, q] += running_Q[q]
    _forget(items_I, first, done, present_C, running_Q, done)


@kernel
def _forget(
    items_I: Ints,
    first: np.int64,
    done: np.int64,
    present_C: Int64s,
    running_Q: Int64s,
    begin: np.int64,
) -> tuple[np.int64, np.int64]:
    """Empty the window and go on at ``begin``."""
    for i in range(first, done):
        present_C[items_I[i]] = 0
    running_Q[:] = 0
    return begin, begin
