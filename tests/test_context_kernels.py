"""Every kernel of contexts against its naive twin, compiled and interpreted, on whole scans."""

import inspect
from types import SimpleNamespace

import context_reference
import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import types
from strategies import documents, ends, flatten
from test_kernels import COMPILED, floats_in, public_kernels

from signatures import context_kernels, sum_kernels
from signatures.kernels import bitmap_words

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]
V = 70
KERNELS = SimpleNamespace(
    **{
        name: value
        for module in (context_kernels, sum_kernels)
        for name, value in vars(module).items()
        if name in public_kernels(module)
    }
)
BOTH = (KERNELS, context_reference)
token_sets = st.lists(st.integers(0, V - 1), min_size=1, max_size=V, unique=True)
docs_of_few = documents(vocab_size=8, max_documents=5, max_length=40)
docs_of_many = documents(vocab_size=V, max_documents=5, max_length=40)
few = settings(max_examples=30)


def test_every_kernel_has_a_twin_of_the_same_name():
    ours = public_kernels(context_kernels) | public_kernels(sum_kernels)
    assert ours == public_kernels(context_reference)


@pytest.mark.parametrize("name", sorted(public_kernels(context_reference)))
def test_a_twin_takes_the_same_arguments(name):
    compiled = getattr(KERNELS, name)
    function = getattr(compiled, "py_func", compiled)
    twin = getattr(context_reference, name)
    assert list(inspect.signature(function).parameters) == list(inspect.signature(twin).parameters)


def numbered(tokens):
    numbers_V = np.full(V, -1, np.int32)
    numbers_V[tokens] = np.arange(len(tokens))
    return numbers_V


class Scan:
    """Arguments and results of a scan over documents."""

    def __init__(self, module, docs, anchors, contexts, window=None):
        tokens_N = flatten(docs).astype(np.uint16)
        tokens_N.flags.writeable = False
        stops_D = ends(docs)
        starts_D = stops_D - [len(document) for document in docs]
        filled = stops_D > starts_D
        starts_S, stops_S = starts_D[filled].astype(np.int64), stops_D[filled].astype(np.int64) - 1
        size = tokens_N.size
        hashes_V = np.empty(V, np.uint64)
        module.token_hashes(np.arange(V), hashes_V)
        self.occurrences_A = np.zeros(len(anchors), np.int64)
        self.dropped_A = np.zeros(len(anchors), np.int64)
        self.items_I, self.links_I = np.zeros(size, np.uint16), np.zeros(size, np.uint32)
        self.windowed = window is not None
        self.labels_H, self.firsts_H, self.lasts_H = np.zeros((3, size * len(anchors)), np.uint32)
        self.firsts_H = self.firsts_H if self.windowed else np.zeros(0, np.uint32)
        self.begins_A = np.arange(len(anchors)) * size
        self.places_A = self.begins_A.copy()
        self.sums = np.zeros(4, np.uint64)
        state = np.zeros(5, np.int64)
        sets = numbered(anchors), numbered(contexts), hashes_V
        found = state, self.sums, self.occurrences_A, self.dropped_A
        listed = self.items_I, self.links_I, self.places_A, self.labels_H
        if window is None:
            module.list_prefixes(
                tokens_N, starts_S, stops_S, np.ones(starts_S.size, np.uint8), True, *sets,
                np.zeros(V, np.int64), *found, *listed, self.lasts_H,
            )  # fmt: skip
        else:
            unseen = np.full((2, V), -1, np.int64)
            module.list_windows(
                tokens_N, starts_S, starts_S, stops_S, window, *sets, unseen[0], unseen[1],
                *found, np.zeros(size, np.int64), *listed, self.firsts_H, self.lasts_H,
            )  # fmt: skip
        self.num_items = int(state[0])
        self.num_hits = int((self.places_A - self.begins_A).sum())

    def facts(self):
        """Everything a scan found, to be compared."""
        return (
            self.num_items, self.num_hits, self.sums[2:].tolist(), self.occurrences_A.tolist(),
            self.dropped_A.tolist(), self.items_I.tolist(), self.links_I.tolist(),
            self.places_A.tolist(), self.labels_H.tolist(), self.firsts_H.tolist(),
            self.lasts_H.tolist(),
        )  # fmt: skip

    def in_order(self):
        """(firsts, lasts) of all hits in the order of the scan."""
        spans = zip(self.begins_A, self.places_A, strict=True)
        hits = np.concatenate([np.arange(*span) for span in spans])
        lasts_H = self.lasts_H[hits]
        firsts_H = self.firsts_H[hits] if self.windowed else np.zeros_like(lasts_H)
        order_H = np.lexsort((firsts_H, lasts_H))
        return firsts_H[order_H], lasts_H[order_H]

    def grouped(self, module):
        """Rows, their ends and sizes, and the hits of `group_hits`."""
        rows_R, ends_R, sizes_R = np.zeros((3, self.num_hits), np.int64)
        places_V, bitmap_W = np.zeros(V, np.int64), np.zeros(bitmap_words(V), np.uint64)
        hits = np.zeros((2, self.num_hits), np.uint32)
        ends = module.group_hits(
            self.begins_A, self.places_A, V, self.links_I, self.labels_H, self.firsts_H,
            self.lasts_H, places_V, bitmap_W, rows_R, ends_R, sizes_R, *hits,
        )  # fmt: skip
        assert not places_V.any()
        assert not bitmap_W.any()
        return ends, *(array.tolist() for array in (rows_R, ends_R, sizes_R, hits))


