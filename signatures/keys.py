"""How rows and columns of a matrix of counts translate into the keys of its fingerprint.

Shapes: V vocabulary size, R rows, E entries, A anchors, C columns (context tokens, or all V).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from signatures.context_kernels import token_hashes
from signatures.kernels import Int64s, Ints, Uint64s, csr_fingerprint

MODULUS = 1 << 64


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
        if self.anchors_A is None:
            return int(csr_fingerprint(indptr_R1, indices_E, data_E, first_row, self.hashes_C))
        total, size, origin = 0, self.vocab_size, int(indptr_R1[0])
        last_row = first_row + indptr_R1.size - 1
        for a in range(first_row // size, -(-last_row // size)):
            first, last = max(first_row, a * size), min(last_row, (a + 1) * size)
            rows_R1 = indptr_R1[first - first_row : last - first_row + 1]
            part = slice(int(rows_R1[0]) - origin, int(rows_R1[-1]) - origin)
            key = int(self.anchors_A[a]) * size + first - a * size
            total += int(
                csr_fingerprint(rows_R1, indices_E[part], data_E[part], key, self.hashes_C)
            )
        return total % MODULUS

    def row_keys(self, rows_R: Int64s) -> Int64s:
        """Key of each row."""
        if self.anchors_A is None:
            return rows_R
        anchors_R = self.anchors_A[rows_R // self.vocab_size].astype(np.int64)
        keys_R: Int64s = anchors_R * self.vocab_size + rows_R % self.vocab_size
        return keys_R
