"""Numba kernels of contexts: what came before a token, and how often, by (anchor, label).

The distinct tokens before a position are a PREFIX of the first-occurrence list of its document
(or sample), so a set of tokens is stored as one number: where the prefix ends. With a window they
are the items between two places of the list of all occurrences, each token counted where it
occurs first. One scan lists the items and the *hits* (occurrences of anchors); the kernels of
``sum_kernels`` add them up.

An *item* is the number of a context token; only tokens that are context tokens have one. A hit is
kept only when its context has items. A *row* is an anchor with a label. The twins are in
``tests/context_reference.py``.

Shapes: N tokens, S segments of inputs, V vocabulary, A anchors, C context tokens, I items, H hits,
R rows that have any, W words of an occupancy bitmap, K keys of a counting sort, Q columns of a
projection.
"""

import numpy as np
import numpy.typing as npt

from signatures.kernels import Int64s, Ints, Uint64s, _hash, _lowest_bit, _mark, kernel

_ONE, _TWO = np.uint64(1), np.uint64(2)
_ITEMS, _LIST, _DISTINCT, _KEPT, _FIRST = 0, 1, 2, 3, 4
_INSIDE, _OUTSIDE, _SUM_INSIDE, _SUM_OUTSIDE = 0, 1, 2, 3


def new_state() -> Int64s:
    """State of a scan: items, number of the list, distinct tokens, those kept, first item."""
    return np.zeros(5, np.int64)


def new_sums() -> Uint64s:
    """Hash sums of a scan: of tokens in the context, kept and not, and of all hits so far."""
    return np.zeros(4, np.uint64)


@kernel
def token_hashes(tokens_C: Ints, hashes_C: Uint64s) -> None:
    """h(2, token): the part of a fingerprint that a context token has."""
    for c in range(tokens_C.size):
        hashes_C[c] = _hash(_TWO, np.uint64(tokens_C[c]))


@kernel
def list_prefixes(
    tokens_N: Ints,
    starts_S: Int64s,
    stops_S: Int64s,
    fresh_S: npt.NDArray[np.uint8],
    counted: bool,
    anchor_V: npt.NDArray[np.int32],
    context_V: npt.NDArray[np.int32],
    hashes_V: Uint64s,
    stamps_V: Int64s,
    state: Int64s,
    sums: Uint64s,
    occurrences_A: Int64s,
    dropped_A: Int64s,
    items_I: Ints,
    begins_I: npt.NDArray[np.uint32],
    places_A: Int64s,
    labels_H: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
) -> None:
    """List first occurrences and hits of the segments; a segment that is not fresh goes on.

    A hit of anchor a with label v ends at item ``lasts_H``, which ``begins_I`` says the list of.
    Hits stand by anchor: ``places_A`` is where those of each anchor begin and, afterwards, end.
    ``dropped_A`` counts distinct tokens of contexts that are no context tokens. With ``counted``
    false the tokens are listed alone: they come before the first input of a block.

    Fingerprint of all hits: sum of h(1, a V + v) x sum of h(2, b) over the distinct b before
    (spec of the store), apart for context tokens and others; no set is formed.
    """
    vocab_size = np.int64(anchor_V.size)
    items, current = state[_ITEMS], state[_LIST]
    distinct, kept, first = state[_DISTINCT], state[_KEPT], state[_FIRST]
    inside, outside = sums[_INSIDE], sums[_OUTSIDE]
    for s in range(starts_S.size):
        if fresh_S[s]:
            current += 1
            distinct, kept, first = 0, 0, items
            inside, outside = np.uint64(0), np.uint64(0)
        for i in range(starts_S[s], stops_S[s]):
            token = np.int64(tokens_N[i])
            anchor = np.int64(anchor_V[token])
            if counted and anchor >= 0:
                label = np.int64(tokens_N[i + 1])
                key = _hash(_ONE, np.uint64(token * vocab_size + label))
                occurrences_A[anchor] += 1
                dropped_A[anchor] += distinct - kept
                sums[_SUM_INSIDE] += key * inside
                sums[_SUM_OUTSIDE] += key * outside
                if kept > 0:
                    hit = places_A[anchor]
                    places_A[anchor] = hit + 1
                    labels_H[hit] = label
                    lasts_H[hit] = items - 1
            if stamps_V[token] == current:
                continue
            stamps_V[token] = current
            distinct += 1
            item = context_V[token]
            if item >= 0:
                items_I[items] = item
                begins_I[items] = first
                items += 1
                kept += 1
                inside += hashes_V[token]
            else:
                outside += hashes_V[token]
    state[_ITEMS], state[_LIST] = items, current
    state[_DISTINCT], state[_KEPT], state[_FIRST] = distinct, kept, first
    sums[_INSIDE], sums[_OUTSIDE] = inside, outside


