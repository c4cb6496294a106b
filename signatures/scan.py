"""One pass over all counts of a store: are they sound, and what do they add up to.

Shapes: R rows, E entries of a block, C columns.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corpus.progress import Advance
from signatures.keys import MODULUS, Keys, Scanned
from signatures.matrix import Block, StoredCounts, row_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a scan over all stored counts adds up to."""

    entries: int
    total: int
    fingerprint: int
    row_sums_R: npt.NDArray[np.uint64] | None
    column_sums_C: npt.NDArray[np.uint64] | None
    problems: tuple[str, ...]


def scan(
    counts: StoredCounts, keys: Keys, *, sums: bool, workers: int, advance: Advance
) -> Findings:
    """Read every count from disk, ``workers`` blocks at a time, and add up what they say.

    Row and column sums are kept for ``sums`` only: a first-order matrix has too many rows.
    """
    rows_R = np.zeros(counts.shape[0], np.uint64) if sums else None
    columns_C = np.zeros(counts.shape[1], np.uint64) if sums else None
    total = fingerprint = 0
    problems: list[str] = []
    for one in _scanned_blocks(counts, keys, workers, keep=sums):
        advance(one.entries)
        problems += one.problems
        total += one.sums.total
        fingerprint += one.sums.fingerprint
        if one.block is not None and rows_R is not None and columns_C is not None:
            _add_sums(one.block, rows_R, columns_C)
    return Findings(
        entries=counts.entries,
        total=total,
        fingerprint=fingerprint % MODULUS,
        row_sums_R=rows_R,
        column_sums_C=columns_C,
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True)
class _ScannedBlock:
    entries: int
    sums: Scanned
    problems: list[str]
    block: Block | None
    """Kept where it is sound and its rows and columns are to be summed too."""


def _scanned_blocks(
    counts: StoredCounts, keys: Keys, workers: int, *, keep: bool
) -> Iterator[_ScannedBlock]:
    """Read and scan blocks in threads, a few ahead of the caller, and yield them in order."""

    def read(rows: tuple[int, int]) -> _ScannedBlock:
        block = counts.raw_block(*rows)
        sums = keys.scan(block.first_row, block.indptr_R1, block.indices_E, block.data_E)
        problems = _problems(sums, rows, counts.shape[1])
        kept = block if keep and not problems else None
        return _ScannedBlock(block.data_E.size, sums, problems, kept)

    keys.hashes_C  # noqa: B018  # made here, once, and not by each thread
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_ScannedBlock]] = deque()
        for rows in counts.row_ranges():
            waiting.append(pool.submit(read, rows))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _problems(sums: Scanned, rows: tuple[int, int], columns: int) -> list[str]:
    """Say what no sound matrix has: zeros, unsorted or repeated or foreign columns."""
    where = f"rows {rows[0]} to {rows[1] - 1}"
    problems = []
    if sums.zeros:
        problems.append(f"{where}: a count of 0 is stored")
    if sums.foreign:
        problems.append(f"{where}: a column outside 0 to {columns - 1}")
    if sums.falls:
        problems.append(f"{where}: columns are not ascending, or one comes twice")
    return problems


def _add_sums(
    block: Block, rows_R: npt.NDArray[np.uint64], columns_C: npt.NDArray[np.uint64]
) -> None:
    """Add a block's row and column sums, exactly."""
    matrix = block.matrix(columns_C.size)
    rows_R[block.first_row : block.first_row + block.indptr_R1.size - 1] += row_sums(matrix)
    columns_C += matrix.astype(np.uint64).sum(axis=0)
