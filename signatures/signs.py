"""The random projection of a projected store, drawn again wherever it is needed.

Shapes: C context tokens, Q columns of a projection.
"""

import numpy as np
import numpy.typing as npt

from signatures.context_kernels import random_signs
from signatures.kernels import Int64s

Signs = npt.NDArray[np.int8]


def sign_matrix(context_tokens_C: Int64s, columns: int, seed: int) -> Signs:
    """Random signs, (C, Q) int8: a function of seed, token and column alone.

    Sign q of token b is bit ``q mod 64`` of ``h(1 + q // 64, h(1, seed) + b)``, 1 where it is set
    and -1 where not; h is the hash of the store's fingerprint (docs/store.md).
    """
    matrix_CQ = np.empty((context_tokens_C.size, columns), np.int8)
    random_signs(context_tokens_C.astype(np.int64), np.uint64(seed % 2**64), matrix_CQ)
    return matrix_CQ
