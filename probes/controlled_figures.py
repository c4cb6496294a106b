"""Still figures of the controlled experiments, one for each id: reads the groups, computes nothing.

Every id has a painter; what several share (heat maps of cosines, principal components, curves)
stands in `controlled_panels`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from probes.controlled_panels import (
    bars,
    best_marks,
    curve,
    epoch_axis,
    grid,
    labelled_heat,
    law_panel,
    legend,
    share_axis,
    similarity,
    view_components,
    view_similarity,
)
from probes.figures import COLOURS, FAINT

Groups = Mapping[str, xr.Dataset]
_NAMES = {"add": "addition", "sub": "absolute difference", "mul": "multiplication",
          "mod": "modular addition"}  # fmt: skip


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
            row[0].set_title(f"{_NAMES[rule]}: {agreement}\n{row[0].get_title(loc='left')}")
    return figure


def _staircase(groups: Groups) -> Figure:
    with grid(5, 4, 3.3, 2.8) as (figure, axes):
        for half, rule in enumerate(("add", "mod")):
            group, found = groups[rule], groups[f"{rule}_course"]
            _learning(axes[0, 2 * half], found, _NAMES[rule])
            _orders(axes[0, 2 * half + 1], found, _NAMES[rule])
            for view in range(group.sizes["view"]):
                view_similarity(axes[1 + 2 * half, view], group, view)
                view_components(axes[2 + 2 * half, view], group, view)
            axes[1 + 2 * half, 0].set_ylabel(_NAMES[rule])
    return figure


def _learning(axes: Any, found: xr.Dataset, title: str) -> None:
    """Accuracy, and the loss as a share of its start, which fits the same axis."""
    epochs, loss = found["evaluated"].values, found["training_loss"].values
    curve(axes, epochs, found["accuracy"].values, "accuracy", 0)
    curve(axes, epochs, loss / loss[0], f"loss / {loss[0]:.2f} nats", 1)
    axes.set_title(title)
    share_axis(axes)
    epoch_axis(axes, epochs)


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
            _frequency_map(figure, rows[0, 0], groups[f"{rule}_frequencies"], _NAMES[rule])
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


def _attention_pairs(groups: Groups) -> Figure:
    with grid(4, 4, 3.2, 2.8) as (figure, axes):
        for half, rule in enumerate(("add", "mod")):
            rows, group = axes[2 * half : 2 * half + 2], groups[rule]
            found = groups[f"{rule}_course"]
            _learning(rows[0, 0], found, _NAMES[rule])
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


def _parity(groups: Groups) -> Figure:
    group, found, norms = groups["tokens"], groups["course"], groups["norms"]
    with grid(3, 3, 3.7, 3.1) as (figure, axes):
        _learning(axes[0, 0], found, "parity of the anchor")
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


def _beside(groups: Groups) -> Figure:
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
        _learning(axes[0, 0], found, "accuracy and loss")
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
            best_marks(figure, wide, groups[rule], _NAMES[rule])
            for column, seed in enumerate(runs):
                group = groups[f"{rule}_{seed}"]
                for view in range(2):
                    panel = axes[1 + 2 * half + view, column]
                    view_components(panel, group, view, small=True)
            axes[1 + 2 * half, 0].set_ylabel(_NAMES[rule], fontsize=8)
    return figure


def _map(groups: Groups) -> Figure:
    group = groups["map"]
    with grid(1, group.sizes["claim"], 3.3, 3.2) as (figure, axes):
        for place, claim in enumerate(group["claim"].values):
            panel = axes[0, place]
            labelled_heat(
                panel,
                group["holding"].values[place],
                [f"{rate:g}" for rate in group["learning_rate"].values],
                [f"{gamma:g}" for gamma in group["gamma"].values],
            )
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


def _errors(groups: Groups) -> Figure:
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


def _propositions(groups: Groups) -> Figure:
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


def _shares(groups: Groups) -> Figure:
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


PAINTERS: Mapping[str, Callable[[Groups], Figure]] = {
    "fig2a": _laws,
    "fig2b": _order_zero,
    "fig3": _staircase,
    "fig4": _frequencies,
    "fig5": _degrees,
    "fig6a": _attention_pairs,
    "fig6i": _parity,
    "fig8a": _beside,
    "fig8d": _kinds,
    "fig9": _moduli,
    "fig10": _min_max,
    "fig12": _triples,
    "fig14": _seeds,
    "theorems": _errors,
    "propositions": _propositions,
    "shares": _shares,
    "robustness": _map,
}
"""The painter of each id."""
