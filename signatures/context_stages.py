"""The stages of a count of contexts: occurrences listed, then added up by row range.

Each stage is a handful of tasks on a runner, however many partitions there are.

Shapes: V vocabulary, A anchors, R rows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from corpus.progress import Progress
from signatures.contexts import Contexts
from signatures.job import ContextJob, CountJob
from signatures.kernels import Int64s
from signatures.keys import MODULUS
from signatures.layout import ROWS, VALUES
from signatures.listing import list_partitions
from signatures.occurrences import OccurrencePartial, OccurrenceRecord
from signatures.projecting import ROW_BYTES, Projected, block_paths, project_rows
from signatures.schedule import Runner
from signatures.segments import Half
from signatures.stages import Merged, spread, write_indptr
from signatures.store import ShardRecord, shard_ranges
from signatures.summing import ROW_BYTES as SUM_ROW_BYTES
from signatures.summing import Summed, counts_path, sum_rows
from signatures.tasks import BlockTask, block_task, count_tokens

_TASKS_A_WORKER = 16
_RANGES_A_WORKER = 8
_ROWS_AT_ONCE = 1 << 22
_ROW_SPACE_BYTES = 32  # of any row of a range, hits or not: its place in the row pointers
_BUFFER_BYTES, _LEAST_BYTES = 1 << 26, 1 << 24
_LEAST_WORK = 1 << 22
_WHOLE = 10**9  # of a range: the share of a row is an integer of it


@dataclass(frozen=True, slots=True)
class Listing:
    """What the partitions add up to."""

    hits: int
    pairs: int
    increments: int
    tokens: int
    fingerprint: int
    even_fingerprint: int
    dropped_fingerprint: int
    reused: int
    seconds: float
    """Of all workers."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Sums over partitions of what is kept for each anchor and token."""

    occurrences_A: Int64s
    dropped_A: Int64s
    token_counts_V: Int64s


def token_stage(runner: Runner, job: CountJob, progress: Progress) -> Int64s:
    """Positions of each token in the whole scope, whatever part is counted: (V,)."""
    counts_V = np.zeros(job.vocab_size, np.int64)
    with progress.stage("rank the tokens", job.units[1] * job.tokens_per_unit, "tokens") as advance:
        groups = spread(job.num_partitions, runner.workers * _TASKS_A_WORKER)
        for _, found_V in runner.run(count_tokens, [(job, *group) for group in groups]):
            counts_V += found_V
            advance(int(found_V.sum()))
    return counts_V


def list_stage(runner: Runner, job: ContextJob, progress: Progress) -> Listing:
    """List the occurrences of every partition."""
    count = job.count
    groups = spread(count.num_partitions, runner.workers * _TASKS_A_WORKER)
    expected = (count.units[1] - count.units[0]) * count.tokens_per_unit
    records: list[OccurrenceRecord] = []
    evens: list[OccurrenceRecord] = []
    reused, seconds = 0, 0.0
    with progress.stage("list", expected, "tokens") as advance:
        for _, listed in runner.run(list_partitions, [(job, *group) for group in groups]):
            for halves in listed.records:
                records += halves
                evens.append(halves[0])
                advance(sum(record.tokens for record in halves))
            reused += listed.reused
            seconds += listed.seconds
    return Listing(
        hits=sum(record.hits for record in records),
        pairs=sum(record.pairs for record in records),
        increments=sum(record.increments for record in records),
        tokens=sum(record.tokens for record in records),
        fingerprint=sum(record.fingerprint for record in records) % MODULUS,
        even_fingerprint=sum(record.fingerprint for record in evens) % MODULUS,
        dropped_fingerprint=sum(record.dropped_fingerprint for record in records) % MODULUS,
        reused=reused,
        seconds=seconds,
    )


def sum_vectors(job: ContextJob, num_anchors: int, halves: Sequence[Half]) -> Vectors:
    """Add up what the partials of these halves keep for each anchor and token."""
    vectors = Vectors(
        np.zeros(num_anchors, np.int64),
        np.zeros(num_anchors, np.int64),
        np.zeros(job.count.vocab_size, np.int64),
    )
    for path in job.count.sources(halves):
        part = OccurrencePartial(path)
        vectors.occurrences_A[:] += part.occurrences_A
        vectors.dropped_A[:] += part.dropped_A
        vectors.token_counts_V[part.tokens_T] += part.token_counts_T
    return vectors


@dataclass(frozen=True, slots=True)
class Sums:
    """A first-order matrix, added up by row range on scratch."""

    whole: Merged
    even: Merged | None
    left_out_A: Int64s
    even_left_out_A: Int64s
    left_out_fingerprint: int
    reused: int
    seconds: float


def sum_stage(
    runner: Runner, job: ContextJob, contexts: Contexts, work: int, progress: Progress
) -> Sums:
    """Add up all rows; ranges that an earlier run finished are taken as they are.

    ``work`` is the number of increments, by which the rows are shared out.
    """
    ranges = _plan(job, contexts, SUM_ROW_BYTES, runner.workers * _RANGES_A_WORKER, work)
    outs = _outs(job, len(ranges))
    found: dict[int, Summed] = {}
    with progress.stage("add up", len(ranges), "row ranges") as advance:
        arguments = [(job, *rows, out) for rows, out in zip(ranges, outs, strict=True)]
        for number, summed in runner.run(sum_rows, arguments):
            found[number] = summed
            advance(1)
    every = [found[number] for number in range(len(ranges))]
    left_out = np.zeros((2, contexts.anchors_A.size), np.int64)
    for one in every:
        for half_A, masses in zip(left_out, (one.left_out, one.even_left_out), strict=True):
            for anchor, mass in masses.items():
                half_A[anchor] += mass
    return Sums(
        whole=_merged(job, contexts, outs, "whole", every),
        even=_merged(job, contexts, outs, "even", every) if job.count.halves else None,
        left_out_A=left_out[0],
        even_left_out_A=left_out[1],
        left_out_fingerprint=sum(one.left_out_fingerprint for one in every) % MODULUS,
        reused=sum(one.reused for one in every),
        seconds=sum(one.seconds for one in every),
    )


