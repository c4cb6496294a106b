"""One count as its tasks see it: paths, bounds and settings, small enough to travel.

The scratch folder beside the store is all that the tasks of a count share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from corpus.store import Corpus, InputOptions, open_corpus
from signatures.order import Order
from signatures.scope import Scope
from signatures.scratch import PARTIALS, SUMS
from signatures.segments import DocumentStream, FileStream, Half, OrderStream, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class CountJob:
    """What a task needs to know of the count it belongs to."""

    run: str
    """Names this run of the program: what a worker keeps in memory is dropped with it."""
    scratch: Path
    corpus_paths: tuple[Path, ...]
    input: InputOptions
    scope: Scope
    vocab_size: int
    halves: bool
    units: tuple[int, int]
    """Units of the stream that are counted: all, or those of one part."""
    units_per_partition: int
    tokens_per_unit: int
    task_memory: int
    """Bytes that one task may use beside what a process needs anyway."""

    @property
    def num_partitions(self) -> int:
        """Partitions of this count; a corpus of no tokens has one that is empty."""
        return max(1, -(-(self.units[1] - self.units[0]) // self.units_per_partition))

    @property
    def store(self) -> Path:
        """Where the unfinished store is built."""
        return self.scratch / "store"

    def bounds(self, partition: int) -> tuple[int, int]:
        """Units that a partition holds."""
        start = self.units[0] + partition * self.units_per_partition
        return start, min(start + self.units_per_partition, self.units[1])

    @property
    def division(self) -> tuple[Half, ...]:
        """Partials of one partition: with halves the even and the odd, which add up to it."""
        return ("even", "odd") if self.halves else ("whole",)

    def partial(self, partition: int, half: Half) -> Path:
        """Where a partition's counts go."""
        return self.scratch / PARTIALS / f"{partition:06d}-{half}"

    def sources(self, halves: Sequence[Half]) -> list[Path]:
        """List the partials of all partitions for these halves."""
        return [self.partial(p, half) for p in range(self.num_partitions) for half in halves]

    @property
    def label_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Narrowest unsigned integer that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextJob:
    """A count of contexts; which tokens are meant lies on scratch (`Contexts.save`)."""

    count: CountJob
    min_count: int
    """Entries of a smaller count are left out."""

    def sums(self) -> Path:
        """Where the row ranges go that are added up."""
        return self.count.scratch / SUMS


@lru_cache(maxsize=1)
def open_once(run: str, paths: tuple[Path, ...], input: InputOptions) -> Corpus:
    """Open a corpus, once a process and run."""
    return open_corpus(paths, input)


@lru_cache(maxsize=1)
def open_stream(job: CountJob) -> tuple[Corpus, Stream]:
    """Open the corpus of ``job``, once a process."""
    corpus = open_once(job.run, job.corpus_paths, job.input)
    if job.scope.kind == "document":
        return corpus, DocumentStream(corpus)
    if job.scope.order is None:
        return corpus, FileStream(corpus, job.scope.seq_length)
    return corpus, OrderStream(corpus, load_order(job.scratch))


def save_order(scratch: Path, order: Order) -> None:
    """Lay the order out on scratch, where every process maps it."""
    for name in ("samples", "starts", "ends"):
        np.save(scratch / f"order-{name}.npy", getattr(order, name))
    np.save(scratch / "order-seq_length.npy", np.array(order.seq_length))


def load_order(scratch: Path) -> Order:
    """Map what `save_order` laid out."""
    samples, starts, ends = (
        np.asarray(np.load(scratch / f"order-{name}.npy", mmap_mode="r"))
        for name in ("samples", "starts", "ends")
    )
    return Order(int(np.load(scratch / "order-seq_length.npy")), samples, starts, ends)
