"""Tasks over pairs: fig2b, fig3 (fig1 is its addition half) and fig4.

Shapes: A anchors, T epochs, K frequencies.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from probes.fourier import best_frequency, fourier_rho, fourier_rows
from probes.pearson_probe import cross_validated_rho, fit_pearson
from probes.semantics import Score, WordSet, structure_score
from probes.similarity import FloatArray, compare, cosine_matrix
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.geometry import (
    anchor_series,
    anchor_similarity,
    course,
    mean_cosine,
    views,
)
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.settings import (
    EARLY,
    LATE,
    MULTIPLICATION,
    PAIR_CHECKPOINTS,
    PAIR_EPOCHS,
)
from workflows.controlled.tasks import IntArray, PairTask, built
from workflows.controlled.variables import controlled_dataset

_RULES = ("add", "mod")
_RHO_0 = {"add": 0.95, "sub": 0.85, "mul": 0.75}
_MEASURED = ("mean_cosine", "rho_0", "mse_0", "rho_1", "mse_1", "rho_1_pairs", "rho_1_anchors")
_NAMES = {"add": "addition", "sub": "absolute difference", "mul": "multiplication",
          "mod": "modular addition"}  # fmt: skip


def pair_run(rule: str, seed: int) -> RunConfig:
    """Forty tokens for 1200 epochs: the run that fig3, fig4, fig8a, fig8d and fig14 share."""
    return RunConfig(
        task=PairTask(rule=rule, size=40),  # type: ignore[arg-type]
        seed=seed,
        epochs=PAIR_EPOCHS,
        checkpoints=PAIR_CHECKPOINTS,
        evaluate_every=10,
    )


def _pair_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    return {rule: pair_run(rule, inner_seeds(seed, 1)[0]) for rule in _RULES}


def _order_zero_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    tasks = {
        "add": PairTask(rule="add", size=20),
        "sub": PairTask(rule="sub", size=20),
        "mul": PairTask(rule="mul", size=20, **MULTIPLICATION.changes),
    }
    return {
        rule: RunConfig(task=task, seed=inner, epochs=EARLY, evaluate_every=10)
        for rule, task in tasks.items()
    }


def _order_zero(inputs: Inputs) -> Findings:
    groups, claims = {}, []
    for rule, run in inputs.runs.items():
        task = built(run.config.task)
        rows = run.embedding(EARLY, task.anchors_A)
        place = _odd_parts(task.anchors_A) if rule == "mul" else task.anchors_A
        group = views(
            {f"embedding, epoch {EARLY}": rows, "order-0 signature": task.order_zero()},
            task.anchors_A,
            place=place,
        )
        found = compare(group["similarity"].values[0], group["similarity"].values[1])
        groups[rule] = group.assign(
            controlled_dataset({"rho_0": ((), found.pearson), "spearman": ((), found.spearman)}, {})
        )
        claims.append(
            at_least(
                f"{_NAMES[rule]}: early embeddings have the geometry of order-0 signatures (rho_0)",
                found.pearson,
                _RHO_0[rule],
            )
        )
    return Findings(groups=groups, claims=[*claims, *_odd_part_claims(inputs.runs["mul"])])


def _odd_part_claims(run: TrainedRun) -> list[Claim]:
    """Numbers of one odd part, {1,2,4,8,16} {3,6,12} {5,10,20}, lie together."""
    task = built(run.config.task)
    tokens = np.array([1, 2, 4, 8, 16, 3, 6, 12, 5, 10, 20])
    chosen = np.searchsorted(task.anchors_A, tokens)
    odd = WordSet(name="odd part", kind="category", tokens=tokens, places=_odd_parts(tokens))
    scored = {
        "order-0 signatures": task.order_zero()[chosen],
        "early embeddings": run.embedding(EARLY, tokens),
    }
    return [
        at_most(
            f"multiplication: {name} cluster by odd part (permutation p of the silhouette)",
            structure_score(rows, odd).p,
            0.05,
        )
        for name, rows in scored.items()
    ]


def _odd_parts(tokens: IntArray) -> IntArray:
    """Each number without its factors of two."""
    return np.asarray(tokens // (tokens & -tokens))


def _early_and_late(inputs: Inputs) -> Findings:
    groups: dict[str, xr.Dataset] = {}
    claims: list[Claim] = []
    for rule, run in inputs.runs.items():
        epochs = _probed_epochs(inputs.quick)
        series = anchor_series(run, epochs)
        measured = _orders(run, series, quick=inputs.quick)
        groups[rule] = _rule_views(run)
        groups[f"{rule}_course"] = controlled_dataset(
            {**course(run), **{name: (("epoch",), values) for name, values in measured.items()}},
            {"epoch": ("epoch", epochs), "evaluated": ("evaluated", run.evaluated_E)},
        )
        at = {epoch: place for place, epoch in enumerate(epochs)}
        decide = _add_claims if rule == "add" else _mod_claims
        claims += decide(run, measured, at, quick=inputs.quick)
    return Findings(groups=groups, claims=claims)


def _probed_epochs(quick: bool) -> list[int]:
    return [0, EARLY, LATE] if quick else [0, 50, *range(100, PAIR_EPOCHS + 1, 100)]


def _orders(run: TrainedRun, series: FloatArray, *, quick: bool) -> dict[str, FloatArray]:
    """How far the embeddings follow order 0, and order 1 by a probe v, at every epoch."""
    task = built(run.config.task)
    zero, phi_AYC = cosine_matrix(task.order_zero()), task.order_one()
    found = {name: np.full(len(series), np.nan) for name in _MEASURED}
    for place, similarity in enumerate(series):
        order_zero = compare(similarity, zero)
        fitted = compare(similarity, cosine_matrix(phi_AYC @ fit_pearson(phi_AYC, similarity)))
        found["mean_cosine"][place] = mean_cosine(similarity)
        found["rho_0"][place], found["mse_0"][place] = order_zero.pearson, order_zero.mse
        found["rho_1"][place], found["mse_1"][place] = fitted.pearson, fitted.mse
        if not quick:
            for over in ("pairs", "anchors"):
                rho = cross_validated_rho(phi_AYC, similarity, over=over)
                found[f"rho_1_{over}"][place] = rho.mean()
    return found


def _rule_views(run: TrainedRun) -> xr.Dataset:
    task = built(run.config.task)
    phi_AYC = task.order_one()
    v_C = fit_pearson(phi_AYC, anchor_similarity(run, LATE))
    return views(
        {
            f"embedding, epoch {EARLY}": run.embedding(EARLY, task.anchors_A),
            "order-0 signature": task.order_zero(),
            f"embedding, epoch {LATE}": run.embedding(LATE, task.anchors_A),
            f"order-1 signature, v of epoch {LATE}": phi_AYC @ v_C,
        },
        task.anchors_A,
    )


def _add_claims(
    run: TrainedRun, found: Mapping[str, FloatArray], at: Mapping[int, int], *, quick: bool
) -> list[Claim]:
    return [
        at_least("addition: early embeddings have the geometry of order-0 signatures (rho_0)",
                 found["rho_0"][at[EARLY]], 0.95),
        at_most("addition: the order-0 geometry recedes (late rho_0 less early rho_0)",
                found["rho_0"][at[LATE]] - found["rho_0"][at[EARLY]], -0.05),
        at_least("addition: late, order 1 fits better than order 0 "
                 "(rho_1 on held-out anchors less rho_0)",
                 found["rho_1_anchors"][at[LATE]] - found["rho_0"][at[LATE]], 0.0,
                 tested=not quick),
        at_most("addition: late, odd and even numbers part (permutation p of the silhouette)",
                _parity_score(run, LATE).p, 0.05),
        at_least("addition is learned (accuracy, epoch 1200)", run.accuracy[-1], 0.99),
    ]  # fmt: skip


def _mod_claims(
    run: TrainedRun, found: Mapping[str, FloatArray], at: Mapping[int, int], *, quick: bool
) -> list[Claim]:
    size = len(built(run.config.task).anchors_A)
    return [
        at_least("modular addition: early, all embeddings point one way, as order 0 asks "
                 "(mean cosine)", found["mean_cosine"][at[EARLY]], 0.9),
        at_least("modular addition: 1 - MSE against order 0, early",
                 1 - found["mse_0"][at[EARLY]], 0.95),
        at_most(f"modular addition: nothing is learned while they do (accuracy, epoch {EARLY})",
                run.accuracy_at(EARLY), 2 / size),
        at_least("modular addition is learned afterwards (accuracy, epoch 1200)",
                 run.accuracy[-1], 0.99),
        at_least(f"modular addition: late, order 1 fits on held-out anchors (rho_1, epoch {LATE})",
                 found["rho_1_anchors"][at[LATE]], 0.5, tested=not quick),
    ]  # fmt: skip


def _parity_score(run: TrainedRun, epoch: int) -> Score:
    """How far embeddings of one parity lie together, apart from those of the other."""
    tokens = built(run.config.task).anchors_A
    parity = WordSet(name="parity", kind="category", tokens=tokens, places=tokens % 2)
    return structure_score(run.embedding(epoch, tokens), parity)


def _frequencies(inputs: Inputs) -> Findings:
    groups: dict[str, xr.Dataset] = {}
    rho = {}
    for rule, run in inputs.runs.items():
        task = built(run.config.task)
        epochs = list(range(0, PAIR_EPOCHS + 1, EARLY))
        phi_AYC = task.order_one()
        rho_TK = fourier_rho(phi_AYC, anchor_series(run, epochs))
        groups[f"{rule}_frequencies"] = controlled_dataset(
            {"rho_k": (("epoch", "frequency"), rho_TK)},
            {"epoch": ("epoch", epochs), "frequency": ("frequency", np.arange(rho_TK.shape[1]))},
        )
        rho[rule] = dict(zip(epochs, rho_TK, strict=True))
        groups[rule] = _frequency_views(run, phi_AYC, rho[rule])
    return Findings(groups=groups, claims=_frequency_claims(rho))


def _frequency_views(
    run: TrainedRun, phi_AYC: FloatArray, rho: Mapping[int, FloatArray]
) -> xr.Dataset:
    """Embeddings early and late, each beside the signature at its best frequency."""
    task = built(run.config.task)
    rows = {}
    for epoch in (EARLY, 1000):
        rows[f"embedding, epoch {epoch}"] = run.embedding(epoch, task.anchors_A)
        best = best_frequency(rho[epoch], above=-1)
        assert best is not None, "k = 1 is defined for every task of pairs"
        rows[f"signature at k = {best}, best at epoch {epoch}"] = fourier_rows(phi_AYC)[best]
    return views(rows, task.anchors_A)


def _frequency_claims(rho: Mapping[str, Mapping[int, FloatArray]]) -> list[Claim]:
    late = {rule: rows[1000] for rule, rows in rho.items()}
    top, second = np.sort(late["mod"][1:])[::-1][:2]
    return [
        at_least("addition: early, k = 0 is the frequency on top (rho at k = 0 less the next)",
                 rho["add"][EARLY][0] - np.nanmax(rho["add"][EARLY][1:]), 0.0),
        at_least("addition: late, k = 20 (parity) has risen (rho_20, epoch 1000 less epoch 100)",
                 late["add"][20] - rho["add"][EARLY][20], 0.1),
        at_least("modular addition: a frequency other than 0 is followed late (largest rho_k)",
                 top, 0.5),
        at_least("modular addition: one frequency is on top (its rho_k less the second)",
                 top - second, 0.05),
    ]  # fmt: skip


EXPERIMENTS: Sequence[Experiment] = (
    Experiment(
        id="fig2b",
        title="Early embeddings and order-0 signatures: addition, absolute difference, product",
        reading="Each row is a task over pairs of 1..20. Left, cosines of embeddings after 100 "
        "epochs and of order-0 signatures; right, both on their first two principal components, "
        "coloured by the number (multiplication: by its odd part).",
        runs=_order_zero_runs,
        analyse=_order_zero,
    ),
    Experiment(
        id="fig3",
        title="The staircase: addition and modular addition, early and late",
        reading="Pairs of 1..40. Top, loss and accuracy, and how far embeddings follow order 0 "
        "and order 1 (v fitted on all pairs, and scored on pairs and on anchors it has not seen). "
        "Below, cosines and principal components early and late beside the signatures; where order "
        "0 is the same for all tokens its picture is one colour and one point.",
        runs=_pair_runs,
        analyse=_early_and_late,
    ),
    Experiment(
        id="fig4",
        title="Which frequency of the context the embeddings follow",
        reading="Heat maps: rho_k over epochs for every frequency k of the context; k = 0 is order "
        "0, undefined (white) for modular addition. Right: embeddings beside the signature at the "
        "frequency that fits best.",
        runs=_pair_runs,
        analyse=_frequencies,
    ),
)
