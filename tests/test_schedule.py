"""Where tasks run: a Dask cluster of separate processes that loses one; tasks that run twice."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from counting import (
    ROOT,
    finished_partials,
    start_count,
    text_like,
    tree,
    wait_until,
)
from strategies import write_corpus

import signatures.run
from corpus.progress import SILENT
from signatures.count import CountOptions, count_next_token
from signatures.job import CountJob
from signatures.schedule import InProcess, open_runner
from signatures.scope import Scope
from signatures.stages import check_workers, count_stage, spread
from signatures.tasks import check_sight, count_partitions
from workflows.cli import run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    docs = [text_like(1_000, 300, seed).tolist() for seed in range(400)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), docs, vocab_size=300)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "store"
    count_next_token(corpus, out=out, options=CountOptions(workers=1))
    return out


@contextmanager
def cluster(folder, workers):
    """A scheduler and workers as separate processes, each in a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    commands = [["scheduler", "--host", address, "--no-dashboard", "--no-show"]]
    commands += [
        ["worker", address, "--nthreads", "1", "--memory-limit", "0", "--no-dashboard",
         "--nworkers", "1", "--local-directory", str(folder / f"worker{n}")]
        for n in range(workers)
    ]  # fmt: skip
    processes = []
    try:
        for number, command in enumerate(commands):
            (place := folder / f"place{number}").mkdir()
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dask", *command],
                    cwd=place,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield address, processes[1:]
    finally:
        for process in processes:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
            for child in family:
                with_suppressed_kill(child)


def with_suppressed_kill(process):
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def wait_for_workers(address, number):
    from distributed import Client

    for _ in range(60):
        try:
            with Client(address, timeout=5) as client:
                client.wait_for_workers(number, timeout=120)
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"no scheduler came up at {address}")


def test_a_cluster_of_processes_loses_one_in_the_middle(corpus, whole, tmp_path):
    out = tmp_path / "store"
    with cluster(tmp_path, workers=3) as (address, workers):
        wait_for_workers(address, 3)
        process = start_count(
            corpus, "--out", out, "--partition-tokens", "500", "--scheduler", address, "--json"
        )
        wait_until(lambda: finished_partials(out) >= 30, process)
        for child in psutil.Process(workers[1].pid).children(recursive=True):
            with_suppressed_kill(child)
        workers[1].kill()
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert '"partitions": 800' in output
    assert tree(out) == tree(whole)


def test_own_processes_lose_one_in_the_middle(corpus, whole, tmp_path):
    out = tmp_path / "store"
    process = start_count(corpus, "--out", out, "--partition-tokens", "500", "--workers", "2")
    wait_until(lambda: finished_partials(out) >= 30, process)
    forks = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "spawn_main" in " ".join(child.cmdline())
    ]
    os.kill(forks[0].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert tree(out) == tree(whole)


class Twice(InProcess):
    """Every task runs two times over; the second result is taken."""

    def run(self, function, arguments, at_once=None):
        for number, one in enumerate(arguments):
            function(*one)
            yield number, function(*one)


def test_tasks_that_run_twice_change_nothing(corpus, whole, tmp_path, monkeypatch):
    @contextmanager
    def twice(*arguments, **settings):
        yield Twice()

    monkeypatch.setattr(signatures.run, "open_runner", twice)
    out = tmp_path / "store"
    options = CountOptions(workers=1, partition_tokens=50_000)
    count_next_token(corpus, out=out, options=options)
    assert tree(out) == tree(whole)


def job_of(folder, partitions):
    return CountJob(
        run="r",
        scratch=folder,
        corpus_paths=(),
        input=None,
        scope=Scope(),
        vocab_size=9,
        halves=False,
        units=(0, partitions),
        units_per_partition=1,
        tokens_per_unit=1,
        task_memory=1,
    )


def test_twenty_thousand_partitions_are_few_tasks(tmp_path):
    class Recorder(InProcess):
        workers = 4
        submitted = ()

        def run(self, function, arguments, at_once=None):
            assert function is count_partitions
            self.submitted = arguments
            return iter(())

    recorder = Recorder()
    count_stage(recorder, job_of(tmp_path, 20_000), SILENT)
    bounds = [(first, last) for _, first, last in recorder.submitted]
    assert len(bounds) <= 100
    assert [number for first, last in bounds for number in range(first, last)] == list(
        range(20_000)
    )


@pytest.mark.parametrize(("items", "groups"), [(0, 3), (1, 3), (7, 3), (20_000, 64)])
def test_spread_covers_everything_once(items, groups):
    ranges = spread(items, groups)
    assert [number for first, last in ranges for number in range(first, last)] == list(range(items))
    sizes = {last - first for first, last in ranges}
    assert len(ranges) <= groups
    assert max(sizes) - min(sizes) <= 1


def test_a_worker_that_does_not_see_the_files_is_named(tmp_path):
    class Elsewhere(InProcess):
        def everywhere(self, function, scratch, run):
            return [None, function(scratch / "not-mounted", run)]

    (tmp_path / "run").write_text("r")
    assert check_sight(tmp_path, "r") is None
    assert "sees another" in check_sight(tmp_path, "other")
    with pytest.raises(
        RuntimeError, match=rf"{socket.gethostname()} cannot read .*same file system"
    ):
        check_workers(Elsewhere(), job_of(tmp_path, 1))


def test_no_scheduler_is_one_line_and_exit_code_1(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("signatures.schedule._CONNECT_SECONDS", 1)
    out = str(tmp_path / "s")
    command = ["count", "next-token", str(corpus), "--out", out, "--scheduler", "tcp://127.0.0.1:9"]
    assert run(command) == 1
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert "no Dask scheduler answers" in last
    assert list(tmp_path.iterdir()) == []


def test_in_process_keeps_the_order():
    with open_runner(1) as runner:
        assert list(runner.run(divmod, [(7, 2), (9, 4)])) == [(0, (3, 1)), (1, (2, 1))]
        assert runner.everywhere(int, "3") == [3]


def test_two_counts_at_once_do_not_meet_at_a_port():
    """Dask's own port is held; a warning would be an error here."""
    with socket.socket() as holder:
        with suppress(OSError):  # another program may hold it already, which serves as well
            holder.bind(("127.0.0.1", 8787))
            holder.listen()
        with open_runner(2) as one, open_runner(2) as other:
            assert dict(one.run(divmod, [(7, 2)])) == dict(other.run(divmod, [(7, 2)]))
