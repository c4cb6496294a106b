"""Still figures of the controlled experiments, one for each id: reads the groups, computes nothing.

Every id has a painter; what several share (heat maps of cosines, principal components, curves)
stands in `controlled_panels`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probes.controlled_attention_figures import attention_pairs, beside, parity
from probes.controlled_gradient_figures import errors, propositions, shares
from probes.controlled_panels import (
    RULES,
    Groups,
    bars,
    best_marks,
    curve,
    epoch_axis,
    grid,
    labelled_heat,
    law_panel,
    learning,
    legend,
    share_axis,
    similarity,
    view_components,
    view_similarity,
)


def draw(id_: str, groups: Groups) -> Figure:
    """Draw the figure of one experiment."""
    return PAINTERS[id_](groups)


def _laws(groups: Groups) -> Figure:
    group = groups["laws"]
    with grid(2, 2, 4.4, 3.1) as (figure, axes):
        for place, panel in enumerate(axes.flat):
            law_panel(panel, group.isel(law=place))
        legend(figure, axes[0, 0])
    return figure


def _order_zero(groups: Groups) -> Figure:
    with grid(len(groups), 4, 3.2, 2.9) as (figure, axes):
        for row, (rule, group) in zip(axes, groups.items(), strict=True):
            for view in range(2):
                view_similarity(row[view], group, view)
                view_components(row[2 + view], group, view)
            agreement = f"rho {float(group['rho_0']):.3f}, Spearman {float(group['spearman']):.3f}"
            row[0].set_title(f"{RULES[rule]}: {agreement}\n{row[0].get_title(loc='left')}")
    return figure


def _staircase(groups: Groups) -> Figure:
    with grid(5, 4, 3.3, 2.8) as (figure, axes):
        for half, rule in enumerate(("add", "mod")):
            group, found = groups[rule], groups[f"{rule}_course"]
            learning(axes[0, 2 * half], found, RULES[rule])
            _orders(axes[0, 2 * half + 1], found, RULES[rule])
            for view in range(group.sizes["view"]):
                view_similarity(axes[1 + 2 * half, view], group, view)
                view_components(axes[2 + 2 * half, view], group, view)
            axes[1 + 2 * half, 0].set_ylabel(RULES[rule])
    return figure


def _orders(axes: Any, found: xr.Dataset, title: str) -> None:
    lines = {
        "rho_0": "rho, order 0",
        "rho_1": "rho, order 1",
        "rho_1_pairs": "rho, order 1, unseen pairs",
        "rho_1_anchors": "rho, order 1, unseen anchors",
        "mse_0": "mse, order 0",
        "mse_1": "mse, order 1",
    }
    for place, (name, label) in enumerate(lines.items()):
        values = found[name].values if name in found else np.array([np.nan])
        if np.isfinite(values).any():
            style = "--" if name.startswith("mse") else "-"
            curve(axes, found["epoch"].values, values, label, place, style=style, marker="o")
    axes.set_title(title)
    epoch_axis(axes, found["epoch"].values)


def _frequencies(groups: Groups) -> Figure:
    with grid(4, 4, 3.2, 2.8) as (figure, axes):
        for half, rule in enumerate(("add", "mod")):
            rows, group = axes[2 * half : 2 * half + 2], groups[rule]
            _frequency_map(figure, rows[0, 0], groups[f"{rule}_frequencies"], RULES[rule])
            _frequency_lines(rows[1, 0], groups[f"{rule}_frequencies"])
            for place, view in enumerate((2, 3)):
                view_similarity(rows[0, 1 + place], group, view)
                view_components(rows[1, 1 + place], group, view)
            view_components(rows[0, 3], group, 0)
            view_components(rows[1, 3], group, 1)
    return figure


def _frequency_map(figure: Figure, axes: Any, found: xr.Dataset, title: str) -> None:
    epochs = found["epoch"].values
    picture = axes.imshow(
        found["rho_k"].values.T, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower",
        extent=(epochs[0], epochs[-1], -0.5, found.sizes["frequency"] - 0.5),
    )  # fmt: skip
    axes.set_xlabel("epoch")
    axes.set_ylabel("frequency k")
    axes.set_title(f"{title}: rho_k")
    figure.colorbar(picture, ax=axes, pad=0.02)


def _frequency_lines(axes: Any, found: xr.Dataset) -> None:
    chosen = [epoch for epoch in (100, 500, 1000) if epoch in found["epoch"].values]
    for place, epoch in enumerate(chosen):
        values = found["rho_k"].sel(epoch=epoch).values
        curve(axes, found["frequency"].values, values, f"epoch {epoch}", place, marker="o")
    axes.set_xlabel("frequency k")
    axes.set_ylabel("rho_k")
    axes.legend(frameon=False, fontsize=7)


def _degrees(groups: Groups) -> Figure:
    group = groups["degrees"]
    lengths, degrees = group["length"].values, group["degree"].values
    with grid(len(lengths), len(degrees), 1.9, 2.0) as (figure, axes):
        for row, length in enumerate(lengths):
            for column, degree in enumerate(degrees):
                panel = axes[row, column]
                picture = similarity(panel, group["similarity"].values[row, column])
                accuracy = float(group["best_accuracy"].values[row, column])
                panel.set_title(f"K = {degree}: {accuracy:.3f}", fontsize=9)
            axes[row, 0].set_ylabel(f"L = {length}")
        figure.colorbar(picture, ax=list(axes.flat), shrink=0.7, pad=0.01).set_label("cosine")
        figure.suptitle("best accuracy, and cosines at the end", x=0.01, ha="left", fontsize=11)
    return figure


def _kinds(groups: Groups) -> Figure:
    group = groups["kinds"]
    with grid(1, 2, 5.0, 3.4) as (figure, axes):
        for place, kind in enumerate(group["model"].values):
            for number, accuracy in enumerate(group["accuracy"].values[place]):
                label = str(kind) if number == 0 else None
                curve(axes[0, 0], group["epoch"].values, accuracy, label, place, width=1.0)
        share_axis(axes[0, 0])
        epoch_axis(axes[0, 0], group["epoch"].values)
        axes[0, 0].set_title("accuracy, a line for each seed")
        bars(axes[0, 1], [str(kind) for kind in group["model"].values],
             group["epochs_to_95"].values, range(len(group["model"])))  # fmt: skip
        axes[0, 1].set_title("epochs to 95 % accuracy, median and seeds")
    return figure


def _moduli(groups: Groups) -> Figure:
    group = groups["moduli"]
    moduli = group["modulus"].values
    with grid(1, 1, 8.4, 3.6) as (figure, axes):
        divides = group.attrs["size"] % moduli == 0
        bars(axes[0, 0], [str(modulus) for modulus in moduli], group["epochs_to_95"].values,
             [1 if one else 0 for one in divides])  # fmt: skip
        axes[0, 0].set_xlabel(f"modulus M (orange: M divides {group.attrs['size']})")
        axes[0, 0].set_title("epochs to 95 % accuracy, median and seeds")
    return figure


def _min_max(groups: Groups) -> Figure:
    group, table = groups["tokens"], groups["probabilities"]
    tokens = [str(token) for token in table["token"].values[:-2]] + ["max", "min"]
    with grid(1, 5, 3.1, 3.1) as (figure, axes):
        panel = axes[0, 0]
        picture = panel.imshow(table["probability"].values, cmap="viridis", aspect="auto")
        shown = [*range(0, len(tokens) - 2, 4), len(tokens) - 2, len(tokens) - 1]
        panel.set_yticks(shown, [tokens[place] for place in shown], fontsize=7)
        labels = table["label"].values
        panel.set_xticks(
            range(0, len(labels), 4), [str(label) for label in labels[::4]], fontsize=7
        )
        panel.set_xlabel("label y")
        panel.set_ylabel("token")
        panel.set_title("P(y | token)")
        figure.colorbar(picture, ax=panel, pad=0.02)
        for view in range(2):
            view_similarity(axes[0, 1 + 2 * view], group, view)
            view_components(axes[0, 2 + 2 * view], group, view, names=tokens)
    return figure


def _triples(groups: Groups) -> Figure:
    group, found = groups["anchors"], groups["course"]
    columns = max(3, group.sizes["view"])
    with grid(3, columns, 3.0, 2.8) as (figure, axes):
        learning(axes[0, 0], found, "accuracy and loss")
        lines = {
            "one_minus_mse_0": "1 - mse, order 0",
            "rho_1_anchors": "rho, order 1, unseen anchors",
            "rho_2_anchors": "rho, order 2, unseen anchors",
        }
        for place, (name, label) in enumerate(lines.items()):
            if np.isfinite(found[name].values).any():
                curve(axes[0, 1], found["epoch"].values, found[name].values, label, place,
                      marker="o")  # fmt: skip
        axes[0, 1].set_xscale("symlog", linthresh=5)
        axes[0, 1].set_title("order by order")
        epoch_axis(axes[0, 1], found["epoch"].values)
        for panel in axes[0, 2:]:
            panel.set_axis_off()
        for view in range(columns):
            view_similarity(axes[1, view], group, view)
            view_components(axes[2, view], group, view)
    return figure


def _seeds(groups: Groups) -> Figure:
    runs = groups["mod"]["run"].values
    with grid(5, max(2, len(runs)), 1.75, 1.9) as (figure, axes):
        for panel in axes[0]:
            panel.remove()
        for half, rule in enumerate(("add", "mod")):
            number = axes.shape[1]
            wide = figure.add_subplot(
                axes[0, 0].get_gridspec()[0, half * number // 2 : (half + 1) * number // 2]
            )
            best_marks(figure, wide, groups[rule], RULES[rule])
            for column, seed in enumerate(runs):
                group = groups[f"{rule}_{seed}"]
                for view in range(2):
                    panel = axes[1 + 2 * half + view, column]
                    view_components(panel, group, view, small=True)
            axes[1 + 2 * half, 0].set_ylabel(RULES[rule], fontsize=8)
    return figure


def _map(groups: Groups) -> Figure:
    group = groups["map"]
    shared = group.attrs["shared_learning_rate"], group.attrs["shared_gamma"]
    with grid(1, group.sizes["claim"], 3.3, 3.2) as (figure, axes):
        for place, claim in enumerate(group["claim"].values):
            panel = axes[0, place]
            labelled_heat(
                panel,
                group["holding"].values[place],
                [f"{rate:g}" for rate in group["learning_rate"].values],
                [f"{gamma:g}" for gamma in group["gamma"].values],
            )
            column = group["learning_rate"].values.tolist().index(shared[0])
            row = group["gamma"].values.tolist().index(shared[1])
            panel.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, lw=2))
            panel.set_title(str(claim), fontsize=9)
            panel.set_xlabel("learning rate")
            panel.set_ylabel("gamma" if place == 0 else "")
        figure.suptitle(
            f"share of {group.attrs['num_seeds']} seeds for which the claim holds",
            x=0.01,
            ha="left",
            fontsize=11,
        )
    return figure


PAINTERS: Mapping[str, Callable[[Groups], Figure]] = {
    "fig2a": _laws,
    "fig2b": _order_zero,
    "fig3": _staircase,
    "fig4": _frequencies,
    "fig5": _degrees,
    "fig6a": attention_pairs,
    "fig6i": parity,
    "fig8a": beside,
    "fig8d": _kinds,
    "fig9": _moduli,
    "fig10": _min_max,
    "fig12": _triples,
    "fig14": _seeds,
    "theorems": errors,
    "propositions": propositions,
    "shares": shares,
    "robustness": _map,
}
"""The painter of each id."""
