"""The Corpus over Megatron files: tokens, borders, several files, vocabulary, identity."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.store import CorpusFormatError, CorpusWriter, InputOptions, open_corpus
from tests.strategies import documents, ends, flatten, write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@given(parts=st.lists(documents(), min_size=1, max_size=4), data=st.data())
def test_several_files_are_one_stream(folder, parts, data):
    paths = [
        write_corpus(folder, part, dtype) for part, dtype in zip(parts, _types(), strict=False)
    ]
    corpus = open_corpus(paths)
    joined = [document for part in parts for document in part]
    assert corpus.tokens(0, corpus.num_tokens).tolist() == flatten(joined).tolist()
    assert corpus.doc_ends_D.tolist() == ends(joined).tolist()
    assert corpus.doc_ends_D.dtype == np.int64
    assert corpus.num_documents == len(joined)
    assert corpus.num_empty_documents == sum(not document for document in joined)
    start = data.draw(st.integers(0, corpus.num_tokens))
    stop = data.draw(st.integers(start, corpus.num_tokens))
    assert corpus.tokens(start, stop).tolist() == flatten(joined)[start:stop].tolist()
    assert corpus.tokens(start, stop).dtype == corpus.dtype


def _types():
    while True:
        yield from (np.uint16, np.int32, np.uint8)


@given(drawn=documents(min_documents=1), size=st.integers(1, 40))
def test_partitions_cover_every_token_once(folder, drawn, size):
    corpus = open_corpus(write_corpus(folder, drawn))
    parts = corpus.partitions(size)
    found = [token for start, stop in parts for token in corpus.tokens(start, stop).tolist()]
    assert found == flatten(drawn).tolist()
    assert all(stop - start <= size for start, stop in parts)


@given(drawn=documents(min_documents=1))
def test_locate_names_document_and_place(folder, drawn):
    corpus = open_corpus([write_corpus(folder, [[7, 7], []]), write_corpus(folder, drawn)])
    position = 2
    for number, document in enumerate(drawn):
        for place in range(len(document)):
            path, found, at = corpus.locate(position)
            assert (path, found, at) == (corpus.files[1].path, number, place)
            position += 1


def test_a_range_in_one_file_is_a_view_and_cannot_be_written(tmp_path):
    corpus = open_corpus(write_corpus(tmp_path, [[1, 2, 3], [4]]))
    view = corpus.tokens(1, 4)
    assert np.shares_memory(view, corpus.tokens(0, 4))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_a_range_outside_is_refused(tmp_path, start, stop):
    with pytest.raises(IndexError, match="corpus of 4"):
        open_corpus(write_corpus(tmp_path, [[1, 2, 3], [4]])).tokens(start, stop)


def test_a_corpus_travels_as_paths_and_options(tmp_path):
    corpus = open_corpus(write_corpus(tmp_path, [[1, 2, 3]]), InputOptions(vocab_size=9, eod=3))
    sent = pickle.dumps(corpus)
    assert len(sent) < 2_000
    received = pickle.loads(sent)
    assert received.tokens(0, 3).tolist() == [1, 2, 3]
    assert (received.vocab_size, received.eod, received.special) == (9, 3, (3,))


def test_fingerprint_ignores_names_and_types_but_not_tokens_or_borders(tmp_path):
    one = open_corpus(write_corpus(tmp_path, [[1, 2], [3]], np.uint16))
    copy = open_corpus(write_corpus(tmp_path / "elsewhere", [[1, 2], [3]], np.int64))
    assert one.fingerprints[0]["sha256"] == copy.fingerprints[0]["sha256"]
    assert one.fingerprint == copy.fingerprint
    others = [[[1, 2], [4]], [[1], [2, 3]], [[1, 2], [3], []], [[1, 2, 3]]]
    found = {open_corpus(write_corpus(tmp_path, other)).fingerprint for other in others}
    assert len(found) == len(others)
    assert one.fingerprint not in found


def test_the_same_path_twice_is_said(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2]])
    other = write_corpus(tmp_path, [[1, 2]])
    corpus = open_corpus([prefix, other, f"{prefix}.bin"])
    assert corpus.num_tokens == 6
    assert len(corpus.notices) == 1
    assert "given twice" in corpus.notices[0]
    assert not open_corpus([prefix, other]).notices


def test_vocabulary_from_the_sidecar_unless_given(tmp_path):
    facts = {"vocab_size": 40, "tokenizer_hash": "ab", "eod": 7, "special": [7, 8]}
    prefix = write_corpus(tmp_path, [[1, 2]], sidecar=facts)
    corpus = open_corpus(prefix)
    assert (corpus.vocab_size, corpus.vocab_source) == (40, "sidecar")
    assert (corpus.tokenizer_hash, corpus.eod, corpus.special) == ("ab", 7, (7, 8))
    given = open_corpus(prefix, InputOptions(vocab_size=50, eod=3, special=(9,)))
    assert (given.vocab_size, given.vocab_source) == (50, "given")
    assert (given.eod, given.special) == (3, (3, 9))
    plain = open_corpus(write_corpus(tmp_path, [[1]]))
    assert (plain.vocab_size, plain.vocab_source, plain.special) == (None, None, ())


def test_files_of_two_tokenizers_are_no_corpus(tmp_path):
    one = write_corpus(tmp_path, [[1]], sidecar={"vocab_size": 40, "tokenizer_hash": "ab"})
    two = write_corpus(tmp_path, [[1]], sidecar={"vocab_size": 40, "tokenizer_hash": "cd"})
    with pytest.raises(CorpusFormatError, match=r"tokenizer_hash cd, but ab"):
        open_corpus([one, two])


def test_a_sidecar_of_another_corpus_is_refused(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2]], sidecar={"vocab_size": 40})
    write_corpus(tmp_path, [[1, 2, 3]], name="other")
    for suffix in (".bin", ".idx"):
        (tmp_path / f"other{suffix}").rename(f"{prefix}{suffix}")
    with pytest.raises(CorpusFormatError, match="describes 1 documents of 2 tokens, found 1 of 3"):
        open_corpus(prefix)


def test_a_strangers_json_of_that_name_is_no_sidecar(tmp_path):
    prefix = write_corpus(tmp_path, [[1, 2]], name="mine")
    (tmp_path / "mine.json").write_text('{"vocab_size": 3}')
    assert open_corpus(prefix).vocab_size is None
    with pytest.raises(FileExistsError, match="not a corpus sidecar"):
        write_corpus(tmp_path, [[1]], name="mine", sidecar={})


def test_ids_outside_the_vocabulary_are_named(tmp_path):
    corpus = open_corpus(write_corpus(tmp_path, [[1, 2], [], [3, 9, 4]]))
    with pytest.raises(CorpusFormatError, match=r"id 9 at document 2, position 1 .* of 9"):
        corpus.check_ids(9, corpus.tokens(1, 5), 1)
    corpus.check_ids(10, corpus.tokens(0, 5), 0)


def test_nothing_to_open(tmp_path):
    with pytest.raises(FileNotFoundError, match="not found"):
        open_corpus(tmp_path / "missing")
    with pytest.raises(ValueError, match="no corpus given"):
        open_corpus([])
    with pytest.raises(CorpusFormatError, match="no token files"):
        open_corpus(tmp_path)


class TestWriter:
    def test_an_id_that_does_not_fit_is_an_error_and_leaves_nothing(self, tmp_path):
        for dtype, vocab_size, ids in [
            (np.uint16, None, [1, 65_536]),
            (np.uint16, 100, [100]),
            (np.int32, None, [2**31]),
            (np.uint8, None, [-1]),
        ]:
            with (
                pytest.raises(ValueError, match="does not fit"),
                CorpusWriter(tmp_path / "c", dtype, vocab_size) as writer,
            ):
                writer.add_documents([3, *ids], [1, len(ids)])
            assert not list(tmp_path.iterdir())

    def test_the_vocabulary_must_fit_the_type(self, tmp_path):
        with pytest.raises(ValueError, match="151936 needs ids up to 151935"):
            CorpusWriter(tmp_path / "c", np.uint16, 151_936)

    @pytest.mark.parametrize("ids", [[0.5], [[1, 2]], ["a"]])
    def test_only_flat_integers(self, tmp_path, ids):
        with (
            pytest.raises(ValueError, match="one-dimensional array of integers"),
            CorpusWriter(tmp_path / "c", np.uint16) as writer,
        ):
            writer.add_document(ids)

    def test_a_type_without_a_code(self, tmp_path):
        with pytest.raises(ValueError, match="uint32: no token type"):
            CorpusWriter(tmp_path / "c", np.uint32)

    def test_replaces_only_when_told(self, tmp_path):
        prefix = write_corpus(tmp_path, [[1]], name="c")
        with (
            pytest.raises(FileExistsError, match="pass --overwrite"),
            CorpusWriter(prefix, np.uint16),
        ):
            pass
        assert open_corpus(prefix).num_tokens == 1
        with (
            pytest.raises(ValueError, match="does not fit"),
            CorpusWriter(prefix, np.uint16, overwrite=True) as writer,
        ):
            writer.add_documents([2, 65_536], [1, 1])
        assert open_corpus(prefix).tokens(0, 1).tolist() == [1]

    def test_two_writers_of_one_corpus(self, tmp_path):
        with CorpusWriter(tmp_path / "c", np.uint16) as writer:
            writer.add_document([1, 2])
            with (
                pytest.raises(FileExistsError, match="another build"),
                CorpusWriter(tmp_path / "c", np.uint16),
            ):
                pass
        assert open_corpus(tmp_path / "c").num_tokens == 2

    def test_a_name_with_dots_and_spaces(self, tmp_path):
        prefix = write_corpus(tmp_path / "a folder", [[1, 2]], name="wiki en.v1.5")
        assert open_corpus(prefix).num_tokens == 2
        assert open_corpus(f"{prefix}.idx").num_tokens == 2
        assert open_corpus(prefix.parent).num_tokens == 2

    @given(drawn=documents())
    def test_many_at_once_write_the_same_bytes(self, folder, drawn):
        one = write_corpus(folder, drawn)
        many = folder / "many"
        with CorpusWriter(many, np.uint16, overwrite=True) as writer:
            writer.add_documents(flatten(drawn), np.diff(ends(drawn), prepend=0))
        for suffix in (".bin", ".idx"):
            assert (
                one.with_name(one.name + suffix).read_bytes()
                == many.with_name(many.name + suffix).read_bytes()
            )
