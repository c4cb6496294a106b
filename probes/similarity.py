"""Geometry of rows and how far two geometries agree.

Everything is float64. What is undefined (the cosine of a zero row, the correlation of a
constant) is NaN, never the +1 or -1 that rounding would give.

Shapes: n tokens, H features, P = n (n - 1) / 2 pairs of different tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.stats import rankdata

FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[Any] | csr_array[Any]

DECIMALS = 12
"""Similarities that agree to this many decimals are equal: in ranks, and in being constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Agreement of two similarity matrices over their pairs a < b; NaN where undefined."""

    pearson: float
    spearman: float
    mse: float
    num_pairs: int
    """Pairs defined on both sides."""
    num_undefined: int
    """Pairs left out because a row is zero or not finite on either side."""

    @property
    def one_minus_mse(self) -> float:
        """The measure that stays defined when a side is constant."""
        return 1.0 - self.mse


def cosine_matrix(rows_nH: Rows) -> FloatArray:
    """Cosine of every pair of rows, (n, n); row and column of an undefined row are NaN.

    Exactly symmetric, within [-1, 1], exactly 1 on the diagonal of defined rows. Sparse rows
    stay sparse. A row is undefined when it is zero or holds a value that is not finite.
    """
    units_nH, defined_n = _unit_rows(rows_nH)
    return _finished(dense_rows(units_nH @ units_nH.T), defined_n)


def cosines_between(rows_nH: Rows, others_mH: Rows) -> FloatArray:
    """Cosine of every row with every other row, (n, m); NaN where either is undefined."""
    units_nH, defined_n = _unit_rows(rows_nH)
    units_mH, defined_m = _unit_rows(others_mH)
    cosines_nm = np.clip(dense_rows(units_nH @ units_mH.T), -1.0, 1.0)
    return np.where(defined_n[:, None] & defined_m[None, :], cosines_nm, np.nan)


def cosines_of_inner_products(gram_nn: FloatArray) -> FloatArray:
    """Cosine of every pair of rows whose inner products are known, (n, n); as `cosine_matrix`."""
    squares_n = np.diagonal(gram_nn)
    defined_n = np.isfinite(squares_n) & (squares_n > 0)
    lengths_n = np.sqrt(np.where(defined_n, squares_n, 1.0))
    return _finished(gram_nn / lengths_n[:, None] / lengths_n[None, :], defined_n)


def centred_cosine_matrix(rows_nH: Rows) -> FloatArray:
    """Cosine after each row lost its own mean: Pearson's correlation of rows, (n, n).

    A constant row is undefined.
    """
    dense_nH = _finite_or_nan(rows_nH)
    centred_nH = dense_nH - dense_nH.mean(axis=1, keepdims=True)
    return _cosine_of_differences(centred_nH, dense_nH)


def common_mean_removed_matrix(rows_nH: Rows) -> FloatArray:
    """Cosine after the mean row of the n tokens was taken from each, (n, n).

    It removes the one direction that all tokens share; a row equal to the mean is undefined.
    """
    dense_nH = _finite_or_nan(rows_nH)
    finite_n = ~np.isnan(dense_nH[:, 0])
    if not finite_n.any():
        return np.full((len(dense_nH),) * 2, np.nan)
    centred_nH = dense_nH - dense_nH[finite_n].mean(axis=0)
    return _cosine_of_differences(centred_nH, dense_nH)


def dense_rows(rows_nH: Any) -> FloatArray:
    """Rows, sparse or not, as a float64 array."""
    dense = rows_nH.toarray() if isinstance(rows_nH, csr_array) else rows_nH
    return np.array(dense, np.float64)


def unit_rows(rows_nH: Rows) -> FloatArray:
    """Rows at length 1, the geometry that cosines see; an undefined row is NaN."""
    units_nH, defined_n = _unit_rows(rows_nH)
    return np.where(defined_n[:, None], dense_rows(units_nH), np.nan)


def off_diagonal(matrix_nn: npt.NDArray[Any]) -> FloatArray:
    """Return the entries a < b, row by row: (P,), or (..., P) for a stack of matrices."""
    first_P, second_P = np.triu_indices(matrix_nn.shape[-1], k=1)
    return np.asarray(matrix_nn[..., first_P, second_P], np.float64)


def compare(one_nn: FloatArray, other_nn: FloatArray) -> Comparison:
    """Compare two similarity matrices over the pairs that both define."""
    one_P, other_P = off_diagonal(one_nn), off_diagonal(other_nn)
    both_P = np.isfinite(one_P) & np.isfinite(other_P)
    one_P, other_P = one_P[both_P], other_P[both_P]
    return Comparison(
        pearson=pearson(one_P, other_P),
        spearman=spearman(one_P, other_P),
        mse=float(np.mean((one_P - other_P) ** 2)) if one_P.size else float("nan"),
        num_pairs=int(both_P.sum()),
        num_undefined=int((~both_P).sum()),
    )


def debiased_cka(one_nH: Rows, other_nV: Rows) -> float:
    """Linear CKA of two sets of rows for the same tokens, unbiased; NaN when a side is constant.

    Source: Kornblith et al., arXiv:1905.00414, with the estimator of HSIC of Song et al. (2012),
    whose expectation is 0 for rows that have nothing in common, however many columns there are.
    """
    kept_n = np.asarray(np.isfinite(dense_rows(one_nH)).all(axis=1))
    grams = [_hollow_gram(rows, kept_n) for rows in (one_nH, other_nV)]
    if kept_n.sum() < 4:
        return float("nan")
    cross, own, others = (_hsic(*pair) for pair in ((grams[0], grams[1]), (grams[0], grams[0]),
                                                    (grams[1], grams[1])))  # fmt: skip
    scale = own * others
    return float(cross / np.sqrt(scale)) if scale > 0 else float("nan")


def _hollow_gram(rows: Rows, kept_n: npt.NDArray[np.bool_]) -> FloatArray:
    """Inner products of the kept rows, scaled to a largest of 1, with an empty diagonal."""
    gram = dense_rows(rows @ rows.T)[np.ix_(kept_n, kept_n)]
    np.fill_diagonal(gram, 0.0)
    return gram / max(float(np.abs(gram).max(initial=0.0)), np.finfo(np.float64).tiny)


def _hsic(one_nn: FloatArray, other_nn: FloatArray) -> float:
    """Unbiased HSIC, but for the factor n (n - 3) that cancels in CKA."""
    n = len(one_nn)
    one_n, other_n = one_nn.sum(axis=0), other_nn.sum(axis=0)
    return float(
        (one_nn * other_nn).sum()
        + one_n.sum() * other_n.sum() / ((n - 1) * (n - 2))
        - 2 * (one_n * other_n).sum() / (n - 2)
    )


def pearson(one_P: FloatArray, other_P: FloatArray) -> float:
    """Pearson's correlation of two vectors of similarities; NaN when one is constant."""
    if is_constant(one_P) or is_constant(other_P):
        return float("nan")
    one_P, other_P = one_P - one_P.mean(), other_P - other_P.mean()
    scale = np.sqrt((one_P**2).sum()) * np.sqrt((other_P**2).sum())
    return float(np.clip((one_P * other_P).sum() / scale, -1.0, 1.0))


