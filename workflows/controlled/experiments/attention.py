"""Attention-only models: fig6a (pairs), fig6i (anchors among noise), fig8a (beside the FFN).

Shapes: A anchors, N samples, L positions, T epochs.
"""

import numpy as np
import xarray as xr

from probes.fourier import fourier_rho
from probes.similarity import compare, cosine_matrix
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.experiments.pairs import pair_run
from workflows.controlled.geometry import (
    anchor_series,
    anchor_similarity,
    course,
    mean_cosine,
    views,
)
from workflows.controlled.models import ModelConfig
from workflows.controlled.registry import Experiment, Findings, Inputs, Size, inner_seeds
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.settings import ATTENTION_EARLY, EARLY, PARITY
from workflows.controlled.tasks import IntArray, PairTask, ParityTask, built
from workflows.controlled.variables import controlled_dataset

ATTENTION = ModelConfig(kind="attention")
_LONG, _LONG_QUICK = 10_000, 1000
_PARITY_EPOCHS, _PARITY_QUICK = 200, 40


def _pair_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    epochs = _LONG_QUICK if size == "quick" else _LONG
    kept = [epoch for epoch in (0, 50, 100, 200, 500, 1000, 2000, 5000, _LONG) if epoch <= epochs]
    return {
        rule: RunConfig(
            task=PairTask(rule=rule, size=20),
            model=ATTENTION,
            seed=inner,
            epochs=epochs,
            checkpoints=tuple(kept),
            evaluate_every=20,
        )
        for rule in ("add", "mod")
    }


def _pairs(inputs: Inputs) -> Findings:
    groups: dict[str, xr.Dataset] = {}
    for rule, run in inputs.runs.items():
        task = built(run.config.task)
        late = run.config.epochs
        groups[rule] = views(
            {
                f"embedding, epoch {ATTENTION_EARLY}": run.embedding(
                    ATTENTION_EARLY, task.anchors_A
                ),
                "order-0 signature": task.order_zero(),
                f"embedding, epoch {late}": run.embedding(late, task.anchors_A),
            },
            task.anchors_A,
        )
        groups[f"{rule}_course"] = _pair_course(run)
    add, mod = (groups[f"{rule}_course"] for rule in ("add", "mod"))
    claims = _pair_claims(add, mod, inputs)
    return Findings(groups=groups, claims=claims)


def _pair_course(run: TrainedRun) -> xr.Dataset:
    task = built(run.config.task)
    epochs = run.kept_T.tolist()
    zero = cosine_matrix(task.order_zero())
    series = anchor_series(run, epochs)
    found = [compare(similarity, zero) for similarity in series]
    spread = [run.checkpoint(epoch).attention(task)[:, 0].std() for epoch in epochs]
    return controlled_dataset(
        {
            **course(run),
            "rho_0": (("epoch",), [one.pearson for one in found]),
            "mse_0": (("epoch",), [one.mse for one in found]),
            "mean_cosine": (("epoch",), [mean_cosine(similarity) for similarity in series]),
            "attention_spread": (("epoch",), spread),
        },
        {"epoch": ("epoch", epochs), "evaluated": ("evaluated", run.evaluated_E)},
    )