@few
@given(docs=docs_of_few | docs_of_many, anchors=token_sets, contexts=token_sets)
def test_list_prefixes(docs, anchors, contexts):
    kernel, twin = (Scan(module, docs, anchors, contexts) for module in BOTH)
    assert kernel.facts() == twin.facts()


@few
@given(
    docs=docs_of_few | docs_of_many,
    anchors=token_sets,
    contexts=token_sets,
    window=st.integers(1, 50),
)
def test_list_windows(docs, anchors, contexts, window):
    kernel, twin = (Scan(module, docs, anchors, contexts, window) for module in BOTH)
    assert kernel.facts() == twin.facts()


@few
@given(
    docs=docs_of_few | docs_of_many,
    anchors=token_sets,
    contexts=token_sets,
    window=st.none() | st.integers(1, 50),
)
def test_group_hits(docs, anchors, contexts, window):
    scan = Scan(context_reference, docs, anchors, contexts, window)
    kernel, twin = (scan.grouped(module) for module in BOTH)
    assert kernel == twin


@few
@given(keys=st.lists(st.integers(0, 9), max_size=40), seed=st.integers(0, 9))
def test_stable_order(keys, seed):
    keys_H = np.array(keys, np.uint32)
    order_H = np.random.default_rng(seed).permutation(keys_H.size).astype(np.uint32)
    found = []
    for module in BOTH:
        out_H, places_K = np.zeros(keys_H.size, np.uint32), np.zeros(10, np.int64)
        module.stable_order(keys_H, order_H, places_K, out_H)
        found.append((out_H.tolist(), places_K.tolist()))
    assert found[0] == found[1]


def added(module, scan, slots_R, hit_ends_R, light_B, windowed, columns, dtype):
    """Slots after all hits: rows are runs of hits, here in the order of the scan."""
    num_light = int(light_B.sum())
    room = max(1, scan.num_hits * columns)
    begins_B = np.arange(light_B.size, dtype=np.int64) * room
    fills_B = begins_B.copy()
    fills_B[~light_B] = -1 - np.arange(light_B.size - num_light)
    dense_DC = np.zeros((light_B.size - num_light, columns), dtype)
    light_L = np.zeros(light_B.size * room, np.uint16)
    places = hit_ends_R, 0, slots_R, dense_DC, light_L, fills_B
    links = scan.items_I, scan.links_I
    firsts_H, lasts_H = scan.in_order()
    if windowed:
        module.add_windows(*links, firsts_H, lasts_H, *places)
    else:
        module.add_prefixes(*links, lasts_H, *places)
    return dense_DC, light_L, begins_B, fills_B


