"""Keeping and proving the promise of ``--memory``: block sizes from a budget, and a sampler.

What counts is the sum over all processes of anonymous and shared-memory pages (RssAnon +
RssShmem); pages of mapped files can be dropped at any time and do not count.
"""

import ctypes
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil  # type: ignore[import-untyped]

MIB = 1 << 20
SLACK = 512 * MIB
"""What may be used beyond ``--memory``: interpreters and libraries live in it."""

_MAIN = 160 * MIB
_WORKER = 150 * MIB
_BUFFERS = 48 * MIB
_SHARD_BYTES = 3 * 134_000_000  # values, their compressed form, and one copy of it
_SAFETY = 0.85
_SAMPLE_SECONDS = 0.02
_DEFAULT_A_WORKER = 4_000_000_000


_ALLOCATOR = {"MALLOC_ARENA_MAX": (-8, 1), "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 30),
              "MALLOC_TRIM_THRESHOLD_": (-1, (1 << 31) - 1)}  # fmt: skip
"""Settings of glibc's allocator by which a process keeps freed memory: as environment, and as
``mallopt`` names them. A task's buffers come from the memory of the task before, not as fresh
pages, which cost more than what is done with them."""


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees; nothing happens where glibc does not allocate.

    For programs, not libraries: it holds for all that the process does.
    """
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _ALLOCATOR.values():
            mallopt(parameter, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How many workers there are and what each task may use."""

    workers: int
    task_memory: int
    """Bytes beside what a process needs anyway."""
    fixed: int
    """Bytes of a task that do not grow with its tokens."""
    token_bytes: float

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens one task may count at once."""
        return min(2**31 - 1, max(1, int((self.task_memory - self.fixed) / self.token_bytes)))

    @property
    def shard_writers(self) -> int:
        """How many shards may be in memory at once."""
        return max(1, min(self.workers, self.workers * self.task_memory // _SHARD_BYTES))

    @property
    def environment(self) -> dict[str, int]:
        """Of the workers: they keep what they free, if all may hold what a task takes at most."""
        if self.shard_writers < self.workers:
            return {}
        return {name: value for name, (_, value) in _ALLOCATOR.items()}

    def peak(self, tokens: int) -> int:
        """Bytes of all processes while every worker counts ``tokens`` at once."""
        processes = _MAIN + (_WORKER * self.workers if self.workers > 1 else 0)
        return int(processes + self.workers * (self.fixed + tokens * self.token_bytes))


def plan_memory(
    memory: int | None,
    workers: int,
    *,
    vocab_size: int,
    token_bytes: float,
    pairs: int,
    corpus_bytes: int,
) -> MemoryPlan:
    """Divide ``memory`` among at most ``workers`` tasks.

    Parameters
    ----------
    memory : int, optional
        Bytes promised; None: half of what is available, at most 4 GB a worker.
    token_bytes : float
        Bytes a task needs for each token it counts at once.
    pairs : int
        Pairs at most, which bounds what a shard can hold.
    corpus_bytes : int
        Bytes that each process needs to know the corpus (its document borders).

    Raises
    ------
    ValueError
        Too little for even one worker; the message says how much is needed.
    """
    if memory is None:
        memory = min(psutil.virtual_memory().available // 2, _DEFAULT_A_WORKER * workers)
    fixed = 96 * vocab_size + _BUFFERS + corpus_bytes
    needed = fixed + max(int(min(pairs, 1 << 16) * token_bytes), min(_SHARD_BYTES, 12 * pairs))
    for count in range(workers, 0, -1):
        share = _share(memory, count, corpus_bytes)
        if share >= needed or (count == 1 and share >= fixed + MIB and pairs < 1 << 16):
            return MemoryPlan(
                workers=count, task_memory=share, fixed=fixed, token_bytes=token_bytes
            )
    least = int(needed / _SAFETY) + _MAIN + corpus_bytes - SLACK
    raise ValueError(
        f"--memory {memory / 1e6:.0f}MB: too little for one worker and a vocabulary of "
        f"{vocab_size}; at least {max(least, MIB) / 1e6:.0f}MB is needed"
    )


def _share(memory: int, workers: int, corpus_bytes: int) -> int:
    processes = _MAIN + corpus_bytes + (_WORKER * workers if workers > 1 else 0)
    return int(_SAFETY * (memory + SLACK - processes) / workers)


class MemorySampler:
    """Watches this process and its descendants; ``peak`` is the largest sum seen, in bytes."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-sampler", daemon=True)

    def __enter__(self) -> "MemorySampler":
        self.peak = self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, self._sample())

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, self._sample())

    def _sample(self) -> int:
        return sum(private_bytes(pid) for pid in _family())


def private_bytes(pid: int) -> int:
    """RssAnon + RssShmem of a process in bytes; 0 when it is gone."""
    total = 0
    with suppress(OSError), Path(f"/proc/{pid}/status").open() as file:
        for line in file:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def _family() -> list[int]:
    """List this process and all its descendants."""
    family = [os.getpid()]
    for pid in family:
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    family += [int(child) for child in (thread / "children").read_text().split()]
    return family
