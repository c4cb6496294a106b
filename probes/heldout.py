"""What a trained v is worth: scores on held-out anchors, next to controls that no training made.

Shapes: A anchors, R rows of the sketch, C columns that v weighs, N vectors v.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probes.fitting import Fit, SketchArray, Vectors, fit_together
from probes.measure import Measured
from probes.projection import ProjectionOptions, Split, constant_mse, make_splits, score
from probes.similarity import FloatArray, Rows

Exact = Callable[[Vectors], Sequence[Rows]]
"""From vectors (N, C) to what each makes of the anchors, N arrays (A, V), in one pass."""


def heldout_scores(
    sketch_ARC: SketchArray,
    similarity_AA: FloatArray,
    *,
    exact: Exact,
    controls: Mapping[str, Vectors],
    options: ProjectionOptions,
    before: Measured | None = None,
) -> Measured:
    """Fit v on every split, and score it and the controls exactly, arrays of one value a split.

    The control ``shuffled`` is fitted as v is, to anchors that exchanged their similarities. What
    was fitted is ``vectors``, (2N, C), the shuffled ones last: with ``options.warm_start`` the fits
    start from those of ``before``, the scores of the checkpoint before.
    """
    splits = make_splits(len(similarity_AA), options)
    fits = [Fit(similarity=similarity_AA, training=split.training) for split in splits]
    fits += [
        Fit(similarity=_shuffled(similarity_AA, number), training=split.training)
        for number, split in enumerate(splits)
    ]
    warm_NC = before["vectors"] if before is not None and options.warm_start else None
    fitted_NC = fit_together(sketch_ARC, fits, options=options, before=warm_NC)
    projected = exact(np.concatenate([fitted_NC, *(v[None] for v in controls.values())]))
    rows = []
    for number, split in enumerate(splits):
        sketched = np.einsum("arc,c->ar", sketch_ARC, fitted_NC[number]).astype(np.float64)
        row = _fitted(projected[number], similarity_AA, split)
        row["sketch_mse"] = score(sketched, similarity_AA, split.held_out)[0]
        others = {"shuffled": projected[len(splits) + number]}
        others |= dict(zip(controls, projected[len(fits) :], strict=True))
        for name, other in others.items():
            row[f"{name}_mse"] = score(other, similarity_AA, split.held_out)[0]
        rows.append(row)
    scores = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return scores | {"vectors": fitted_NC}


def _fitted(projected_AV: Rows, similarity_AA: FloatArray, split: Split) -> dict[str, float]:
    held_out, rho = score(projected_AV, similarity_AA, split.held_out)
    return {
        "heldout_mse": held_out,
        "heldout_rho": rho,
        "training_mse": score(projected_AV, similarity_AA, split.training)[0],
        "baseline_mse": constant_mse(similarity_AA, split),
    }


def _shuffled(similarity_AA: FloatArray, seed: int) -> FloatArray:
    """Give every anchor the similarities of another: what fitting finds where nothing is."""
    order = np.random.default_rng(seed).permutation(len(similarity_AA))
    return np.asarray(similarity_AA[np.ix_(order, order)])
