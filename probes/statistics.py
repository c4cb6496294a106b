"""Is a correlation of two geometries more than chance, and how sure is it.

Pairs of tokens share tokens, so pairs are not independent draws: the null permutes tokens
(Mantel), the interval resamples tokens. Both treat all steps of a series at once, since the
signature side is permuted or weighted once and the rest is one matrix product.

Shapes: T steps (or steps x layers), n tokens, P = n (n - 1) / 2 pairs, B resamples.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from probes.similarity import FloatArray, cosine_matrix, is_constant, off_diagonal, pearson

_BLOCK_BYTES = 4_000_000
"""Small enough to stay in the cache, which is several times faster than large blocks."""
_TIE = 1e-12


def mantel_p(
    signature_nn: FloatArray, series_Tnn: FloatArray, *, permutations: int = 999, seed: int = 0
) -> FloatArray:
    """One-sided permutation p of Pearson's rho between the signature and each step, (T,).

    The signature's tokens are permuted; p = (1 + hits) / (1 + permutations), a hit being a
    permuted rho at least as great as the observed. NaN where rho is undefined. Tokens that
    are undefined on either side take no part.
    """
    p_T = np.full(len(series_Tnn), np.nan)
    for steps, tokens in _alike_defined(signature_nn, series_Tnn):
        signature = signature_nn[np.ix_(tokens, tokens)]
        if is_constant(off_diagonal(signature)):
            continue
        standard_TP = _standardised(off_diagonal(series_Tnn[np.ix_(steps, tokens, tokens)]))
        observed_T = standard_TP @ _standardised(off_diagonal(signature)[None])[0]
        hits_T = np.zeros(len(steps), np.int64)
        for permuted_BP in _permuted(signature, permutations, np.random.default_rng(seed)):
            hits_T += (standard_TP @ permuted_BP.T >= observed_T[:, None] - _TIE).sum(axis=1)
        p_T[steps] = np.where(np.isnan(observed_T), np.nan, (1 + hits_T) / (1 + permutations))
    return p_T


def bootstrap_rho(
    signature_nn: FloatArray, series_Tnn: FloatArray, *, resamples: int = 1000, seed: int = 0
) -> FloatArray:
    """Pearson's rho of every step under resampling of tokens, (T, B).

    A pair counts as often as the product of its two tokens' draws; pairs of a token with its
    own copy are dropped. Every step sees the same draws, so differences of steps are paired.
    NaN where rho is undefined.
    """
    rho_TB = np.full((len(series_Tnn), resamples), np.nan)
    for steps, tokens in _alike_defined(signature_nn, series_Tnn):
        signature_P = off_diagonal(signature_nn[np.ix_(tokens, tokens)])
        if is_constant(signature_P):
            continue
        series_TP = _standardised(off_diagonal(series_Tnn[np.ix_(steps, tokens, tokens)]))
        signature_P = _standardised(signature_P[None])[0]
        done = 0
        for weights_BP in _pair_weights(len(tokens), resamples, np.random.default_rng(seed)):
            block = slice(done, done + len(weights_BP))
            rho_TB[steps, block] = _weighted_pearson(series_TP, signature_P, weights_BP)
            done += len(weights_BP)
    return rho_TB


def interval(samples: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Lower and upper percentile bound along the last axis; NaN where a sample is undefined."""
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail], axis=-1)
    return low, high


def measured_coverage(
    signature_nn: FloatArray,
    *,
    num_features: int,
    draws: int = 200,
    resamples: int = 400,
    level: float = 0.95,
    seed: int = 0,
) -> float:
    """Share of random embeddings whose interval holds the rho of 0 that is true of them.

    Normal embeddings of ``num_features`` columns have nothing of the signature. A share above
    ``level`` says that the interval is wider than it need be when there is nothing to find.
    """
    generator = np.random.default_rng(seed)
    shape = (len(signature_nn), num_features)
    series = np.stack([cosine_matrix(generator.normal(size=shape)) for _ in range(draws)])
    low, high = interval(bootstrap_rho(signature_nn, series, resamples=resamples, seed=seed), level)
    defined = np.isfinite(low)
    return float(((low <= 0) & (high >= 0))[defined].mean()) if defined.any() else float("nan")