@kernel
def list_windows(
    tokens_N: Ints,
    begins_S: Int64s,
    starts_S: Int64s,
    stops_S: Int64s,
    window: int,
    anchor_V: npt.NDArray[np.int32],
    context_V: npt.NDArray[np.int32],
    hashes_V: Uint64s,
    seen_V: Int64s,
    last_item_V: Int64s,
    state: Int64s,
    sums: Uint64s,
    occurrences_A: Int64s,
    dropped_A: Int64s,
    places_I: Int64s,
    items_I: Ints,
    previous_I: npt.NDArray[np.uint32],
    places_A: Int64s,
    labels_H: npt.NDArray[np.uint32],
    firsts_H: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
) -> None:
    """List all occurrences and hits, a hit with the items of the W tokens before it.

    The context of position i runs from ``max(begin, i - window)``. ``previous_I`` is one more than
    the item where the same token occurred last in its document, 0 for none: a token of the
    context of a hit is counted at the item whose ``previous_I <= firsts_H``. Hash sums and
    numbers of distinct tokens follow the window by the places where each token was seen last.
    ``seen_V`` and ``last_item_V`` are -1 before the first call; ``places_I`` is work space;
    ``places_A`` is as in `list_prefixes`.
    """
    vocab_size = np.int64(anchor_V.size)
    items = state[_ITEMS]
    for s in range(starts_S.size):
        distinct, kept = np.int64(0), np.int64(0)
        inside, outside = np.uint64(0), np.uint64(0)
        begin, first, list_begin = begins_S[s], items, items
        for i in range(begin, stops_S[s]):
            token = np.int64(tokens_N[i])
            low = max(begin, i - window)
            while first < items and places_I[first] < low:
                first += 1
            anchor = np.int64(anchor_V[token])
            if i >= starts_S[s] and anchor >= 0:
                label = np.int64(tokens_N[i + 1])
                key = _hash(_ONE, np.uint64(token * vocab_size + label))
                occurrences_A[anchor] += 1
                dropped_A[anchor] += distinct - kept
                sums[_SUM_INSIDE] += key * inside
                sums[_SUM_OUTSIDE] += key * outside
                if kept > 0:
                    hit = places_A[anchor]
                    places_A[anchor] = hit + 1
                    labels_H[hit] = label
                    firsts_H[hit] = first
                    lasts_H[hit] = items - 1
            # The window moves on by one: i comes in, i - window goes out.
            gone = i - window
            if gone >= begin:
                old = np.int64(tokens_N[gone])
                if seen_V[old] == gone:
                    distinct -= 1
                    if context_V[old] >= 0:
                        kept -= 1
                        inside -= hashes_V[old]
                    else:
                        outside -= hashes_V[old]
            if seen_V[token] < max(begin, i - window + 1):
                distinct += 1
                if context_V[token] >= 0:
                    kept += 1
                    inside += hashes_V[token]
                else:
                    outside += hashes_V[token]
            seen_V[token] = i
            item = context_V[token]
            if item >= 0:
                before = last_item_V[token]
                items_I[items] = item
                places_I[items] = i
                previous_I[items] = before + 1 if before >= list_begin else 0
                last_item_V[token] = items
                items += 1
    state[_ITEMS] = items