def emitted(module, slots, columns, min_count, dtype, capacity):
    """(columns, counts, entries, left out, their fingerprint) of all slots, a buffer at a time."""
    num_slots = slots[3].size
    work = np.zeros(columns, dtype), np.zeros(bitmap_words(columns), np.uint64)
    hashes_C = np.arange(columns, dtype=np.uint64) << np.uint64(40)
    entries_B, left_out_B = np.zeros((2, num_slots), np.int64)
    sums, slot, pieces = np.zeros(1, np.uint64), 0, []
    while slot < num_slots:
        out = np.zeros(capacity, np.uint16), np.zeros(capacity, dtype)
        slot, entries = module.emit_rows(
            *slots, slot, *work, min_count, np.arange(num_slots) * 1000, hashes_C, *out,
            entries_B, left_out_B, sums,
        )  # fmt: skip
        pieces += zip(out[0][:entries].tolist(), out[1][:entries].tolist(), strict=True)
    assert not any(array.any() for array in work)
    assert not slots[0].any()
    return pieces, entries_B, left_out_B, int(sums[0])


@few
@given(
    docs=docs_of_few,
    contexts=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    window=st.none() | st.integers(1, 20),
    rows=st.integers(1, 4),
    light=st.lists(st.booleans(), min_size=4, max_size=4),
    min_count=st.integers(1, 4),
    dtype=st.sampled_from([np.uint32, np.uint64]),
)
def test_adding_up_and_reading_off(docs, contexts, window, rows, light, min_count, dtype):
    scan = Scan(context_reference, docs, list(range(8)), contexts, window)
    hit_ends_R = np.sort(np.random.default_rng(0).integers(0, scan.num_hits + 1, rows))
    hit_ends_R[-1] = scan.num_hits
    slots_R, light_B = np.arange(rows), np.array(light[:rows])
    columns = len(contexts)
    found = []
    for module in BOTH:
        slots = added(
            module, scan, slots_R, hit_ends_R.astype(np.int64), light_B, window, columns, dtype
        )
        again = [array.copy() for array in slots]
        pieces, entries_B, left_out_B, left_sum = emitted(
            module, slots, columns, min_count, dtype, columns + 3
        )
        kept = np.array([column for column, _ in pieces[::2]], np.uint16)
        kept_B = np.zeros(rows, np.int64)
        np.add.at(kept_B, np.repeat(np.arange(rows), entries_B)[::2], 1)
        out = np.zeros(kept.size, np.uint16), np.zeros(kept.size, dtype)
        even_B, even_left_B = np.zeros((2, rows), np.int64)
        work_C = np.zeros(columns, dtype)
        written = module.emit_kept(*again, 0, rows, work_C, kept, kept_B, *out, even_B, even_left_B)
        assert not work_C.any()
        assert not again[0].any()
        found.append(
            (pieces, entries_B.tolist(), left_out_B.tolist(), left_sum, written,
             out[0].tolist(), out[1].tolist(), even_B.tolist(), even_left_B.tolist())
        )  # fmt: skip
    assert found[0] == found[1]


@few
@given(
    rows=st.lists(st.lists(st.integers(0, 299), max_size=80), min_size=1, max_size=5),
    spare=st.integers(0, 100),
)
def test_reading_off_few_and_many_of_many_columns(rows, spare):
    sizes_B = np.array([len(row) for row in rows], np.int64)
    begins_B = np.cumsum(sizes_B) - sizes_B
    light_L = np.array([item for row in rows for item in row], np.uint16)
    found = []
    for module in BOTH:
        slots = np.zeros((0, 300), np.uint32), light_L, begins_B, begins_B + sizes_B
        pieces, entries_B, *_ = emitted(module, slots, 300, 1, np.uint32, 300 + spare)
        found.append((pieces, entries_B.tolist()))
    assert found[0] == found[1]


