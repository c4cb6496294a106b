"""Figures of the gradient's orders: reads the groups, computes nothing."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from probes.controlled_panels import (
    Groups,
    curve,
    epoch_axis,
    grid,
    share_axis,
)
from probes.figures import COLOURS, FAINT


def errors(groups: Groups) -> Figure:
    """Draw the relative errors of the theorems."""
    group = groups["errors"]
    names = [str(name).replace("_", " ") for name in group["check"].values]
    with grid(1, 1, 7.4, 3.2) as (figure, axes):
        panel = axes[0, 0]
        colours = [COLOURS[1] if "printed" in name else COLOURS[0] for name in names]
        panel.barh(names, group["error"].values, color=colours, left=1e-17)
        panel.set_xscale("log")
        panel.axvline(group.attrs["exact"], color=FAINT, linestyle=":", linewidth=1)
        panel.invert_yaxis()
        panel.set_xlabel("relative error against automatic differentiation")
    return figure


def propositions(groups: Groups) -> Figure:
    """Draw orders against width, and shares against the embedding scale."""
    slopes, scales = groups["slopes"], groups["scales"]
    gammas, degrees = slopes["gamma"].values, scales["degree"].values
    with grid(2, max(len(gammas), len(degrees)), 2.8, 2.8) as (figure, axes):
        for panel in axes.flat:
            panel.set_axis_off()
        for panel, gamma in zip(axes[0], gammas, strict=False):
            _slope_panel(panel, slopes.sel(gamma=gamma))
        for panel, degree in zip(axes[1], degrees, strict=False):
            panel.set_axis_on()
            found = scales.sel(degree=degree)
            for order, share in zip(found["order"].values, found["share"].values.T, strict=True):
                scale = found["embedding_scale"].values
                curve(panel, scale, share, f"order {order}", int(order))
            panel.set_xscale("log")
            panel.set_xlabel("embedding scale", fontsize=8)
            panel.set_title(f"K = {degree}: share", fontsize=9)
            share_axis(panel)
        axes[1, 0].legend(frameon=False, fontsize=7)
    return figure


def _slope_panel(panel: Any, slopes: xr.Dataset) -> None:
    """Draw the ratios over d; dotted, the power that Proposition 1 gives, from the first on."""
    panel.set_axis_on()
    width, gamma = slopes["width"].values, float(slopes["gamma"])
    for order, ratio in zip(slopes["order"].values, slopes["ratio"].values.T, strict=True):
        curve(panel, width, ratio, f"order {order}", int(order), marker="o")
        bound = ratio[0] * (width / width[0]) ** (-order * gamma)
        panel.plot(width, bound, ":", color=FAINT, linewidth=1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel("width d", fontsize=8)
    panel.set_title(f"gamma = {gamma:g}: RMS over order 0", fontsize=9)
    panel.legend(frameon=False, fontsize=7)


def shares(groups: Groups) -> Figure:
    """Draw the share of each order along training, beside loss and accuracy."""
    group = groups["shares"]
    rules = [str(rule) for rule in group["rule"].values]
    titles = {"share": "share in the label-driven part", "flow_share": "share in the whole flow"}
    with grid(len(rules), 3, 4.2, 2.9) as (figure, axes):
        for row, rule in zip(axes, rules, strict=True):
            found = group.sel(rule=rule)
            epochs = found["epoch"].values
            for panel, (name, title) in zip(row, titles.items(), strict=False):
                for order, share in zip(found["order"].values, found[name].values.T, strict=True):
                    if np.isfinite(share).any():
                        curve(panel, epochs, share, f"order {order}", int(order))
                panel.set_title(f"{rule}: {title}", fontsize=8)
                share_axis(panel)
                epoch_axis(panel, epochs)
            loss = found["training_loss"].values
            curve(row[2], epochs, loss / loss[0], f"loss / {loss[0]:.2f} nats", 1)
            curve(row[2], epochs, found["accuracy"].values, "accuracy", 0)
            share_axis(row[2])
            epoch_axis(row[2], epochs)
    return figure
