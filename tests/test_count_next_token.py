"""Next-token counts against naive ones: scopes, halves, parts, widths, totals."""

import json

import numpy as np
import pytest
from counting import document_pairs, sample_pairs, stored_pairs, stream_pairs, text_like, tree
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import documents, flatten, write_corpus

from corpus.store import CorpusFormatError, InputOptions
from signatures.count import CountOptions, Scope, count_next_token
from signatures.merge import merge_stores
from signatures.order import OrderFormatError
from signatures.store import open_signatures, verify_store

ONE = CountOptions(workers=1)
few = settings(max_examples=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("count")


def count(corpus, out, scope=None, **options):
    options = {"workers": 1, "overwrite": True} | options
    return count_next_token(corpus, out=out, scope=scope, options=CountOptions(**options))


def test_the_index_decides_what_a_pair_is(tmp_path):
    corpus = write_corpus(tmp_path, [[5, 6], [7, 8]])
    count(corpus, tmp_path / "a")
    assert stored_pairs(tmp_path / "a") == {(5, 6): 1, (7, 8): 1}
    count(corpus, tmp_path / "b", Scope(kind="packed"))
    assert stored_pairs(tmp_path / "b") == {(5, 6): 1, (6, 7): 1, (7, 8): 1}


def test_a_flat_file_says_that_borders_are_unknown(tmp_path):
    np.array([5, 6, 7, 8], np.uint16).tofile(tmp_path / "flat.bin")
    options = InputOptions(format="flat", dtype="uint16")
    result = count_next_token(tmp_path / "flat.bin", out=tmp_path / "s", input=options)
    assert open_signatures(tmp_path / "s").spec.borders == "unknown"
    assert any("borders unknown" in notice for notice in result["notices"])


@pytest.mark.parametrize(
    ("docs", "pairs", "empty"),
    [
        ([[], [1, 2, 3], [], [4, 5], []], 3, 3),
        ([[1, 2], []], 1, 1),
        ([[], [1]], 0, 1),
        ([[], []], 0, 2),
        ([], 0, 0),
    ],
)
def test_empty_documents(tmp_path, docs, pairs, empty):
    corpus = write_corpus(tmp_path, docs, vocab_size=9)
    result = count(corpus, tmp_path / "s")
    assert (result["pairs"], result["documents"], result["empty_documents"]) == (
        pairs,
        len(docs),
        empty,
    )
    assert verify_store(tmp_path / "s") == []


@few
@given(
    docs=documents(vocab_size=80, max_documents=30),
    size=st.integers(1, 60),
    dtype=st.sampled_from([np.uint16, np.int32]),
)
def test_documents_whatever_the_partitions(folder, docs, size, dtype):
    corpus = write_corpus(folder, docs, dtype)
    whole = count(corpus, folder / "whole", halves=True)
    cut = count(corpus, folder / "cut", partition_tokens=size, halves=True)
    assert tree(folder / "cut") == tree(folder / "whole")
    assert cut["partitions"] == max(1, -(-whole["tokens"] // size))
    assert stored_pairs(folder / "cut") == document_pairs(docs)
    assert stored_pairs(folder / "cut", "even") == document_pairs(docs[::2])
    filled = sum(1 for document in docs if document)
    assert whole["pairs"] == whole["tokens"] - filled
    store = open_signatures(folder / "cut")
    expected_V = np.bincount(flatten(docs), minlength=whole["vocab_size"])
    np.testing.assert_array_equal(store.token_counts, expected_V)
    last = np.bincount([document[-1] for document in docs if document], minlength=expected_V.size)
    row_sums = [sum(m.data[m.indptr[r] : m.indptr[r + 1]].tolist())
                for _, m in store.counts.blocks() for r in range(m.shape[0])]  # fmt: skip
    np.testing.assert_array_equal(row_sums, expected_V - last)


@few
@given(docs=documents(vocab_size=80), size=st.integers(1, 60), seq_length=st.integers(1, 9))
def test_packed_in_file_order(folder, docs, size, seq_length):
    corpus = write_corpus(folder, docs)
    scope = Scope(kind="packed", seq_length=seq_length)
    result = count(corpus, folder / "packed", scope, partition_tokens=size, halves=True)
    stream = flatten(docs).tolist()
    assert stored_pairs(folder / "packed") == stream_pairs(stream)
    assert result["pairs"] == max(0, len(stream) - 1)
    even = range(0, -(-len(stream) // seq_length), 2)
    assert stored_pairs(folder / "packed", "even") == sample_pairs(stream, even, seq_length)
    tokens = open_signatures(folder / "packed").token_counts
    np.testing.assert_array_equal(tokens, np.bincount(stream, minlength=tokens.size))


@few
@given(data=st.data(), seq_length=st.integers(1, 12), size=st.integers(1, 60))
def test_packed_in_the_order_of_a_run(folder, data, seq_length, size):
    docs = data.draw(documents(vocab_size=80, min_documents=1))
    sequences = data.draw(st.lists(st.integers(0, len(docs) - 1), min_size=1, max_size=40))
    stream = [token for number in sequences for token in docs[number]]
    available = max(0, len(stream) - 1) // seq_length
    numbers = st.integers(0, max(0, available - 1))
    samples = data.draw(st.lists(numbers, max_size=20)) if available else []
    order = folder / "order.npz"
    np.savez(order, sequences=np.array(sequences, np.int64), samples=np.array(samples, np.int64),
             seq_length=seq_length)  # fmt: skip
    corpus = write_corpus(folder, docs)
    scope = Scope(kind="packed", order=order)
    result = count(corpus, folder / "order", scope, partition_tokens=size, halves=True)
    assert stored_pairs(folder / "order") == sample_pairs(stream, samples, seq_length)
    even = [sample for sample in samples if sample % 2 == 0]
    assert stored_pairs(folder / "order", "even") == sample_pairs(stream, even, seq_length)
    assert result["tokens"] == result["pairs"] == len(samples) * seq_length
    inputs = [t for s in samples for t in stream[s * seq_length : (s + 1) * seq_length]]
    tokens = open_signatures(folder / "order").token_counts
    np.testing.assert_array_equal(tokens, np.bincount(np.array(inputs, int), minlength=tokens.size))


@few
@example(docs=[[], []], parts=3, one_based=False)
@example(docs=[[], [1]], parts=4, one_based=True)
@given(docs=documents(vocab_size=60), parts=st.integers(1, 4), one_based=st.booleans())
def test_parts_merge_into_the_store_of_one_run(folder, docs, parts, one_based):
    corpus = write_corpus(folder, docs)
    for scope in (Scope(), Scope(kind="packed", seq_length=4)):
        count(corpus, folder / "one", scope, halves=True)
        outs = [folder / f"part-{i}" for i in range(parts)]
        for i, out in enumerate(outs):
            count(corpus, out, scope, halves=True, part=(i + one_based, parts), partition_tokens=9)
        merge_stores(outs[::-1], folder / "merged", overwrite=True)
        assert tree(folder / "merged") == tree(folder / "one")


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    corpus, other = (write_corpus(tmp_path, [[1, 2, 3, n]], vocab_size=9) for n in (4, 5))
    for name, source, scope, part in (
        ("a0", corpus, Scope(), (0, 2)),
        ("a1", corpus, Scope(), (1, 2)),
        ("b1", other, Scope(), (1, 2)),
        ("p", corpus, Scope(kind="packed"), None),
        ("q", other, Scope(kind="packed"), None),
        ("whole", corpus, Scope(), None),
    ):
        count(source, tmp_path / name, scope, part=part)
    for names, message in (
        (["a0"], "missing"),
        (["a0", "a0"], "twice"),
        (["a0", "b1"], "no part of the same count"),
        (["a0", "whole"], "no part of the same count"),
        (["p", "q"], "packed"),
        (["p", "whole"], "scope is"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_stores([tmp_path / name for name in names], tmp_path / "m")
        assert not (tmp_path / "m").exists()
        assert not (tmp_path / "m.scratch").exists()


def test_more_corpus_is_added(tmp_path):
    first, second = [[1, 2, 3]], [[2, 3, 7], []]
    count(write_corpus(tmp_path, first), tmp_path / "a")
    count(write_corpus(tmp_path, second), tmp_path / "b")
    result = merge_stores([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert stored_pairs(tmp_path / "m") == document_pairs(first + second)
    assert (result["documents"], result["empty_documents"], result["tokens"]) == (3, 1, 6)
    spec = open_signatures(tmp_path / "m").spec
    assert (spec.vocab_size, len(spec.corpus)) == (8, 2)


def test_several_files_are_one_corpus(tmp_path):
    docs = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    paths = [write_corpus(tmp_path, [document]) for document in docs]
    for size in (None, 2):
        count(paths, tmp_path / "s", partition_tokens=size)
        assert stored_pairs(tmp_path / "s") == document_pairs(docs)
        count(paths, tmp_path / "p", Scope(kind="packed"), partition_tokens=size)
        assert stored_pairs(tmp_path / "p") == stream_pairs(flatten(docs).tolist())


def test_counts_past_every_narrow_width(tmp_path):
    """65,536 documents [0, 1]; 16,777,216 plus 1; and past 2^32 at merge."""
    count(write_corpus(tmp_path, [[0, 1]] * 65_536), tmp_path / "a")
    assert stored_pairs(tmp_path / "a") == {(0, 1): 65_536}
    long = write_corpus(tmp_path, [np.tile([0, 1], 2**24)])
    count(long, tmp_path / "0", partition_tokens=2**23)
    count(write_corpus(tmp_path, [[0, 1]]), tmp_path / "b")
    merge_stores([tmp_path / "0", tmp_path / "b"], tmp_path / "c")
    assert stored_pairs(tmp_path / "c") == {(0, 1): 16_777_217, (1, 0): 2**24 - 1}
    for power in range(8):
        twice = [tmp_path / f"{power}"] * 2
        merge_stores(twice, tmp_path / f"{power + 1}")
    found = open_signatures(tmp_path / "8").counts
    assert found.data.dtype == np.uint64
    assert stored_pairs(tmp_path / "8") == {(0, 1): 2**32, (1, 0): 2**32 - 2**8}
    assert verify_store(tmp_path / "8") == []


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_large_ids_keep_their_row_and_column(tmp_path, dtype):
    np.array([151_935, 151_935], dtype).tofile(tmp_path / "flat.bin")
    options = InputOptions(format="flat", dtype=dtype, vocab_size=151_936)
    count_next_token(tmp_path / "flat.bin", out=tmp_path / "s", input=options, options=ONE)
    assert stored_pairs(tmp_path / "s") == {(151_935, 151_935): 1}


@pytest.mark.parametrize("scope", [Scope(), Scope(kind="packed")])
@pytest.mark.parametrize(
    ("docs", "document", "position"),
    [([[1, 2], [1, 9, 2]], 1, 1), ([[1, 2], [9]], 1, 0), ([[9, 1]], 0, 0), ([[1, 2, 3, 9]], 0, 3)],
)
@pytest.mark.parametrize("size", [None, 1])
def test_an_id_outside_the_vocabulary_is_named(tmp_path, scope, docs, document, position, size):
    corpus = write_corpus(tmp_path, docs)
    with pytest.raises(CorpusFormatError) as caught:
        count_next_token(
            corpus,
            out=tmp_path / "s",
            input=InputOptions(vocab_size=9),
            scope=scope,
            options=CountOptions(workers=1, partition_tokens=size),
        )
    text = str(caught.value)
    assert str(corpus) in text
    assert f"document {document}, position {position}" in text
    assert not (tmp_path / "s").exists()


def test_an_id_outside_the_vocabulary_of_samples_is_named(tmp_path):
    corpus = write_corpus(tmp_path, [[1, 2, 3], [4, 9, 5]])
    np.savez(tmp_path / "o.npz", sequences=[1, 0], samples=[0], seq_length=2)
    scope = Scope(kind="packed", order=tmp_path / "o.npz")
    options = InputOptions(vocab_size=9)
    with pytest.raises(CorpusFormatError, match="document 1, position 1"):
        count_next_token(corpus, out=tmp_path / "s", input=options, scope=scope, options=ONE)


def test_an_order_of_another_corpus_is_refused(tmp_path):
    corpus = write_corpus(tmp_path, [[1, 2, 3, 4]])
    order = tmp_path / "o.npz"
    for arrays, message in (
        ({"sequences": [5], "samples": [0], "seq_length": 2}, "sequences 5"),
        ({"sequences": [0], "samples": [1], "seq_length": 2}, "samples 1"),
        ({"sequences": [0], "samples": [0]}, "not an ORDER file"),
        ({"sequences": [0.5], "samples": [0], "seq_length": 2}, "int64"),
    ):
        np.savez(order, **arrays)
        with pytest.raises(OrderFormatError, match=message):
            count(corpus, tmp_path / "s", Scope(kind="packed", order=order))


@pytest.mark.parametrize(
    ("scope", "options", "message"),
    [
        ({"window": 3}, {}, "window"),
        ({"seq_length": 3}, {}, "packed"),
        ({"kind": "packed", "window": 3}, {}, "window"),
        ({"kind": "packed"}, {"halves": True}, "seq-length"),
        ({}, {"resume": True, "overwrite": True}, "give one"),
        ({}, {"part": (3, 2)}, "part"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, scope, options, message):
    corpus = write_corpus(tmp_path, [[1, 2]])
    with pytest.raises(ValueError, match=message):
        count_next_token(
            corpus,
            out=tmp_path / "s",
            scope=Scope(**scope),
            options=CountOptions(**{"workers": 1} | options),
        )


def test_many_partials_are_folded(tmp_path, monkeypatch):
    monkeypatch.setattr("signatures.reduction.MOST_PARTS", 3)
    docs = [text_like(40, 30, seed).tolist() for seed in range(20)]
    corpus = write_corpus(tmp_path, docs)
    count(corpus, tmp_path / "s", partition_tokens=20)
    assert stored_pairs(tmp_path / "s") == document_pairs(docs)


def test_more_row_ranges_and_buffers_than_one(tmp_path, monkeypatch):
    monkeypatch.setattr("signatures.stages._LEAST_RANGE", 100)
    monkeypatch.setattr("signatures.tasks._BUFFER_ENTRIES", 70)
    monkeypatch.setattr("signatures.reduction._OUT_ENTRIES", 70)
    docs = [text_like(900, 70, seed).tolist() for seed in range(5)]
    count(write_corpus(tmp_path, docs), tmp_path / "s", partition_tokens=500)
    assert stored_pairs(tmp_path / "s") == document_pairs(docs)


def test_the_record_of_where_it_came_from(tmp_path):
    corpus = write_corpus(tmp_path, [[3, 1, 3]], sidecar={"eod": 3, "special": [3]})
    count(corpus, tmp_path / "s")
    spec = open_signatures(tmp_path / "s").spec
    assert spec.complete
    assert (spec.vocab_size, spec.vocab_source, spec.eod, spec.special) == (
        4,
        "largest-id",
        3,
        (3,),
    )
    assert spec.corpus[0]["tokens"] == 3
    assert len(spec.corpus[0]["sha256"]) == 64
    assert "numba" in spec.versions
    json.dumps(dict(spec.parameters))


def test_anndata_opens_it(tmp_path):
    anndata = pytest.importorskip("anndata")
    zarr = pytest.importorskip("zarr")
    docs = [text_like(500, 40).tolist()]
    count(write_corpus(tmp_path, docs), tmp_path / "s")
    matrix = anndata.io.read_elem(zarr.open_group(tmp_path / "s", mode="r")["counts"])
    coordinates = matrix.tocoo()
    found = dict(
        zip(zip(coordinates.row.tolist(), coordinates.col.tolist(), strict=True),
            coordinates.data.tolist(), strict=True)
    )  # fmt: skip
    assert found == document_pairs(docs)
