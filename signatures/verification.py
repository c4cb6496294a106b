"""Re-derives what a store says of itself from the counts that lie on disk.

Shapes: V vocabulary size, R rows, A anchors, C context tokens, P rows of a projection.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corpus.progress import SILENT, Progress
from signatures.keys import MODULUS, Keys
from signatures.layout import (
    ROWS,
    VALUES,
    BlockLayout,
    IntArray,
    MatrixLayout,
    check_blocks,
    check_matrices,
    check_vectors,
)
from signatures.manifest import ShardRecord
from signatures.matrix import StoredCounts
from signatures.reading import Contents
from signatures.scan import Findings, scan
from signatures.spec import SignatureFormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Fingerprints found, and everything that is wrong."""

    fingerprint: int | None = None
    even_fingerprint: int | None = None
    problems: tuple[str, ...] = ()


def verify_contents(
    contents: Contents,
    shards: Sequence[ShardRecord],
    *,
    workers: int = 2,
    progress: Progress = SILENT,
) -> Verdict:
    """Read everything and compare it with the spec, the shard records, and the laws of counts."""
    try:
        vectors = read_vectors(contents)
        _check_layout(contents, vectors)
    except ValueError as error:
        return Verdict(problems=(str(error),))
    if contents.spec.kind == "projected":
        return Verdict(problems=tuple(_projected_problems(contents, vectors)))
    try:
        return _verify_counts(contents, vectors, shards, workers, progress)
    except SignatureFormatError as error:
        return Verdict(problems=(str(error),))


def read_vectors(contents: Contents) -> dict[str, IntArray]:
    """Read every array but those of a projection that are as long as its rows."""
    return {
        name: array[0 : array.shape[0]]
        for name, array in contents.arrays.items()
        if name not in (ROWS, VALUES)
    }


def _check_layout(contents: Contents, vectors: dict[str, IntArray]) -> None:
    """Raise ValueError where names, shapes or dtypes are not those of the spec."""
    spec = contents.spec
    check_vectors(spec, vectors)
    matrices = {"counts": contents.counts, "halves/even": contents.even}
    layouts = {name: _layout(counts) for name, counts in matrices.items() if counts is not None}
    check_matrices(spec, vectors, layouts)
    names = contents.arrays.keys() & {ROWS, VALUES}
    blocks = {name: BlockLayout(shape=contents.arrays[name].shape) for name in names}
    check_blocks(spec, vectors, blocks)
    for name in names:
        if (dtype := contents.arrays[name].dtype) != np.int64:
            raise ValueError(f"{name} is {dtype}, int64 is needed")


def _layout(counts: StoredCounts) -> MatrixLayout:
    """Return the layout found on disk, having checked its widths."""
    wide = counts.data.dtype == np.uint64
    layout = MatrixLayout(
        shape=counts.shape, entries=counts.entries, max_count=2**63 if wide else 1
    )
    found = [array.dtype for array in (counts.data, counts.indices, counts.indptr)]
    needed = [layout.data_dtype, layout.index_dtype, layout.index_dtype]
    lengths = (counts.indices.shape, counts.indptr.shape)
    if found != needed or lengths != ((counts.entries,), (counts.shape[0] + 1,)):
        raise ValueError(
            f"{counts.where}: data, indices, indptr are {[str(dtype) for dtype in found]} with "
            f"lengths {counts.data.shape}, {lengths[0]}, {lengths[1]}; "
            f"{[str(dtype) for dtype in needed]} with lengths {counts.entries} (twice) and "
            f"{counts.shape[0] + 1} are needed"
        )
    return layout