def spearman(one_P: FloatArray, other_P: FloatArray) -> float:
    """Spearman's correlation; values equal to 12 decimals share a rank. NaN when one is constant.

    The mean rank of ties is used.
    """
    if is_constant(one_P) or is_constant(other_P):
        return float("nan")
    return pearson(ranks(one_P), ranks(other_P))


def ranks(values_P: FloatArray) -> FloatArray:
    """Ranks from 1, after rounding to 12 decimals; ties take their mean rank."""
    return np.asarray(rankdata(np.round(values_P, DECIMALS)), np.float64)


def is_constant(values_P: FloatArray) -> bool:
    """Whether the values spread by no more than similarities can be told apart (1e-12)."""
    if values_P.size < 2:
        return True
    spread = float(values_P.max() - values_P.min())
    return not spread > 10.0**-DECIMALS * max(1.0, float(np.abs(values_P).max()))


def _unit_rows(rows_nH: Rows) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Rows scaled to length 1, by their largest entry first so that no square under- or overflows.

    Undefined rows become zero.
    """
    if isinstance(rows_nH, csr_array):
        return _unit_rows_sparse(rows_nH.astype(np.float64))
    dense_nH = dense_rows(rows_nH)
    defined_n = np.isfinite(dense_nH).all(axis=1) & (dense_nH != 0).any(axis=1)
    dense_nH = np.where(defined_n[:, None], dense_nH, 0.0)
    dense_nH /= np.where(defined_n, np.abs(dense_nH).max(axis=1, initial=0.0), 1.0)[:, None]
    dense_nH /= np.where(defined_n, np.linalg.norm(dense_nH, axis=1), 1.0)[:, None]
    return dense_nH, defined_n


def _unit_rows_sparse(rows_nH: csr_array[Any]) -> tuple[Any, npt.NDArray[np.bool_]]:
    row_of_entry = np.repeat(np.arange(rows_nH.shape[0]), np.diff(rows_nH.indptr))
    largest_n = np.zeros(rows_nH.shape[0])
    np.maximum.at(largest_n, row_of_entry, np.abs(rows_nH.data))
    defined_n = np.isfinite(largest_n) & (largest_n > 0)
    scale_n = np.where(defined_n, largest_n, np.inf)
    data = np.where(defined_n[row_of_entry], rows_nH.data, 0.0) / scale_n[row_of_entry]
    squares_n = np.bincount(row_of_entry, data**2, minlength=rows_nH.shape[0])
    data /= np.sqrt(np.where(defined_n, squares_n, 1.0))[row_of_entry]
    return csr_array((data, rows_nH.indices, rows_nH.indptr), shape=rows_nH.shape), defined_n


def _cosine_of_differences(centred_nH: FloatArray, original_nH: FloatArray) -> FloatArray:
    """Cosine of rows that are differences: one no larger than its rounding error is zero."""
    largest_n = np.abs(original_nH).max(axis=1, initial=0.0)
    error_n = original_nH.shape[1] * np.finfo(np.float64).eps * largest_n
    lost_n = ~(np.abs(centred_nH).max(axis=1, initial=0.0) > error_n)
    return cosine_matrix(np.where(lost_n[:, None], 0.0, centred_nH))


def _finite_or_nan(rows_nH: Rows) -> FloatArray:
    """Rows in float64; one that holds an infinity or a NaN becomes NaN throughout."""
    dense_nH = dense_rows(rows_nH)
    return np.where(np.isfinite(dense_nH).all(axis=1, keepdims=True), dense_nH, np.nan)


def _finished(cosines_nn: FloatArray, defined_n: npt.NDArray[np.bool_]) -> FloatArray:
    cosines_nn = np.clip((cosines_nn + cosines_nn.T) / 2, -1.0, 1.0)
    np.fill_diagonal(cosines_nn, 1.0)
    cosines_nn[~defined_n, :] = np.nan
    cosines_nn[:, ~defined_n] = np.nan
    return cosines_nn
