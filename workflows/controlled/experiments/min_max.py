"""The task that order-0 signatures solve by themselves: fig10.

Shapes: N samples, S tokens of the task, Y labels.
"""

import numpy as np

from probes.similarity import FloatArray, compare, cosine_matrix
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.geometry import views
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig
from workflows.controlled.settings import EARLY
from workflows.controlled.tasks import MinMaxTask, built
from workflows.controlled.variables import controlled_dataset


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    return {
        "min-max": RunConfig(
            task=MinMaxTask(), seed=inner, epochs=EARLY, checkpoints=(20, EARLY), evaluate_every=10
        )
    }


def _analyse(inputs: Inputs) -> Findings:
    run = inputs.runs["min-max"]
    assert isinstance(run.config.task, MinMaxTask)
    config, task = run.config.task, built(run.config.task)
    phi_SY = task.order_zero()[:, task.labels]
    wanted_SY = by_hand(config)
    rows = run.embedding(20, task.anchors_A)
    groups = {
        "tokens": views({"order-0 signature": phi_SY, "embedding, epoch 20": rows}, task.anchors_A),
        "probabilities": controlled_dataset(
            {"probability": (("token", "label"), phi_SY)},
            {"token": ("token", task.anchors_A), "label": ("label", task.labels)},
        ).assign_attrs(max_token=config.max_token, min_token=config.min_token),
    }
    rho = compare(cosine_matrix(rows), cosine_matrix(phi_SY)).pearson
    claims = [
        at_most("order-0 signatures are (2y-1)/N^2, (2(N-y)+1)/N^2 and 1/2 [y=x] + 1/(2N) "
                "(largest difference)", np.abs(phi_SY - wanted_SY).max(), 1e-15),
        _solved(config, wanted_SY),
        at_least("early embeddings take on their geometry (rho_0, epoch 20)", rho, 0.5),
    ]  # fmt: skip
    return Findings(groups=groups, claims=claims)


def by_hand(config: MinMaxTask) -> FloatArray:
    """Order-0 signatures of 1..N, of the token for max, of the token for min, (N + 2, N)."""
    y, N = np.arange(1, config.size + 1), config.size
    largest, smallest = (2 * y - 1) / N**2, (2 * (N - y) + 1) / N**2
    return np.vstack([np.eye(N) / 2 + 1 / (2 * N), largest, smallest])


def _solved(config: MinMaxTask, phi_SY: FloatArray) -> Claim:
    """Decide whether the label of the largest sum of three signatures is always the right one."""
    enumerated = built(config).enumerated
    sums_NY = phi_SY[enumerated.samples_NL - 1].sum(axis=1)
    right = int((1 + sums_NY.argmax(axis=1) == enumerated.labels_N).sum())
    return at_least(
        "the sum of the three signatures solves the task (accuracy)",
        right / len(enumerated.labels_N),
        1.0,
    )


EXPERIMENTS = (
    Experiment(
        id="fig10",
        title="Minimum and maximum: order-0 signatures add up to the answer",
        reading="(c, x1, x2) over 1..20, c asks for the larger or the smaller. Left, P(y | token): "
        "each x raises its own label by 1/2, the asking token tilts the rest. Right, cosines and "
        "principal components of signatures and of early embeddings.",
        runs=_runs,
        analyse=_analyse,
    ),
)
