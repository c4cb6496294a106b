"""Every format of the same documents is the same Corpus."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.store import Corpus, CorpusFormatError, InputOptions, open_corpus
from tests.strategies import documents, ends, flatten, write_corpus

EOD = 60
_numbers = itertools.count()

LIST_TYPES = [
    kind(value)
    for kind in (pa.list_, pa.large_list)
    for value in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.int64())
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


def place(folder: Path, name: str) -> Path:
    """A path that no example before has used."""
    made = folder / str(next(_numbers)) / name
    made.parent.mkdir()
    return made


def write_flat(folder, drawn, dtype="uint16"):
    path = place(folder, "tokens.bin")
    path.write_bytes(flatten(drawn).astype(dtype).tobytes())
    return path


def write_datatrove(folder, drawn, dtype="uint16"):
    path = place(folder, "00000_tokens.ds")
    path.write_bytes(flatten(drawn).astype(dtype).tobytes())
    path.with_name(path.name + ".index").write_bytes(ends(drawn).astype("<u8").tobytes())
    return path


def write_parquet(folder, table, **options):
    path = place(folder, "rows.parquet")
    pq.write_table(table, path, **options)
    return path


def write_arrow(folder, table, *, stream, rows=3):
    path = place(folder, "rows.arrow")
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_datasets_folder(folder, table, *, files=1, order=None):
    """What ``save_to_disk`` leaves; with ``order``, what its older releases left."""
    saved = place(folder, "saved")
    saved.mkdir()
    names = [f"data-{at:05d}-of-{files:05d}.arrow" for at in range(files)]
    size = -(-table.num_rows // files)
    for at, name in enumerate(names):
        write_arrow(saved, table.slice(at * size, size), stream=True).rename(saved / name)
    state = {"_data_files": [{"filename": name} for name in names]}
    if order is not None:
        indices = pa.table({"indices": pa.array(order, pa.uint64())})
        write_arrow(saved, indices, stream=True).rename(saved / "indices.arrow")
        state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (saved / "state.json").write_text(json.dumps(state))
    return saved


def token_table(drawn, kind=None):
    column = pa.array(drawn, kind or pa.list_(pa.int32()))
    return pa.table({"text": pa.array(["x"] * len(drawn)), "input_ids": column})


def assert_same(corpus: Corpus, drawn, skipped=0) -> None:
    assert corpus.tokens(0, corpus.num_tokens).tolist() == flatten(drawn).tolist()
    assert corpus.doc_ends_D.tolist() == ends(drawn).tolist()
    assert corpus.num_documents == len(drawn)
    assert corpus.num_empty_documents == sum(not document for document in drawn)
    assert corpus.num_skipped_documents == skipped
    assert corpus.borders == "known"


@settings(deadline=None)
@given(drawn=documents(min_documents=1), kind=st.sampled_from(LIST_TYPES), data=st.data())
def test_every_format_of_the_same_documents_is_the_same_corpus(folder, drawn, kind, data):
    closed = [[*document, EOD] for document in drawn]
    group = data.draw(st.integers(1, 8))
    table = token_table(closed, kind)
    paths = {
        "megatron": write_corpus(folder, closed),
        "datatrove": write_datatrove(folder, closed),
        "parquet": write_parquet(folder, table, row_group_size=group),
        "arrow file": write_arrow(folder, table, stream=False, rows=group),
        "arrow stream": write_arrow(folder, table, stream=True, rows=group),
        "hf": write_datasets_folder(folder, table, files=data.draw(st.integers(1, 3))),
        "flat": write_flat(folder, closed, "uint16"),
    }
    options = {"flat": InputOptions(dtype="uint16", eod=EOD)}
    found = {name: open_corpus(path, options.get(name)) for name, path in paths.items()}
    for corpus in found.values():
        assert_same(corpus, closed)
    assert len({corpus.fingerprint for corpus in found.values()}) == 1
    start = data.draw(st.integers(0, len(flatten(closed))))
    stop = data.draw(st.integers(start, len(flatten(closed))))
    for corpus in found.values():
        assert corpus.tokens(start, stop).tolist() == flatten(closed)[start:stop].tolist()


@settings(deadline=None)
@given(
    rows=st.lists(st.none() | st.lists(st.integers(0, 100), max_size=5), min_size=1, max_size=20),
    kind=st.sampled_from(LIST_TYPES),
    data=st.data(),
)
def test_sliced_chunked_and_null_rows(folder, rows, kind, data):
    """Slices keep the buffers of what was cut off; nulls may stand over tokens."""
    first = data.draw(st.integers(0, len(rows)))
    whole = pa.chunked_array([pa.array(rows[:first], kind), pa.array(rows[first:], kind)])
    start = data.draw(st.integers(0, len(rows) - 1))
    table = pa.table({"input_ids": whole}).slice(start)
    kept = [row for row in rows[start:] if row is not None]
    nulls = len(rows) - start - len(kept)
    for path in (
        write_arrow(folder, table, stream=True, rows=2),
        write_parquet(folder, table, row_group_size=3),
    ):
        assert_same(open_corpus(path), kept, nulls)


@settings(deadline=None)
@given(data=st.data(), size=st.integers(1, 5), rows=st.integers(1, 12))
def test_fixed_size_lists(folder, data, size, rows):
    ids = st.lists(st.integers(0, 100), min_size=size, max_size=size)
    drawn = data.draw(st.lists(st.none() | ids, min_size=rows, max_size=rows))
    start = data.draw(st.integers(0, rows - 1))
    table = pa.table({"input_ids": pa.array(drawn, pa.list_(pa.int32(), size))}).slice(start)
    kept = [row for row in drawn[start:] if row is not None]
    path = write_arrow(folder, table, stream=False, rows=2)
    assert_same(open_corpus(path), kept, rows - start - len(kept))


@settings(deadline=None)
@given(
    rows=st.lists(st.none() | st.lists(st.integers(0, 100), max_size=5), min_size=1, max_size=15),
    data=st.data(),
)
def test_an_index_map_orders_and_selects(folder, rows, data):
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
    saved = write_datasets_folder(folder, token_table(rows), files=2, order=order)
    picked = [rows[at] for at in order]
    kept = [row for row in picked if row is not None]
    assert_same(open_corpus(saved), kept, len(picked) - len(kept))


def test_a_null_over_tokens_hides_them(tmp_path):
    """Arrow allows a null row whose offsets span values: those are not tokens."""
    offsets = pa.array([0, 2, 4, 5], pa.int32()).buffers()[1]
    valid = pa.array([True, False, True]).buffers()[1]
    values = pa.array([1, 2, 8, 9, 3], pa.int32())
    column = pa.Array.from_buffers(pa.list_(pa.int32()), 3, [valid, offsets], children=[values])
    path = write_arrow(tmp_path, pa.table({"input_ids": column}), stream=True, rows=3)
    assert_same(open_corpus(path), [[1, 2], [3]], skipped=1)


def test_what_datasets_saves(tmp_path):
    import datasets

    from corpus.tables import read_dataset

    datasets.disable_progress_bars()
    rows = [[1, 2], [], None, [3, 4, 5], [6]]
    made = datasets.Dataset.from_dict({"input_ids": rows, "text": list("abcde")})
    mixed = made.shuffle(seed=3).select([4, 0, 0, 2])
    made.save_to_disk(str(tmp_path / "plain"))
    mixed.save_to_disk(str(tmp_path / "mixed"))
    assert_same(open_corpus(tmp_path / "plain"), [row for row in rows if row is not None], 1)
    picked = [row for row in mixed["input_ids"] if row is not None]
    assert_same(open_corpus(tmp_path / "mixed"), picked, 4 - len(picked))
    at_hand = Corpus((tmp_path,), InputOptions(), [read_dataset(mixed)])
    assert_same(at_hand, picked, 4 - len(picked))
    datasets.DatasetDict(train=made).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(CorpusFormatError, match=r"holds the splits \['train'\]"):
        open_corpus(tmp_path / "splits")


class TestBordersWithoutAnEndToken:
    """Documents [5,6] and [7,8]: the index decides, a flat file cannot say."""

    DOCUMENTS: tuple = ([5, 6], [7, 8])

    def test_the_index_decides(self, tmp_path):
        drawn = list(self.DOCUMENTS)
        for path in (
            write_corpus(tmp_path, drawn),
            write_datatrove(tmp_path, drawn),
            write_datasets_folder(tmp_path, token_table(drawn)),
            write_parquet(tmp_path, token_table(drawn)),
        ):
            assert_same(open_corpus(path), drawn)

    def test_a_flat_file_says_that_it_does_not_know(self, tmp_path):
        path = write_flat(tmp_path, list(self.DOCUMENTS))
        corpus = open_corpus(path, InputOptions(dtype="uint16"))
        assert corpus.borders == "unknown"
        assert corpus.doc_ends_D.tolist() == [4]
        mixed = open_corpus([write_corpus(tmp_path, [[1]]), path], InputOptions(dtype="uint16"))
        assert mixed.borders == "unknown"
        assert mixed.format == "mixed"

    def test_an_end_token_gives_it_borders(self, tmp_path):
        path = write_flat(tmp_path, [[5, 6, 9, 7, 8, 9, 9, 1]])
        corpus = open_corpus(path, InputOptions(dtype="uint16", eod=9))
        assert corpus.borders == "known"
        assert corpus.doc_ends_D.tolist() == [3, 6, 7, 8]
        assert "last document may be cut" in corpus.notices[0]


@pytest.mark.parametrize(
    "drawn",
    [
        [[], [1, 2, 3], [], [4, 5], []],
        [[], []],
        [[], [1]],
        [[1], []],
        [[], [], [], [2]],
    ],
)
def test_empty_documents_are_documents(tmp_path, drawn):
    for path in (
        write_corpus(tmp_path, drawn),
        write_datatrove(tmp_path, drawn),
        write_datasets_folder(tmp_path, token_table(drawn)),
        write_parquet(tmp_path, token_table(drawn), row_group_size=1),
    ):
        assert_same(open_corpus(path), drawn)


def test_no_documents_at_all(tmp_path):
    for path in (
        write_corpus(tmp_path, []),
        write_datatrove(tmp_path, []),
        write_datasets_folder(tmp_path, token_table([])),
        write_parquet(tmp_path, token_table([])),
    ):
        corpus = open_corpus(path)
        assert_same(corpus, [])
        assert corpus.partitions(10) == []


class TestWidth:
    """uint32 [1, 70000, 65536, 5]."""

    IDS = np.array([1, 70_000, 65_536, 5], np.uint32)

    def test_read_as_what_it_is(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(self.IDS.tobytes())
        corpus = open_corpus(path, InputOptions(dtype="uint32"))
        assert corpus.tokens(0, 4).tolist() == self.IDS.tolist()

    def test_a_vocabulary_that_the_width_cannot_hold(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(self.IDS.tobytes())
        with pytest.raises(CorpusFormatError, match=r"t.bin: uint16 .* vocabulary of 151936 needs"):
            open_corpus(path, InputOptions(dtype="uint16", vocab_size=151_936))
        prefix = write_corpus(tmp_path, [[1, 2]])
        with pytest.raises(CorpusFormatError, match="wider type"):
            open_corpus(prefix, InputOptions(vocab_size=151_936))
        open_corpus(prefix, InputOptions(vocab_size=65_536))

    def test_cut_to_fifteen_bytes(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(self.IDS.tobytes()[:15])
        with pytest.raises(CorpusFormatError, match=r"t.bin: 15 bytes found, a multiple of 4"):
            open_corpus(path, InputOptions(dtype="uint32"))

    def test_a_type_nobody_knows(self, tmp_path):
        path = tmp_path / "t.bin"
        path.write_bytes(self.IDS.tobytes())
        with pytest.raises(ValueError, match="--dtype uint24: unknown"):
            open_corpus(path, InputOptions(dtype="uint24"))
        with pytest.raises(CorpusFormatError, match=r"does not say its token type; name it"):
            open_corpus(path)

    def test_datatrove_says_its_width_by_its_size(self, tmp_path):
        path = write_datatrove(tmp_path, [self.IDS.tolist()], "uint32")
        assert open_corpus(path).tokens(0, 4).tolist() == self.IDS.tolist()

    @pytest.mark.parametrize("value", [pa.uint32(), pa.int64(), pa.uint64()])
    def test_wide_columns(self, tmp_path, value):
        path = write_arrow(tmp_path, token_table([self.IDS.tolist()], pa.list_(value)), stream=True)
        assert open_corpus(path).tokens(0, 4).tolist() == self.IDS.tolist()

    def test_types_that_no_common_type_holds_never_become_floats(self, tmp_path):
        paths = [
            write_arrow(tmp_path, token_table([[1, 2]], pa.list_(kind)), stream=True)
            for kind in (pa.uint64(), pa.int64())
        ]
        corpus = open_corpus(paths)
        assert corpus.dtype == np.int64
        assert corpus.tokens(0, 4).dtype == np.int64


class TestRefusals:
    def test_datatrove(self, tmp_path):
        path = write_datatrove(tmp_path, [[1, 2], [3]])
        index = path.with_name(path.name + ".index")
        index.write_bytes(np.array([3, 2], "<u8").tobytes())
        with pytest.raises(CorpusFormatError, match="not rising: document 1 ends at token 2"):
            open_corpus(path)
        index.write_bytes(b"123")
        with pytest.raises(CorpusFormatError, match="3 bytes found, a multiple of 8"):
            open_corpus(path)
        index.write_bytes(np.array([2, 7], "<u8").tobytes())
        with pytest.raises(CorpusFormatError, match=r"14 \(uint16\) or 28 \(uint32\) bytes needed"):
            open_corpus(path)
        index.unlink()
        with pytest.raises(CorpusFormatError, match=r"index: not found"):
            open_corpus(path)

    def test_a_header_is_not_tokens(self, tmp_path):
        np.save(tmp_path / "t.npy", np.arange(10))
        with pytest.raises(CorpusFormatError, match="NumPy"):
            open_corpus(tmp_path / "t.npy", InputOptions(format="flat", dtype="uint16"))
        prefix = write_corpus(tmp_path, [[1]])
        with pytest.raises(CorpusFormatError, match="Megatron index"):
            open_corpus(f"{prefix}.idx", InputOptions(format="flat", dtype="uint16"))

    def test_what_a_killed_build_leaves(self, tmp_path):
        (tmp_path / "c.bin.partial").write_bytes(b"1234")
        for format_ in ("auto", "flat"):
            with pytest.raises(CorpusFormatError, match="unfinished build"):
                open_corpus(
                    tmp_path / "c.bin.partial", InputOptions(format=format_, dtype="uint16")
                )

    def test_columns(self, tmp_path):
        ids = pa.array([[1, 2]], pa.list_(pa.int32()))
        two = pa.table({"one": ids, "two": ids})
        path = write_parquet(tmp_path, two)
        with pytest.raises(CorpusFormatError, match=r"one column .* found \['one', 'two'\]"):
            open_corpus(path)
        assert open_corpus(path, InputOptions(tokens_column="two")).num_tokens == 2
        with pytest.raises(CorpusFormatError, match="column 'three' of integer lists needed"):
            open_corpus(path, InputOptions(tokens_column="three"))
        text = write_parquet(tmp_path, pa.table({"text": ["a"]}))
        with pytest.raises(CorpusFormatError, match="staircase corpus build"):
            open_corpus(text)
        with pytest.raises(CorpusFormatError, match="found a column of string"):
            open_corpus(text, InputOptions(tokens_column="text"))
        only = write_parquet(tmp_path, pa.table({"ids": ids, "text": ["a"]}))
        assert open_corpus(only).num_tokens == 2

    def test_a_null_id_inside_a_document(self, tmp_path):
        table = token_table([[1], [2, None], [3]])
        for path in (write_parquet(tmp_path, table), write_arrow(tmp_path, table, stream=True)):
            with pytest.raises(CorpusFormatError, match="row 1 holds a null"):
                open_corpus(path)

    @pytest.mark.parametrize("stream", [True, False])
    def test_cut_arrow_files(self, tmp_path, stream):
        table = token_table([[1, 2, 3]] * 50)
        whole = write_arrow(tmp_path, table, stream=stream, rows=5).read_bytes()
        path = tmp_path / "cut.arrow"
        for size in {0, 1, 7, 8, len(whole) // 3, len(whole) // 2, len(whole) - 8, len(whole) - 1}:
            path.write_bytes(whole[:size])
            with pytest.raises(CorpusFormatError, match=r"cut\.arrow: "):
                open_corpus(path)

    def test_cut_parquet_files(self, tmp_path):
        whole = write_parquet(tmp_path, token_table([[1, 2, 3]] * 50)).read_bytes()
        path = tmp_path / "cut.parquet"
        for size in (0, 3, 10, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(CorpusFormatError, match=r"cut\.parquet: "):
                open_corpus(path)

    def test_broken_datasets_folders(self, tmp_path):
        saved = write_datasets_folder(tmp_path, token_table([[1]]), order=[0, 1])
        with pytest.raises(CorpusFormatError, match="index map names row 1 of 1"):
            open_corpus(saved)
        (saved / "state.json").write_text("{")
        with pytest.raises(CorpusFormatError, match="not JSON"):
            open_corpus(saved)
        (saved / "state.json").write_text("{}")
        with pytest.raises(CorpusFormatError, match="lists no data files"):
            open_corpus(saved)

    def test_a_folder_of_several_formats(self, tmp_path):
        write_corpus(tmp_path / "f", [[1]])
        write_parquet(tmp_path, token_table([[2]])).rename(tmp_path / "f" / "rows.parquet")
        with pytest.raises(CorpusFormatError, match=r"several formats \(megatron, parquet\)"):
            open_corpus(tmp_path / "f")
        chosen = open_corpus(tmp_path / "f", InputOptions(format="parquet"))
        assert chosen.tokens(0, 1).tolist() == [2]

    def test_a_type_that_the_files_contradict(self, tmp_path):
        prefix = write_corpus(tmp_path, [[1]])
        with pytest.raises(CorpusFormatError, match=r"holds uint16 .* --dtype says int32"):
            open_corpus(prefix, InputOptions(dtype="int32"))
        flat = write_flat(tmp_path, [[2]], "int32")
        both = open_corpus([prefix, flat], InputOptions(dtype="int32"))
        assert both.tokens(0, 2).tolist() == [1, 2]

    def test_a_folder_beside_a_flat_file_of_its_name(self, tmp_path):
        write_flat(tmp_path, [[1]]).rename(tmp_path / "wiki.bin")
        write_corpus(tmp_path / "wiki", [[2]], name="a")
        for format_ in ("auto", "megatron"):
            corpus = open_corpus(tmp_path / "wiki", InputOptions(format=format_))
            assert corpus.tokens(0, 1).tolist() == [2]

    def test_a_name_that_says_nothing(self, tmp_path):
        (tmp_path / "notes.txt").write_text("text")
        with pytest.raises(CorpusFormatError, match="does not say the format"):
            open_corpus(tmp_path / "notes.txt")


def test_files_of_a_folder_come_by_name(tmp_path):
    for name in ("b", "a", "c"):
        write_corpus(tmp_path, [[ord(name)]], name=name)
    assert open_corpus(tmp_path).tokens(0, 3).tolist() == [97, 98, 99]


def test_a_mapped_arrow_column_is_read_without_a_copy(tmp_path):
    path = write_arrow(tmp_path, token_table([[1, 2, 3], [4, 5]]), stream=True, rows=5)
    corpus = open_corpus(path)
    assert np.shares_memory(corpus.tokens(0, 5), corpus.tokens(2, 4))