def _verify_counts(
    contents: Contents,
    vectors: dict[str, IntArray],
    shards: Sequence[ShardRecord],
    workers: int,
    progress: Progress,
) -> Verdict:
    assert contents.counts is not None
    keys = Keys(contents.spec.vocab_size, vectors.get("anchors"), vectors.get("context_tokens"))
    problems, fingerprints = [], []
    for counts in (contents.counts, contents.even):
        if counts is None:
            continue
        with progress.stage(f"verifying {counts.where}", counts.entries, "entries") as advance:
            sums = contents.spec.kind == "next-token"
            found = scan(counts, keys, sums=sums, workers=workers, advance=advance)
        fingerprints.append(found.fingerprint)
        problems += [f"{counts.where}: {problem}" for problem in found.problems]
        problems += _shard_sum_problems(counts, found, shards)
        if counts is contents.counts:
            problems += _total_problems(contents, vectors, found)
    if contents.even is not None and not problems:
        problems += _half_problems(contents.counts, contents.even)
    return Verdict(
        fingerprint=fingerprints[0],
        even_fingerprint=fingerprints[1] if contents.even is not None else None,
        problems=tuple(problems),
    )


def _shard_sum_problems(
    counts: StoredCounts, found: Findings, shards: Sequence[ShardRecord]
) -> list[str]:
    recorded = sum(shard.sum for shard in shards if shard.array == f"{counts.name}/data")
    if found.problems or (found.total - recorded) % MODULUS == 0:
        return []
    return [f"{counts.where}: counts add up to {found.total}, the shards' sums to {recorded}"]


def _total_problems(contents: Contents, vectors: dict[str, IntArray], found: Findings) -> list[str]:
    """Laws between the counts, the vectors and the totals."""
    totals, problems = contents.spec.totals, []
    if found.problems:
        return []
    if contents.spec.kind == "next-token":
        problems += _next_token_problems(contents, vectors["token_counts"], found)
    elif (occurrences := int(vectors["anchor_occurrences"].sum())) != totals.pairs:
        problems.append(f"anchor_occurrences add up to {occurrences}, totals.pairs {totals.pairs}")
    return problems


def _next_token_problems(
    contents: Contents, token_counts_V: IntArray, found: Findings
) -> list[str]:
    spec, problems = contents.spec, []
    assert found.row_sums_R is not None
    assert found.column_sums_C is not None
    if found.total != spec.totals.pairs:
        problems.append(f"counts add up to {found.total}, totals.pairs says {spec.totals.pairs}")
    if (tokens := int(token_counts_V.sum())) != spec.totals.tokens:
        problems.append(f"token_counts add up to {tokens}, totals.tokens says {spec.totals.tokens}")
    sums = {"rows": found.row_sums_R}
    if spec.is_whole and (spec.scope == "document" or spec.order == "file"):
        sums["columns"] = found.column_sums_C
    for name, sums_V in sums.items():
        if (wrong := np.flatnonzero(sums_V > token_counts_V.astype(np.uint64))).size:
            token = int(wrong[0])
            problems.append(
                f"{name}: token {token} is counted in {sums_V[token]} pairs but occurs "
                f"{token_counts_V[token]} times ({wrong.size} such tokens)"
            )
    return problems


def _half_problems(whole: StoredCounts, even: StoredCounts) -> list[str]:
    """Even documents are some of all: no count of theirs is larger."""
    for first_row, block in whole.blocks():
        rows = np.arange(first_row, first_row + block.shape[0])
        excess = even.take(rows).astype(np.uint64) > block.astype(np.uint64)
        if excess.nnz:
            return [f"{even.where}: more than the whole in rows {rows[0]} to {rows[-1]}"]
    return []


def _projected_problems(contents: Contents, vectors: dict[str, IntArray]) -> list[str]:
    rows_P = contents.arrays[ROWS][0 : contents.spec.totals.entries]
    limit = vectors["anchors"].size * contents.spec.vocab_size
    problems = []
    if rows_P.size and (rows_P.min() < 0 or rows_P.max() >= limit or (np.diff(rows_P) <= 0).any()):
        problems.append(f"rows must ascend strictly within 0 to {limit - 1}")
    occurrences = int(vectors["anchor_occurrences"].sum())
    if occurrences != contents.spec.totals.pairs:
        problems.append(
            f"anchor_occurrences add up to {occurrences}, totals.pairs {contents.spec.totals.pairs}"
        )
    return problems
