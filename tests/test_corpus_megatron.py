"""Megatron's pair: the same bytes as Megatron writes, and every way for it to be broken."""

import itertools
import os
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.megatron import IndexLayout, dtype_for
from corpus.store import CorpusFormatError, CorpusWriter, InputOptions, open_corpus
from tests.strategies import documents, ends, flatten, write_corpus

with warnings.catch_warnings():
    # Importing Megatron imports corners of torch that announce their own end.
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import (
        DType,
        IndexedDataset,
        IndexedDatasetBuilder,
    )

INTEGER_TYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("megatron")


@st.composite
def documents_in_sequences(draw):
    """Documents, each with the lengths of its sequences."""
    drawn = draw(documents(vocab_size=100))
    divided = []
    for document in drawn:
        cuts = sorted(draw(st.lists(st.integers(0, len(document)), max_size=3)))
        divided.append((document, np.diff([0, *cuts, len(document)]).tolist()))
    return divided


@settings(deadline=None)
@given(drawn=documents_in_sequences(), dtype=st.sampled_from(INTEGER_TYPES))
def test_the_same_bytes_both_ways(folder, drawn, dtype):
    theirs, ours = folder / f"theirs{next(_numbers)}", folder / f"ours{next(_numbers)}"
    builder = IndexedDatasetBuilder(f"{theirs}.bin", dtype=dtype)
    for document, lengths in drawn:
        builder.add_document(np.array(document, np.int64), lengths)
    builder.finalize(f"{theirs}.idx")
    with CorpusWriter(ours, dtype) as writer:
        for document, lengths in drawn:
            writer.add_document(np.array(document, np.int64), lengths)
    for suffix in (".bin", ".idx"):
        assert (folder / f"{ours.name}{suffix}").read_bytes() == (
            folder / f"{theirs.name}{suffix}"
        ).read_bytes()

    corpus = open_corpus(theirs)
    joined = [document for document, _ in drawn]
    assert corpus.tokens(0, corpus.num_tokens).tolist() == flatten(joined).tolist()
    assert corpus.doc_ends_D.tolist() == ends(joined).tolist()
    assert corpus.dtype == dtype
    if corpus.num_tokens:
        read = IndexedDataset(str(ours))
        assert [read[at].tolist() for at in range(len(read))] == _sequences(drawn)
        assert (
            read.document_indices.tolist()
            == np.cumsum([0, *(len(lengths) for _, lengths in drawn)]).tolist()
        )


def _sequences(drawn):
    return [
        document[start : start + length]
        for document, lengths in drawn
        for start, length in zip(np.cumsum([0, *lengths[:-1]]).tolist(), lengths, strict=True)
    ]


@pytest.mark.parametrize("vocab_size", [1, 60_416, 65_499, 65_500, 65_536, 151_936])
def test_width_is_megatrons_choice(vocab_size):
    assert dtype_for(vocab_size) == DType.optimal_dtype(vocab_size)


def test_a_document_of_no_sequences_is_empty(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2], [3]])
    _write_index(prefix, lengths=[2, 1], marks=[0, 1, 1, 2])
    corpus = open_corpus(prefix)
    assert corpus.doc_ends_D.tolist() == [2, 2, 3]
    assert corpus.num_empty_documents == 1


def test_modes_of_a_multimodal_index_are_passed_over(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2], [3]])
    with Path(f"{prefix}.idx").open("ab") as file:
        file.write(b"\0\1")
    assert open_corpus(prefix).doc_ends_D.tolist() == [2, 3]


def _write_index(
    prefix, *, lengths, marks, pointers=None, code=8, magic=b"MMIDIDX\0\0", version=1, itemsize=2
):
    if pointers is None:
        pointers = (np.cumsum([0, *lengths[:-1]], dtype=np.int64) * itemsize).tolist()
    with Path(f"{prefix}.idx").open("wb") as file:
        file.write(struct.pack("<9sQBQQ", magic, version, code, len(lengths), len(marks)))
        file.write(np.array(lengths, "<i4").tobytes())
        file.write(np.array(pointers, "<i8").tobytes())
        file.write(np.array(marks, "<i8").tobytes())


GOOD = {"lengths": [2, 1, 3], "marks": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": b"TNTIDX\0\0\0"}, r"starts with b'TNTIDX"),
        ({"version": 2}, "index version 2"),
        ({"code": 6}, r"code 6 \(float64\), needed one of the integer codes"),
        ({"code": 0}, r"code 0 \(unknown\)"),
        ({"code": 99}, r"code 99"),
        ({"code": 4}, r"24 bytes needed for 6 int32 tokens .*found 12; the file is cut short"),
        ({"lengths": [2, 1, 2]}, r"10 bytes needed .*found 12; the two do not belong together"),
        ({"lengths": [2, 1, 9]}, r"24 bytes needed for 12 uint16 tokens .*found 12"),
        ({"lengths": [2, -1, 5]}, "sequence 1 has length -1"),
        ({"pointers": [0, 6, 4]}, "pointers are not rising .* sequence 1 points to byte 6"),
        ({"pointers": [0, 4, 4]}, "sequence 2 points to byte 4, .* end at byte 6"),
        ({"pointers": [2, 4, 6]}, "sequence 0 points to byte 2, .* end at byte 0"),
        ({"pointers": [0, 2**62, 6]}, "pointers are not rising"),
        ({"marks": [0, 2, 1, 3]}, "document index is not rising: mark 2 is 1, the one before it 2"),
        ({"marks": [0, 1, 2]}, "ends at sequence 2, it must end at the last of 3"),
        ({"marks": [0, 1, 2, 4]}, "ends at sequence 4"),
        ({"marks": [1, 2, 3]}, "starts with 1, it must start with 0"),
        ({"marks": [-1, 2, 3]}, "starts with -1"),
        ({"marks": []}, "starts with nothing"),
    ],
)
def test_refusals_name_file_found_needed_and_remedy(tmp_path, change, message):
    prefix = write_corpus(tmp_path, [[1, 2], [3], [4, 5, 6]])
    _write_index(prefix, **GOOD)
    assert open_corpus(prefix).num_documents == 3
    _write_index(prefix, **(GOOD | change))
    with pytest.raises(CorpusFormatError, match=message) as caught:
        open_corpus(prefix)
    assert str(caught.value).startswith(str(prefix))


