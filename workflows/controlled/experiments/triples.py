"""Length 3, order by order: fig12 (and 13).

Shapes: A anchors, Y labels, C context tokens, T epochs.
"""

import numpy as np

from probes.pearson_probe import cross_validated_rho, fit_pearson, probed_rows
from probes.similarity import FloatArray, compare, cosine_matrix
from signatures.exact import label_signature
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.geometry import anchor_series, course, mean_cosine, views
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.settings import TRIPLES
from workflows.controlled.tasks import ControlledTask, TripleTask, built
from workflows.controlled.variables import controlled_dataset

_EPOCHS, _EPOCHS_QUICK = 1000, 100
_SHOWN = (10, 100, 1000)


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    epochs = _EPOCHS_QUICK if size == "quick" else _EPOCHS
    kept = [epoch for epoch in (0, 5, 10, 20, 50, 100, 200, 500, 1000) if epoch <= epochs]
    return {
        "triples": RunConfig(
            task=TripleTask(),
            batch_size=TRIPLES.changes["batch_size"],
            seed=inner,
            epochs=epochs,
            checkpoints=tuple(kept),
            evaluate_every=20,
        )
    }


def _analyse(inputs: Inputs) -> Findings:
    run = inputs.runs["triples"]
    task = built(run.config.task)
    epochs = run.kept_T.tolist()
    orders = {1: task.order_one(), 2: order_two(task)}
    found = _course(run, epochs, orders, quick=inputs.quick)
    shown = [epoch for epoch in _SHOWN if epoch in epochs]
    rows = {f"embedding, epoch {epoch}": run.embedding(epoch, task.anchors_A) for epoch in shown}
    late = anchor_series(run, shown[-1:])[0]
    for order, phi in orders.items():
        v_C = fit_pearson(phi, late)
        rows[f"order {order} at its v, epoch {shown[-1]}"] = probed_rows(phi, v_C)
    groups = {
        "anchors": views(rows, task.anchors_A),
        "course": controlled_dataset(
            {**course(run), **{name: (("epoch",), values) for name, values in found.items()}},
            {"epoch": ("epoch", epochs), "evaluated": ("evaluated", run.evaluated_E)},
        ),
    }
    places = {epoch: place for place, epoch in enumerate(epochs)}
    return Findings(groups=groups, claims=_claims(run, found, places, inputs))


def order_two(task: ControlledTask) -> FloatArray:
    """``P(y = v, x_J1 = b1, x_J2 = b2 | x_I = a)``, (A, Y, C, C)."""
    signature = label_signature(task.enumerated, 2, task.anchors_A)
    C, Y = task.contexts_C, task.labels
    shape = (len(task.anchors_A), task.enumerated.vocab_size, *(task.enumerated.vocab_size,) * 2)
    matrix = signature.sparse()
    columns = (C[:, None] * task.enumerated.vocab_size + C[None, :]).ravel()
    dense = matrix[:, columns].toarray().reshape(shape[0], shape[1], len(C), len(C))
    return np.asarray(dense[:, Y])


def _course(
    run: TrainedRun, epochs: list[int], orders: dict[int, FloatArray], *, quick: bool
) -> dict[str, FloatArray]:
    zero = cosine_matrix(built(run.config.task).order_zero())
    series = anchor_series(run, epochs)
    found = {
        "one_minus_mse_0": np.array([compare(one, zero).one_minus_mse for one in series]),
        "mean_cosine": np.array([mean_cosine(one) for one in series]),
    }
    for order, phi in orders.items():
        values = np.full(len(epochs), np.nan)
        for place, similarity in enumerate(series):
            if not quick or place == len(epochs) - 1:
                values[place] = cross_validated_rho(phi, similarity, over="anchors").mean()
        found[f"rho_{order}_anchors"] = values
    return found


def _claims(
    run: TrainedRun, found: dict[str, FloatArray], at: dict[int, int], inputs: Inputs
) -> list[Claim]:
    zero = found["one_minus_mse_0"]
    late = len(at) - 1
    untested = inputs.quick
    return [
        at_least("early, embeddings follow order 0, the same for all (1 - MSE, epoch 10)",
                 zero[at[10]], 0.9),
        at_most("order 0 is passed through (1 - MSE, epoch 100)", zero[at[100]], 0.5),
        at_least("late, order 1 fits on held-out anchors (rho)", found["rho_1_anchors"][late], 0.5,
                 tested=not untested),
        at_least("late, order 2 fits on held-out anchors (rho)", found["rho_2_anchors"][late], 0.5,
                 tested=not untested),
        at_least("the task is learned (accuracy, epoch 1000)", run.accuracy[-1], 0.95,
                 tested=not untested),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        id="fig12",
        title="Three tokens: orders 0, 1 and 2 one after the other",
        reading="y = 1 + (a1 + a2 + x) mod 40 over disjoint ranges of 20, 20 and 40 tokens; the "
        "anchors are the values of a1. Order 0 is the same for all of them (1 - MSE); order 1 is "
        "fitted by one number for each context token, order 2 by as many (phi_2 contracted with v "
        "twice), both scored on anchors they have not seen.",
        runs=_runs,
        analyse=_analyse,
    ),
)
