"""Prescribed label laws, fig2a: what softmax(W_U w_a) makes of them.

Shapes: Y labels.
"""

from typing import get_args

import numpy as np

from probes.similarity import FloatArray, pearson
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.settings import LAWS
from workflows.controlled.tasks import Law, LawTask, built
from workflows.controlled.variables import controlled_dataset

_EPOCHS = 200


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    return {
        law: RunConfig(
            task=LawTask(law=law, seed=inner),
            batch_size=LAWS.changes["batch_size"],
            seed=inner,
            epochs=_EPOCHS,
            evaluate_every=20,
        )
        for law in get_args(Law)
    }


def _analyse(inputs: Inputs) -> Findings:
    laws = {law: _measured(run) for law, run in inputs.runs.items()}
    numbers = {name: [float(one[name]) for one in laws.values()]
               for name in ("r", "r_drawn", "kl", "kl_drawn", "jsd", "jsd_drawn")}  # fmt: skip
    curves = {name: [one[name] for one in laws.values()]
              for name in ("label_probability", "drawn_share", "model_probability")}  # fmt: skip
    group = controlled_dataset(
        {
            **{name: (("law", "label"), rows) for name, rows in curves.items()},
            **{name: (("law",), values) for name, values in numbers.items()},
        },
        {"law": ("law", list(laws)), "label": ("label", np.arange(len(curves["drawn_share"][0])))},
    )
    claims = [claim for law, one in laws.items() for claim in _claims(law, one)]
    return Findings(groups={"laws": group}, claims=claims)


def _measured(run: TrainedRun) -> dict[str, FloatArray]:
    """Compare the model's law of labels with the one prescribed and the one drawn."""
    assert isinstance(run.config.task, LawTask)
    law_Y = run.config.task.probabilities()
    labels_N = built(run.config.task).enumerated.labels_N
    drawn_Y = np.bincount(labels_N, minlength=len(law_Y)) / len(labels_N)
    checkpoint = run.checkpoint(_EPOCHS)
    w_H = checkpoint.input_embedding(np.array([run.config.task.anchor]))[0].astype(np.float64)
    scores_Y = checkpoint.unembedding(np.arange(len(law_Y))).astype(np.float64) @ w_H
    model_Y = np.exp(scores_Y - scores_Y.max())
    model_Y /= model_Y.sum()
    return {
        "label_probability": law_Y,
        "drawn_share": drawn_Y,
        "model_probability": model_Y,
        "r": np.array(pearson(law_Y, model_Y)),
        "r_drawn": np.array(pearson(drawn_Y, model_Y)),
        "kl": np.array(kl_divergence(law_Y, model_Y)),
        "kl_drawn": np.array(kl_divergence(drawn_Y, model_Y)),
        "jsd": np.array(jensen_shannon(law_Y, model_Y)),
        "jsd_drawn": np.array(jensen_shannon(drawn_Y, model_Y)),
    }


def kl_divergence(p_Y: FloatArray, q_Y: FloatArray) -> float:
    """Return the sum of p log(p / q), nats; terms of p = 0 are 0."""
    kept = p_Y > 0
    return float((p_Y[kept] * np.log(p_Y[kept] / q_Y[kept])).sum())


def jensen_shannon(p_Y: FloatArray, q_Y: FloatArray) -> float:
    """Return the mean KL divergence from the mean of both, nats; at most log 2."""
    mean_Y = (p_Y + q_Y) / 2
    return (kl_divergence(p_Y, mean_Y) + kl_divergence(q_Y, mean_Y)) / 2


def _claims(law: str, found: dict[str, FloatArray]) -> list[Claim]:
    close = at_most(
        f"{law} law: softmax(W_U w_a) is close to the law (Jensen-Shannon divergence, nats)",
        float(found["jsd"]),
        0.1,
    )
    if law == "uniform":
        return [close]
    alike = f"{law} law: softmax(W_U w_a) follows the law (r over labels)"
    return [at_least(alike, float(found["r"]), 0.95), close]


EXPERIMENTS = (
    Experiment(
        id="fig2a",
        title="One token's embedding takes on a prescribed law of labels",
        reading="Token 100 stands in every sample, beside all pairs of 0..50; labels are drawn "
        "once from a law. Bars: the law; line: the share drawn; points: softmax(W_U w_100) after "
        "200 epochs. r of a constant law is undefined; r of the exponential law says little, since "
        "0.993 of its mass is on 0.",
        runs=_runs,
        analyse=_analyse,
    ),
)
