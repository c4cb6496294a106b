"""Numba kernels of counting: arrays in, arrays out.

A kernel sees arrays and integers, never a file, a partition or a setting; its twin of the same
name in ``tests/reference.py`` says in plain Python what it computes.

A *segment* is a run of input positions: position i of ``[start, stop)`` is an input and the token
at i + 1 its label, so a segment reads the tokens ``start`` to ``stop`` inclusive. The documents of
scope ``document`` and the samples of scope ``packed`` both become segments before they get here.

Shapes: N tokens, S segments, V vocabulary, P pairs, W words of an occupancy bitmap
(`bitmap_words`), E entries (distinct pairs), R rows, C columns, K parts that are merged.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.integer[Any]]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Function = TypeVar("Function", bound=Callable[..., Any])

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_DE_BRUIJN, _SHIFT_58 = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_BIT_NUMBER = np.zeros(64, np.int64)
"""Number of the one bit that is set in a word, by the top six bits of word x _DE_BRUIJN."""
for _bit in range(64):
    _BIT_NUMBER[(0x03F79D71B4CB0A89 << _bit) % 2**64 >> 58] = _bit
_SHORT_ROW = 8  # labels that are sorted in place: cheaper than a visit to the dense counter
_DENSE_SHARE = 8  # a row of more than V / 8 labels is read off the dense counter, not the bitmap


def bitmap_words(vocab_size: int) -> int:
    """W: a bit for each of V columns, then a bit for each of those words that holds any."""
    words = -(-vocab_size // 64)
    return words + -(-words // 64)


def kernel(function: Function) -> Function:
    """Compile ``function`` on first use and keep the result on disk where that is possible.

    Numba looks for a cache beside the source, then in the user's cache folder. In a read-only
    installation without either it refuses; the kernel is then compiled once per process.
    """
    try:
        return cast("Function", njit(cache=True, nogil=True)(function))
    except RuntimeError:
        return cast("Function", njit(nogil=True)(function))


@kernel
def histogram(tokens_N: Ints, starts_S: Int64s, stops_S: Int64s, counts_V: Int64s) -> int:
    """Add the tokens at positions ``[start, stop)`` of every segment to ``counts_V``.

    Returns
    -------
    int
        -1, or the first position whose token is no index of ``counts_V``; counting ends there.
    """
    vocab_size = counts_V.size
    for s in range(starts_S.size):
        for i in range(starts_S[s], stops_S[s]):
            token = np.int64(tokens_N[i])
            if token < 0 or token >= vocab_size:
                return i
            counts_V[token] += 1
    return -1


@kernel
def sort_labels(
    tokens_N: Ints, starts_S: Int64s, stops_S: Int64s, places_V: Int64s, labels_P: Ints
) -> None:
    """Sort the pairs by their first token, stably; only the second token is stored.

    ``places_V[a]`` is where the row of token a begins in ``labels_P`` and, afterwards, where it
    ends. All tokens must have passed `histogram`: an id outside V would be a wild write.
    """
    for s in range(starts_S.size):
        start, stop = starts_S[s], stops_S[s]
        if start >= stop:
            continue
        token = np.int64(tokens_N[start])
        for i in range(start + 1, stop + 1):
            label = np.int64(tokens_N[i])
            place = places_V[token]
            labels_P[place] = label
            places_V[token] = place + 1
            token = label


@kernel
def reduce_rows(
    labels_P: Ints,
    row_ends_V: Int64s,
    first_row: int,
    dense_V: npt.NDArray[np.uint32],
    bitmap_W: Uint64s,
    columns_E: Ints,
    counts_E: npt.NDArray[np.uint32],
    row_entries_V: Int64s,
) -> tuple[int, int]:
    """Turn rows of unsorted labels into sorted distinct columns with counts.

    Works from ``first_row`` on until the next row might not fit into ``columns_E``, which must
    hold at least V + 1: one place behind the entries is written too. ``labels_P`` is overwritten;
    ``dense_V`` and ``bitmap_W`` are all zero before and after.

    Returns
    -------
    tuple of int
        The row to go on with (V when done) and the number of entries written.
    """
    vocab_size = row_ends_V.size
    num_words = (vocab_size + 63) >> 6
    entries = 0
    for row in range(first_row, vocab_size):
        start = row_ends_V[row - 1] if row > 0 else np.int64(0)
        labels = labels_P[start : row_ends_V[row]]
        if entries + min(labels.size, vocab_size) >= columns_E.size:
            return row, entries
        before = entries
        if labels.size <= _SHORT_ROW:
            entries = _emit_short(labels, columns_E, counts_E, entries)
        elif labels.size * _DENSE_SHARE >= vocab_size:
            for label in labels:
                dense_V[label] += np.uint32(1)
            entries = _emit_dense(dense_V, columns_E, counts_E, entries)
        else:
            for label in labels:
                dense_V[label] += np.uint32(1)
                _mark(bitmap_W, num_words, np.int64(label))
            entries = _emit_marked(dense_V, bitmap_W, columns_E, counts_E, entries)
        row_entries_V[row] = entries - before
    return vocab_size, entries


@kernel
def _emit_short(labels: Ints, columns_E: Ints, counts_E: Ints, entries: int) -> int:
    """Sort by insertion, then write run lengths."""
    for i in range(1, labels.size):
        label = labels[i]
        j = i
        while j > 0 and labels[j - 1] > label:
            labels[j] = labels[j - 1]
            j -= 1
        labels[j] = label
    i = 0
    while i < labels.size:
        j = i + 1
        while j < labels.size and labels[j] == labels[i]:
            j += 1
        columns_E[entries] = labels[i]
        counts_E[entries] = j - i
        entries += 1
        i = j
    return entries


@kernel
def _emit_dense(dense_V: Ints, columns_E: Ints, counts_E: Ints, entries: int) -> int:
    """Read off and clear the whole dense counter.

    Every column is written where the next entry goes, and only a count keeps it: there is no
    branch to mispredict, but one place behind the entries is written too.
    """
    for column in range(dense_V.size):
        count = dense_V[column]
        columns_E[entries] = column
        counts_E[entries] = count
        entries += int(count != 0)
    dense_V[:] = 0
    return entries


@kernel
def _mark(bitmap_W: Uint64s, num_words: int, column: np.int64) -> None:
    """Mark a column, and the word it is marked in."""
    word = column >> 6
    bitmap_W[word] |= _ONE << np.uint64(column & 63)
    bitmap_W[num_words + (word >> 6)] |= _ONE << np.uint64(word & 63)


@kernel
def _emit_marked(
    dense_V: Ints, bitmap_W: Uint64s, columns_E: Ints, counts_E: Ints, entries: int
) -> int:
    """Read off and clear the marked places of the dense counter, in column order."""
    num_words = (dense_V.size + 63) >> 6
    for group in range(num_words, bitmap_W.size):
        marked = bitmap_W[group]
        bitmap_W[group] = 0
        while marked != 0:
            word = ((group - num_words) << 6) + _lowest_bit(marked)
            marked &= marked - _ONE
            bits = bitmap_W[word]
            bitmap_W[word] = 0
            while bits != 0:
                column = (word << 6) + _lowest_bit(bits)
                bits &= bits - _ONE
                columns_E[entries] = column
                counts_E[entries] = dense_V[column]
                dense_V[column] = 0
                entries += 1
    return entries


@kernel
def _lowest_bit(bits: np.uint64) -> Any:
    """Count the zeros below the lowest bit set: one multiplication finds it, no branch."""
    lowest = bits & (~bits + _ONE)
    return _BIT_NUMBER[(lowest * _DE_BRUIJN) >> _SHIFT_58]


@kernel
def csr_fingerprint(
    indptr_R1: Ints, indices_E: Ints, data_E: Ints, first_row: int, hashes_C: Uint64s
) -> np.uint64:
    """Sum of count x h(1, row key) x h(2, column key) over the entries, mod 2^64.

    Row r of these arrays has the key ``first_row + r``; entry e of it stands at
    ``e - indptr_R1[0]`` of ``indices_E``, so that a slice of a matrix needs no copy of its
    pointers. h(k, x) is the k-th output of the generator SplitMix64 seeded with x; ``hashes_C``
    holds h(2, key) of each column. The sum does not depend on how the entries are divided or
    ordered, so it is additive over parts.
    """
    total = np.uint64(0)
    origin = np.int64(indptr_R1[0])
    for row in range(indptr_R1.size - 1):
        row_sum = np.uint64(0)
        for e in range(np.int64(indptr_R1[row]) - origin, np.int64(indptr_R1[row + 1]) - origin):
            row_sum += np.uint64(data_E[e]) * hashes_C[indices_E[e]]
        total += row_sum * _hash(_ONE, np.uint64(first_row + row))
    return total


@kernel
def scan_rows(
    indptr_R1: Ints, indices_E: Ints, data_E: Ints, first_row: int, hashes_C: Uint64s
) -> tuple[int, int, int, np.uint64, np.uint64]:
    """Count what a sound matrix has none of, and add up the rest, in one pass over the entries.

    Arguments are those of `csr_fingerprint`.

    Returns
    -------
    tuple
        Counts of zero, columns outside 0 to C - 1, columns not above the one before; the sum of
        the counts and their fingerprint, both less those of foreign columns.
    """
    zeros, foreign, falls = 0, 0, 0
    total, fingerprint = np.uint64(0), np.uint64(0)
    origin = np.int64(indptr_R1[0])
    for row in range(indptr_R1.size - 1):
        before, row_sum = np.int64(-1), np.uint64(0)
        for e in range(np.int64(indptr_R1[row]) - origin, np.int64(indptr_R1[row + 1]) - origin):
            column, count = np.int64(indices_E[e]), np.uint64(data_E[e])
            zeros += int(count == 0)
            falls += int(column <= before)
            before = column
            if column < 0 or column >= hashes_C.size:
                foreign += 1
                continue
            row_sum += count * hashes_C[column]
            total += count
        fingerprint += row_sum * _hash(_ONE, np.uint64(first_row + row))
    return zeros, foreign, falls, total, fingerprint


@kernel
def grows(indptr_R1: Ints) -> bool:
    """Whether no row pointer is below the one before."""
    falls = 0
    for row in range(indptr_R1.size - 1):
        falls += int(indptr_R1[row + 1] < indptr_R1[row])
    return falls == 0


@kernel
def _hash(k: np.uint64, x: np.uint64) -> np.uint64:
    """k-th output of SplitMix64 seeded with x."""
    z = x + k * _GOLDEN
    z = (z ^ (z >> _SHIFT_30)) * _MIX_1
    z = (z ^ (z >> _SHIFT_27)) * _MIX_2
    return z ^ (z >> _SHIFT_31)


@kernel
def merge_rows(
    columns_E: Ints,
    counts_E: Ints,
    entries_KR: Ints,
    places_K: Int64s,
    first_row: int,
    dense_V: Uint64s,
    bitmap_W: Uint64s,
    out_columns_E: Ints,
    out_counts_E: Uint64s,
    row_entries_R: Int64s,
) -> tuple[int, int]:
    """Add the same rows of K sparse parts, in 64 bits.

    Part k has ``entries_KR[k, r]`` entries in row r, one row after the other from
    ``places_K[k]`` of ``columns_E`` and ``counts_E`` on; ``places_K`` moves along. Otherwise
    like `reduce_rows`.

    Returns
    -------
    tuple of int
        The row to go on with (R when done) and the number of entries written.
    """
    num_parts, num_rows = entries_KR.shape
    vocab_size = dense_V.size
    num_words = (vocab_size + 63) >> 6
    entries = 0
    for row in range(first_row, num_rows):
        size = 0
        for k in range(num_parts):
            size += int(entries_KR[k, row])
        if entries + min(size, vocab_size) > out_columns_E.size:
            return row, entries
        before = entries
        for k in range(num_parts):
            stop = places_K[k] + np.int64(entries_KR[k, row])
            for e in range(places_K[k], stop):
                column = np.int64(columns_E[e])
                dense_V[column] += np.uint64(counts_E[e])
                _mark(bitmap_W, num_words, column)
            places_K[k] = stop
        entries = _emit_marked(dense_V, bitmap_W, out_columns_E, out_counts_E, entries)
        row_entries_R[row] = entries - before
    return num_rows, entries


@kernel
def copy_pieces(
    source_T: Ints, sources_Q: Int64s, targets_Q: Int64s, sizes_Q: Int64s, out_N: Ints
) -> None:
    """Copy Q pieces of ``source_T`` to their places in ``out_N``."""
    for q in range(sources_Q.size):
        for i in range(sizes_Q[q]):
            out_N[targets_Q[q] + i] = source_T[sources_Q[q] + i]
