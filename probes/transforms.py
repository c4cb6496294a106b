"""Other readings of a signature than its raw probabilities.

Shapes: n tokens, V vocabulary.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array


def square_root(rows_nV: csr_array[Any]) -> csr_array[Any]:
    """Square roots of the probabilities: their cosine is Bhattacharyya's coefficient."""
    return csr_array((np.sqrt(rows_nV.data), rows_nV.indices, rows_nV.indptr), shape=rows_nV.shape)


def positive_pmi(rows_nV: csr_array[Any], counts_V: npt.NDArray[np.int64]) -> csr_array[Any]:
    """``max(0, log P(v | a) / P(v))`` in nats, P(v) from the occurrences of all tokens.

    What follows every token alike is taken out; what never follows stays zero.
    """
    share_V = counts_V / counts_V.sum()
    with np.errstate(divide="ignore"):
        pmi = np.log(rows_nV.data) - np.log(share_V[rows_nV.indices])
    kept = rows_nV.copy()  # dropping zeros rewrites the indices, which must not be shared
    kept.data = np.where(np.isfinite(pmi), np.maximum(pmi, 0.0), 0.0)
    kept.eliminate_zeros()
    return kept
