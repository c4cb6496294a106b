"""Moduli that divide the number of tokens are slow: fig9."""

import numpy as np

from workflows.controlled.claims import at_least
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig
from workflows.controlled.tasks import PairTask
from workflows.controlled.variables import controlled_dataset

_SIZE = 20
_EPOCHS = 4000


def _moduli(size: Size) -> list[int]:
    return [7, 10, 13] if size == "quick" else list(range(3, _SIZE + 1))


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    return {
        f"M = {modulus}, seed {inner}": RunConfig(
            task=PairTask(rule="mod", size=_SIZE, modulus=modulus),
            seed=inner,
            epochs=_EPOCHS,
            evaluate_every=5,
            stop_accuracy=0.95,
        )
        for inner in inner_seeds(seed, 1 if size == "quick" else 3)
        for modulus in _moduli(size)
    }


def _analyse(inputs: Inputs) -> Findings:
    moduli = _moduli(inputs.size)
    seeds = sorted({run.config.seed for run in inputs.runs.values()})
    epochs_MR = np.array(
        [
            [inputs.runs[f"M = {modulus}, seed {seed}"].first_epoch_at(0.95) for seed in seeds]
            for modulus in moduli
        ]
    )
    divides_M = _SIZE % np.array(moduli) == 0
    ratio = np.median(epochs_MR[divides_M]) / np.median(epochs_MR[~divides_M])
    slowest_other = np.median(epochs_MR[~divides_M], axis=1).max()
    fastest_divisor = np.median(epochs_MR[divides_M], axis=1).min()
    group = controlled_dataset(
        {"epochs_to_95": (("modulus", "run"), epochs_MR)},
        {"modulus": ("modulus", moduli), "run": ("run", seeds)},
    ).assign_attrs(size=_SIZE)
    claims = [
        at_least("M that divides N = 20 is slow (median epochs to 95 % over those of the others)",
                 ratio, 4.0, tested=not inputs.quick),
        at_least("slow exactly there (fastest divisor over slowest other, medians over seeds)",
                 fastest_divisor / slowest_other, 1.0, tested=not inputs.quick),
    ]  # fmt: skip
    return Findings(groups={"moduli": group}, claims=claims)


EXPERIMENTS = (
    Experiment(
        id="fig9",
        title="Modular addition is slow where the modulus divides the number of tokens",
        reading="y = 1 + (x1 + x2) mod M over pairs of 1..20. Bars: median over seeds of the first "
        "evaluated epoch at 95 % accuracy; points: seeds. Dark: M divides 20, so that order 0 is "
        "the same for every token.",
        runs=_runs,
        analyse=_analyse,
    ),
)