@few
@given(
    docs=docs_of_few | docs_of_many,
    contexts=token_sets,
    window=st.none() | st.integers(1, 20),
    seed=st.integers(0, 2**63),
)
@example(docs=[[1, 0, 0, 0, 0, 0, 2, 0, 0]], contexts=[0, 1], window=6, seed=0)
def test_projecting(docs, contexts, window, seed):
    scan = Scan(context_reference, docs, list(range(V)), contexts, window)
    matrices = []
    for module in BOTH:
        matrix_CQ = np.zeros((len(contexts), 67), np.int8)
        module.random_signs(np.array(contexts), np.uint64(seed), matrix_CQ)
        matrices.append(matrix_CQ)
    assert np.array_equal(*matrices)
    slots_H = np.arange(scan.num_hits) % 3
    firsts_H, lasts_H = scan.in_order()
    found = []
    for module in BOTH:
        sums_BQ, running_Q = np.zeros((3, 67), np.int64), np.zeros(67, np.int64)
        if window:
            present_C = np.zeros(len(contexts), np.int64)
            module.project_windows(
                scan.items_I, firsts_H, lasts_H, slots_H, matrix_CQ, present_C, running_Q, sums_BQ
            )
            assert not present_C.any()
        else:
            module.project_prefixes(
                scan.items_I, scan.links_I, lasts_H, slots_H, matrix_CQ, running_Q, sums_BQ
            )
        found.append(sums_BQ)
    assert np.array_equal(*found)


def argument_types(function, token, count):
    """Numba type of each argument by its name; int64 arrays and integers unless listed."""
    names = list(inspect.signature(function).parameters)
    item = np.uint16 if token is np.uint16 else np.uint32
    two = {"dense_DC": count, "sums_BQ": np.int64, "matrix_CQ": np.int8}
    one = (
        dict.fromkeys(("items_I", "light_L", "columns_E", "kept_columns_E"), item)
        | dict.fromkeys(("counts_E", "work_C", "counter_C"), count)
        | dict.fromkeys(("hashes_V", "hashes_C", "sums", "bitmap_W"), np.uint64)
        | dict.fromkeys(("anchor_V", "context_V"), np.int32)
        | {"tokens_N": token, "fresh_S": np.uint8}
    )
    links = ("begins_I", "previous_I", "links_I", "labels_H", "firsts_H", "lasts_H", "keys_H")
    outs = ("out_firsts_H", "out_lasts_H", "order_H", "out_H")
    one |= dict.fromkeys((*links, *outs), np.uint32)
    scalars = {"counted": types.boolean, "seed": types.uint64}
    integer = {"window", "first_hit", "first_slot", "last_slot", "min_count", "before", "entries",
               "b", "first", "done", "begin", "vocab_size"}  # fmt: skip
    scalars |= dict.fromkeys(integer, types.int64)
    return tuple(
        scalars.get(name)
        or types.Array(
            numba.from_dtype(np.dtype(two.get(name, one.get(name, np.int64)))),
            2 if name in two else 1,
            "C",
            readonly=name == "tokens_N",
        )
        for name in names
    )


@pytest.mark.skipif(not COMPILED, reason="there are no types to audit with the compiler off")
@pytest.mark.parametrize(("token", "count"), [(np.uint16, np.uint32), (np.int32, np.uint64)])
def test_no_kernel_computes_in_floats(token, count):
    own = [
        dispatcher.py_func
        for module in (context_kernels, sum_kernels)
        for dispatcher in vars(module).values()
        if hasattr(dispatcher, "py_func") and dispatcher.py_func.__module__ == module.__name__
    ]
    assert len(own) >= 12
    for function in own:
        assert floats_in(function, argument_types(function, token, count)) == [], function