@dataclass(frozen=True, slots=True)
class Projection:
    """A projected signature, summed up by row range on scratch."""

    ranges: tuple[Path, ...]
    rows: tuple[int, ...]
    """Rows of each range."""
    reused: int
    seconds: float


def project_stage(
    runner: Runner, job: ContextJob, contexts: Contexts, work: int, progress: Progress
) -> Projection:
    """Project all rows; ranges that an earlier run finished are taken as they are."""
    assert contexts.matrix_CQ is not None
    width = ROW_BYTES + 8 * contexts.matrix_CQ.shape[1]
    # Few ranges: each goes through the lists of all partitions.
    ranges = _plan(job, contexts, width, runner.workers, work)
    outs = _outs(job, len(ranges))
    found: dict[int, Projected] = {}
    with progress.stage("project", len(ranges), "row ranges") as advance:
        arguments = [(job, *rows, out) for rows, out in zip(ranges, outs, strict=True)]
        for number, one in runner.run(project_rows, arguments):
            found[number] = one
            advance(1)
    every = [found[number] for number in range(len(ranges))]
    return Projection(
        ranges=tuple(outs),
        rows=tuple(one.rows for one in every),
        reused=sum(one.reused for one in every),
        seconds=sum(one.seconds for one in every),
    )


def write_block_stage(
    runner: Runner, store: Path, projection: Projection, at_once: int, progress: Progress
) -> list[ShardRecord]:
    """Write every shard of rows and values whole, one task each."""
    tasks = []
    for array in (ROWS, VALUES):
        files = [block_paths(out)[array] for out in projection.ranges]
        ranges = tuple(zip(files, accumulate(projection.rows, initial=0), strict=False))
        task = partial(BlockTask, store, array, ranges=ranges)
        tasks += [
            task(index=index, bounds=bounds)
            for index, bounds in enumerate(shard_ranges(store, "", array))
        ]
    records = []
    with progress.stage("write", len(tasks), "shards") as advance:
        for _, record in runner.run(block_task, [(task,) for task in tasks], at_once):
            records.append(record)
            advance(1)
    return records


def _merged(
    job: ContextJob,
    contexts: Contexts,
    outs: Sequence[Path],
    half: Half,
    every: Sequence[Summed],
) -> Merged:
    paths = tuple(counts_path(out, half) for out in outs)
    records = [one.whole if half == "whole" else one.even for one in every]
    folder = job.sums() / f"indptr-{half}"
    folder.mkdir(exist_ok=True)
    indptr = write_indptr(folder, paths, contexts.keys.num_rows)
    return Merged(paths, tuple(record for record in records if record is not None), indptr)


def _outs(job: ContextJob, ranges: int) -> list[Path]:
    return [job.sums() / f"range-{number:05d}" for number in range(ranges)]


def _plan(
    job: ContextJob,
    contexts: Contexts,
    row_bytes: int,
    wanted: int,
    work: int,
) -> list[tuple[int, int]]:
    """Ranges of rows, as an earlier run cut them or by memory and work; remembered on scratch.

    A row that has hits takes ``row_bytes`` of memory while it is added up.
    """
    folder, plan = job.sums(), job.sums() / "ranges.json"
    if plan.exists():
        return [(first, last) for first, last in json.loads(plan.read_text())]
    folder.mkdir(exist_ok=True)
    parts = [OccurrencePartial(path) for path in job.count.sources(job.count.division)]
    num_rows, edges, used = contexts.keys.num_rows, [0], 0
    budget = max(_LEAST_BYTES, job.count.task_memory - _BUFFER_BYTES)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, num_rows)
        sizes_R = np.zeros(last - first, np.int64)
        for part in parts:
            span, _, _ = part.span(first, last)
            sizes_R[part.rows_R[span] - first] += part.sizes_R[span]
        bytes_R = _ROW_SPACE_BYTES + row_bytes * (sizes_R > 0)
        share_R = np.maximum(bytes_R / budget, sizes_R / max(_LEAST_WORK, work // wanted))
        used = _cut(np.ceil(share_R * _WHOLE).astype(np.int64), first, used, edges)
    ranges = list(zip(edges, [*edges[1:], num_rows], strict=True)) if num_rows else []
    aside = plan.with_suffix(".tmp")
    aside.write_text(json.dumps(ranges))
    aside.replace(plan)
    return ranges


def _cut(shares_R: Int64s, first_row: int, used: int, edges: list[int]) -> int:
    """Begin a new range wherever the one before would be more than whole; return its share."""
    ends_R = used + np.cumsum(shares_R)
    done = 0
    while ends_R.size and ends_R[-1] - done > _WHOLE:
        over = int(np.searchsorted(ends_R, done + _WHOLE, side="right"))
        row = over if first_row + over > edges[-1] else over + 1  # too large: it stands alone
        if row >= ends_R.size:
            break
        edges.append(first_row + row)
        done = int(ends_R[row - 1]) if row else used
    return int(ends_R[-1]) - done if ends_R.size else used