def _pair_claims(add: xr.Dataset, mod: xr.Dataset, inputs: Inputs) -> list[Claim]:
    last = int(add["epoch"].values[-1])
    early_add, early_mod = add.sel(epoch=ATTENTION_EARLY), mod.sel(epoch=ATTENTION_EARLY)
    size = len(built(inputs.runs["mod"].config.task).anchors_A)
    return [
        at_least("attention, addition: early embeddings have the geometry of order 0 (rho_0)",
                 float(early_add["rho_0"]), 0.95),
        at_least("attention, modular addition: early, all embeddings point one way (mean cosine)",
                 float(early_mod["mean_cosine"]), 0.9),
        at_most("attention, modular addition: nothing is learned while they do (accuracy)",
                inputs.runs["mod"].accuracy_at(ATTENTION_EARLY), 2 / size),
        at_most("attention, modular addition: late, they part (mean cosine)",
                float(mod.sel(epoch=last)["mean_cosine"]), 0.5, tested=not inputs.quick),
        at_most("attention, addition: the order-0 geometry recedes (late less early rho_0)",
                float(add.sel(epoch=last)["rho_0"] - early_add["rho_0"]), -0.05,
                tested=not inputs.quick),
        at_most("attention stays uniform (late standard deviation of the first position's weight)",
                float(mod.sel(epoch=last)["attention_spread"]), 0.05, tested=not inputs.quick),
    ]  # fmt: skip


def _parity_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    epochs = _PARITY_QUICK if size == "quick" else _PARITY_EPOCHS
    kept = [epoch for epoch in (0, 1, 2, 5, 10, 20, 30, 40, 60, 80, 100, 150, 200)
            if epoch <= epochs]  # fmt: skip
    return {
        "parity": RunConfig(
            task=ParityTask(seed=inner),
            model=ATTENTION,
            lr=PARITY.changes["lr"],
            seed=inner,
            epochs=epochs,
            checkpoints=tuple(kept),
            evaluate_every=5,
        )
    }


def _parity(inputs: Inputs) -> Findings:
    run = inputs.runs["parity"]
    task = built(run.config.task)
    anchors_A, noise = task.anchors_A, task.contexts_C
    tokens = np.concatenate([anchors_A, noise])
    place = np.concatenate([anchors_A % 2, np.full(len(noise), 2)])
    epochs = run.kept_T.tolist()
    shown = {f"embedding, epoch {epoch}": run.embedding(epoch, tokens)
             for epoch in (0, 10, epochs[-1])}  # fmt: skip
    groups = {
        "tokens": views(shown, tokens, place=place),
        "course": controlled_dataset(
            {**course(run), **_attention_course(run, anchors_A)},
            {"epoch": ("epoch", epochs), "evaluated": ("evaluated", run.evaluated_E)},
        ),
        "norms": controlled_dataset(
            {"norm": (("norm_epoch", "token"), [np.linalg.norm(run.embedding(e, tokens), axis=1)
                                                for e in epochs])},
            {"norm_epoch": ("norm_epoch", epochs), "token": ("token", tokens)},
        ),
    }  # fmt: skip
    return Findings(groups=groups, claims=_parity_claims(run, groups["course"], inputs))


def _attention_course(
    run: TrainedRun, anchors_A: IntArray
) -> dict[str, tuple[tuple[str, ...], list[float]]]:
    """Attention on anchors and on noise at every checkpoint, all together and for each token."""
    task = built(run.config.task)
    on_anchor_NL = np.isin(task.enumerated.samples_NL, anchors_A)
    found: dict[str, list[float]] = {
        "attention_mass": [], "attention_anchor": [], "attention_noise": []}  # fmt: skip
    for epoch in run.kept_T.tolist():
        weights_NL = run.checkpoint(epoch).attention(task)
        found["attention_mass"].append(float((weights_NL * on_anchor_NL).sum(axis=1).mean()))
        found["attention_anchor"].append(float(weights_NL[on_anchor_NL].mean()))
        found["attention_noise"].append(float(weights_NL[~on_anchor_NL].mean()))
    return {name: (("epoch",), values) for name, values in found.items()}


