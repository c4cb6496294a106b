"""What a count of contexts would take: ``--dry-run`` counts random stretches and carries on.

The stretches are listed and added up by the code that counts; nested samples of them say how the
number of distinct entries grows.

Shapes: V vocabulary, A anchors, Q columns of a projection.
"""

import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from pathlib import Path
from typing import Any

import numpy as np

from corpus.progress import SILENT, Progress
from corpus.store import InputOptions
from signatures.context_stages import (
    project_stage,
    sum_stage,
    token_stage,
    write_block_stage,
)
from signatures.contexts import ContextOptions
from signatures.count import absolute
from signatures.estimate import existing_folder, fits, grown_to
from signatures.job import ContextJob, CountJob, save_order
from signatures.layout import COUNTS, MATRIX, ROWS, VALUES, BlockLayout
from signatures.listing import list_partitions
from signatures.memory import MIB, MemoryPlan
from signatures.occurrences import OccurrencePartial
from signatures.planning import Question, partition_units, resolve, share_memory
from signatures.schedule import InProcess
from signatures.scope import CountOptions, Scope
from signatures.scratch import PARTIALS, SUMS
from signatures.segments import Half
from signatures.spec import StoreSpec
from signatures.stages import write_stage
from signatures.store import create_store

_SAMPLE_TOKENS = 1 << 22
_STRETCHES = 64
_SEED = 1
_HIT_BYTES, _ITEM_BYTES = 48, 6
_MAIN_BYTES, _WORKER_BYTES, _BUFFER_BYTES = 115 * MIB, 110 * MIB, 24 * MIB
_VERIFY_ENTRIES, _VERIFY_BYTES = 1 << 22, 24
_START_SECONDS, _FINISH_SECONDS = 2.5, 0.5
_WRITE_SECONDS, _VALUE_SECONDS = 45e-9, 8e-9
"""Seconds an entry, or a number of a projection, to be written and read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleJob(CountJob):
    """A count of some partitions alone."""

    chosen: tuple[int, ...]

    def sources(self, halves: Sequence[Half]) -> list[Path]:
        """List the partials of the chosen partitions."""
        return [self.partial(p, half) for p in self.chosen for half in halves]


@dataclass(frozen=True, slots=True)
class _Grown:
    """What a nested sample came to."""

    tokens: int
    entries: int
    """Distinct entries; rows, of a projection."""
    seconds: float


def estimate_contexts(
    corpus_paths: Sequence[Path | str] | Path | str,
    *,
    out: Path,
    contexts: ContextOptions,
    input: InputOptions | None = None,
    scope: Scope | None = None,
    options: CountOptions | None = None,
    progress: Progress = SILENT,
    sample_tokens: int = _SAMPLE_TOKENS,
) -> dict[str, Any]:
    """Predict what `count_contexts` with the same arguments would take; nothing is kept.

    Returns
    -------
    dict
        As `estimate_next_token`; entries are rows for a projection.

    Raises
    ------
    ValueError
        As `count_contexts`.
    """
    options = options or CountOptions()
    question = resolve(
        absolute(corpus_paths),
        input or InputOptions(),
        scope or Scope(),
        options,
        progress,
        contexts,
    )
    memory = share_memory(question, options, None)
    folder = Path(tempfile.mkdtemp(prefix=f"{out.name}.dry-run-", dir=existing_folder(Path(out))))
    try:
        sample = _Sample(question, memory, folder, sample_tokens, progress)
        return sample.predict(out, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Sample:
    """Stretches of the corpus, counted in a folder of their own."""

    def __init__(
        self,
        question: Question,
        memory: MemoryPlan,
        folder: Path,
        sample_tokens: int,
        progress: Progress,
    ) -> None:
        asked = question.contexts
        assert asked is not None
        self._question, self._asked, self._memory = question, asked, memory
        self._job = _job(question, memory, folder, sample_tokens)
        if question.order is not None:
            save_order(folder, question.order)
        counts_V = np.zeros(question.vocab_size, np.int64)
        began = time.perf_counter()
        if asked.needs_counts:
            every = dataclasses.replace(
                self._job, units=(0, question.stream.num_units), units_per_partition=1 << 24
            )
            counts_V = token_stage(InProcess(), every, progress)
        self._rank_seconds = time.perf_counter() - began
        self._contexts = asked.resolve(counts_V, question.corpus.special)
        self._contexts.save(folder)
        self._list(progress)

    def _list(self, progress: Progress) -> None:
        """List every stretch; the first twice, since it compiles the kernels."""
        job, chosen = ContextJob(count=self._job, min_count=1), self._job.chosen
        list_partitions(job, chosen[0], chosen[0] + 1)
        for path in self._job.partial(chosen[0], "whole").parent.iterdir():
            path.unlink()
        seconds = 0.0
        with progress.stage("sample", len(chosen), "stretches") as advance:
            for partition in chosen:
                seconds += list_partitions(job, partition, partition + 1).seconds
                advance(1)
        parts = [OccurrencePartial(path) for path in self._job.sources(self._job.division)]
        self._tokens = sum(part.record.tokens for part in parts)
        self._hits = sum(part.record.hits for part in parts)
        self._items = sum(part.record.lengths[0] for part in parts)
        self._token_counts_V = np.zeros(self._question.vocab_size, np.int64)
        for part in parts:
            self._token_counts_V[part.tokens_T] += part.token_counts_T
        self._list_seconds = seconds

    def predict(self, out: Path, options: CountOptions) -> dict[str, Any]:
        """Carry the sample on to all that is counted."""
        stream = self._question.stream
        tokens = (self._question.units[1] - self._question.units[0]) * stream.tokens_per_unit
        units = partition_units(self._question, options, self._memory)
        partition = min(tokens, units * stream.tokens_per_unit)
        grown = self._grow()
        entries = round(self._entries_at(grown, tokens))
        size = self._store_bytes(entries, grown[-1].entries)
        ratio = tokens / max(1, self._tokens)
        listed = ratio * (4 * self._hits + _ITEM_BYTES * self._items)
        scratch = round(listed) + entries * self._width()
        peak = self._peak(partition, entries)
        return {
            "tokens": tokens,
            "memory_bytes": peak,
            "disk_bytes": size,
            "scratch_bytes": scratch,
            "entries": entries,
            "seconds": self._seconds(grown, tokens, entries),
            "fits": fits(out, options, size + scratch, peak),
            "partitions": math.ceil(tokens / max(1, partition)),
            "workers": self._memory.workers,
            "sampled_pairs": self._hits,
        }

    def _grow(self) -> list[_Grown]:
        """Add up a quarter, a half and all of the stretches, each from all over the corpus."""
        chosen, found = self._job.chosen, []
        for share in (4, 2, 1):
            count = dataclasses.replace(self._job, chosen=chosen[::share])
            shutil.rmtree(count.scratch / SUMS, ignore_errors=True)
            found.append(self._add_up(ContextJob(count=count, min_count=1), is_last=share == 1))
        return found

    def _add_up(self, job: ContextJob, *, is_last: bool) -> _Grown:
        parts = [OccurrencePartial(path) for path in job.count.sources(job.count.division)]
        tokens = sum(part.record.tokens for part in parts)
        work = sum(part.record.increments for part in parts)
        runner, store = InProcess(), job.count.scratch / "store"
        if self._asked.kind == "first-order":
            sums = sum_stage(runner, job, self._contexts, work, SILENT)
            entries, seconds = sums.whole.entries, sums.seconds
            if is_last:
                layouts = {COUNTS: sums.whole.layout(self._contexts.keys)}
                create_store(store, self._spec(entries), matrices=layouts, vectors=self._vectors())
                write_stage(runner, store, {COUNTS: sums.whole}, at_once=1, progress=SILENT)
        else:
            projection = project_stage(runner, job, self._contexts, work, SILENT)
            entries, seconds = sum(projection.rows), projection.seconds
            if is_last:
                shape = (entries, self._width() // 8 - 1)
                blocks = {ROWS: BlockLayout(shape=shape[:1]), VALUES: BlockLayout(shape=shape)}
                create_store(
                    store, self._spec(entries), matrices={}, vectors=self._vectors(), blocks=blocks
                )
                write_block_stage(runner, store, projection, 1, SILENT)
        return _Grown(tokens, entries, seconds)

    def _spec(self, entries: int) -> StoreSpec:
        return self._question.spec_of_sample(entries)

    def _vectors(self) -> dict[str, Any]:
        nothing_A = np.zeros(self._contexts.anchors_A.size, np.int64)
        vectors: dict[str, Any] = {
            "anchors": self._contexts.anchors_A,
            "context_tokens": self._contexts.context_tokens_C,
            "anchor_occurrences": nothing_A,
            "dropped": nothing_A,
            "token_counts": self._token_counts_V,
        }
        if self._asked.matrix is not None:
            vectors[MATRIX] = self._contexts.matrix_CQ
        return vectors

    def _store_bytes(self, entries: int, sampled: int) -> int:
        """Size of the store: a small one of the sample was written, what it takes is scaled."""
        sizes = {
            file: file.stat().st_size
            for file in (self._job.scratch / "store").rglob("*")
            if file.is_file()
        }
        grows = sum(
            size
            for file, size in sizes.items()
            if {"data", "indices", ROWS, VALUES} & set(file.parts)
        )
        even = 1.5 if self._job.halves else 1.0
        fixed = sum(sizes.values()) - grows
        return round(fixed + even * grows * entries / max(1, sampled))

    def _entries_at(self, grown: Sequence[_Grown], tokens: int) -> float:
        """Distinct entries of that many tokens, less the rare ones.

        Where rates follow a power law with exponent b, of the entries that occur the share
        gamma(m - b) / (gamma(m) gamma(1 - b)) occurs m times or more.
        """
        distinct, exponent = grown_to([(one.tokens, one.entries) for one in grown], tokens)
        if (least := self._asked.min_count) == 1 or self._question.part is not None:
            return distinct
        b = min(exponent, 0.95)
        return distinct * math.exp(lgamma(least - b) - lgamma(least) - lgamma(1 - b))

    def _width(self) -> int:
        """Bytes of an entry on scratch."""
        if self._contexts.matrix_CQ is not None:
            return 8 * (1 + int(self._contexts.matrix_CQ.shape[1]))
        return (2 + int(self._contexts.item_dtype.itemsize)) * (1 + self._job.halves)

    def _peak(self, partition: int, entries: int) -> int:
        """Peak of all processes: while listing, or while the store is read back."""
        workers = self._memory.workers
        idle = _MAIN_BYTES + _WORKER_BYTES * workers * (workers > 1)
        listed = (_HIT_BYTES * self._hits + _ITEM_BYTES * self._items) / max(1, self._tokens)
        buffers = _BUFFER_BYTES + 60 * self._question.vocab_size
        counting = idle + workers * round(buffers + min(partition, 1 << 31) * listed)
        pointers = 20 * self._contexts.keys.num_rows if self._asked.kind == "first-order" else 0
        read = _VERIFY_BYTES * min(entries, (workers + 1) * _VERIFY_ENTRIES)
        return max(counting, _MAIN_BYTES + pointers + read)

    def _seconds(self, grown: Sequence[_Grown], tokens: int, entries: int) -> float:
        """Wall time: listing and adding up as the sample took them, writing by the entry."""
        ratio = tokens / max(1, self._tokens)
        written = _WRITE_SECONDS * entries
        if self._contexts.matrix_CQ is not None:
            written = _VALUE_SECONDS * entries * self._contexts.matrix_CQ.shape[1]
        shared = ratio * (self._list_seconds + grown[-1].seconds) + self._rank_seconds + written
        start = _START_SECONDS if self._memory.workers > 1 else 0.0
        return start + _FINISH_SECONDS + shared / self._memory.workers


def _job(question: Question, memory: MemoryPlan, folder: Path, sample_tokens: int) -> _SampleJob:
    """Cut the corpus into stretches and draw some of them."""
    start, stop = question.units
    length = max(1, sample_tokens // (_STRETCHES * question.stream.tokens_per_unit))
    every = max(1, -(-(stop - start) // length))
    chosen = np.sort(np.random.default_rng(_SEED).permutation(every)[:_STRETCHES])
    (folder / PARTIALS).mkdir()
    return _SampleJob(
        run=folder.name,
        scratch=folder,
        corpus_paths=question.paths,
        input=question.input,
        scope=question.scope,
        vocab_size=question.vocab_size,
        halves=question.halves,
        units=question.units,
        units_per_partition=length,
        tokens_per_unit=question.stream.tokens_per_unit,
        task_memory=memory.task_memory,
        chosen=tuple(chosen.tolist()),
    )
