"""Signature stores made the slow way: counted with plain loops, written through the writer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from signatures.store import (
    MatrixLayout,
    ShardRecord,
    StoreSpec,
    Totals,
    complete_store,
    create_store,
    shard_ranges,
    write_shard,
)

MASK = 2**64 - 1


def pair_counts(documents: Sequence[Sequence[int]], vocab_size: int) -> csr_array:
    """Next-token counts of scope document, (V, V)."""
    pairs = Counter(pair for document in documents for pair in pairwise(document))
    return matrix_of(pairs, (vocab_size, vocab_size))


def matrix_of(counts: Mapping[tuple[int, int], int], shape: tuple[int, int]) -> csr_array:
    """A sorted CSR matrix of uint64 from {(row, column): count}."""
    ordered = sorted(counts)
    rows = np.array([row for row, _ in ordered], np.int64)
    indptr = np.searchsorted(rows, np.arange(shape[0] + 1))
    data = np.array([counts[key] for key in ordered], np.uint64)
    indices = np.array([column for _, column in ordered], np.int64)
    return csr_array((data, indices, indptr), shape=shape)


def next_token_spec(
    documents: Sequence[Sequence[int]], vocab_size: int, entries: int, **fields: Any
) -> StoreSpec:
    tokens = sum(map(len, documents))
    empty = sum(not document for document in documents)
    totals = Totals(
        tokens=tokens,
        documents=len(documents),
        empty_documents=empty,
        pairs=tokens - len(documents) + empty,
        entries=entries,
    )
    return StoreSpec(
        **{
            "kind": "next-token",
            "vocab_size": vocab_size,
            "vocab_source": "given",
            "totals": totals,
            **fields,
        }
    )


def write_next_token(
    out: Path,
    documents: Sequence[Sequence[int]],
    vocab_size: int,
    *,
    halves: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> csr_array:
    """Write a complete next-token store of ``documents``; return its counts."""
    counts = pair_counts(documents, vocab_size)
    spec = next_token_spec(documents, vocab_size, counts.nnz, **fields)
    tokens = np.array([token for document in documents for token in document], np.int64)
    matrices = {"counts": counts}
    if halves:
        matrices["halves/even"] = pair_counts(documents[::2], vocab_size)
    vectors = {"token_counts": np.bincount(tokens, minlength=vocab_size).astype(np.int64)}
    write_store(out, spec, matrices, vectors, overwrite=overwrite)
    return counts


def write_store(
    out: Path,
    spec: StoreSpec,
    matrices: Mapping[str, csr_array],
    vectors: Mapping[str, np.ndarray],
    **options: Any,
) -> None:
    """Write any store of count matrices."""
    partial, records = begin_store(out, spec, matrices, vectors)
    options = {"overwrite": False, **options}
    complete_store(partial, out, spec=spec, records=records, **options)


def begin_store(
    out: Path,
    spec: StoreSpec,
    matrices: Mapping[str, csr_array],
    vectors: Mapping[str, np.ndarray],
) -> tuple[Path, list[ShardRecord]]:
    """Write everything but the end: (the incomplete store, its records)."""
    partial = out.with_name(out.name + ".partial")
    layouts = {name: layout_of(matrix) for name, matrix in matrices.items()}
    create_store(partial, spec, matrices=layouts, vectors=vectors)
    records = []
    for name, matrix in matrices.items():
        for array in ("data", "indices", "indptr"):
            for index, (start, stop) in enumerate(shard_ranges(partial, name, array)):
                values = getattr(matrix, array)[start:stop]
                records.append(write_shard(partial, name, array, index, values))
    return partial, records


def layout_of(matrix: csr_array) -> MatrixLayout:
    return MatrixLayout(
        shape=matrix.shape,
        entries=matrix.nnz,
        max_count=int(matrix.data.max(initial=0)),
    )


def fingerprint(entries: Mapping[tuple[int, int], int]) -> int:
    """Fingerprint of {(row key, context token): count}, in plain Python."""
    return sum(
        count * _hash(1, row) * _hash(2, context) for (row, context), count in entries.items()
    ) % (MASK + 1)


def _hash(k: int, x: int) -> int:
    z = (x + k * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def shard_files(store: Path) -> list[Path]:
    """Every shard of a store, vectors too."""
    return sorted(path for path in store.rglob("c/**/*") if path.is_file())
