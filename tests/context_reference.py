"""Naive twins of the kernels of contexts: same name, same arguments, with sets and counters."""

from collections import Counter
from itertools import accumulate

from reference import _MODULUS, _hash


def new_state():
    return [0] * 5


def new_sums():
    return [0] * 4


def token_hashes(tokens_C, hashes_C):
    hashes_C[:] = [_hash(2, int(token)) for token in tokens_C]


def list_prefixes(
    tokens_N, starts_S, stops_S, fresh_S, counted, anchor_V, context_V, hashes_V, stamps_V,
    state, sums, occurrences_A, dropped_A, items_I, begins_I, places_A, labels_H, lasts_H,
):  # fmt: skip
    items = int(state[0])
    seen = []
    for start, stop, fresh in zip(starts_S.tolist(), stops_S.tolist(), fresh_S, strict=True):
        assert fresh, "the twin begins every list"
        seen, first = [], items
        for place in range(start, stop):
            token = int(tokens_N[place])
            anchor = int(anchor_V[token])
            if counted and anchor >= 0:
                label = int(tokens_N[place + 1])
                _account(token, label, anchor, seen, anchor_V.size, context_V, hashes_V, sums)
                occurrences_A[anchor] += 1
                dropped_A[anchor] += sum(context_V[b] < 0 for b in seen)
                if items > first:
                    labels_H[places_A[anchor]], lasts_H[places_A[anchor]] = label, items - 1
                    places_A[anchor] += 1
            if token in seen:
                continue
            seen.append(token)
            if context_V[token] >= 0:
                items_I[items], begins_I[items] = context_V[token], first
                items += 1
    state[0] = items


def list_windows(
    tokens_N, begins_S, starts_S, stops_S, window, anchor_V, context_V, hashes_V, seen_V,
    last_item_V, state, sums, occurrences_A, dropped_A, places_I, items_I, previous_I,
    places_A, labels_H, firsts_H, lasts_H,
):  # fmt: skip
    items = int(state[0])
    for begin, start, stop in zip(
        begins_S.tolist(), starts_S.tolist(), stops_S.tolist(), strict=True
    ):
        listed = []  # places of items
        for place in range(begin, stop):
            token = int(tokens_N[place])
            anchor = int(anchor_V[token])
            low = max(begin, place - window)
            inside = [i for i, at in listed if at >= low]
            if place >= start and anchor >= 0:
                before = sorted({int(b) for b in tokens_N[low:place]})
                label = int(tokens_N[place + 1])
                _account(token, label, anchor, before, anchor_V.size, context_V, hashes_V, sums)
                occurrences_A[anchor] += 1
                dropped_A[anchor] += sum(context_V[b] < 0 for b in before)
                if inside:
                    hit = int(places_A[anchor])
                    labels_H[hit], firsts_H[hit], lasts_H[hit] = label, inside[0], items - 1
                    places_A[anchor] += 1
            if context_V[token] >= 0:
                same = [i for i, at in listed if tokens_N[at] == token]
                items_I[items], previous_I[items] = context_V[token], same[-1] + 1 if same else 0
                listed.append((items, place))
                items += 1
    state[0] = items


def _account(token, label, anchor, before, vocab_size, context_V, hashes_V, sums):
    key = _hash(1, token * vocab_size + label)
    for place, wanted in ((2, True), (3, False)):
        mass = sum(int(hashes_V[b]) for b in before if (context_V[b] >= 0) == wanted)
        sums[place] = (int(sums[place]) + key * mass) % _MODULUS


def group_hits(
    begins_A, ends_A, vocab_size, links_I, labels_H, firsts_H, lasts_H, places_V, bitmap_W,
    rows_R, ends_R, sizes_R, out_firsts_H, out_lasts_H,
):  # fmt: skip
    sizes, order = {}, []
    for a, (begin, end) in enumerate(zip(begins_A.tolist(), ends_A.tolist(), strict=True)):
        for h in sorted(range(begin, end), key=lambda h: labels_H[h]):
            last = int(lasts_H[h])
            first = int(firsts_H[h]) if firsts_H.size else int(links_I[last])
            row = a * vocab_size + int(labels_H[h])
            sizes.setdefault(row, []).append(last - first + 1)
            order.append(h)
    rows_R[: len(sizes)] = list(sizes)
    sizes_R[: len(sizes)] = [sum(of_row) for of_row in sizes.values()]
    ends_R[: len(sizes)] = [*accumulate(len(of_row) for of_row in sizes.values())]
    out_lasts_H[: len(order)] = lasts_H[order]
    if firsts_H.size:
        out_firsts_H[: len(order)] = firsts_H[order]
    return len(sizes), len(order)