@kernel
def group_hits(
    begins_A: Int64s,
    ends_A: Int64s,
    vocab_size: int,
    links_I: npt.NDArray[np.uint32],
    labels_H: npt.NDArray[np.uint32],
    firsts_H: npt.NDArray[np.uint32],
    lasts_H: npt.NDArray[np.uint32],
    places_V: Int64s,
    bitmap_W: Uint64s,
    rows_R: Int64s,
    ends_R: Int64s,
    sizes_R: Int64s,
    out_firsts_H: npt.NDArray[np.uint32],
    out_lasts_H: npt.NDArray[np.uint32],
) -> tuple[int, int]:
    """Sort the hits of each anchor by label, stably; say where each row ends and what it holds.

    ``firsts_H`` is empty without a window: a context then begins where ``links_I`` says.
    ``places_V`` and ``bitmap_W`` are all zero before and after. ``sizes_R`` are the sums of the
    lengths of the contexts.

    Returns
    -------
    tuple of int
        Rows and hits.
    """
    num_words = (places_V.size + 63) >> 6
    windowed = firsts_H.size > 0
    rows, hits = 0, 0
    for a in range(begins_A.size):
        first_row, place = rows, np.int64(hits)
        for h in range(begins_A[a], ends_A[a]):
            label = np.int64(labels_H[h])
            places_V[label] += 1
            _mark(bitmap_W, num_words, label)
        for group in range(num_words, bitmap_W.size):
            marked = bitmap_W[group]
            bitmap_W[group] = 0
            while marked != 0:
                word = ((group - num_words) << 6) + _lowest_bit(marked)
                marked &= marked - _ONE
                bits = bitmap_W[word]
                bitmap_W[word] = 0
                while bits != 0:
                    label = (word << 6) + _lowest_bit(bits)
                    bits &= bits - _ONE
                    rows_R[rows] = label
                    count = places_V[label]
                    places_V[label] = place
                    place += count
                    ends_R[rows] = place
                    rows += 1
        for h in range(begins_A[a], ends_A[a]):
            label = np.int64(labels_H[h])
            out_lasts_H[places_V[label]] = lasts_H[h]
            if windowed:
                out_firsts_H[places_V[label]] = firsts_H[h]
            places_V[label] += 1
        for r in range(first_row, rows):
            places_V[rows_R[r]] = 0
            rows_R[r] += a * vocab_size
            size = np.int64(0)
            for h in range(hits, ends_R[r]):
                last = np.int64(out_lasts_H[h])
                begin = np.int64(out_firsts_H[h]) if windowed else np.int64(links_I[last])
                size += last + 1 - begin
            sizes_R[r] = size
            hits = ends_R[r]
    return rows, hits


@kernel
def stable_order(keys_H: Ints, order_H: Ints, places_K: Int64s, out_H: Ints) -> None:
    """Sort numbers of hits by their keys, keeping the order of equal ones.

    ``places_K`` is all zero before; its last entry is where the next key would begin afterwards.
    """
    for h in range(keys_H.size):
        places_K[np.int64(keys_H[h])] += 1
    total = np.int64(0)
    for k in range(places_K.size):
        count = places_K[k]
        places_K[k] = total
        total += count
    for h in range(order_H.size):
        key = np.int64(keys_H[order_H[h]])
        out_H[places_K[key]] = order_H[h]
        places_K[key] += 1


@kernel
def random_signs(tokens_C: Ints, seed: np.uint64, matrix_CQ: npt.NDArray[np.int8]) -> None:
    """Draw the signs of a projection: bits of a hash of seed, token and column."""
    origin = _hash(_ONE, seed)
    for c in range(matrix_CQ.shape[0]):
        for q in range(matrix_CQ.shape[1]):
            word = _hash(_ONE + np.uint64(q >> 6), origin + np.uint64(tokens_C[c]))
            bit = (word >> np.uint64(q & 63)) & _ONE
            matrix_CQ[c, q] = 1 if bit == _ONE else -1
