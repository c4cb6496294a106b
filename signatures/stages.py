"""The stages of a count: partitions into partials, partials into row ranges, ranges into shards.

Each stage is a handful of tasks on a runner, however many partitions there are.

Shapes: V vocabulary.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corpus.progress import Progress
from corpus.store import Corpus
from signatures.job import CountJob
from signatures.keys import Keys
from signatures.partials import Partial, PartialRecord
from signatures.reduction import entries_by_row, fan_in, merge_partials, row_ranges
from signatures.schedule import Runner
from signatures.segments import Half
from signatures.sources import Reference
from signatures.store import MatrixLayout, ShardRecord, shard_ranges
from signatures.tasks import (
    ShardTask,
    check_sight,
    count_partitions,
    digest_blocks,
    shard_task,
)

_TASKS_A_WORKER = 16
_RANGES_A_WORKER = 4
_LEAST_RANGE = 1 << 20
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Tally:
    """What the partitions add up to."""

    pairs: int
    tokens: int
    fingerprint: int
    even_fingerprint: int
    reused: int
    kernel_seconds: float


@dataclass(frozen=True, slots=True)
class Merged:
    """One matrix, merged by row range on scratch."""

    ranges: tuple[Path, ...]
    records: tuple[PartialRecord, ...]
    indptr: Path

    @property
    def entries(self) -> int:
        """Distinct pairs."""
        return sum(record.entries for record in self.records)

    @property
    def total(self) -> int:
        """Sum of the counts."""
        return sum(record.total for record in self.records)

    @property
    def fingerprint(self) -> int:
        """Of all counts."""
        return sum(record.fingerprint for record in self.records) % (1 << 64)

    def layout(self, keys: Keys) -> MatrixLayout:
        """Size in the store."""
        largest = max((record.largest for record in self.records), default=0)
        shape = (keys.num_rows, keys.num_columns)
        return MatrixLayout(shape=shape, entries=self.entries, max_count=largest)


def check_workers(runner: Runner, job: CountJob) -> None:
    """Make sure that every worker sees the scratch folder of this run.

    Raises
    ------
    RuntimeError
        One does not; the message names it.
    """
    problems = [one for one in runner.everywhere(check_sight, job.scratch, job.run) if one]
    if problems:
        raise RuntimeError(
            f"{problems[0]} ({len(problems)} worker(s)); workers need the same file system: put "
            "--out and the corpus on a shared one, under the same path"
        )


def fingerprint_stage(runner: Runner, run: str, corpus: Corpus, progress: Progress) -> None:
    """Hash the corpus on all workers; its ``fingerprints`` are known afterwards."""
    blocks = len(corpus.fingerprint_blocks())
    ranges = spread(blocks, runner.workers * _TASKS_A_WORKER)
    arguments = [(run, corpus.paths, corpus.options, first, last) for first, last in ranges]
    digests: dict[int, list[bytes]] = {}
    with progress.stage("fingerprint", corpus.num_tokens, "tokens") as advance:
        for number, found in runner.run(digest_blocks, arguments):
            digests[number] = found
            advance(corpus.num_tokens * len(found) / max(1, blocks))
    corpus.keep_fingerprints([one for number in sorted(digests) for one in digests[number]])


def count_stage(runner: Runner, job: CountJob, progress: Progress) -> Tally:
    """Count every partition into its partials."""
    groups = spread(job.num_partitions, runner.workers * _TASKS_A_WORKER)
    pairs = tokens = fingerprint = even = reused = 0
    seconds = 0.0
    expected = (job.units[1] - job.units[0]) * job.tokens_per_unit
    with progress.stage("count", expected, "tokens") as advance:
        arguments = [(job, first, last) for first, last in groups]
        for _, counted in runner.run(count_partitions, arguments):
            for records in counted.records:
                pairs += sum(record.total for record in records)
                tokens += sum(record.tokens for record in records)
                fingerprint += sum(record.fingerprint for record in records)
                even += records[0].fingerprint if job.halves else 0
                advance(sum(record.tokens for record in records))
            reused += counted.reused
            seconds += counted.seconds
    modulus = 1 << 64
    return Tally(pairs, tokens, fingerprint % modulus, even % modulus, reused, seconds)


def token_counts(job: CountJob, halves: Sequence[Half]) -> npt.NDArray[np.int64]:
    """Positions of each token, from the partials."""
    counts_V = np.zeros(job.vocab_size, np.int64)
    for path in job.sources(halves):
        one = Partial(path)
        counts_V[one.tokens_T] += one.token_counts_T
    return counts_V


def merge_stage(
    runner: Runner,
    sources: Sequence[Reference],
    folder: Path,
    *,
    keys: Keys,
    memory: int,
    progress: Progress,
) -> Merged:
    """Merge ``sources`` into row ranges in ``folder`` that together are one matrix."""
    folder.mkdir()
    merge = partial(merge_partials, keys=keys, memory=memory)
    most = fan_in(keys.num_columns, memory)
    level = 0
    while len(sources) > most:
        sources = _fold(runner, merge, sources, most, folder / f"level-{level}", progress)
        level += 1
    entries_R = entries_by_row(sources, keys.num_rows)
    wanted = -(-int(entries_R.sum()) // (runner.workers * _RANGES_A_WORKER))
    ranges = row_ranges(entries_R, max(wanted, _LEAST_RANGE))
    outs = [folder / f"range-{number:05d}" for number in range(len(ranges))]
    arguments = [(tuple(sources), rows, out) for rows, out in zip(ranges, outs, strict=True)]
    records = _merge(runner, merge, "merge", arguments, int(entries_R.sum()), progress)
    return Merged(tuple(outs), tuple(records), write_indptr(folder, outs, keys.num_rows))


def write_stage(
    runner: Runner,
    store: Path,
    merged: Mapping[str, Merged],
    *,
    at_once: int,
    progress: Progress,
) -> list[ShardRecord]:
    """Write every shard of every matrix whole, one task each."""
    tasks = [task for name, one in merged.items() for task in _shard_tasks(store, name, one)]
    elements = sum(task.bounds[1] - task.bounds[0] for task in tasks)
    records = []
    with progress.stage("write", elements, "elements") as advance:
        for number, record in runner.run(shard_task, [(task,) for task in tasks], at_once):
            records.append(record)
            advance(tasks[number].bounds[1] - tasks[number].bounds[0])
    return records


def write_indptr(folder: Path, ranges: Sequence[Path], num_rows: int) -> Path:
    """Row pointers of the whole matrix, a prefix sum over the ranges, mapped as it is written."""
    path = folder / "indptr.npy"
    indptr_R1 = np.lib.format.open_memmap(path, "w+", np.dtype(np.int64), (num_rows + 1,))
    row = total = 0
    for one in map(Partial, ranges):
        for start in range(0, one.rows_R.size, _ROWS_AT_ONCE):
            rows_R = one.rows_R[start : start + _ROWS_AT_ONCE].astype(np.int64)
            entries_R = one.entries_R[start : start + _ROWS_AT_ONCE]
            begins_R = total + np.cumsum(entries_R, dtype=np.int64) - entries_R
            # A row pointer holds for its row and the empty rows before it.
            repeats = np.diff(rows_R, prepend=row - 1)
            indptr_R1[row : rows_R[-1] + 1] = np.repeat(begins_R, repeats)
            row, total = int(rows_R[-1]) + 1, total + int(entries_R.sum(dtype=np.int64))
    indptr_R1[row:] = total
    indptr_R1.flush()
    return path


def spread(items: int, groups: int) -> list[tuple[int, int]]:
    """Cut ``items`` into at most ``groups`` ranges of nearly equal length."""
    groups = max(1, min(items, groups))
    return list(pairwise(items * g // groups for g in range(groups + 1)))


def _fold(
    runner: Runner,
    merge: Callable[..., PartialRecord],
    sources: Sequence[Reference],
    most: int,
    out: Path,
    progress: Progress,
) -> list[Path]:
    """Merge sources ``most`` at a time, all rows: fewer, larger ones come out."""
    out.mkdir()
    groups = [tuple(sources[at : at + most]) for at in range(0, len(sources), most)]
    outs = [out / f"{number:05d}" for number in range(len(groups))]
    arguments = [(group, None, path) for group, path in zip(groups, outs, strict=True)]
    _merge(runner, merge, f"fold {len(sources)} partials", arguments, None, progress)
    return outs


def _merge(
    runner: Runner,
    merge: Callable[..., PartialRecord],
    title: str,
    arguments: Sequence[tuple[tuple[Reference, ...], tuple[int, int] | None, Path]],
    entries: int | None,
    progress: Progress,
) -> list[PartialRecord]:
    records: dict[int, PartialRecord] = {}
    with progress.stage(title, entries, "entries") as advance:
        for number, record in runner.run(merge, arguments):
            records[number] = record
            advance(record.entries)
    return [records[number] for number in range(len(arguments))]


def _shard_tasks(store: Path, name: str, merged: Merged) -> list[ShardTask]:
    places = [0, *accumulate(record.entries for record in merged.records)]
    ranges = list(zip(merged.ranges, places, strict=False))
    layout = merged.layout(Keys(0))
    dtypes = {"data": layout.data_dtype.name} | dict.fromkeys(
        ("indptr", "indices"), layout.index_dtype.name
    )
    tasks = []
    for array in ("indptr", "indices", "data"):
        for index, (start, stop) in enumerate(shard_ranges(store, name, array)):
            # Of entries a shard has what some ranges hold, of row pointers what a file does.
            low, high = bisect_right(places, start) - 1, bisect_left(places, stop)
            held = () if array == "indptr" else tuple(ranges[max(low, 0) : high])
            bounds, dtype = (start, stop), dtypes[array]
            tasks.append(ShardTask(store, name, array, index, bounds, held, merged.indptr, dtype))
    return tasks