def _parity_claims(run: TrainedRun, found: xr.Dataset, inputs: Inputs) -> list[Claim]:
    task = built(run.config.task)
    last = int(run.kept_T[-1])
    similarity_AA = anchor_similarity(run, last)
    parity_A = task.anchors_A % 2
    same_AA = parity_A[:, None] == parity_A[None, :]
    within = similarity_AA[same_AA & ~np.eye(len(parity_A), dtype=bool)].mean()
    noise = mean_cosine(cosine_matrix(run.embedding(last, task.contexts_C)))
    mass_T = found["attention_mass"].values
    anchor_norm, noise_norm = (
        np.linalg.norm(run.embedding(last, tokens), axis=1).mean()
        for tokens in (task.anchors_A, task.contexts_C)
    )
    return [
        at_least("anchors split by parity (mean cosine within a parity less that across)",
                 within - similarity_AA[~same_AA].mean(), 0.5),
        at_least("noise tokens point in one direction (mean cosine)", noise, 0.9,
                 tested=not inputs.quick),
        at_most("attention starts where positions are alike: 1/8 on the anchor (epoch 0, distance)",
                abs(mass_T[0] - 1 / 8), 0.01),
        at_least("attention moves to the anchor (its mass at the end)", mass_T[-1], 0.9),
        at_least("anchor embeddings grow longer than those of noise (ratio of mean lengths)",
                 anchor_norm / noise_norm, 2.0),
        at_least("the parity is learned (accuracy)", run.accuracy[-1], 0.99),
    ]  # fmt: skip


def _beside_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    (inner,) = inner_seeds(seed, 1)
    attention = RunConfig(
        task=PairTask(rule="mod", size=40),
        model=ATTENTION,
        seed=inner,
        epochs=300 if size == "quick" else 1000,
        checkpoints=(0, EARLY),
        evaluate_every=10,
    )
    return {"FFN": pair_run("mod", inner), "attention only": attention}


def _beside(inputs: Inputs) -> Findings:
    ffn, attention = inputs.runs["FFN"], inputs.runs["attention only"]
    task = built(ffn.config.task)
    last = attention.config.epochs
    compared = last if last in ffn.kept_T else int(ffn.kept_T[-1])
    groups = {
        "embeddings": views(
            {
                f"FFN, epoch {compared}": ffn.embedding(compared, task.anchors_A),
                f"attention only, epoch {last}": attention.embedding(last, task.anchors_A),
            },
            task.anchors_A,
        )
    }
    for name, run in inputs.runs.items():
        groups[name.replace(" ", "_")] = controlled_dataset(
            course(run), {"evaluated": ("evaluated", run.evaluated_E)}
        )
    rho_K = fourier_rho(task.order_one(), anchor_similarity(attention, last))
    untested = inputs.quick
    claims = [
        at_least("the FFN learns modular addition (accuracy, epoch 1000)",
                 ffn.accuracy_at(1000), 0.99),
        at_most("attention only does not learn it (best accuracy)",
                attention.accuracy.max(), 0.5, tested=not untested),
        at_least("its embeddings are structured all the same (largest rho_k, k >= 1)",
                 np.nanmax(rho_K[1:]), 0.5, tested=not untested),
    ]  # fmt: skip
    return Findings(groups=groups, claims=claims)


EXPERIMENTS = (
    Experiment(
        id="fig6a",
        title="The staircase in an attention-only model",
        reading="Pairs of 1..20. Top: loss, accuracy, and how far the embeddings follow order 0, "
        "with the spread of the attention over samples. Below: cosines and principal components "
        "early and late.",
        runs=_pair_runs,
        analyse=_pairs,
    ),
    Experiment(
        id="fig6i",
        title="Anchors among noise: attention finds what carries the label",
        reading="One anchor of 11..20 among seven noise tokens; the label is its parity. Attention "
        "on the anchor (all of it, and per token) over epochs, lengths of embeddings, cosines and "
        "principal components; anchors come first, coloured by parity, noise apart.",
        runs=_parity_runs,
        analyse=_parity,
    ),
    Experiment(
        id="fig8a",
        title="Modular addition: the FFN learns it, attention only does not",
        reading="Pairs of 1..40. Accuracy of both models over epochs, and their embeddings at the "
        "end.",
        runs=_beside_runs,
        analyse=_beside,
    ),
)
