"""Still figures of a saved result: reads the tree, computes nothing.

Runs differ by colour, line and marker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probes.figures import COLOURS, FAINT, INK, MARKERS, drawable, loaded, step_axis, styled_figure
from probes.tokens import visible

PATH_TITLES = {
    "direct": "Input embedding against next-token signature",
    "unembedding": "Unembedding against predecessor signature",
}
LAYER_TITLES = {
    "ffn": "FFN path against next-token signature",
    "attention": "Attention path against attention-path signature of the same layer",
}
TRAINED_TITLES = {
    "first_order": "First-order probe",
    "projected": "First-order probe on projected counts",
}
_FIRST_ORDER_LINES = {
    "heldout_mse": "trained v",
    "baseline_mse": "constant mean",
    "shuffled_mse": "trained on shuffled anchors",
    "random_mse": "random v",
    "ones_mse": "v = 1",
    "unigram_mse": "v = unigram share",
}
_SIGNIFICANT = 0.05
_MOST_POINTS = 400
"""Of the loss: a log of many thousand steps would fill the page."""


def rho_over_steps(runs: Mapping[str, xr.DataTree], path: str = "direct") -> Figure:
    """Draw rho of each run over steps with its 95 % interval, and the loss on a second axis.

    Hollow markers: permutation p above 0.05. Steps are linear up to 1 and logarithmic from
    there, so that the first updates are seen.
    """
    with styled_figure(8.4, 4.6) as figure:
        axes = figure.add_subplot()
        axes.set_title(PATH_TITLES[path])
        losses = axes.twinx()
        losses.spines["right"].set_visible(True)
        for place, results in enumerate(runs.values()):
            _draw_rho(axes, loaded(results, path), place)
            if "training" in results.children:
                _draw_loss(losses, loaded(results, "training"), place)
        axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
        step_axis(axes, [loaded(results, path)["step"].values for results in runs.values()])
        axes.set_ylabel("rho: Pearson correlation of cosine similarities")
        axes.set_zorder(losses.get_zorder() + 1)
        axes.patch.set_visible(False)
        losses.set_ylabel("training loss (nats per token)", color=FAINT)
        losses.tick_params(axis="y", colors=FAINT)
        losses.set_visible(losses.has_data())
        figure.legend(
            handles=_rho_legend(runs, path, losses.has_data()),
            loc="outside lower center",
            ncols=min(4, len(runs) + 2),
            frameon=False,
        )
    return figure


def _draw_rho(axes: Axes, group: xr.Dataset, place: int) -> None:
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    steps, rho = group["step"].values, group["rho"].values
    if "ceiling" in group:
        axes.axhline(float(group["ceiling"].values), color=colour, linewidth=0.8, linestyle="--")
    low, high = group["rho_interval"].values.T
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, rho, color=colour, linewidth=1.8)
    unsure = ~(group["p"].values <= _SIGNIFICANT)
    for chosen, face in ((~unsure, colour), (unsure, "white")):
        axes.plot(
            steps[chosen],
            rho[chosen],
            linestyle="none",
            marker=marker,
            markersize=5,
            color=colour,
            markerfacecolor=face,
        )


def _draw_loss(axes: Axes, training: xr.Dataset, place: int) -> None:
    style = (":", (0, (4, 1.5)), "-.")[place % 3]
    steps = training["train_step"].values
    marks = np.searchsorted(steps, np.geomspace(1, steps[-1] + 1, _MOST_POINTS))
    drawn = np.unique(np.minimum(np.append(marks, 0), len(steps) - 1))
    axes.plot(
        steps[drawn],
        training.get("loss_smoothed", training["loss"]).values[drawn],
        linestyle=style,
        linewidth=1.0,
        color=COLOURS[place % len(COLOURS)],
        alpha=0.55,
    )


def _rho_legend(runs: Mapping[str, xr.DataTree], path: str, with_loss: bool) -> list[Line2D]:
    handles = [
        Line2D(
            [],
            [],
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            label=label,
        )
        for place, label in enumerate(runs)
    ]
    if with_loss:
        handles.append(
            Line2D([], [], color=FAINT, linestyle=":", label="loss, smoothed (right axis)")
        )
    if any("ceiling" in loaded(results, path) for results in runs.values()):
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle="--", label="ceiling"))
    hollow = Line2D(
        [],
        [],
        color=FAINT,
        marker="o",
        markerfacecolor="white",
        linestyle="none",
        label=f"p > {_SIGNIFICANT}",
    )
    return [*handles, hollow]


def first_order_curves(results: xr.DataTree, label: str = "", path: str = "first_order") -> Figure:
    """Draw the held-out error of a first-order probe and of its controls over steps.

    ``path`` is ``first_order`` or ``projected``.

    A line is the mean over splits, a band their range.
    """
    group = loaded(results, path)
    lines = {name: text for name, text in _FIRST_ORDER_LINES.items() if name in group}
    with styled_figure(8.4, 4.4) as figure:
        axes = figure.add_subplot()
        for place, (name, text) in enumerate(lines.items()):
            colour, values = COLOURS[place % len(COLOURS)], group[name]
            style = "-" if name == "heldout_mse" else "--"
            axes.plot(
                group["step"].values,
                values.mean("split").values,
                style,
                color=colour,
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                label=text,
            )
            low, high = values.min("split").values, values.max("split").values
            axes.fill_between(group["step"].values, low, high, color=colour, alpha=0.12, lw=0)
        step_axis(axes, [group["step"].values])
        axes.set_ylim(bottom=0)
        axes.set_ylabel("mean squared difference of cosines, held-out anchors")
        axes.set_title(TRAINED_TITLES[path] + (f", {label}" if label else ""))
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def layer_heatmap(results: xr.DataTree, path: str, label: str = "") -> Figure:
    """Draw rho of every layer and step; a dot marks a permutation p above 0.05."""
    group = loaded(results, path)
    rho_LT, steps = group["rho"].values.T, group["step"].values
    with styled_figure(8.4, 1.6 + 0.3 * max(3, len(rho_LT))) as figure:
        axes = figure.add_subplot()
        bound = max(0.1, float(np.nanmax(np.abs(rho_LT), initial=0.1)))
        picture = axes.imshow(
            rho_LT, cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto", origin="lower"
        )
        unsure = np.argwhere(~(group["p"].values.T <= _SIGNIFICANT))
        axes.plot(unsure[:, 1], unsure[:, 0], ".", color=FAINT, markersize=3)
        shown = range(0, len(steps), max(1, len(steps) // 16))
        axes.set_xticks(shown, [f"{int(steps[place]):,}" for place in shown], rotation=45)
        axes.set_yticks(group["layer"].values)
        axes.set_xlabel(f"step (optimiser updates); dots: p > {_SIGNIFICANT}")
        axes.set_ylabel("layer")
        axes.set_title(LAYER_TITLES[path] + (f", {label}" if label else ""))
        figure.colorbar(picture, ax=axes, pad=0.01).set_label("rho")
    return figure


def similarity_panels(results: xr.DataTree, label: str = "", path: str = "direct") -> Figure:
    """Draw the cosine matrices of signature, early and late rows in one clustered order."""
    group = loaded(results, path)
    order = group["cluster_order"].values
    early, late = telling_steps(group)
    panels = [("signature", group["signature_similarity"].values)] + [
        (
            f"model, step {int(group['step'].values[at]):,}, rho {group['rho'].values[at]:.2f}",
            group["similarity"].values[at],
        )
        for at in dict.fromkeys((early, late))
    ]
    with styled_figure(3.5 * len(panels) + 0.9, 4.1) as figure:
        many = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, matrix) in zip(many, panels, strict=True):
            picture = axes.imshow(
                matrix[np.ix_(order, order)], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none"
            )
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(f"{len(order)} tokens, clustered by signature")
            axes.set_xticks([])
            axes.set_yticks([])
        _name_some(many[0], [str(text) for text in group["token_text"].values[order]])
        bar = figure.colorbar(picture, ax=list(many), shrink=0.85, pad=0.01)
        bar.set_label("cosine similarity")
        bar.outline.set_visible(False)
        title = PATH_TITLES[path] + (f", {label}" if label else "")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _name_some(axes: Axes, texts: Sequence[str]) -> None:
    """Name every few tokens along the rows, as many as can be read."""
    places = range(0, len(texts), max(1, len(texts) // 33))
    axes.set_yticks(places, [drawable(visible(texts[place])) for place in places], fontsize=5.5)
    axes.tick_params(axis="y", length=2, pad=1)


def telling_steps(group: xr.Dataset) -> tuple[int, int]:
    """Return the places of an early and of the last step.

    Early is where rho peaks; when that is the last step, where rho first passes half of it.
    """
    rho = group["rho"].values
    last = len(rho) - 1
    if not np.isfinite(rho).any():
        return 0, last
    peak = int(np.nanargmax(rho))
    if peak == last and rho[peak] > 0:
        peak = int(np.flatnonzero(rho >= rho[peak] / 2)[0])
    return peak, last


def number_panels(results: xr.DataTree, label: str = "") -> Figure:
    """Draw number tokens along two principal components: signature, early and late embedding."""
    group, direct = loaded(results, "numbers"), loaded(results, "direct")
    early, late = telling_steps(direct)
    panels = [
        (
            "next-token signature",
            group["signature_pca"].values,
            group["signature_explained_variance"].values,
        )
    ] + [
        (
            f"embedding, step {int(group['step'].values[at]):,}",
            group["pca"].values[at],
            group["explained_variance"].values[at],
        )
        for at in dict.fromkeys((early, late))
    ]
    with styled_figure(3.7 * len(panels) + 0.8, 4.3) as figure:
        many = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, coordinates, explained) in zip(many, panels, strict=True):
            axes.set_title(title, fontsize=10)
            picture = _draw_numbers(axes, group, coordinates)
            axes.set_xlabel(f"component 1 ({100 * explained[0]:.0f} % of variance)")
            axes.set_ylabel(f"component 2 ({100 * explained[1]:.0f} % of variance)")
            axes.tick_params(labelsize=8)
        figure.colorbar(picture, ax=list(many), shrink=0.8, pad=0.01).set_label("the number")
        title = "Number tokens" + (f", {label}" if label else "")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        handles = [
            Line2D([], [], color=FAINT, marker=marker, linestyle="none", label=text)
            for marker, text in (("o", "as written"), ("s", "after a space"))
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_numbers(axes: Axes, group: xr.Dataset, coordinates: npt.NDArray[Any]) -> Any:
    values = group["value"].values
    shades = PowerNorm(0.4, vmin=values.min(), vmax=values.max())  # small numbers are many
    spaced = np.array([str(text).startswith(" ") for text in group["token_text"].values])
    picture = None
    for chosen, marker in ((~spaced, "o"), (spaced, "s")):
        drawn = axes.scatter(
            coordinates[chosen, 0],
            coordinates[chosen, 1],
            c=values[chosen],
            marker=marker,
            s=22,
            cmap="viridis",
            norm=shades,
        )
        picture = picture or drawn
    for value, point in zip(values, coordinates, strict=True):
        axes.annotate(
            str(value), point[:2], (3, 3), textcoords="offset points", fontsize=7, color=INK
        )
    axes.margins(0.08)
    return picture


def semantic_panels(group: xr.Dataset, name: str) -> Figure:
    """Draw the words of a set on two components, for the signature and for each checkpoint."""
    sources = [str(source) for source in group["source"].values]
    places, categories = group["place"].values, group.attrs["categories"]
    texts = [drawable(visible(str(text))) for text in group["token_text"].values]
    with styled_figure(4.1 * len(sources) + 0.4, 4.3) as figure:
        many = figure.subplots(1, len(sources), squeeze=False)[0]
        for at, (axes, source) in enumerate(zip(many, sources, strict=True)):
            x, y = group["pca"].values[at, :, :2].T
            if categories:
                for number, label in enumerate(categories):
                    chosen = places == number
                    axes.plot(
                        x[chosen],
                        y[chosen],
                        MARKERS[number % len(MARKERS)],
                        color=COLOURS[number % len(COLOURS)],
                        label=label if at == 0 else None,
                    )
            else:
                axes.scatter(x, y, c=places, cmap="viridis", s=22)
            for text, point in zip(texts, zip(x, y, strict=True), strict=True):
                axes.annotate(text, point, (3, 3), textcoords="offset points", fontsize=7)
            share = group["explained_variance"].values[at]
            score, p = group["score"].values[at], group["p"].values[at]
            axes.set_title(f"{source}: {group.attrs['kind']} {score:.2f}, p = {p:.3f}", fontsize=10)
            axes.set_xlabel(f"component 1 ({100 * share[0]:.0f} % of variance)")
            axes.set_ylabel(f"component 2 ({100 * share[1]:.0f} % of variance)")
            axes.tick_params(labelsize=8)
            axes.margins(0.1)
        figure.suptitle(name.capitalize(), x=0.01, ha="left", fontsize=11, fontweight="bold")
        if categories:
            figure.legend(loc="outside lower center", ncols=len(categories), frameon=False)
    return figure
