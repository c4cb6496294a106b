"""The staircase seen in the gradient itself: the share of each order along a training run.

Two shares, each a Frobenius norm over tokens and coordinates: of the label-driven part
(arXiv:2608.30315, Theorem 1), and of the whole flow, in which an order fades once the model
predicts what it says. An order that is the largest in the whole flow is what is being learned.

Tasks: the sum modulo 12 of three tokens of 1..8, whose signatures of every order differ, and
modular addition of two, whose order-0 signatures are all alike.

Shapes: T epochs, M orders, S tasks.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import xarray as xr

from workflows.controlled.ffn_flow import (
    PolynomialFFN,
    TaskSignatures,
    label_driven_orders,
    order_shares,
    residual_orders,
)
from workflows.controlled.models import ModelConfig
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.tasks import PairTask, SumTask, TaskConfig, built
from workflows.controlled.training import train
from workflows.controlled.variables import controlled_dataset

FloatArray = npt.NDArray[np.float64]

SUM_OF_THREE, MODULAR = "sum of three modulo 12", "sum of two modulo 20"
NUM_ORDERS = 3


def shares_along_training(seed: int, quick: bool) -> xr.Dataset:
    """Train both tasks and take the flow apart at about 60 epochs of each.

    ``quick`` ends after 700 epochs, about when order 1 takes over on the sum of two.
    See `shares_of_runs` for what is returned.
    """
    return shares_of_runs(
        {name: train([config])[0] for name, config in share_runs(seed, quick).items()}
    )


def share_runs(seed: int, quick: bool) -> Mapping[str, RunConfig]:
    """Return the runs by task: sigma(z) = z + .. + z^L, full batch, float64, shared settings."""
    tasks: Mapping[str, TaskConfig] = {
        SUM_OF_THREE: SumTask(length=3, size=8, modulus=12),
        MODULAR: PairTask(rule="mod", size=20),
    }
    epochs = 700 if quick else 1200
    return {
        name: RunConfig(
            task=task,
            model=ModelConfig(coefficients=(1.0,) * built(task).enumerated.length),
            seed=seed,
            epochs=epochs,
            batch_size=None,
            dtype="float64",
            checkpoints=(*range(0, 100, 5), *range(100, epochs + 1, 25)),
            evaluate_every=5,
        )
        for name, task in tasks.items()
    }


def shares_of_runs(runs: Mapping[str, TrainedRun]) -> xr.Dataset:
    """Take the flow of trained polynomial FFNs apart at every epoch that was kept.

    Returns
    -------
    ``share`` and ``flow_share`` (rule, epoch, order), NaN at orders that a task does not have;
    ``training_loss``, ``accuracy`` and ``norm`` (rule, epoch), the last a mean over the tokens that
    occur; ``takeover_epoch`` (rule, order), see `takeover_epochs`. The runs must have kept the
    same epochs.
    """
    courses = {name: _course(run) for name, run in runs.items()}
    epochs_T = next(iter(runs.values())).kept_T
    stacked = {
        variable: np.stack([course[variable] for course in courses.values()])
        for variable in next(iter(courses.values()))
    }
    takeover = [takeover_epochs(shares_TM, epochs_T) for shares_TM in stacked["flow_share"]]
    by_order = {"share", "flow_share"}
    return controlled_dataset(
        {
            **{
                name: (("rule", "epoch", "order") if name in by_order else ("rule", "epoch"), rows)
                for name, rows in stacked.items()
            },
            "takeover_epoch": (("rule", "order"), np.stack(takeover)),
        },
        {
            "rule": ("rule", list(runs)),
            "epoch": ("epoch", epochs_T),
            "order": ("order", np.arange(NUM_ORDERS)),
        },
    )


def takeover_epochs(shares_TM: FloatArray, epochs_T: npt.NDArray[np.int64]) -> FloatArray:
    """First epoch at which each order is the largest, (M,); NaN for one that never is."""
    largest_T = np.nanargmax(shares_TM, axis=1)
    first_M = np.full(shares_TM.shape[1], np.nan)
    for order in np.unique(largest_T):
        first_M[order] = epochs_T[int(np.argmax(largest_T == order))]
    return first_M


def flow_shares(signatures: TaskSignatures, model: PolynomialFFN) -> tuple[FloatArray, FloatArray]:
    """Share of each order in the label-driven part and in the whole flow, (M,) each."""
    return (
        order_shares(label_driven_orders(signatures, model)),
        order_shares(residual_orders(signatures, model)),
    )


def _course(run: TrainedRun) -> Mapping[str, FloatArray]:
    """Everything measured at the epochs kept, (T) or (T, M)."""
    task = built(run.config.task)
    coefficients = run.config.model.coefficients
    signatures = TaskSignatures.of(task.enumerated, len(coefficients))
    models = [
        PolynomialFFN(
            embedding_VH=embedding, unembedding_VH=unembedding, coefficients_K=coefficients
        )
        for embedding, unembedding in zip(
            run.parameters["embedding"], run.parameters["unembedding"], strict=True
        )
    ]
    shares_T = [flow_shares(signatures, model) for model in models]
    evaluated_T = [int(np.flatnonzero(run.evaluated_E == epoch)[0]) for epoch in run.kept_T]
    rows = [model.embedding_VH[task.anchors_A] for model in models]
    return {
        "share": _padded([label for label, _ in shares_T]),
        "flow_share": _padded([whole for _, whole in shares_T]),
        "training_loss": run.loss_E[evaluated_T],
        "accuracy": run.accuracy[evaluated_T],
        "norm": np.array([np.linalg.norm(one, axis=1).mean() for one in rows]),
    }


def _padded(shares_T: Sequence[FloatArray]) -> FloatArray:
    """Stack, with NaN at the orders that the task lacks, (T, M)."""
    shares_TM = np.full((len(shares_T), NUM_ORDERS), np.nan)
    shares_TM[:, : len(shares_T[0])] = np.stack(shares_T)
    return shares_TM
