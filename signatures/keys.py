"""How rows and columns of a matrix of counts translate into the keys of its fingerprint.

Shapes: V vocabulary size, R rows, E entries, A anchors, C columns (context tokens, or all V).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from signatures.context_kernels import token_hashes
from signatures.kernels import Int64s, Ints, Uint64s, csr_fingerprint, scan_rows

MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Scanned:
    """What some rows hold: entries that a sound matrix has none of, and sums modulo 2^64."""

    zeros: int
    foreign: int
    falls: int
    """Columns not above the one before."""
    total: int
    fingerprint: int


@dataclass(frozen=True, eq=False)
class Keys:
    """Row r of anchor a has the key a * V + label; column c the id of its token.

    Small enough to travel with a task; the shape of the matrix is in it too.
    """

    vocab_size: int
    anchors_A: Ints | None = None
    """None: rows are tokens, and their own keys."""
    context_tokens_C: Ints | None = None
    """None: columns are tokens."""

    @property
    def num_rows(self) -> int:
        """Rows of the matrix: V, or A * V."""
        return self.vocab_size * (1 if self.anchors_A is None else self.anchors_A.size)

    @property
    def num_columns(self) -> int:
        """Columns of the matrix: V, or C."""
        return self.vocab_size if self.context_tokens_C is None else self.context_tokens_C.size

    @cached_property
    def hashes_C(self) -> Uint64s:
        """h(2, token) of each column."""
        tokens_C = self.context_tokens_C
        tokens_C = np.arange(self.vocab_size) if tokens_C is None else tokens_C
        hashes_C = np.empty(tokens_C.size, np.uint64)
        token_hashes(tokens_C.astype(np.int64), hashes_C)
        return hashes_C

    def fingerprint(self, first_row: int, indptr_R1: Ints, indices_E: Ints, data_E: Ints) -> int:
        """Sum over entries of count x h(1, row key) x h(2, column key), modulo 2^64."""
        pieces = self._by_anchor(first_row, indptr_R1, indices_E, data_E)
        return sum(int(csr_fingerprint(*piece, self.hashes_C)) for piece in pieces) % MODULUS

    def scan(self, first_row: int, indptr_R1: Ints, indices_E: Ints, data_E: Ints) -> Scanned:
        """Check rows and add them up in one pass."""
        sums = [0] * 5
        for piece in self._by_anchor(first_row, indptr_R1, indices_E, data_E):
            found: tuple[Any, ...] = scan_rows(*piece, self.hashes_C)
            sums = [before + int(one) for before, one in zip(sums, found, strict=True)]
        return Scanned(*sums[:3], *(one % MODULUS for one in sums[3:]))

    def _by_anchor(
        self, first_row: int, indptr_R1: Ints, indices_E: Ints, data_E: Ints
    ) -> Iterator[tuple[Ints, Ints, Ints, int]]:
        """Cut rows into pieces whose keys follow each other; yield each with its first key."""
        if self.anchors_A is None:
            yield indptr_R1, indices_E, data_E, first_row
            return
        size, origin = self.vocab_size, int(indptr_R1[0])
        last_row = first_row + indptr_R1.size - 1
        for a in range(first_row // size, -(-last_row // size)):
            first, last = max(first_row, a * size), min(last_row, (a + 1) * size)
            rows_R1 = indptr_R1[first - first_row : last - first_row + 1]
            part = slice(int(rows_R1[0]) - origin, int(rows_R1[-1]) - origin)
            key = int(self.anchors_A[a]) * size + first - a * size
            yield rows_R1, indices_E[part], data_E[part], key

    def row_keys(self, rows_R: Int64s) -> Int64s:
        """Key of each row."""
        if self.anchors_A is None:
            return rows_R
        anchors_R = self.anchors_A[rows_R // self.vocab_size].astype(np.int64)
        keys_R: Int64s = anchors_R * self.vocab_size + rows_R % self.vocab_size
        return keys_R
