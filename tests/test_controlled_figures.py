"""Every experiment's analysis and figure, on models that were never trained."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from probes.controlled_figures import draw
from workflows.controlled.experiments import EXPERIMENTS
from workflows.controlled.geometry import mean_cosine, views
from workflows.controlled.models import initial_parameters
from workflows.controlled.registry import Findings, Inputs, Size, no_runs
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.tasks import built

NOT_TESTED_WITHOUT_FULL = {"fig5": 2}
"""Claims about the column of fig5 that takes hours."""


def untrained(config: RunConfig) -> TrainedRun:
    """A run whose parameters stay as drawn and whose accuracy rises all the same."""
    task = built(config.task)
    generator = torch.Generator().manual_seed(config.seed)
    drawn = initial_parameters(config.model, task, generator)
    kept = sorted({*config.checkpoints, config.epochs})
    evaluated = np.unique(np.append(np.arange(0, config.epochs + 1, config.evaluate_every), kept))
    total = int(task.enumerated.weights_N.sum())
    return TrainedRun(
        config=config,
        evaluated_E=evaluated,
        loss_E=np.linspace(4.6, 1.0, len(evaluated)),
        hits_E=np.linspace(0, total, len(evaluated)).astype(np.int64),
        total=total,
        kept_T=np.array(kept),
        parameters={
            name: rows.expand(len(kept), *rows.shape[1:]).numpy() for name, rows in drawn.items()
        },
    )


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of v are tested where they stand; here they only cost time."""

    def random_v(phi: np.ndarray, similarity: Any) -> np.ndarray:
        return np.random.default_rng(0).normal(size=phi.shape[2])

    for module in ("pairs", "triples"):
        path = f"workflows.controlled.experiments.{module}"
        monkeypatch.setattr(f"{path}.fit_pearson", random_v)
        monkeypatch.setattr(f"{path}.cross_validated_rho", lambda *a, **k: np.full(5, 0.25))


def findings(id_: str, size: Size) -> Findings:
    experiment = EXPERIMENTS[id_]
    runs = {name: untrained(config) for name, config in experiment.runs(0, size).items()}
    return experiment.analyse(Inputs(seed=0, size=size, runs=runs))


@pytest.mark.parametrize("id_", ["theorems", "propositions"])
def test_what_needs_no_run_holds_and_is_drawn(id_: str) -> None:
    found = findings(id_, "quick")
    assert all(claim.holds for claim in found.claims)
    assert isinstance(draw(id_, found.groups), Figure)


@pytest.mark.parametrize("id_", [one.id for one in EXPERIMENTS.values() if one.runs is not no_runs])
def test_every_claim_is_listed_at_every_size_and_the_figure_is_drawn(id_: str) -> None:
    found = {size: findings(id_, size) for size in ("quick", "standard")}
    for one in found.values():
        assert isinstance(draw(id_, one.groups), Figure)
        for group in one.groups.values():
            assert all({"long_name", "units"} <= v.attrs.keys() for v in group.variables.values())
    quick, standard = ([c.claim for c in found[size].claims] for size in ("quick", "standard"))
    assert quick == standard
    untested = [claim for claim in found["standard"].claims if claim.holds is None]
    assert len(untested) == NOT_TESTED_WITHOUT_FULL.get(id_, 0)


def test_full_leaves_nothing_untested() -> None:
    assert get_args(Size) == ("quick", "standard", "full")
    assert all(claim.holds is not None for claim in findings("fig5", "full").claims)


def test_numbers_drawn_are_those_of_the_result() -> None:
    found = findings("fig9", "standard").groups
    found["moduli"]["epochs_to_95"][3] = np.inf
    axes = draw("fig9", found).axes[0]
    medians = np.median(found["moduli"]["epochs_to_95"].values, axis=1)
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_array_equal(heights, np.where(np.isfinite(medians), medians, 0))
    assert [text.get_text() for text in axes.texts][3] == "never"


def test_parallel_rows_are_one_point_without_variance() -> None:
    rows = np.outer(np.arange(1, 6), np.linspace(0.1, 0.9, 7))
    group = views({"parallel": rows, "not": np.eye(5)}, np.arange(5))
    assert np.isnan(group["explained_variance"].values[0]).all()
    assert (group["pca"].values[0] == 0).all()
    assert group["explained_variance"].values[1, 0] == pytest.approx(0.25)
    assert mean_cosine(group["similarity"].values[0]) == pytest.approx(1)
    assert mean_cosine(group["similarity"].values[1]) == 0
