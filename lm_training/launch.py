"""Starting one training process a GPU (or a share of the cores) on this machine.

It gives the processes the variables that torchrun would, and passes on what torchrun would
not: the exit code and the one-line error of the first process. For several machines use
torchrun itself (docs/training.md).
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

_SECONDS_TO_FAIL = 10.0
"""What processes get to end by themselves once one of them has failed."""


def launch(arguments: Sequence[str], *, nproc_per_node: int) -> int:
    """Run ``staircase`` with ``arguments`` in ``nproc_per_node`` processes; return its exit code.

    SIGTERM reaches every process, so that all of them save and end.

    Raises
    ------
    RuntimeError
        A process died by a signal, or one that says nothing failed alone.
    """
    command = [sys.executable, "-m", "workflows", *arguments]
    with ExitStack() as stack:
        unheard = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(nproc_per_node - 1)]
        processes = [
            subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            for environment, output in zip(
                _environments(nproc_per_node), [None, *unheard], strict=True
            )
        ]
        with _forwarding(processes):
            _wait(processes)
        return _exit_code(processes, unheard)


def _environments(processes: int) -> list[dict[str, str]]:
    """Return the variables of each process; torch.distributed reads them."""
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes))}
    group = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    return [
        threads | os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(processes)
    ]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _forwarding(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass SIGTERM on; nothing survives an error here, such as Ctrl-C."""

    def forward(signum: int, frame: object) -> None:
        for process in processes:
            process.send_signal(signum)

    before = signal.signal(signal.SIGTERM, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(processes)


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all; once one has failed, only a little longer for the others."""
    failed_at = None
    while any(process.poll() is None for process in processes):
        if failed_at is None and any(process.returncode for process in processes):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > _SECONDS_TO_FAIL:
            return
        time.sleep(0.05)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def _exit_code(processes: list[subprocess.Popen[bytes]], unheard: Sequence[IO[bytes]]) -> int:
    codes = [process.returncode for process in processes]
    if codes[0] > 0 or not any(codes):
        return codes[0]
    rank = next(rank for rank, code in enumerate(codes) if code)
    said = ""
    if rank:
        unheard[rank - 1].seek(0)
        said = unheard[rank - 1].read().decode(errors="replace").strip().rpartition("\n")[2]
    raise RuntimeError(f"process {rank} of {len(codes)} ended with {codes[rank]}: {said}")