def partial_rho(one_nn: FloatArray, other_nn: FloatArray, covariates_n: FloatArray) -> float:
    """Pearson's rho of two geometries, with a covariate of the tokens held fixed.

    Its sum and its absolute difference over each pair are regressed out of both sides (for log
    frequency: log f_a + log f_b and |log f_a - log f_b|).
    """
    first_P, second_P = np.triu_indices(len(covariates_n), k=1)
    one_P, other_P = off_diagonal(one_nn), off_diagonal(other_nn)
    kept_P = np.isfinite(one_P) & np.isfinite(other_P)
    if kept_P.sum() < 4:
        return float("nan")
    one, other = covariates_n[first_P], covariates_n[second_P]
    design = np.stack([np.ones(one.size), one + other, np.abs(one - other)], axis=1)[kept_P]
    sides = np.stack([one_P[kept_P], other_P[kept_P]], axis=1)
    residuals = sides - design @ np.linalg.lstsq(design, sides, rcond=None)[0]
    return pearson(residuals[:, 0], residuals[:, 1])


def _alike_defined(
    signature_nn: FloatArray, series_Tnn: FloatArray
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Group the steps by the tokens they define; a group needs three tokens."""
    diagonals_Tn = np.diagonal(series_Tnn, axis1=1, axis2=2)
    defined_Tn = np.isfinite(diagonals_Tn) & np.isfinite(np.diagonal(signature_nn))
    kinds, kind_T = np.unique(defined_Tn, axis=0, return_inverse=True)
    for kind, defined_n in enumerate(kinds):
        if defined_n.sum() >= 3:
            yield np.flatnonzero(kind_T == kind), np.flatnonzero(defined_n)


def _standardised(values_TP: FloatArray) -> FloatArray:
    """Rows less their mean, of length 1; a constant row becomes NaN."""
    constant_T = np.array([is_constant(row) for row in values_TP])
    centred_TP = values_TP - values_TP.mean(axis=1, keepdims=True)
    length_T = np.where(constant_T, np.nan, np.linalg.norm(centred_TP, axis=1))
    return np.asarray(centred_TP / length_T[:, None])


def _permuted(
    signature_nn: FloatArray, permutations: int, generator: np.random.Generator
) -> Iterator[FloatArray]:
    """Standardised pairs of the signature under permuted tokens, in blocks (B, P)."""
    first_P, second_P = np.triu_indices(len(signature_nn), k=1)
    standard_P = _standardised(off_diagonal(signature_nn)[None])[0]
    standard_nn = np.zeros_like(signature_nn)
    standard_nn[first_P, second_P] = standard_nn[second_P, first_P] = standard_P
    for size in _block_sizes(permutations, first_P.size):
        order_Bn = np.stack([generator.permutation(len(signature_nn)) for _ in range(size)])
        yield standard_nn[order_Bn[:, first_P], order_Bn[:, second_P]]


def _pair_weights(
    num_tokens: int, resamples: int, generator: np.random.Generator
) -> Iterator[FloatArray]:
    """How often each pair of different tokens is drawn, in blocks (B, P)."""
    first_P, second_P = np.triu_indices(num_tokens, k=1)
    share = np.full(num_tokens, 1 / num_tokens)
    for size in _block_sizes(resamples, first_P.size):
        draws_Bn = generator.multinomial(num_tokens, share, size=size).astype(np.float64)
        yield draws_Bn[:, first_P] * draws_Bn[:, second_P]


def _block_sizes(total: int, num_pairs: int) -> Iterator[int]:
    block = max(1, _BLOCK_BYTES // (8 * num_pairs))
    for start in range(0, total, block):
        yield min(block, total - start)


def _weighted_pearson(
    series_TP: FloatArray, signature_P: FloatArray, weights_BP: FloatArray
) -> FloatArray:
    """Pearson's rho of each step under each weighting, (T, B), from one matrix product.

    Both sides come standardised, so the sums of squares do not cancel.
    """
    T = len(series_TP)
    signature_2P = np.stack([signature_P, signature_P**2])
    terms = (series_TP, series_TP**2, series_TP * signature_P, signature_2P)
    sums = np.concatenate(terms) @ weights_BP.T
    with np.errstate(invalid="ignore", divide="ignore"):
        sums /= weights_BP.sum(axis=1)
        mean_TB, square_TB, cross_TB = sums[:T], sums[T : 2 * T], sums[2 * T : 3 * T]
        mean_B, square_B = sums[-2], sums[-1]
        variance_TB = (square_TB - mean_TB**2) * (square_B - mean_B**2)
        rho_TB = (cross_TB - mean_TB * mean_B) / np.sqrt(variance_TB)
    return np.where(variance_TB > 0, rho_TB, np.nan)  # few tokens may draw one pair alone
