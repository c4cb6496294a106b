"""Embeddings fixed to signatures, fixed at random, or trained: fig8d."""

import numpy as np

from workflows.controlled.claims import at_least
from workflows.controlled.experiments.pairs import pair_run
from workflows.controlled.models import ModelConfig
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig
from workflows.controlled.tasks import PairTask
from workflows.controlled.variables import controlled_dataset

_KINDS = {"fixed signature": "fixed_signature", "fixed random": "fixed_random"}
_TRAINED = "trainable"
_GRID = np.arange(0, 1001, 10)


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    runs = {}
    for inner in inner_seeds(seed, 1 if size == "quick" else 5):
        for name, embedding in _KINDS.items():
            runs[f"{name} {inner}"] = RunConfig(
                task=PairTask(rule="mod", size=40),
                model=ModelConfig(embedding=embedding),  # type: ignore[arg-type]
                seed=inner,
                epochs=1000,
                evaluate_every=10,
                stop_accuracy=0.99,
            )
        runs[f"{_TRAINED} {inner}"] = pair_run("mod", inner)
    return runs


def _analyse(inputs: Inputs) -> Findings:
    kinds = [*_KINDS, _TRAINED]
    seeds = sorted({run.config.seed for run in inputs.runs.values()})
    runs = [[inputs.runs[f"{kind} {seed}"] for seed in seeds] for kind in kinds]
    epochs_KR = np.array([[run.first_epoch_at(0.95) for run in row] for row in runs])
    # A run that ended early was accurate: its curve goes on at its last value.
    curves = [[np.interp(_GRID, run.evaluated_E, run.accuracy) for run in row] for row in runs]
    group = controlled_dataset(
        {
            "accuracy": (("model", "run", "epoch"), curves),
            "epochs_to_95": (("model", "run"), epochs_KR),
        },
        {"model": ("model", kinds), "run": ("run", seeds), "epoch": ("epoch", _GRID)},
    )
    ordered = (np.diff(epochs_KR, axis=0) > 0).all(axis=0)
    claims = [
        at_least(
            "epochs to 95 %: fixed signatures before fixed random before trainable embeddings "
            "(share of seeds)",
            ordered.mean(),
            0.8,
            tested=not inputs.quick,
        )
    ]
    return Findings(groups={"kinds": group}, claims=claims)


EXPERIMENTS = (
    Experiment(
        id="fig8d",
        title="Embeddings fixed to order-1 signatures learn fastest",
        reading="Modular addition of 1..40. w_a = lambda R phi_1(a) v with R and v drawn once and "
        "only lambda trained, against random fixed rows and trained embeddings. Thin lines: "
        "seeds. Points: first evaluated epoch at 95 % accuracy.",
        runs=_runs,
        analyse=_analyse,
    ),
)
