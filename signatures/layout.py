"""Which arrays a signature store of each kind has, and how they are cut into chunks and shards.

Shapes: V vocabulary size, A anchors, C context tokens, R columns of a projection, P rows of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from signatures.spec import StoreSpec

IntArray = npt.NDArray[np.integer[Any]]

COUNTS = "counts"
EVEN = "halves/even"
CSR_ARRAYS = ("data", "indices", "indptr")
ROWS, VALUES, MATRIX = "rows", "values", "matrix"

_CHUNK_BYTES = 1 << 20
_SHARD_BYTES = 1 << 27
"""134 MB before compression at most, and at least half of that where one shard is not enough."""

VECTORS: dict[str, dict[str, str]] = {
    "next-token": {"token_counts": "V"},
    "first-order": {
        "anchors": "A",
        "context_tokens": "C",
        "anchor_occurrences": "A",
        "dropped": "A",
    },
    "projected": {"anchors": "A", "context_tokens": "C", "anchor_occurrences": "A"},
}
"""The vectors that each kind must have, and their lengths; all are int64."""

OPTIONAL_VECTORS: dict[str, str] = {
    "token_counts": "V",
    "even_token_counts": "V",
    "even_anchor_occurrences": "A",
    "even_dropped": "A",
    "dropped": "A",
}
"""Vectors a store may have besides; ``even_`` counts the even documents (samples) alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayout:
    """Size of a CSR matrix before it is written; decides the widths of its integers."""

    shape: tuple[int, int]
    entries: int
    max_count: int

    @property
    def data_dtype(self) -> np.dtype[Any]:
        """Return uint32, or uint64 where a count passes 2^32 - 1."""
        return np.dtype(np.uint32 if self.max_count < 2**32 else np.uint64)

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """Return int32, or int64 from 2^31 entries: one dtype for ``indices`` and ``indptr``."""
        return np.dtype(np.int32 if self.entries < 2**31 else np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Size of a dense int64 array that is written shard by shard (``rows``, ``values``)."""

    shape: tuple[int, ...]


def grid(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a chunk (about 1 MB) and of a shard (67 to 134 MB, or all of it).

    Arrays are cut along the first axis only; shards of one array are equal but for the last.
    """
    length, *rest = shape
    row_bytes = itemsize * prod(rest)
    chunk = max(1, min(_CHUNK_BYTES // max(1, row_bytes), length))
    shards = max(1, ceil(length * row_bytes / _SHARD_BYTES))
    shard = chunk * max(1, ceil(length / shards / chunk))
    return (chunk, *rest), (shard, *rest)


def lengths(spec: StoreSpec, vectors: Mapping[str, IntArray]) -> dict[str, int]:
    """Return the sizes that the letters V, A and C stand for in a store of ``spec``."""
    sizes = {"V": spec.vocab_size}
    for letter, name in (("A", "anchors"), ("C", "context_tokens")):
        if name in vectors:
            sizes[letter] = vectors[name].size
    return sizes


def check_vectors(spec: StoreSpec, vectors: Mapping[str, IntArray]) -> None:
    """Refuse vectors that a store of ``spec`` does not have, or of other lengths and values.

    Raises
    ------
    ValueError
        Names the vector, what was found and what is needed.
    """
    needed = VECTORS[spec.kind]
    if missing := sorted(needed.keys() - vectors.keys()):
        raise ValueError(f"a {spec.kind} store needs the vectors {sorted(needed)}; lacks {missing}")
    sizes = lengths(spec, vectors)
    for name, vector in vectors.items():
        if spec.kind == "projected" and name == MATRIX:
            continue
        letter = needed.get(name) or OPTIONAL_VECTORS.get(name)
        if letter is None or letter not in sizes:
            raise ValueError(f"a {spec.kind} store has no vector {name!r}")
        if vector.dtype != np.int64 or vector.shape != (sizes[letter],):
            raise ValueError(
                f"{name} is {vector.dtype} {vector.shape}, int64 ({sizes[letter]},) is needed"
            )
        if vector.size and vector.min() < 0:
            raise ValueError(f"{name} holds {vector.min()}, no value below 0 is possible")
    _check_tokens(spec, vectors)
    if spec.kind == "projected":
        columns(spec, vectors)


def matrix_shape(spec: StoreSpec, vectors: Mapping[str, IntArray]) -> tuple[int, int]:
    """Shape of ``counts``: (V, V), or (A*V, C) for first-order."""
    if spec.kind == "next-token":
        return spec.vocab_size, spec.vocab_size
    return vectors["anchors"].size * spec.vocab_size, vectors["context_tokens"].size


def columns(spec: StoreSpec, vectors: Mapping[str, IntArray]) -> int:
    """R of a projected store: of its matrix, or ``parameters["columns"]`` beside a seed.

    Raises
    ------
    ValueError
        Neither, both, or a matrix that is not (C, R) int8.
    """
    matrix, width = vectors.get(MATRIX), spec.parameters.get("columns")
    if matrix is None:
        if spec.seed is None or not isinstance(width, int) or width < 1:
            raise ValueError(
                "a projected store needs its matrix, or a seed with parameters.columns; "
                f"seed is {spec.seed!r}, columns {width!r}"
            )
        return width
    length = vectors["context_tokens"].size
    if matrix.dtype != np.int8 or matrix.ndim != 2 or matrix.shape[0] != length:
        raise ValueError(f"matrix is {matrix.dtype} {matrix.shape}, int8 ({length}, R) is needed")
    return int(matrix.shape[1])


def check_matrices(
    spec: StoreSpec, vectors: Mapping[str, IntArray], matrices: Mapping[str, MatrixLayout]
) -> None:
    """Refuse matrices that a store of ``spec`` does not have, or of other sizes.

    Raises
    ------
    ValueError
        Names the matrix, what was found and what is needed.
    """
    allowed = set() if spec.kind == "projected" else {COUNTS, EVEN}
    if spec.kind != "projected" and COUNTS not in matrices:
        raise ValueError(f"a {spec.kind} store needs the matrix {COUNTS!r}")
    for name, layout in matrices.items():
        if name not in allowed:
            raise ValueError(f"a {spec.kind} store has no matrix {name!r}, only {sorted(allowed)}")
        if layout.shape != (needed := matrix_shape(spec, vectors)):
            raise ValueError(f"{name} has shape {layout.shape}, {needed} is needed")
    if COUNTS in matrices and matrices[COUNTS].entries != spec.totals.entries:
        raise ValueError(
            f"{COUNTS} has {matrices[COUNTS].entries} entries, totals says {spec.totals.entries}"
        )


def check_blocks(
    spec: StoreSpec, vectors: Mapping[str, IntArray], blocks: Mapping[str, BlockLayout]
) -> None:
    """Refuse dense arrays that a store of ``spec`` does not have, or of other sizes.

    Raises
    ------
    ValueError
        Names the array, what was found and what is needed.
    """
    length = spec.totals.entries
    needed: dict[str, tuple[int, ...]] = {}
    if spec.kind == "projected":
        needed = {ROWS: (length,), VALUES: (length, columns(spec, vectors))}
    found = {name: block.shape for name, block in blocks.items()}
    if found != needed:
        raise ValueError(f"a {spec.kind} store has the dense arrays {needed}, found {found}")


def _check_tokens(spec: StoreSpec, vectors: Mapping[str, IntArray]) -> None:
    for name in ("anchors", "context_tokens"):
        tokens = vectors.get(name)
        if tokens is None or not tokens.size:
            continue
        if tokens.max() >= spec.vocab_size:
            raise ValueError(
                f"{name} holds {tokens.max()}, ids below vocab_size {spec.vocab_size} are needed"
            )
        if np.unique(tokens).size != tokens.size:
            raise ValueError(f"{name} holds an id twice, each once is needed")
