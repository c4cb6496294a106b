"""Rows side by side: similarity and principal components of embeddings and signatures.

Shapes: n tokens, H features, T epochs.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from probes.components import Components, principal_components
from probes.similarity import (
    FloatArray,
    Rows,
    cosine_matrix,
    is_constant,
    off_diagonal,
    unit_rows,
)
from workflows.controlled.runs import TrainedRun
from workflows.controlled.tasks import IntArray, built
from workflows.controlled.variables import controlled_dataset

NUM_COMPONENTS = 3


def views(
    rows: Mapping[str, Rows], tokens_n: IntArray, *, place: Sequence[int] | IntArray | None = None
) -> xr.Dataset:
    """Cosines and principal components of several sets of rows of the same tokens.

    ``place`` colours the tokens: their number unless given. Components are those of the rows at
    length 1, the geometry that cosines see.
    """
    cosines = [cosine_matrix(one) for one in rows.values()]
    parts = [
        _components(one, cosines_nn) for one, cosines_nn in zip(rows.values(), cosines, strict=True)
    ]
    return controlled_dataset(
        {
            "similarity": (("view", "token", "token_2"), cosines),
            "pca": (("view", "token", "component"), [part.coordinates for part in parts]),
            "explained_variance": (("view", "component"), [part.explained for part in parts]),
            "place": (("token",), tokens_n if place is None else np.asarray(place)),
        },
        {
            "view": ("view", list(rows)),
            "token": ("token", tokens_n),
            "token_2": ("token_2", tokens_n),
            "component": ("component", 1 + np.arange(NUM_COMPONENTS)),
        },
    )


def _components(rows_nH: Rows, cosines_nn: FloatArray) -> Components:
    """Leading components; one point, and no share of variance, where all rows are parallel."""
    if is_constant(np.append(off_diagonal(cosines_nn), 1.0)):
        return Components(
            coordinates=np.zeros((len(cosines_nn), NUM_COMPONENTS)),
            explained=np.full(NUM_COMPONENTS, np.nan),
        )
    return principal_components(unit_rows(rows_nH), NUM_COMPONENTS)


def anchor_similarity(run: TrainedRun, epoch: int) -> FloatArray:
    """Cosines of the anchors' embeddings after ``epoch`` epochs, (A, A)."""
    return cosine_matrix(run.embedding(epoch, built(run.config.task).anchors_A))


def anchor_series(run: TrainedRun, epochs: Sequence[int]) -> FloatArray:
    """Cosines of the anchors' embeddings at several epochs, (T, A, A)."""
    return np.stack([anchor_similarity(run, epoch) for epoch in epochs])


def mean_cosine(similarity_nn: FloatArray) -> float:
    """Mean cosine of different tokens: 1 when all embeddings point one way."""
    return float(off_diagonal(similarity_nn).mean())


def course(run: TrainedRun) -> dict[str, tuple[tuple[str, ...], FloatArray]]:
    """Loss and accuracy at every evaluation."""
    return {
        "training_loss": (("evaluated",), run.loss_E),
        "accuracy": (("evaluated",), run.accuracy),
    }