def stable_order(keys_H, order_H, places_K, out_H):
    out_H[:] = sorted(order_H.tolist(), key=lambda h: keys_H[h])
    counts = Counter(int(key) for key in keys_H)
    places_K[:] = [sum(counts[j] for j in range(k + 1)) for k in range(places_K.size)]


def add_prefixes(
    items_I, begins_I, lasts_H, hit_ends_R, first_hit, slots_R, dense_DC, light_L, fills_B
):
    start = first_hit
    for stop, slot in zip(hit_ends_R.tolist(), slots_R.tolist(), strict=True):
        for last in lasts_H[start - first_hit : stop - first_hit].tolist():
            _add(items_I[int(begins_I[last]) : last + 1], slot, dense_DC, light_L, fills_B)
        start = stop


def add_windows(
    items_I, previous_I, firsts_H, lasts_H, hit_ends_R, first_hit, slots_R, dense_DC, light_L,
    fills_B,
):  # fmt: skip
    start = first_hit
    for stop, slot in zip(hit_ends_R.tolist(), slots_R.tolist(), strict=True):
        for h in range(start - first_hit, stop - first_hit):
            inside = items_I[int(firsts_H[h]) : int(lasts_H[h]) + 1].tolist()
            _add(list(dict.fromkeys(inside)), slot, dense_DC, light_L, fills_B)
        start = stop


def _add(items, slot, dense_DC, light_L, fills_B):
    for item in items:
        if fills_B[slot] >= 0:
            light_L[fills_B[slot]] = item
            fills_B[slot] += 1
        else:
            dense_DC[-1 - fills_B[slot], item] += 1


def _drained(b, dense_DC, light_L, begins_B, fills_B):
    if fills_B[b] >= 0:
        return Counter(light_L[begins_B[b] : fills_B[b]].tolist())
    counter_C = dense_DC[-1 - fills_B[b]]
    found = Counter({c: int(counter_C[c]) for c in range(counter_C.size) if counter_C[c]})
    counter_C[:] = 0
    return found


def emit_rows(
    dense_DC, light_L, begins_B, fills_B, first_slot, work_C, bitmap_W, min_count, row_keys_B,
    hashes_C, columns_E, counts_E, entries_B, left_out_B, sums,
):  # fmt: skip
    entries = 0
    for b in range(first_slot, fills_B.size):
        if entries + work_C.size > columns_E.size:
            return b, entries
        found = _drained(b, dense_DC, light_L, begins_B, fills_B)
        entries_B[b] = 0
        for column, count in sorted(found.items()):
            if count >= min_count:
                columns_E[entries], counts_E[entries] = column, count
                entries += 1
                entries_B[b] += 1
            else:
                left_out_B[b] += count
                share = count * int(hashes_C[column]) * _hash(1, int(row_keys_B[b]))
                sums[0] = (int(sums[0]) + share) % _MODULUS
    return fills_B.size, entries


def emit_kept(
    dense_DC, light_L, begins_B, fills_B, first_slot, last_slot, work_C, kept_columns_E,
    kept_entries_B, columns_E, counts_E, entries_B, left_out_B,
):  # fmt: skip
    entries = kept = 0
    for b in range(first_slot, last_slot):
        found = _drained(b, dense_DC, light_L, begins_B, fills_B)
        entries_B[b] = 0
        for column in kept_columns_E[kept : kept + int(kept_entries_B[b])].tolist():
            if count := found.pop(column, 0):
                columns_E[entries], counts_E[entries] = column, count
                entries += 1
                entries_B[b] += 1
        kept += int(kept_entries_B[b])
        left_out_B[b] += sum(found.values())
    return entries


def project_prefixes(items_I, begins_I, lasts_H, slots_H, matrix_CQ, running_Q, sums_BQ):
    for last, slot in zip(lasts_H.tolist(), slots_H.tolist(), strict=True):
        items = items_I[int(begins_I[last]) : last + 1]
        sums_BQ[slot] += matrix_CQ[items].sum(axis=0, dtype=int)


def project_windows(items_I, firsts_H, lasts_H, slots_H, matrix_CQ, present_C, running_Q, sums_BQ):
    for first, last, slot in zip(
        firsts_H.tolist(), lasts_H.tolist(), slots_H.tolist(), strict=True
    ):
        items = sorted(set(items_I[first : last + 1].tolist()))
        sums_BQ[slot] += matrix_CQ[items].sum(axis=0, dtype=int)


def random_signs(tokens_C, seed, matrix_CQ):
    origin = _hash(1, int(seed))
    for c, token in enumerate(tokens_C.tolist()):
        for q in range(matrix_CQ.shape[1]):
            word = _hash(1 + q // 64, (origin + token) % _MODULUS)
            matrix_CQ[c, q] = 1 if word >> (q % 64) & 1 else -1
