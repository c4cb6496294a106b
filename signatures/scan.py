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
from signatures.kernels import check_rows
from signatures.keys import MODULUS, Keys
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


def block_problems(block: Block, columns: int) -> list[str]:
    """Entries that a sound matrix cannot have: zeros, unsorted or repeated or foreign columns."""
    rows = f"rows {block.first_row} to {block.first_row + block.indptr_R1.size - 2}"
    zeros, foreign, falls = check_rows(block.indptr_R1, block.indices_E, block.data_E, columns)
    problems = []
    if zeros:
        problems.append(f"{rows}: a count of 0 is stored")
    if foreign:
        problems.append(f"{rows}: a column outside 0 to {columns - 1}")
    if falls:
        problems.append(f"{rows}: columns are not ascending, or one comes twice")
    return problems


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
    for block, found in _checked_blocks(counts, workers):
        advance(block.data_E.size)
        problems += found
        if found:
            continue
        total += int(block.data_E.sum(dtype=np.uint64))
        fingerprint += keys.fingerprint(
            block.first_row, block.indptr_R1, block.indices_E, block.data_E
        )
        if rows_R is not None and columns_C is not None:
            _add_sums(block, rows_R, columns_C)
    return Findings(
        entries=counts.entries,
        total=total,
        fingerprint=fingerprint % MODULUS,
        row_sums_R=rows_R,
        column_sums_C=columns_C,
        problems=tuple(problems),
    )


def _checked_blocks(counts: StoredCounts, workers: int) -> Iterator[tuple[Block, list[str]]]:
    """Read and check blocks in threads, a few ahead of the caller, and yield them in order."""

    def read(rows: tuple[int, int]) -> tuple[Block, list[str]]:
        block = counts.raw_block(*rows)
        return block, block_problems(block, counts.shape[1])

    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[Block, list[str]]]] = deque()
        for rows in counts.row_ranges():
            waiting.append(pool.submit(read, rows))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _add_sums(
    block: Block, rows_R: npt.NDArray[np.uint64], columns_C: npt.NDArray[np.uint64]
) -> None:
    """Add a block's row and column sums, exactly."""
    matrix = block.matrix(columns_C.size)
    rows_R[block.first_row : block.first_row + block.indptr_R1.size - 1] += row_sums(matrix)
    columns_C += matrix.astype(np.uint64).sum(axis=0)
