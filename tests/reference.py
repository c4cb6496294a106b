"""Naive twins of every kernel: same name, same arguments, obviously right."""

from collections import Counter
from itertools import pairwise

_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MODULUS = 1 << 64


def histogram(tokens_N, starts_S, stops_S, counts_V):
    for start, stop in zip(starts_S.tolist(), stops_S.tolist(), strict=True):
        for position in range(start, stop):
            token = int(tokens_N[position])
            if not 0 <= token < counts_V.size:
                return position
            counts_V[token] += 1
    return -1


def sort_labels(tokens_N, starts_S, stops_S, places_V, labels_P):
    pairs = [
        (int(tokens_N[position]), int(tokens_N[position + 1]))
        for start, stop in zip(starts_S.tolist(), stops_S.tolist(), strict=True)
        for position in range(start, stop)
    ]
    for token, label in pairs:
        labels_P[places_V[token]] = label
        places_V[token] += 1


def reduce_rows(
    labels_P, row_ends_V, first_row, dense_V, bitmap_W, columns_E, counts_E, row_entries_V
):
    entries = 0
    for row in range(first_row, row_ends_V.size):
        start = int(row_ends_V[row - 1]) if row else 0
        labels = labels_P[start : int(row_ends_V[row])].tolist()
        if entries + min(len(labels), row_ends_V.size) >= columns_E.size:
            return row, entries
        found = sorted(Counter(labels).items())
        for column, count in found:
            columns_E[entries], counts_E[entries] = column, count
            entries += 1
        row_entries_V[row] = len(found)
    return row_ends_V.size, entries


def merge_rows(
    columns_E,
    counts_E,
    entries_KR,
    places_K,
    first_row,
    dense_V,
    bitmap_W,
    out_columns_E,
    out_counts_E,
    row_entries_R,
):
    entries = 0
    for row in range(first_row, entries_KR.shape[1]):
        size = int(entries_KR[:, row].sum())
        if entries + min(size, dense_V.size) > out_columns_E.size:
            return row, entries
        total = Counter()
        for k in range(entries_KR.shape[0]):
            stop = int(places_K[k]) + int(entries_KR[k, row])
            for e in range(int(places_K[k]), stop):
                total[int(columns_E[e])] += int(counts_E[e])
            places_K[k] = stop
        for column, count in sorted(total.items()):
            out_columns_E[entries], out_counts_E[entries] = column, count
            entries += 1
        row_entries_R[row] = len(total)
    return entries_KR.shape[1], entries


def copy_pieces(source_T, sources_Q, targets_Q, sizes_Q, out_N):
    for source, target, size in zip(sources_Q, targets_Q, sizes_Q, strict=True):
        out_N[target : target + size] = source_T[source : source + size]


def csr_fingerprint(indptr_R1, indices_E, data_E, first_row, hashes_C):
    total = 0
    for row in range(indptr_R1.size - 1):
        for e in range(int(indptr_R1[row] - indptr_R1[0]), int(indptr_R1[row + 1] - indptr_R1[0])):
            total += int(data_E[e]) * _hash(1, first_row + row) * int(hashes_C[indices_E[e]])
    return total % _MODULUS


def scan_rows(indptr_R1, indices_E, data_E, first_row, hashes_C):
    origin = int(indptr_R1[0])
    zeros = foreign = falls = total = fingerprint = 0
    for row in range(indptr_R1.size - 1):
        part = slice(int(indptr_R1[row]) - origin, int(indptr_R1[row + 1]) - origin)
        columns, counts = indices_E[part].tolist(), data_E[part].tolist()
        falls += sum(later <= earlier for earlier, later in pairwise([-1, *columns]))
        foreign += sum(not 0 <= column < hashes_C.size for column in columns)
        zeros += counts.count(0)
        for column, count in zip(columns, counts, strict=True):
            if 0 <= column < hashes_C.size:
                total += count
                fingerprint += count * _hash(1, first_row + row) * int(hashes_C[column])
    return zeros, foreign, falls, total, fingerprint % _MODULUS


def grows(indptr_R1):
    return all(later >= earlier for earlier, later in pairwise(indptr_R1.tolist()))


def _hash(k, x):
    z = (x + k * _GOLDEN) % _MODULUS
    z = (z ^ (z >> 30)) * _MIX_1 % _MODULUS
    z = (z ^ (z >> 27)) * _MIX_2 % _MODULUS
    return z ^ (z >> 31)
