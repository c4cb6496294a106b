"""One path of one checkpoint against its signature: geometry first, then its agreement.

Shapes: n tokens, H features, K components.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from probes.components import Components, principal_components
from probes.similarity import (
    FloatArray,
    Rows,
    centred_cosine_matrix,
    common_mean_removed_matrix,
    compare,
    cosine_matrix,
    debiased_cka,
    off_diagonal,
)
from probes.statistics import partial_rho
from probes.transforms import positive_pmi, square_root
from probes.vocabulary import IntArray

NUM_COMPONENTS = 4
Measured = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The geometry of a signature over the probed tokens; the same for every step."""

    similarity: FloatArray
    centred: FloatArray
    """Each row less its own mean."""
    mean_removed: FloatArray
    """Each row less the mean row."""
    components: Components
    rows: Rows | None = None
    """Kept for CKA."""
    transformed: Mapping[str, FloatArray] = field(default_factory=dict)
    """Similarity under other readings of the signature, by name."""
    log_occurrences: FloatArray | None = None
    """Of each token; held fixed by the partial correlation."""

    @classmethod
    def of(cls, rows_nH: Rows) -> "Reference":
        """Compute it from the signature rows of the tokens."""
        return cls(
            similarity=cosine_matrix(rows_nH),
            centred=centred_cosine_matrix(rows_nH),
            mean_removed=common_mean_removed_matrix(rows_nH),
            components=principal_components(rows_nH, NUM_COMPONENTS),
        )

    @classmethod
    def of_counts(
        cls, rows_nV: csr_array[Any], tokens_n: IntArray, counts_V: IntArray
    ) -> "Reference":
        """Compute it from probabilities, with all that occurrences of tokens make possible."""
        transformed = {
            "square_root": cosine_matrix(square_root(rows_nV)),
            "ppmi": cosine_matrix(positive_pmi(rows_nV, counts_V)),
        }
        return replace(
            cls.of(rows_nV),
            rows=rows_nV,
            transformed=transformed,
            log_occurrences=np.log(np.maximum(counts_V[tokens_n], 1)),
        )

    def fingerprint(self) -> str:
        """SHA-256 of the similarities: what a saved measurement was made against."""
        return hashlib.sha256(np.ascontiguousarray(self.similarity).data).hexdigest()


def measure_rows(rows_nH: Rows, reference: Reference) -> Measured:
    """Geometry of the rows and its agreement with ``reference``, as named arrays."""
    similarity_nn = cosine_matrix(rows_nH)
    raw = compare(similarity_nn, reference.similarity)
    components = principal_components(rows_nH, NUM_COMPONENTS)
    scalars = {
        "rho": raw.pearson,
        "spearman": raw.spearman,
        "mse": raw.mse,
        "one_minus_mse": raw.one_minus_mse,
        "baseline_mse": _variance(similarity_nn),
        "rho_centred": compare(centred_cosine_matrix(rows_nH), reference.centred).pearson,
        "rho_mean_removed": compare(
            common_mean_removed_matrix(rows_nH), reference.mean_removed
        ).pearson,
        "mean_similarity": _mean(similarity_nn),
        "num_pairs": raw.num_pairs,
        "num_undefined": raw.num_undefined,
    }
    for name, transformed_nn in reference.transformed.items():
        scalars[f"rho_{name}"] = compare(similarity_nn, transformed_nn).pearson
    if reference.log_occurrences is not None:
        scalars["rho_partial"] = partial_rho(
            similarity_nn, reference.similarity, reference.log_occurrences
        )
    if reference.rows is not None:
        scalars["cka"] = debiased_cka(np.asarray(rows_nH, np.float64), reference.rows)
    return {name: np.asarray(value) for name, value in scalars.items()} | {
        "similarity": similarity_nn,
        "pca": components.coordinates,
        "explained_variance": components.explained,
    }


def _variance(similarity_nn: FloatArray) -> float:
    """MSE of the best constant prediction of the similarities."""
    pairs_P = off_diagonal(similarity_nn)
    pairs_P = pairs_P[np.isfinite(pairs_P)]
    return float(pairs_P.var()) if pairs_P.size else float("nan")


def _mean(similarity_nn: FloatArray) -> float:
    pairs_P = off_diagonal(similarity_nn)
    pairs_P = pairs_P[np.isfinite(pairs_P)]
    return float(pairs_P.mean()) if pairs_P.size else float("nan")
