"""How well the corpus itself determines a signature's geometry: the ceiling of rho.

Documents are halved (even, odd); the two halves' geometries are correlated. A rho against the
whole signature cannot be expected above the square root of the reliability of the whole.
"""

from dataclasses import dataclass

import numpy as np

from probes.similarity import Rows, compare, cosine_matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Split-half reliability of a geometry; NaN where undefined."""

    half_correlation: float
    """Pearson's rho between the two halves, each half the size of the whole."""

    @property
    def whole(self) -> float:
        """Reliability of the whole, by the formula of Spearman and Brown: 2 r / (1 + r)."""
        r = self.half_correlation
        return 2 * r / (1 + r) if r > 0 else float("nan")

    @property
    def ceiling(self) -> float:
        """The square root of the reliability: the most a rho can be expected to reach."""
        return float(np.sqrt(self.whole))


def split_half(even_nV: Rows, odd_nV: Rows) -> Reliability:
    """Correlate the geometries of two halves of a corpus."""
    compared = compare(cosine_matrix(even_nV), cosine_matrix(odd_nV))
    return Reliability(half_correlation=compared.pearson)
