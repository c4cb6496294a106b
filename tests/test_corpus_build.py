"""Text to tokens: order, borders, special text, broken sources, and never half a corpus."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer

from corpus.sources import SourceError
from corpus.store import open_corpus
from corpus.tokenize import build_corpus, tokenizer_hash, train_tokenizer

TEXTS = [
    "the cat sat on the mat",
    "",
    "淡淡的 token — ünï",
    "line\nbreak\r\nand \x00 and \u2028 end",
    "a",
    "<|endoftext|> inside <|endoftext|>",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    source = folder / "train.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3))
    train_tokenizer(source, vocab_size=300, out=folder / "tokenizer.json")
    return folder / "tokenizer.json"


def jsonl(texts=TEXTS, **extra) -> bytes:
    rows = (json.dumps({"text": text, **extra}, ensure_ascii=False) for text in texts)
    return "".join(f"{row}\n" for row in rows).encode()


def build(sources, tokenizer, out, **options):
    options = {"workers": 1} | options
    return build_corpus(sources, tokenizer=tokenizer, out=out, **options)


def decoded(prefix, tokenizer) -> list[str]:
    """The documents as text, their end tokens taken off."""
    corpus = open_corpus(prefix)
    loaded = Tokenizer.from_file(str(tokenizer))
    edges = [0, *corpus.doc_ends_D.tolist()]
    documents = [corpus.tokens(start, stop).tolist() for start, stop in pairwise(edges)]
    return [loaded.decode(ids[:-1], skip_special_tokens=False) for ids in documents]


def write_sources(folder: Path) -> dict[str, Path]:
    """The same texts in every form that holds several."""
    import datasets

    datasets.disable_progress_bars()
    made = {
        name: folder / name
        for name in (
            "a.jsonl",
            "a.jsonl.gz",
            "a.jsonl.zst",
            "a.parquet",
            "a.arrow",
            "saved",
            "bom.jsonl",
        )
    }
    made["a.jsonl"].write_bytes(jsonl())
    made["bom.jsonl"].write_bytes(b"\xef\xbb\xbf" + jsonl().replace(b"\n", b"\r\n").rstrip())
    # Several members and frames, as tools that append write them.
    halves = jsonl(TEXTS[:3]), jsonl(TEXTS[3:])
    made["a.jsonl.gz"].write_bytes(b"".join(map(gzip.compress, halves)))
    made["a.jsonl.zst"].write_bytes(b"".join(zstandard.compress(half) for half in halves))
    table = pa.table({"number": range(len(TEXTS)), "text": pa.array(TEXTS).dictionary_encode()})
    pq.write_table(table, made["a.parquet"], row_group_size=2)
    plain = pa.table({"text": pa.array(TEXTS, pa.large_string())}).slice(0)
    with pa.ipc.new_file(str(made["a.arrow"]), plain.schema) as writer:
        writer.write_table(plain, max_chunksize=4)
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(made["saved"]))
    return made


def test_every_form_of_the_same_texts_is_the_same_corpus(tmp_path, tokenizer):
    found = set()
    for name, source in write_sources(tmp_path).items():
        result = build([source], tokenizer, tmp_path / "out" / name)
        assert result["documents"] == len(TEXTS)
        assert result["empty_documents"] == 1
        assert decoded(tmp_path / "out" / name, tokenizer) == TEXTS
        found.add(open_corpus(tmp_path / "out" / name).fingerprint)
    assert len(found) == 1


def test_a_plain_file_is_one_document_and_a_folder_is_its_files_sorted(tmp_path, tokenizer):
    folder = tmp_path / "some text"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_bytes("\ufeffsecond\nline".encode())
    (folder / "a.py").write_text("first = 1\n")
    (folder / "sub" / "c.txt.gz").write_bytes(gzip.compress(b"third"))
    (folder / "empty.txt").write_text("")
    (folder / ".hidden").write_text("not this")
    build([folder], tokenizer, tmp_path / "c")
    assert decoded(tmp_path / "c", tokenizer) == ["first = 1\n", "second\nline", "", "third"]
    build([folder / "b.txt", folder / "a.py"], tokenizer, tmp_path / "d")
    assert decoded(tmp_path / "d", tokenizer) == ["second\nline", "first = 1\n"]


def test_order_does_not_depend_on_workers(tmp_path, tokenizer):
    """Blocks of very different cost: a worker that is done first must not write first."""
    texts = [("word " * 3000 if at % 7 == 0 else f"row {at}") * (1 + at % 3) for at in range(1200)]
    source = tmp_path / "many.jsonl"
    source.write_bytes(jsonl(texts))
    for workers in (1, 3):
        build([source], tokenizer, tmp_path / f"w{workers}", workers=workers)
    for suffix in (".bin", ".idx"):
        one, three = (tmp_path / f"w{workers}{suffix}" for workers in (1, 3))
        assert one.read_bytes() == three.read_bytes()
    assert decoded(tmp_path / "w3", tokenizer)[:3] == texts[:3]


class TestEndToken:
    def test_ends_every_document_that_holds_a_token(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl())
        build([source], tokenizer, tmp_path / "c")
        corpus = open_corpus(tmp_path / "c")
        assert corpus.eod == 0
        ends_D = corpus.doc_ends_D
        full = np.diff(ends_D, prepend=0) > 0
        tokens = corpus.tokens(0, corpus.num_tokens)
        assert (tokens[ends_D[full] - 1] == 0).all()
        assert int((tokens == 0).sum()) == int(full.sum()) == len(TEXTS) - 1

    def test_can_be_left_out(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl())
        result = build([source], tokenizer, tmp_path / "c", append_eod=False)
        assert result["eod"] is None
        assert 0 not in open_corpus(tmp_path / "c").tokens(0, result["tokens"])

    def test_must_exist(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl())
        with pytest.raises(ValueError, match=r"no token '</s>' to end documents with"):
            build([source], tokenizer, tmp_path / "c", eod_token="</s>")
        assert not list(tmp_path.glob("c.*"))


class TestSpecialText:
    def test_is_plain_text_and_counted(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl())
        result = build([source], tokenizer, tmp_path / "c")
        assert result["special_text_seen"] == {"<|endoftext|>": 2}
        assert result["special_text"] == "plain text"
        assert decoded(tmp_path / "c", tokenizer)[-1] == TEXTS[-1]

    def test_becomes_the_token_when_allowed(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl(TEXTS[-1:]))
        result = build([source], tokenizer, tmp_path / "c", allow_special=True)
        assert result["special_text_seen"] == {"<|endoftext|>": 2}
        tokens = open_corpus(tmp_path / "c").tokens(0, result["tokens"])
        assert int((tokens == 0).sum()) == 3


def test_padding_and_truncation_saved_in_a_tokenizer_do_not_cut_documents(tmp_path, tokenizer):
    changed = Tokenizer.from_file(str(tokenizer))
    changed.enable_truncation(2)
    changed.enable_padding(length=4)
    changed.save(str(tmp_path / "cutting.json"))
    source = tmp_path / "a.jsonl"
    source.write_bytes(jsonl())
    build([source], tmp_path / "cutting.json", tmp_path / "c")
    assert decoded(tmp_path / "c", tokenizer) == TEXTS


def test_the_sidecar_tells_where_it_came_from(tmp_path, tokenizer):
    import hashlib

    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress(jsonl()))
    result = build([source], tokenizer, tmp_path / "c")
    facts = json.loads((tmp_path / "c.json").read_text())
    assert facts["sources"] == [
        {
            "name": "a.jsonl.gz",
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "bytes": source.stat().st_size,
        }
    ]
    assert facts["tokenizer_hash"] == tokenizer_hash(tokenizer) == result["tokenizer_hash"]
    assert (facts["documents"], facts["empty_documents"]) == (6, 1)
    assert facts["tokens"] == open_corpus(tmp_path / "c").num_tokens
    assert facts["vocab_size"] == Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    assert facts["special"] == [0]
    assert facts["provenance"]["versions"]["tokenizers"]


BROKEN_LINES = [
    (b'{"text": "a"', "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"text": "\xff"}', "not UTF-8: byte 0xff at offset 10"),
    (b'{"other": "a"}', r"no key 'text', found \['other'\]"),
    (b'{"text": null}', "'text' is null"),
    (b'{"text": 3}', "'text' is a int"),
    (b'["a"]', "a JSON list where an object is needed"),
    (b'{"text": "\\ud800"}', r"lone surrogate U\+D800 at character 0"),
    (b'{"text": "ok \\udc00 x"}', r"lone surrogate U\+DC00 at character 3"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN_LINES)
def test_a_broken_line_is_named_or_skipped(tmp_path, tokenizer, line, message):
    source = tmp_path / "a.jsonl"
    source.write_bytes(jsonl(["one", "two"]) + line + b"\n" + jsonl(["four"]))
    with pytest.raises(SourceError, match=rf"a\.jsonl: line 3: {message}"):
        build([source], tokenizer, tmp_path / "c")
    assert not list(tmp_path.glob("c.*"))
    result = build([source], tokenizer, tmp_path / "c", on_error="skip")
    assert decoded(tmp_path / "c", tokenizer) == ["one", "two", "four"]
    assert result["skipped_documents"] == open_corpus(tmp_path / "c").num_skipped_documents == 1
    (problem,) = result["problems"]
    assert "a.jsonl: line 3: " in problem


def test_a_pair_of_surrogates_is_a_character(tmp_path, tokenizer):
    source = tmp_path / "a.jsonl"
    source.write_bytes(b'{"text": "\\ud83d\\ude00"}\n\n')
    build([source], tokenizer, tmp_path / "c")
    assert decoded(tmp_path / "c", tokenizer) == ["😀"]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".zst", zstandard.ZstdCompressor(write_checksum=True).compress)],
)
def test_cut_and_damaged_compressed_files(tmp_path, tokenizer, suffix, pack):
    rng = np.random.default_rng(0)
    texts = [bytes(rng.integers(97, 123, 200, np.uint8)).decode() for _ in range(300)]
    whole = pack(jsonl(texts))
    source = tmp_path / f"a.jsonl{suffix}"
    for size in (1, 5, len(whole) // 2, len(whole) - 1):
        source.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"a\.jsonl.*cut short"):
            build([source], tokenizer, tmp_path / "d")
        result = build([source], tokenizer, tmp_path / "c", on_error="skip", overwrite=True)
        kept = decoded(tmp_path / "c", tokenizer)
        assert kept == texts[: len(kept)]
        assert len(kept) < len(texts) or size == len(whole) - 1
        assert len(result["problems"]) == 1
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    source.write_bytes(damaged)
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        build([source], tokenizer, tmp_path / "d")
    source.write_bytes(b"this is not compressed")
    with pytest.raises(SourceError, match="broken"):
        build([source], tokenizer, tmp_path / "d")


def test_null_missing_and_cut_tables(tmp_path, tokenizer):
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", None, "three"]}), source)
    with pytest.raises(SourceError, match=r"a\.parquet: row 1: the text is null"):
        build([source], tokenizer, tmp_path / "c")
    result = build([source], tokenizer, tmp_path / "c", on_error="skip")
    assert decoded(tmp_path / "c", tokenizer) == ["one", "three"]
    assert result["skipped_documents"] == 1
    with pytest.raises(SourceError, match=r"no column 'body', found \['text'\]"):
        build([source], tokenizer, tmp_path / "d", text_column="body")
    pq.write_table(pa.table({"text": [1, 2]}), source)
    with pytest.raises(SourceError, match="column 'text' is int64, text is needed"):
        build([source], tokenizer, tmp_path / "d")
    source.write_bytes(source.read_bytes()[:-3])
    with pytest.raises(SourceError, match="cannot be read as a table"):
        build([source], tokenizer, tmp_path / "d")
    assert not list(tmp_path.glob("d.*"))


def test_a_bad_byte_in_a_table_is_named_by_its_row(tmp_path, tokenizer):
    binary = pa.array([b"good", b"bad \xff", b"good"])
    offsets, data = binary.buffers()[1:]
    text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
    source = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(source), pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": text}))
    with pytest.raises(SourceError, match="row 1: not UTF-8: byte 0xff at offset 4"):
        build([source], tokenizer, tmp_path / "c")


def test_text_in_the_order_of_a_saved_index_map(tmp_path, tokenizer):
    saved = tmp_path / "saved"
    saved.mkdir()
    tables = {
        "data.arrow": pa.table({"text": TEXTS}),
        "order.arrow": pa.table({"indices": [4, 0, 4]}),
    }
    for name, table in tables.items():
        with pa.ipc.new_stream(str(saved / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": "data.arrow"}]}
    state["_indices_data_files"] = [{"filename": "order.arrow"}]
    (saved / "state.json").write_text(json.dumps(state))
    build([saved], tokenizer, tmp_path / "c")
    assert decoded(tmp_path / "c", tokenizer) == [TEXTS[4], TEXTS[0], TEXTS[4]]


def test_a_file_that_is_no_text(tmp_path, tokenizer):
    (tmp_path / "a.bin").write_bytes(b"\x80\x81")
    with pytest.raises(SourceError, match=r"a\.bin: file 1: not UTF-8: byte 0x80 at offset 0"):
        build([tmp_path / "a.bin"], tokenizer, tmp_path / "c")


def test_a_broken_block_of_a_worker_is_the_same_error(tmp_path, tokenizer):
    source = tmp_path / "a.jsonl"
    source.write_bytes(jsonl(["x" * 100_000] * 40) + b"{\n" + jsonl(["x" * 100_000] * 40))
    with pytest.raises(SourceError, match="line 41: not JSON"):
        build([source], tokenizer, tmp_path / "c", workers=2)
    assert not list(tmp_path.glob("c.*"))


def test_a_worker_that_dies_fails_the_run_and_leaves_nothing(tmp_path, tokenizer):
    source = tmp_path / "many.jsonl"
    source.write_bytes(jsonl(["some words of text " * 2000] * 1500))
    killed = []

    class KillsWorkers:
        """Progress that kills a worker at the first block."""

        def stage(self, title, total, unit):
            return contextlib.nullcontext(self.advance)

        def advance(self, amount):
            if not killed:
                killed.extend(_children(os.getpid())[-1:])
                os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(RuntimeError, match="a tokenising process died"):
        build([source], tokenizer, tmp_path / "c", workers=2, progress=KillsWorkers())
    assert killed
    assert not list(tmp_path.glob("c.*"))


def test_lines_and_cells_of_any_size_cross_blocks_and_chunks(tmp_path, tokenizer, monkeypatch):
    from corpus import sources, tokenize

    monkeypatch.setattr(sources, "_READ", 7)
    texts = ["a" * at for at in (0, 1, 5, 6, 7, 8, 50)] + ["é" * 30, "", ""]
    whole = jsonl(texts)
    for name, content in (("a.jsonl", whole), ("a.jsonl.gz", gzip.compress(whole))):
        (tmp_path / name).write_bytes(content)
        for block_bytes in (1, 20, 10_000):
            monkeypatch.setattr(
                tokenize._ReadOptions, "__init__", _read_options(block_bytes), raising=True
            )
            build([tmp_path / name], tokenizer, tmp_path / "c", overwrite=True)
            assert decoded(tmp_path / "c", tokenizer) == texts


def _read_options(block_bytes):
    def init(self, text_column):
        object.__setattr__(self, "text_column", text_column)
        object.__setattr__(self, "block_bytes", block_bytes)

    return init


def test_a_folder_is_no_prefix(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a prefix is needed"):
        build(["a.txt"], tokenizer, Path())
    build(["a.txt"], tokenizer, Path("c"))
    assert open_corpus(".").num_documents == 1
    assert open_corpus("c").num_documents == 1


def test_nothing_to_build_from(tmp_path, tokenizer):
    with pytest.raises(FileNotFoundError, match="not found"):
        build([tmp_path / "missing.jsonl"], tokenizer, tmp_path / "c")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="no files"):
        build([tmp_path / "folder"], tokenizer, tmp_path / "c")
    (tmp_path / "none.jsonl").write_text("")
    assert build([tmp_path / "none.jsonl"], tokenizer, tmp_path / "c")["documents"] == 0
    with pytest.raises(FileNotFoundError):
        build([tmp_path / "none.jsonl"], tmp_path / "no-tokenizer.json", tmp_path / "d")
    with pytest.raises(ValueError, match="not JSON"):
        build([tmp_path / "none.jsonl"], tmp_path / "none.jsonl", tmp_path / "d")


class TestTraining:
    def test_the_same_input_gives_the_same_file_in_another_process(self, tmp_path, tokenizer):
        source = tmp_path / "train.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3))
        code = (
            "import sys; from pathlib import Path; from corpus.tokenize import train_tokenizer;"
            "train_tokenizer(sys.argv[1], vocab_size=300, out=Path(sys.argv[2]))"
        )
        out = tmp_path / "again.json"
        subprocess.run([sys.executable, "-c", code, source, out], check=True)
        assert out.read_bytes() == tokenizer.read_bytes()

    def test_every_text_comes_back(self, tokenizer):
        loaded = Tokenizer.from_file(str(tokenizer))
        loaded.encode_special_tokens = True
        for text in [*TEXTS, "\x00\x7f 🙂 \u200b"]:
            ids = loaded.encode(text).ids
            assert loaded.decode(ids, skip_special_tokens=False) == text

    def test_refusals(self, tmp_path, tokenizer):
        source = tmp_path / "a.jsonl"
        source.write_bytes(jsonl() + b"{")
        with pytest.raises(ValueError, match="at least 257"):
            train_tokenizer(source, vocab_size=256, out=tmp_path / "t.json")
        with pytest.raises(SourceError, match="line 7: not JSON"):
            train_tokenizer(source, vocab_size=300, out=tmp_path / "t.json")
        source.write_bytes(jsonl([""]))
        with pytest.raises(SourceError, match="no text"):
            train_tokenizer(source, vocab_size=300, out=tmp_path / "t.json")
        with pytest.raises(FileExistsError, match="--overwrite"):
            train_tokenizer(source, vocab_size=300, out=tokenizer)
        assert not (tmp_path / "t.json").exists()


@pytest.fixture
def running_build(tmp_path, tokenizer):
    """A build in another process, its workers at work."""
    source = tmp_path / "many.jsonl"
    source.write_bytes(jsonl(["some words of text " * 2000] * 3000))
    # A suite that runs in the background has Ctrl-C ignored, and children inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    started = subprocess.Popen(
        [
            *(sys.executable, "-c", f"{heed}; from workflows.cli import main; main()"),
            *("corpus", "build", source, "--tokenizer", tokenizer),
            *("--out", tmp_path / "c", "--workers", "2"),
        ],
        stderr=subprocess.PIPE,
    )
    partial = tmp_path / "c.bin.partial"
    deadline = time.monotonic() + 120
    while not (partial.exists() and partial.stat().st_size):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.02)
    yield started
    started.kill()
    started.communicate()


def test_a_killed_build_leaves_nothing_that_opens_and_no_process(
    tmp_path, tokenizer, running_build
):
    workers = _children(running_build.pid)
    assert len(workers) >= 2
    running_build.send_signal(signal.SIGKILL)
    running_build.wait()
    for path in (tmp_path / "c", tmp_path / "c.bin.partial", tmp_path / "c.bin"):
        with pytest.raises((ValueError, FileNotFoundError)):
            open_corpus(path)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    small = tmp_path / "small.jsonl"
    small.write_bytes(jsonl())
    build([small], tokenizer, tmp_path / "c")
    assert decoded(tmp_path / "c", tokenizer) == TEXTS
    assert not list(tmp_path.glob("*.partial"))


def test_an_interrupted_build_says_so_and_leaves_nothing(tmp_path, running_build):
    for pid in [running_build.pid, *_children(running_build.pid)]:  # as a terminal does it
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    _, err = running_build.communicate(timeout=120)
    assert running_build.returncode == 130
    assert b"Traceback" not in err
    assert not list(tmp_path.glob("c.*"))


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
