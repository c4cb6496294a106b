"""Propositions 1 and 2 of arXiv:2608.30315 measured: which order leads, small and large.

Shapes: G gammas, W widths, M orders, S scales, K degrees, V vocabulary, H hidden size.
"""

from itertools import product
from math import factorial

import numpy as np
import numpy.typing as npt
import xarray as xr

from signatures.exact import EnumeratedTask
from workflows.controlled.ffn_flow import (
    PolynomialFFN,
    TaskSignatures,
    combinatorial_factor,
    label_driven_orders,
    order_shares,
)
from workflows.controlled.variables import controlled_dataset

FloatArray = npt.NDArray[np.float64]

LENGTH = 4
WIDTHS = (128, 256, 512, 1024, 2048, 4096)
GAMMAS = (0.6, 0.8, 1.0)
SLOPE_DEGREE = 6
SCALES = tuple(10.0**power for power in np.arange(-3, 3.01, 0.25))
DEGREES = (4, 6, 8, 12, 16)
_COORDINATES, _QUICK_COORDINATES = 1 << 14, 1 << 12


def proposition_slopes(seed: int, quick: bool) -> xr.Dataset:
    """Measure how the order-m term falls against that of order 0 as the width d grows.

    A random task, weights N(0, d^-2 gamma) and C_k = 1 / k!, none of them zero. The terms are
    coordinate by coordinate and all coordinates have one law, so every d is measured on the same
    number of coordinates, and the narrow ones are no noisier than the wide. ``quick`` takes a
    quarter of them.

    Returns
    -------
    ``ratio`` (gamma, width, order): RMS over tokens and coordinates, order m over order 0;
    ``slope`` (gamma, order) of its logarithm against that of d. Proposition 1 bounds it by
    ``-m gamma``, met when C_1 and C_{m+1} are not zero.
    """
    generator = np.random.default_rng(seed)
    task = EnumeratedTask(
        samples_NL=generator.integers(8, size=(24, LENGTH)),
        labels_N=generator.integers(8, size=24),
        vocab_size=8,
    )
    signatures = TaskSignatures.of(task, LENGTH)
    normal_2VH = generator.normal(size=(2, 8, _QUICK_COORDINATES if quick else _COORDINATES))
    ratio_GWM = np.array(
        [[_ratios(signatures, normal_2VH * d**-gamma) for d in WIDTHS] for gamma in GAMMAS]
    )
    slope_GM = np.array([_slopes(np.array(WIDTHS), ratio_WM) for ratio_WM in ratio_GWM])
    return controlled_dataset(
        {
            "ratio": (("gamma", "width", "order"), ratio_GWM),
            "slope": (("gamma", "order"), slope_GM),
        },
        {
            "gamma": ("gamma", np.array(GAMMAS)),
            "width": ("width", np.array(WIDTHS)),
            "order": ("order", np.arange(LENGTH)),
        },
    )


def embedding_scale_shares(seed: int) -> xr.Dataset:
    """Measure the share of each order as the embeddings of one model grow.

    The task lists every sequence of four of five tokens, with labels drawn once; C_1..C_K are all
    1, so that degree K rules where the embeddings are large.

    Returns
    -------
    ``share`` (degree, embedding_scale, order): of the label-driven part;
    ``exponent`` (degree, order): slope of log norm against log scale from scale 100 on, which
    Proposition 2 says is K - 1 for every order; ``combinatorial_factor`` (degree, order): B_m(K).
    """
    generator = np.random.default_rng(seed)
    samples_NL = np.array(list(product(range(5), repeat=LENGTH)))
    labels_N = generator.integers(5, size=len(samples_NL))
    task = EnumeratedTask(samples_NL=samples_NL, labels_N=labels_N, vocab_size=5)
    signatures = TaskSignatures.of(task, LENGTH)
    normal_2VH = generator.normal(size=(2, 5, 128))
    terms = [[_scaled(signatures, normal_2VH, scale, K) for scale in SCALES] for K in DEGREES]
    share_KSM = np.array([[order_shares(one) for one in row] for row in terms])
    large = np.array(SCALES) >= 99
    norms_KSM = np.array([[_root_mean_square(one) for one in row] for row in terms])
    exponent_KM = [_slopes(np.array(SCALES)[large], norms_SM[large]) for norms_SM in norms_KSM]
    factors_KM = [[combinatorial_factor(m, K) for m in range(LENGTH)] for K in DEGREES]
    return controlled_dataset(
        {
            "share": (("degree", "embedding_scale", "order"), share_KSM),
            "exponent": (("degree", "order"), np.array(exponent_KM)),
            "combinatorial_factor": (("degree", "order"), np.array(factors_KM, np.float64)),
        },
        {
            "degree": ("degree", np.array(DEGREES)),
            "embedding_scale": ("embedding_scale", np.array(SCALES)),
            "order": ("order", np.arange(LENGTH)),
        },
    )


def _ratios(signatures: TaskSignatures, drawn_2VH: FloatArray) -> FloatArray:
    """RMS of each order's term over that of order 0, (M,)."""
    model = PolynomialFFN(
        embedding_VH=drawn_2VH[0],
        unembedding_VH=drawn_2VH[1],
        coefficients_K=[1 / factorial(k) for k in range(1, SLOPE_DEGREE + 1)],
    )
    sizes_M = _root_mean_square(label_driven_orders(signatures, model))
    return np.asarray(sizes_M / sizes_M[0])


def _scaled(
    signatures: TaskSignatures, drawn_2VH: FloatArray, scale: float, degree: int
) -> FloatArray:
    """Order-m terms with the embedding times ``scale``, (M, V, H)."""
    model = PolynomialFFN(
        embedding_VH=scale * drawn_2VH[0],
        unembedding_VH=drawn_2VH[1],
        coefficients_K=[1.0] * degree,
    )
    return label_driven_orders(signatures, model)


def _root_mean_square(terms_MVH: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.mean(terms_MVH**2, axis=(1, 2))))


def _slopes(x: npt.NDArray[np.generic], values_XM: FloatArray) -> FloatArray:
    """Least-squares slope of log value against log x for each order, (M,)."""
    return np.asarray(np.polyfit(np.log(np.asarray(x, np.float64)), np.log(values_XM), 1)[0])
