"""The second task of a projected count: for some rows, the sums of a matrix over all contexts.

``values[row] = sum over hits of the row of sum over b in the context of matrix[b]``: the
first-order counts times the matrix, without the counts.

Shapes: B rows of the range that have any hit, H hits, C context tokens, Q columns.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from signatures.context_kernels import stable_order
from signatures.contexts import Contexts, load_contexts
from signatures.job import ContextJob
from signatures.kernels import Int64s
from signatures.occurrences import OccurrencePartial, save_array
from signatures.sum_kernels import project_prefixes, project_windows

ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class Projected:
    """What a range of rows came to."""

    rows: int
    reused: bool
    seconds: float


def block_paths(out: Path) -> dict[str, Path]:
    """Files of a range, by the name of their array in the store."""
    return {name: out.with_name(f"{out.name}.{name}.npy") for name in ("values", "rows")}


def project_rows(job: ContextJob, first_row: int, last_row: int, out: Path) -> Projected:
    """Sum up rows ``first_row`` to ``last_row`` over all partitions, unless that is done."""
    if (finished := _finished(out)) is not None:
        return Projected(finished, reused=True, seconds=0.0)
    started = time.perf_counter()
    contexts = load_contexts(job.count.run, job.count.scratch, job.count.vocab_size)
    assert contexts.matrix_CQ is not None
    parts = [OccurrencePartial(path) for path in job.count.sources(job.count.division)]
    spans = [part.span(first_row, last_row)[0] for part in parts]
    rows = [part.rows_R[span] for part, span in zip(parts, spans, strict=True)]
    rows_B = np.unique(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64))
    sums_BQ = np.zeros((rows_B.size, contexts.matrix_CQ.shape[1]), np.int64)
    for part in parts:
        windowed = job.count.scope.window is not None
        _add(part, (first_row, last_row), rows_B, contexts, sums_BQ, windowed=windowed)
    write_blocks(out, rows_B, sums_BQ)
    return Projected(rows_B.size, reused=False, seconds=time.perf_counter() - started)


def _add(
    part: OccurrencePartial,
    rows: tuple[int, int],
    rows_B: Int64s,
    contexts: Contexts,
    sums_BQ: Int64s,
    *,
    windowed: bool,
) -> None:
    span, start, stop = part.span(*rows)
    if start == stop:
        return
    hits_R = np.diff(part.ends_R[span], prepend=start)
    slots_H = np.repeat(np.searchsorted(rows_B, part.rows_R[span]), hits_R).astype(np.int64)
    lasts_H = part.lasts_H[start:stop]
    keys = [part.firsts_H[start:stop], lasts_H] if windowed else [lasts_H]
    order_H = _order(keys, part.items_I.size)
    matrix_CQ, slots_H, lasts_H = contexts.matrix_CQ, slots_H[order_H], lasts_H[order_H]
    assert matrix_CQ is not None
    running_Q = np.zeros(matrix_CQ.shape[1], np.int64)
    if windowed:
        firsts_H = part.firsts_H[start:stop][order_H]
        present_C = np.zeros(matrix_CQ.shape[0], np.int64)
        project_windows(
            part.items_I, firsts_H, lasts_H, slots_H, matrix_CQ, present_C, running_Q, sums_BQ
        )
    else:
        project_prefixes(
            part.items_I, part.links_I, lasts_H, slots_H, matrix_CQ, running_Q, sums_BQ
        )


def _order(keys: Sequence[npt.NDArray[np.uint32]], num_items: int) -> npt.NDArray[np.uint32]:
    """Numbers of the hits in the order of the lists: by the last key, then the one before."""
    order_H = np.arange(keys[0].size, dtype=np.uint32)
    for keys_H in keys:
        sorted_H = np.empty_like(order_H)
        stable_order(keys_H, order_H, np.zeros(num_items, np.int64), sorted_H)
        order_H = sorted_H
    return order_H


def write_blocks(out: Path, rows_B: Int64s, sums_BQ: Int64s) -> None:
    """Write values, then rows: where there are rows, all is there."""
    for path, array in zip(block_paths(out).values(), (sums_BQ, rows_B), strict=True):
        aside = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
        save_array(aside, array)
        aside.replace(path)


def _finished(out: Path) -> int | None:
    try:
        values, rows = (np.load(path, mmap_mode="r") for path in block_paths(out).values())
    except (OSError, ValueError, EOFError):
        return None
    return rows.size if rows.size == values.shape[0] else None
