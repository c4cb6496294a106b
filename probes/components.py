"""Principal components of token rows, with the share of variance each explains.

Shapes: n tokens, H features, K components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from probes.similarity import FloatArray, Rows, dense_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Coordinates along the leading principal axes."""

    coordinates: FloatArray
    """(n, K); NaN for rows that are not finite, and for axes beyond the rank."""
    explained: FloatArray
    """(K); share of the variance along each axis; NaN when all rows are equal."""


def principal_components(rows_nH: Rows, num_components: int) -> Components:
    """Project the rows, less their mean, on their leading principal axes.

    Each axis points where its largest coordinate is positive, so that reruns agree.
    """
    dense_nH = dense_rows(rows_nH)
    finite_n = np.isfinite(dense_nH).all(axis=1)
    coordinates_nK = np.full((len(dense_nH), num_components), np.nan)
    explained_K = np.full(num_components, np.nan)
    kept = dense_nH[finite_n]
    if len(kept) < 2:
        return Components(coordinates=coordinates_nK, explained=explained_K)
    centred = kept - kept.mean(axis=0)
    variance, axes = np.linalg.eigh(
        centred @ centred.T
    )  # of n x n, since tokens are fewer than features
    variance, axes = np.maximum(variance[::-1], 0.0), axes[:, ::-1]
    found = min(num_components, variance.size)
    coordinates_nK[finite_n, :found] = _signed(axes * np.sqrt(variance))[:, :found]
    total = float(variance.sum())
    if total > (np.finfo(np.float64).eps * float(np.abs(kept).max())) ** 2 * kept.size:
        explained_K[:found] = variance[:found] / total
    return Components(coordinates=coordinates_nK, explained=explained_K)


def align_signs(coordinates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flip axes of a series (steps, n, K) so that each agrees with the step after it."""
    aligned = coordinates.copy()
    for step in range(len(aligned) - 2, -1, -1):
        agreement_K = np.nansum(aligned[step] * aligned[step + 1], axis=0)
        aligned[step] *= np.where(agreement_K < 0, -1.0, 1.0)
    return aligned


def _signed(coordinates_nK: FloatArray) -> FloatArray:
    largest_K = np.abs(coordinates_nK).argmax(axis=0)
    picked_K = np.take_along_axis(coordinates_nK, largest_K[None], axis=0)[0]
    return coordinates_nK * np.where(picked_K < 0, -1.0, 1.0)
