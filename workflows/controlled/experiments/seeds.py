"""Ten seeds, ten frequencies: fig14 (and 15).

Shapes: R runs, K frequencies.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from probes.fourier import best_frequency, fourier_rho, fourier_rows
from probes.similarity import FloatArray
from workflows.controlled.claims import Claim, at_least
from workflows.controlled.experiments.pairs import pair_run
from workflows.controlled.geometry import anchor_similarity, views
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.tasks import built
from workflows.controlled.variables import controlled_dataset

_EPOCH = 1000
_AFTER_LEARNING = 600
"""Soon after modular addition is learned: the frequency shows best, later it fades."""
_CUT = 10
"""The paper looks at k > 10 only."""


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    number = 2 if size == "quick" else 10
    return {
        f"{rule} {inner}": pair_run(rule, inner)
        for rule in ("add", "mod")
        for inner in inner_seeds(seed, number)
    }


def _analyse(inputs: Inputs) -> Findings:
    groups: dict[str, xr.Dataset] = {}
    claims: list[Claim] = []
    for rule in ("add", "mod"):
        runs = [run for name, run in inputs.runs.items() if name.startswith(rule)]
        groups[rule] = _frequencies(runs)
        for run in runs:
            groups[f"{rule}_{run.config.seed}"] = _views(run)
        claims += _claims(rule, groups[rule], inputs)
    return Findings(groups=groups, claims=claims)


def _rho(run: TrainedRun, epoch: int) -> FloatArray:
    return fourier_rho(built(run.config.task).order_one(), anchor_similarity(run, epoch))


def _frequencies(runs: Sequence[TrainedRun]) -> xr.Dataset:
    rho_RK = np.array([_rho(run, _EPOCH) for run in runs])
    return controlled_dataset(
        {
            "rho_k": (("run", "frequency"), rho_RK),
            "best_k": (("run",), [best_frequency(rho_K) for rho_K in rho_RK]),
            "best_k_above_10": (("run",), [best_frequency(rho_K, above=_CUT) for rho_K in rho_RK]),
        },
        {
            "run": ("run", [run.config.seed for run in runs]),
            "frequency": ("frequency", np.arange(rho_RK.shape[1])),
        },
    )


def _views(run: TrainedRun) -> xr.Dataset:
    """Embeddings soon after learning, beside the signature at their best frequency."""
    task = built(run.config.task)
    best = best_frequency(_rho(run, _AFTER_LEARNING))
    assert best is not None, "k = 1 is defined for every task of pairs"
    return views(
        {
            f"seed {run.config.seed}, epoch {_AFTER_LEARNING}": run.embedding(
                _AFTER_LEARNING, task.anchors_A
            ),
            f"signature, k = {best}": fourier_rows(task.order_one())[best],
        },
        task.anchors_A,
    )


def _claims(rule: str, found: xr.Dataset, inputs: Inputs) -> list[Claim]:
    name = "addition" if rule == "add" else "modular addition"
    return [
        at_least(
            f"{name}: the frequency on top differs by seed (different k* of ten seeds, {cut})",
            len(np.unique(found[variable].values)),
            3,
            tested=not inputs.quick,
        )
        for cut, variable in ((f"k > {_CUT}", "best_k_above_10"), ("k >= 1", "best_k"))
    ]


EXPERIMENTS = (
    Experiment(
        id="fig14",
        title="Which frequency wins is up to the seed",
        reading="Pairs of 1..40. Heat maps: rho_k at epoch 1000, a row for each seed, a mark on "
        "the largest (k > 10, the paper's cut: square; k >= 1: circle). Scatter plots: embeddings "
        "at epoch 600 beside the signature at the frequency that fits them best.",
        runs=_runs,
        analyse=_analyse,
    ),
)
