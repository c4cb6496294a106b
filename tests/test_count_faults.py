"""What goes wrong in long runs: kill -9, full disks, changed inputs, two runs at once, Ctrl-C."""

import errno
import json
import os
import signal

import numba
import psutil
import pytest
from counting import (
    document_pairs,
    finished_partials,
    start_count,
    stored_pairs,
    text_like,
    tree,
    wait_until,
)
from strategies import write_corpus

import signatures.kernels
import signatures.partials
from corpus.store import InputOptions
from signatures.count import CountOptions, Scope, count_next_token
from signatures.scratch import hold_scratch
from signatures.store import verify_store
from workflows.cli import run

SIZE = ("--partition-tokens", "2000")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    docs = [text_like(1_000, 300, seed).tolist() for seed in range(400)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), docs, vocab_size=300)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The store of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "store"
    count_next_token(corpus, out=out, options=CountOptions(workers=1))
    return out


def resume(corpus, out, **options):
    options = {"workers": 1, "resume": True} | options
    return count_next_token(corpus, out=out, options=CountOptions(**options))


@pytest.mark.parametrize("moment", [1, 40, 150])
def test_kill_the_whole_run_and_resume(corpus, whole, tmp_path, moment):
    out = tmp_path / "store"
    process = start_count(corpus, "--out", out, *SIZE, "--workers", "1")
    wait_until(lambda: finished_partials(out) >= moment, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    finished = finished_partials(out)
    result = resume(corpus, out)
    assert finished <= result["reused_partitions"] + 1
    assert result["reused_partitions"] >= moment - 1
    assert result["partitions"] == 200
    assert tree(out) == tree(whole)
    assert not out.with_name("store.scratch").exists()


def interrupted(corpus, out, monkeypatch, *, after=20, error=None, **options):
    """Run until so many pieces of partials are written, then fail."""
    write, calls = signatures.partials.write_all, iter(range(10**9))

    def failing(file, values):
        if next(calls) >= after:
            raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        write(file, values)

    with monkeypatch.context() as patched:
        patched.setattr(signatures.partials, "write_all", failing)
        options = {"workers": 1, "partition_tokens": 2000} | options
        count_next_token(corpus, out=out, options=CountOptions(**options))


@pytest.mark.parametrize("after", [0, 20, 401])
def test_a_full_disk(corpus, whole, tmp_path, monkeypatch, after):
    out = tmp_path / "store"
    with pytest.raises(OSError, match="No space left"):
        interrupted(corpus, out, monkeypatch, after=after)
    assert not out.exists()
    assert list(tmp_path.rglob("*.tmp")) == []
    assert resume(corpus, out)["reused_partitions"] == min(after // 2, 200)
    assert tree(out) == tree(whole)


def test_a_full_disk_is_one_line_and_exit_code_1(corpus, tmp_path, monkeypatch, capsys):
    def full(file, values):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)

    monkeypatch.setattr(signatures.partials, "write_all", full)
    assert run(["count", "next-token", str(corpus), "--out", str(tmp_path / "s")]) == 1
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert "no space left" in last
    assert str(tmp_path) in last


def test_a_changed_corpus_does_not_resume(tmp_path, monkeypatch):
    docs = [text_like(1_000, 300, seed).tolist() for seed in range(40)]
    corpus, out = write_corpus(tmp_path, docs, name="c", vocab_size=300), tmp_path / "store"
    with pytest.raises(OSError, match="No space"):
        interrupted(corpus, out, monkeypatch)
    docs[30][7] += 1
    write_corpus(tmp_path, docs, name="c", vocab_size=300)
    with pytest.raises(ValueError, match="corpus was"):
        resume(corpus, out)
    result = resume(corpus, out, resume=False, overwrite=True)
    assert result["reused_partitions"] == 0
    assert stored_pairs(out) == document_pairs(docs)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"options": {"partition_tokens": 1999}}, "units_per_partition"),
        ({"options": {"halves": True}}, "parameters"),
        ({"options": {"part": (1, 2)}}, "parameters"),
        ({"scope": Scope(kind="packed")}, "scope"),
        ({"input": InputOptions(vocab_size=301)}, "vocab_size"),
    ],
)
def test_changed_parameters_do_not_resume(corpus, tmp_path, monkeypatch, changes, named):
    out = tmp_path / "store"
    with pytest.raises(OSError, match="No space"):
        interrupted(corpus, out, monkeypatch)
    kept = finished_partials(out)
    options = CountOptions(**{"workers": 1, "resume": True} | changes.pop("options", {}))
    with pytest.raises(ValueError, match=f"cannot resume: .*{named} was"):
        count_next_token(corpus, out=out, options=options, **changes)
    assert finished_partials(out) == kept > 0