def test_an_index_cut_anywhere_is_refused(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2], [3], [4, 5, 6]])
    index = prefix.with_name(prefix.name + ".idx")
    whole = index.read_bytes()
    for size in range(len(whole)):
        index.write_bytes(whole[:size])
        with pytest.raises(CorpusFormatError):
            open_corpus(prefix)
    index.write_bytes(whole + b"\0")
    with pytest.raises(CorpusFormatError, match="too long"):
        open_corpus(prefix)


def test_tokens_cut_or_grown_are_refused(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2], [3], [4, 5, 6]])
    tokens = prefix.with_name(prefix.name + ".bin")
    for size in (0, 1, 11, 13, 24):
        os.truncate(tokens, size)
        with pytest.raises(CorpusFormatError, match=f"12 bytes needed .* found {size}"):
            open_corpus(prefix)
    tokens.unlink()
    with pytest.raises(CorpusFormatError, match=r"\.bin: not found"):
        open_corpus(prefix)


def test_a_header_that_promises_the_moon_costs_no_memory(tmp_path):
    prefix = write_corpus(tmp_path, [[1]])
    index = prefix.with_name(prefix.name + ".idx")
    for sequences, marks in [(2**63, 2**63), (2**64 - 1, 1), (2**40, 2)]:
        index.write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, sequences, marks))
        with pytest.raises(CorpusFormatError, match="cut short"):
            open_corpus(prefix)


def test_offsets_beyond_two_to_the_31_documents():
    documents = 2**31 + 5
    layout = IndexLayout(num_sequences=documents, num_marks=documents + 1)
    assert layout.pointers_at == 34 + 4 * documents
    assert layout.marks_at == 34 + 12 * documents
    assert layout.size == 34 + 20 * documents + 8


def test_a_pair_beyond_two_to_the_31_bytes_and_tokens(tmp_path):
    """Sparse: three sequences of 2^30 tokens, and a last one that is written."""
    long = 2**30
    prefix = tmp_path / "sparse"
    start = 3 * long
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(4 * start)
        file.seek(4 * start)
        file.write(np.array([7, 70_000, 9], "<i4").tobytes())
    _write_index(prefix, lengths=[long, long, long, 3], marks=[0, 2, 3, 4], code=4, itemsize=4)
    corpus = open_corpus(prefix)
    assert corpus.num_tokens == start + 3 > 2**31
    assert corpus.doc_ends_D.tolist() == [2 * long, start, start + 3]
    assert corpus.tokens(start - 2, start + 3).tolist() == [0, 0, 7, 70_000, 9]
    assert corpus.locate(start + 1) == (prefix, 2, 1)
    assert corpus.locate(start - 1) == (prefix, 1, long - 1)
    with pytest.raises(CorpusFormatError, match="id 70000 at document 2, position 1"):
        corpus.check_ids(70_000, corpus.tokens(start, start + 3), start)
    last = corpus.partitions(2**29)[-1]
    assert last == (start, start + 3)
    twice = open_corpus([prefix, prefix])
    assert twice.tokens(2 * start + 3, 2 * start + 6).tolist() == [7, 70_000, 9]


def test_a_flat_file_beyond_two_to_the_31_tokens(tmp_path):
    path = tmp_path / "flat.bin"
    with path.open("wb") as file:
        file.truncate(2 * (2**31 + 10))
        file.seek(2 * (2**31 + 8))
        file.write(np.array([5, 6], "<u2").tobytes())
    corpus = open_corpus(path, InputOptions(dtype="uint16"))
    assert corpus.num_tokens == 2**31 + 10
    assert corpus.tokens(2**31 + 7, 2**31 + 10).tolist() == [0, 5, 6]
    assert corpus.doc_ends_D.tolist() == [2**31 + 10]


def test_a_document_longer_than_a_sequence_can_be_is_refused(tmp_path):
    lengths = np.array([2**31], np.int64)
    tokens = np.broadcast_to(np.uint16(3), 2**31)
    with (
        pytest.raises(ValueError, match="holds at most 2147483647"),
        CorpusWriter(tmp_path / "c", np.uint16) as writer,
    ):
        writer.add_document(tokens, lengths)


def test_five_million_documents_open_in_seconds(tmp_path):
    """No loop per document: a generous bound that a loop would break."""
    import time

    count, length = 5_000_000, 3
    prefix = tmp_path / "many"
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(2 * count * length)
    _write_index(
        prefix,
        lengths=np.full(count, length, np.int32),
        marks=np.arange(count + 1),
        pointers=np.arange(count, dtype=np.int64) * length * 2,
    )
    started = time.perf_counter()
    corpus = open_corpus(prefix)
    assert corpus.num_documents == count
    assert corpus.num_empty_documents == 0
    assert corpus.locate(count * length - 1)[1:] == (count - 1, length - 1)
    assert time.perf_counter() - started < 5
