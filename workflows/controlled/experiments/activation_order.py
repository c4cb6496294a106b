"""The activation's degree against the length of the samples, fig5."""

import numpy as np

from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.geometry import anchor_similarity, mean_cosine
from workflows.controlled.models import ModelConfig, monomial
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig
from workflows.controlled.settings import ACTIVATION_ORDER
from workflows.controlled.tasks import SumTask, built
from workflows.controlled.variables import controlled_dataset

_DEGREES = range(1, 7)
_LENGTHS = (2, 3, 4)
_EPOCHS = 1000
_TOKENS, _TOKENS_QUICK = 50, 20


def _tested(size: Size) -> tuple[int, ...]:
    """Lengths that are trained: the column of 292,825 multisets takes hours."""
    return {"quick": (2,), "standard": (2, 3), "full": _LENGTHS}[size]


def _runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    changes = ACTIVATION_ORDER.changes
    tokens = _TOKENS_QUICK if size == "quick" else _TOKENS
    return {
        _name(length, degree): RunConfig(
            task=SumTask(length=length, size=tokens),
            model=ModelConfig(coefficients=monomial(degree), gamma=changes["gamma"]),
            batch_size=changes["batch_size"],
            lr=changes["lr"],
            seed=inner,
            epochs=_EPOCHS,
            evaluate_every=5,
            stop_accuracy=0.999,
        )
        for length in _tested(size)
        for degree in _DEGREES
    }


def _name(length: int, degree: int) -> str:
    return f"L = {length}, K = {degree}"


def _analyse(inputs: Inputs) -> Findings:
    lengths = _tested(inputs.size)
    tokens = built(next(iter(inputs.runs.values())).config.task).anchors_A
    shape = (len(lengths), len(_DEGREES))
    accuracy, collapse = np.zeros(shape), np.zeros(shape)
    similarity = np.zeros((*shape, len(tokens), len(tokens)))
    for row, length in enumerate(lengths):
        for column, degree in enumerate(_DEGREES):
            run = inputs.runs[_name(length, degree)]
            accuracy[row, column] = run.accuracy.max()
            similarity[row, column] = anchor_similarity(run, int(run.kept_T[-1]))
            collapse[row, column] = mean_cosine(similarity[row, column])
    cells = ("length", "degree")
    group = controlled_dataset(
        {
            "best_accuracy": (cells, accuracy),
            "mean_cosine": (cells, collapse),
            "similarity": ((*cells, "token", "token_2"), similarity),
        },
        {
            "length": ("length", list(lengths)),
            "degree": ("degree", list(_DEGREES)),
            "token": ("token", tokens),
            "token_2": ("token_2", tokens),
        },
    )
    best = {length: accuracy[row] for row, length in enumerate(lengths)}
    claims = [claim for length in _LENGTHS for claim in _claims(length, best.get(length))]
    return Findings(groups={"degrees": group}, claims=claims)


def _claims(length: int, best_K: np.ndarray | None) -> list[Claim]:
    """Both halves of the claim for one length; not tested without its runs."""
    tested = best_K is not None
    found = best_K if best_K is not None else np.full(len(_DEGREES), np.nan)
    fails, learns = found[: length - 1], found[length - 1 :]
    return [
        at_most(f"L = {length}: sigma(z) = z^K does not learn for K < L (best accuracy)",
                fails.max(), 0.1, tested=tested),
        at_least(f"L = {length}: sigma(z) = z^K learns for K >= L (worst of the best accuracies)",
                 learns.min(), 0.99, tested=tested),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        id="fig5",
        title="An activation of degree K learns sums of at most K tokens",
        reading="y = 1 + sum mod N of L tokens, sigma(z) = z^K. Numbers: best accuracy over the "
        "run; pictures: cosines of the embeddings at its end. Full batches of multisets, ended at "
        "accuracy 0.999.",
        runs=_runs,
        analyse=_analyse,
    ),
)