def test_an_unfinished_count_is_not_dropped_unasked(corpus, tmp_path, monkeypatch):
    out = tmp_path / "store"
    with pytest.raises(OSError, match="No space"):
        interrupted(corpus, out, monkeypatch)
    with pytest.raises(ValueError, match="--resume"):
        resume(corpus, out, resume=False)
    assert finished_partials(out) == 10


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_an_altered_partial_is_noticed(corpus, tmp_path, monkeypatch):
    out = tmp_path / "store"
    with pytest.raises(OSError, match="No space"):
        interrupted(corpus, out, monkeypatch, after=100)
    flip(sorted(tmp_path.rglob("*.counts"))[3])
    with pytest.raises(RuntimeError, match="altered"):
        resume(corpus, out)
    assert not out.exists()


def test_a_cut_partial_is_counted_again(corpus, whole, tmp_path, monkeypatch):
    out = tmp_path / "store"
    with pytest.raises(OSError, match="No space"):
        interrupted(corpus, out, monkeypatch, after=100)
    for number, suffix in enumerate(("counts", "columns", "npz")):
        path = sorted(tmp_path.rglob(f"*.{suffix}"))[number]
        path.write_bytes(path.read_bytes()[:-9])
    assert resume(corpus, out)["reused_partitions"] == 50 - 3
    assert tree(out) == tree(whole)


def test_two_runs_into_one_store(corpus, tmp_path, capsys):
    out = tmp_path / "store"
    with hold_scratch(out):
        assert run(["count", "next-token", str(corpus), "--out", str(out), "--resume"]) == 2
        assert "another run is counting into it" in capsys.readouterr().err
    count_next_token(corpus, out=out, options=CountOptions(workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupt_is_tidy(corpus, whole, tmp_path, workers):
    out = tmp_path / "store"
    process = start_count(corpus, "--out", out, *SIZE, "--workers", workers)
    wait_until(lambda: finished_partials(out) >= 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert not out.exists()
    assert list(tmp_path.rglob("*.tmp")) == []
    assert resume(corpus, out)["reused_partitions"] >= 3
    assert tree(out) == tree(whole)


def test_a_finished_store_and_none(corpus, tmp_path, capsys):
    out = str(tmp_path / "store")
    command = ["count", "next-token", str(corpus), "--out", out, "--json"]
    assert run([*command, "--resume"]) == 0
    first = capsys.readouterr()
    assert "started afresh" in first.err
    assert run([*command, "--resume"]) == 0
    again = capsys.readouterr()
    assert "complete" in again.err
    assert json.loads(again.out)["pairs"] == json.loads(first.out)["pairs"]
    assert run(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run([*command, "--overwrite"]) == 0
    assert verify_store(out) == []


def test_a_read_only_installation_without_a_cache(monkeypatch):
    """Numba finds no folder for its cache: kernels are compiled, not refused."""

    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(lambda number: number)

    @signatures.kernels.kernel
    def add_one(number: int) -> int:
        return number + 1

    assert add_one(3) == 4
