"""Figures of attention-only models: reads the groups, computes nothing."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from probes.controlled_panels import (
    RULES,
    Groups,
    curve,
    epoch_axis,
    grid,
    learning,
    share_axis,
    view_components,
    view_similarity,
)
from probes.figures import COLOURS, FAINT


def attention_pairs(groups: Groups) -> Figure:
    """Draw the early and late story of attention-only models."""
    with grid(4, 4, 3.2, 2.8) as (figure, axes):
        for half, rule in enumerate(("add", "mod")):
            rows, group = axes[2 * half : 2 * half + 2], groups[rule]
            found = groups[f"{rule}_course"]
            learning(rows[0, 0], found, RULES[rule])
            _attention_course(rows[1, 0], found)
            for view in range(3):
                view_similarity(rows[0, 1 + view], group, view)
                view_components(rows[1, 1 + view], group, view)
    return figure


def _attention_course(axes: Any, found: xr.Dataset) -> None:
    lines = {
        "rho_0": "rho, order 0",
        "mean_cosine": "mean cosine",
        "attention_spread": "spread of attention",
    }
    for place, (name, label) in enumerate(lines.items()):
        if np.isfinite(found[name].values).any():
            curve(axes, found["epoch"].values, found[name].values, label, place, marker="o")
    epoch_axis(axes, found["epoch"].values)


def parity(groups: Groups) -> Figure:
    """Draw accuracy, attention, lengths and geometry of anchors among noise."""
    group, found, norms = groups["tokens"], groups["course"], groups["norms"]
    with grid(3, 3, 3.7, 3.1) as (figure, axes):
        learning(axes[0, 0], found, "parity of the anchor")
        lines = {"attention_mass": "on the anchor", "attention_noise": "on a noise token"}
        for place, (name, label) in enumerate(lines.items()):
            curve(axes[0, 1], found["epoch"].values, found[name].values, label, place, marker="o")
        axes[0, 1].axhline(1 / 8, color=FAINT, linewidth=0.8, linestyle=":")
        axes[0, 1].set_title("attention, from 1/8 a position")
        epoch_axis(axes[0, 1], found["epoch"].values)
        many = norms["norm"].values
        anchors = group["place"].values < 2
        for place, (label, chosen) in enumerate({"anchors": anchors, "noise": ~anchors}.items()):
            epochs, mean = norms["norm_epoch"].values, many[:, chosen]
            curve(axes[0, 2], epochs, mean.mean(axis=1), label, place, marker="o")
            axes[0, 2].fill_between(
                epochs, mean.min(axis=1), mean.max(axis=1), color=COLOURS[place], alpha=0.2, lw=0
            )
        axes[0, 2].set_title("length of embeddings, mean and range")
        epoch_axis(axes[0, 2], norms["norm_epoch"].values)
        for view in range(3):
            view_similarity(axes[1, view], group, view)
            view_components(axes[2, view], group, view, categories=("even", "odd", "noise"))
    return figure


def beside(groups: Groups) -> Figure:
    """Draw FFN and attention-only model side by side."""
    group = groups["embeddings"]
    with grid(1, 5, 3.0, 2.9) as (figure, axes):
        for place, name in enumerate(("FFN", "attention_only")):
            found = groups[name]
            label = name.replace("_", " ")
            curve(axes[0, 0], found["evaluated"].values, found["accuracy"].values, label, place)
        axes[0, 0].set_title("accuracy")
        share_axis(axes[0, 0])
        epoch_axis(axes[0, 0], found["evaluated"].values)
        for view in range(2):
            view_similarity(axes[0, 1 + 2 * view], group, view)
            view_components(axes[0, 2 + 2 * view], group, view)
    return figure
