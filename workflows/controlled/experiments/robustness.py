"""Where each claim about pairs holds and where it breaks: gamma x learning rate x seed.

This map is not in the paper.
"""

from collections.abc import Callable, Mapping

import numpy as np

from probes.similarity import FloatArray, compare, cosine_matrix
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.geometry import anchor_similarity, mean_cosine
from workflows.controlled.models import ModelConfig
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.settings import PAIR_EPOCHS
from workflows.controlled.tasks import PairTask, built
from workflows.controlled.variables import controlled_dataset

_GAMMAS = (0.5, 0.75, 1.0, 1.25)
_RATES = (5e-4, 1e-3, 2e-3, 4e-3)
_GAMMA, _RATE = 1.0, 2e-3  # the shared settings
_EARLY = (50, 100, 200, 400)
"""Early is any of these: a smaller learning rate takes the same course later."""


def _grid(size: Size) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Gammas, learning rates and the number of seeds."""
    return ((0.5, 1.0), (2e-3,), 1) if size == "quick" else (_GAMMAS, _RATES, 3)


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    gammas, rates, number = _grid(size)
    return {
        _name(rule, gamma, rate, inner): RunConfig(
            task=PairTask(rule=rule, size=40),
            model=ModelConfig(gamma=gamma),
            lr=rate,
            seed=inner,
            epochs=_EARLY[-1] if size == "quick" else PAIR_EPOCHS,
            checkpoints=_EARLY,
            evaluate_every=50,
            stop_accuracy=0.99 if rule == "mod" else None,
        )
        for rule in ("add", "mod")
        for gamma in gammas
        for rate in rates
        for inner in inner_seeds(seed, number)
    }


def _name(rule: str, gamma: float, rate: float, seed: int) -> str:
    return f"{rule}, gamma {gamma}, lr {rate}, seed {seed}"


def _rho_0(run: TrainedRun) -> FloatArray:
    zero = cosine_matrix(built(run.config.task).order_zero())
    epochs = run.kept_T.tolist()
    return np.array([compare(anchor_similarity(run, epoch), zero).pearson for epoch in epochs])


def _early_order_zero(add: TrainedRun, mod: TrainedRun) -> bool:
    return bool(np.nanmax(_rho_0(add)[: len(_EARLY)]) >= 0.95)


def _recedes(add: TrainedRun, mod: TrainedRun) -> bool:
    rho_T = _rho_0(add)
    return _early_order_zero(add, mod) and bool(rho_T[-1] <= rho_T.max() - 0.1)


def _collapses(add: TrainedRun, mod: TrainedRun) -> bool:
    size = len(built(mod.config.task).anchors_A)
    return any(
        mean_cosine(anchor_similarity(mod, epoch)) >= 0.9 and mod.accuracy_at(epoch) <= 2 / size
        for epoch in _EARLY
        if epoch in mod.kept_T  # a run that has learned ends
    )


def _learns(add: TrainedRun, mod: TrainedRun) -> bool:
    return bool(mod.accuracy[-1] >= 0.99)


_CLAIMS: Mapping[str, Callable[[TrainedRun, TrainedRun], bool]] = {
    "addition: early rho_0 of 0.95": _early_order_zero,
    "addition: order 0 recedes": _recedes,
    "modular addition: all point one way first": _collapses,
    "modular addition: learned": _learns,
}


def _analyse(inputs: Inputs) -> Findings:
    gammas, rates, number = _grid(inputs.size)
    seeds = inner_seeds(inputs.seed, number)
    holding = np.zeros((len(_CLAIMS), len(gammas), len(rates)))
    for row, gamma in enumerate(gammas):
        for column, rate in enumerate(rates):
            for seed in seeds:
                add, mod = (inputs.runs[_name(rule, gamma, rate, seed)] for rule in ("add", "mod"))
                held = [decide(add, mod) for decide in _CLAIMS.values()]
                holding[:, row, column] += np.array(held) / len(seeds)
    group = controlled_dataset(
        {"holding": (("claim", "gamma", "learning_rate"), holding)},
        {
            "claim": ("claim", list(_CLAIMS)),
            "gamma": ("gamma", list(gammas)),
            "learning_rate": ("learning_rate", list(rates)),
        },
    ).assign_attrs(num_seeds=number, shared_gamma=_GAMMA, shared_learning_rate=_RATE)
    return Findings(groups={"map": group}, claims=_claims(holding, inputs))


def _claims(holding: FloatArray, inputs: Inputs) -> list[Claim]:
    gammas, rates, _ = _grid(inputs.size)
    shared = holding[:, gammas.index(_GAMMA), rates.index(_RATE)]
    tested = not inputs.quick
    at_shared = [
        at_least(f"{name} (share of seeds at the shared settings)", share, 1.0, tested=tested)
        for name, share in zip(_CLAIMS, shared, strict=True)
    ]
    everywhere = int((holding[:, gammas.index(_GAMMA)].min(axis=1) == 1).sum())
    return [
        *at_shared,
        at_least("gamma 1.0: claims that hold for every seed at every learning rate of the map "
                 "(of the four)", everywhere, len(_CLAIMS), tested=tested),
        at_most("without small initialisation (gamma 0.5) the embeddings of modular addition do "
                "not point one way first (share)", holding[2, 0].mean(), 0.5, tested=tested),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        id="robustness",
        title="Where the claims about pairs hold: gamma, learning rate, seed",
        reading="Each map is one claim; a cell is the share of seeds for which it holds. Early is "
        "any of epochs 50, 100, 200 and 400. Framed: the shared settings.",
        runs=_runs,
        analyse=_analyse,
    ),
)
