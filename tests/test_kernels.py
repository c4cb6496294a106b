"""Every kernel against its naive twin, compiled and interpreted; and what types it computes in."""

import inspect

import numba
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from strategies import documents, ends, flatten

from signatures import kernels

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")
COMPILED = not numba.config.DISABLE_JIT
TOKEN_TYPES = (np.uint16, np.int32, np.uint32)
V = 70  # more than one word of the bitmap


def public_kernels(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
        and not inspect.isclass(value)
    } - {"kernel", "bitmap_words"}


def test_every_kernel_has_a_twin_of_the_same_name():
    assert public_kernels(kernels) == public_kernels(reference)


@pytest.mark.parametrize("name", sorted(public_kernels(reference)))
def test_a_twin_takes_the_same_arguments(name):
    compiled = getattr(kernels, name)
    twin = getattr(reference, name)
    function = getattr(compiled, "py_func", compiled)
    assert list(inspect.signature(function).parameters) == list(inspect.signature(twin).parameters)


def frozen(values, dtype):
    """Read-only, as mapped tokens are."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def segments(docs):
    """Input ranges of the non-empty documents."""
    stops = ends(docs)
    starts = stops - [len(document) for document in docs]
    filled = stops > starts
    return starts[filled].astype(np.int64), (stops - 1)[filled].astype(np.int64)


def both(name, *arguments):
    """Call kernel and twin on copies; return both results with what they wrote."""
    found = []
    for module in (kernels, reference):
        copies = [a.copy() if getattr(a, "flags", None) is not None else a for a in arguments]
        for copy, original in zip(copies, arguments, strict=True):
            if isinstance(copy, np.ndarray):
                copy.flags.writeable = original.flags.writeable
        result = getattr(module, name)(*copies)
        found.append((result, [c for c in copies if isinstance(c, np.ndarray)]))
    return found


def assert_same(found, *, except_arrays=()):
    (result, arrays), (expected, others) = found
    assert np.array_equal(result, expected) if result is not None else expected is None
    for number, (array, other) in enumerate(zip(arrays, others, strict=True)):
        if number not in except_arrays:
            np.testing.assert_array_equal(array, other)


@pytest.mark.kernel
@given(docs=documents(vocab_size=V + 3), dtype=st.sampled_from(TOKEN_TYPES))
def test_histogram(docs, dtype):
    starts, stops = segments(docs)
    counts_V = np.zeros(V, np.int64)
    assert_same(both("histogram", frozen(flatten(docs), dtype), starts, stops + 1, counts_V))


@pytest.mark.kernel
def test_histogram_stops_at_a_negative_id():
    tokens = frozen([1, 2, -1, 3], np.int32)
    counts_V = np.zeros(V, np.int64)
    start, stop = np.array([0]), np.array([4])
    assert kernels.histogram(tokens, start, stop, counts_V) == 2


def sorted_labels(docs, dtype):
    tokens = frozen(flatten(docs), dtype)
    starts, stops = segments(docs)
    inputs_V = np.zeros(V, np.int64)
    kernels.histogram(tokens, starts, stops, inputs_V)
    places_V = np.cumsum(inputs_V) - inputs_V
    labels_P = np.zeros(int(inputs_V.sum()), np.uint16)
    return tokens, starts, stops, places_V, labels_P


@pytest.mark.kernel
@given(docs=documents(vocab_size=V), dtype=st.sampled_from(TOKEN_TYPES))
def test_sort_labels(docs, dtype):
    assert_same(both("sort_labels", *sorted_labels(docs, dtype)))


@pytest.mark.kernel
@given(
    docs=documents(vocab_size=V) | documents(vocab_size=3, max_length=200, max_documents=3),
    capacity=st.integers(V + 1, 3 * V),
)
def test_reduce_rows_whatever_the_capacity(docs, capacity):
    arguments = sorted_labels(docs, np.uint16)
    kernels.sort_labels(*arguments)
    *_, row_ends_V, labels_P = arguments
    rows, merged = {}, {}
    for module in (kernels, reference):
        row, pieces = 0, []
        dense_V, bitmap_W = np.zeros(V, np.uint32), np.zeros(kernels.bitmap_words(V), np.uint64)
        row_entries_V, labels = np.zeros(V, np.int64), labels_P.copy()
        while row < V:
            columns, counts = np.zeros(capacity, np.uint16), np.zeros(capacity, np.uint32)
            row, entries = module.reduce_rows(
                labels, row_ends_V, row, dense_V, bitmap_W, columns, counts, row_entries_V
            )
            pieces += zip(columns[:entries].tolist(), counts[:entries].tolist(), strict=True)
        assert not dense_V.any()
        assert not bitmap_W.any()
        rows[module], merged[module] = row_entries_V.tolist(), pieces
    assert rows[kernels] == rows[reference]
    assert merged[kernels] == merged[reference]


def parts_of(rows_of_parts):
    """K parts, each a list of rows, each a dict of column to count."""
    entries_KR = np.array([[len(row) for row in part] for part in rows_of_parts], np.uint32)
    flat = [item for part in rows_of_parts for row in part for item in sorted(row.items())]
    columns = np.array([column for column, _ in flat], np.uint16)
    counts = np.array([count for _, count in flat], np.uint64)
    sizes = entries_KR.sum(axis=1).astype(np.int64)
    return columns, counts, entries_KR, np.cumsum(sizes) - sizes


_row = st.dictionaries(st.integers(0, V - 1), st.integers(1, 2**40), max_size=6)
_part = st.lists(_row, min_size=5, max_size=5)


@pytest.mark.kernel
@given(parts=st.lists(_part, min_size=1, max_size=4), first_row=st.integers(0, 1))
def test_merge_rows(parts, first_row):
    columns, counts, entries_KR, places_K = parts_of(parts)
    places_K += entries_KR[:, :first_row].sum(axis=1, dtype=np.int64)
    out = np.zeros(V, np.uint16), np.zeros(V, np.uint64), np.zeros(5, np.int64)
    work = np.zeros(V, np.uint64), np.zeros(kernels.bitmap_words(V), np.uint64)
    assert_same(both("merge_rows", columns, counts, entries_KR, places_K, first_row, *work, *out))


@pytest.mark.kernel
def test_merge_rows_is_exact_where_float32_and_uint32_are_not():
    rows = [[{0: 16_777_216, 1: 2**32 - 1}], [{0: 1, 1: 1}]]
    columns, counts, entries_KR, places_K = parts_of(rows)
    out_columns, out_counts = np.zeros(V, np.uint16), np.zeros(V, np.uint64)
    work = np.zeros(V, np.uint64), np.zeros(kernels.bitmap_words(V), np.uint64)
    kernels.merge_rows(
        columns, counts, entries_KR, places_K, 0, *work,
        out_columns, out_counts, np.zeros(1, np.int64),
    )  # fmt: skip
    assert out_counts[:2].tolist() == [16_777_217, 2**32]


@pytest.mark.kernel
def test_copy_pieces():
    source = frozen(range(20), np.uint16)
    where = np.array([3, 15, 0]), np.array([0, 5, 7]), np.array([5, 2, 3])
    assert_same(both("copy_pieces", source, *where, np.zeros(10, np.uint16)))


@pytest.mark.kernel
@given(rows=_part, first_row=st.integers(0, 2**40), origin=st.integers(0, 1000))
def test_csr_fingerprint(rows, first_row, origin):
    columns, counts, entries_KR, _ = parts_of([rows])
    indptr = origin + np.concatenate([[0], np.cumsum(entries_KR[0], dtype=np.int64)])
    hashes_C = np.arange(V, dtype=np.uint64) << np.uint64(50)
    found = both("csr_fingerprint", indptr, columns, counts, first_row, hashes_C)
    assert int(found[0][0]) == found[1][0]


@pytest.mark.kernel
@given(
    entries=st.lists(st.tuples(st.integers(-2, V + 2), st.integers(0, 2)), max_size=30),
    ends=st.lists(st.integers(0, 30), max_size=4),
)
def test_scan_rows(entries, ends):
    ends_R = sorted(min(end, len(entries)) for end in ends)
    indptr_R1 = 7 + np.array([0, *ends_R, len(entries)], np.int64)
    indices_E = np.array([column for column, _ in entries], np.int32)
    data_E = np.array([count for _, count in entries], np.uint32)
    hashes_C = np.arange(V, dtype=np.uint64) << np.uint64(50)
    kernel, twin = both("scan_rows", indptr_R1, indices_E, data_E, 5, hashes_C)
    assert [int(one) for one in kernel[0]] == list(twin[0])


@pytest.mark.kernel
@given(indptr=st.lists(st.integers(0, 9), max_size=6))
def test_grows(indptr):
    for borders in (indptr, sorted(indptr)):
        assert_same(both("grows", np.array(borders, np.int64)))


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_ids_of_a_large_vocabulary_stay_exact(dtype):
    size = 151_936
    tokens = frozen([size - 1, size - 1], dtype)
    start, stop = np.array([0]), np.array([1])
    inputs_V = np.zeros(size, np.int64)
    assert kernels.histogram(tokens, start, stop + 1, inputs_V) == -1
    assert np.flatnonzero(inputs_V).tolist() == [size - 1]
    places_V, labels_P = np.zeros(size, np.int64), np.zeros(1, np.uint32)
    kernels.sort_labels(tokens, start, stop, places_V, labels_P)
    columns, counts = np.zeros(size, np.uint32), np.zeros(size, np.uint32)
    row_entries_V = np.zeros(size, np.int64)
    kernels.reduce_rows(
        labels_P, places_V, size - 1, np.zeros(size, np.uint32),
        np.zeros(kernels.bitmap_words(size), np.uint64), columns, counts, row_entries_V,
    )  # fmt: skip
    assert (columns[0], counts[0], row_entries_V[size - 1]) == (size - 1, 1, 1)


def floats_in(function, signature):
    """Variables that Numba would compute as floats when compiling for ``signature``."""
    fresh = numba.njit(function)
    fresh.compile(signature)
    (compiled,) = fresh.overloads.values()
    return sorted(
        name
        for name, kind in compiled.type_annotation.typemap.items()
        if isinstance(kind, types.Float)
        or (isinstance(kind, types.Array) and isinstance(kind.dtype, types.Float))
    )


def _array(dtype, *, readonly=False):
    return types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=readonly)


def audited_signatures(function):
    """Argument types of each kernel by the suffix of its shape, over the token types."""
    names = list(inspect.signature(function).parameters)
    for tokens in TOKEN_TYPES:
        label = np.uint16 if tokens is np.uint16 else np.uint32
        for count in (np.uint32, np.uint64):
            known = {
                "tokens_N": _array(tokens, readonly=True),
                "source_T": _array(tokens, readonly=True),
                "out_N": _array(tokens),
                "labels_P": _array(label),
                "labels": _array(label),
                "columns_E": _array(label),
                "indices_E": _array(np.int32),
                "out_columns_E": _array(label),
                "counts_E": _array(count),
                "data_E": _array(count),
                "out_counts_E": _array(np.uint64),
                "dense_V": _array(count),
                "bitmap_W": _array(np.uint64),
                "hashes_C": _array(np.uint64),
                "entries_KR": types.Array(types.uint32, 2, "C"),
                "bits": types.uint64,
                "k": types.uint64,
                "x": types.uint64,
            }
            integer = {"first_row", "entries", "num_words", "column", "num_columns"}
            yield tuple(
                known.get(name, types.int64 if name in integer else _array(np.int64))
                for name in names
            )


@pytest.mark.skipif(not COMPILED, reason="there are no types to audit with the compiler off")
def test_no_kernel_computes_in_floats():
    audited = 0
    for name, dispatcher in vars(kernels).items():
        if not hasattr(dispatcher, "py_func"):
            continue
        for signature in set(audited_signatures(dispatcher.py_func)):
            assert floats_in(dispatcher.py_func, signature) == [], name
            audited += 1
    assert audited >= 20


@pytest.mark.skipif(not COMPILED, reason="there are no types to audit with the compiler off")
def test_the_audit_finds_a_mixed_accumulator():
    def mixed(counts_E):
        total = np.uint64(0)
        for e in range(counts_E.size):
            total = total + counts_E[e]  # uint64 + int64 is float64 in Numba
        return total

    assert floats_in(mixed, (_array(np.int64),)) != []
