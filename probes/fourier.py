"""Which frequency of the context an embedding's geometry follows.

For context tokens 0..p-1 and ``c_k = cos(2 pi k j / p)``: ``h_{a,k} = phi_1(a) c_k``, and rho_k is
the correlation of the cosines of the h with those of the embeddings (arXiv:2608.30315, section
5). k = 0 gives the order-0 signature.

Shapes: A anchors, V labels, P context tokens, K = P // 2 + 1 frequencies, T epochs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from probes.similarity import FloatArray, cosine_matrix, off_diagonal, pearson


def frequencies(num_context: int) -> FloatArray:
    """``c_k`` for k = 0..P // 2, (K, P)."""
    k, j = np.arange(num_context // 2 + 1), np.arange(num_context)
    return np.asarray(np.cos(2 * np.pi * np.outer(k, j) / num_context))


def fourier_rows(phi_AVP: npt.NDArray[Any]) -> FloatArray:
    """``h_{a,k}`` for every frequency, (K, A, V)."""
    return np.asarray(np.einsum("avp,kp->kav", phi_AVP, frequencies(phi_AVP.shape[2])))


def fourier_rho(phi_AVP: npt.NDArray[Any], similarity: FloatArray) -> FloatArray:
    """rho_k of one similarity matrix (A, A), or of each of a series (T, A, A): (K) or (T, K).

    NaN where the rows of a frequency are undefined or all alike.
    """
    against_KP = [off_diagonal(cosine_matrix(rows_AV)) for rows_AV in fourier_rows(phi_AVP)]
    series_TP = np.atleast_2d(off_diagonal(similarity))
    rho_TK = np.array([[_rho(one_P, other_P) for other_P in against_KP] for one_P in series_TP])
    return rho_TK if similarity.ndim == 3 else rho_TK[0]


def best_frequency(rho_K: FloatArray, *, above: int = 0) -> int | None:
    """Return the k > ``above`` of the largest rho; None when all of those are undefined."""
    candidates = np.where(np.arange(len(rho_K)) > above, rho_K, np.nan)
    return None if np.isnan(candidates).all() else int(np.nanargmax(candidates))


def _rho(one_P: FloatArray, other_P: FloatArray) -> float:
    both = np.isfinite(one_P) & np.isfinite(other_P)
    return pearson(one_P[both], other_P[both])
