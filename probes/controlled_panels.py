"""Panels that the figures of controlled experiments are made of."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probes.figures import COLOURS, FAINT, INK, MARKERS, styled_figure

Array = npt.NDArray[Any]
Groups = Mapping[str, xr.Dataset]
RULES = {"add": "addition", "sub": "absolute difference", "mul": "multiplication",
          "mod": "modular addition"}  # fmt: skip


@contextmanager
def grid(rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of rows x columns panels of that size in inches, and its axes as an array."""
    with styled_figure(width * columns, height * rows) as figure:
        yield figure, figure.subplots(rows, columns, squeeze=False)


def similarity(axes: Axes, matrix_nn: Array) -> Any:
    """Draw cosines, from -1 (blue) to 1 (red)."""
    axes.set_xticks([])
    axes.set_yticks([])
    return axes.imshow(matrix_nn, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")


def view_similarity(axes: Axes, group: xr.Dataset, view: int) -> None:
    """Draw the cosines of one view under its name."""
    similarity(axes, group["similarity"].values[view])
    axes.set_title(str(group["view"].values[view]), fontsize=9, fontweight="normal")


def view_components(
    axes: Axes,
    group: xr.Dataset,
    view: int,
    *,
    categories: Sequence[str] = (),
    names: Sequence[str] = (),
    small: bool = False,
) -> None:
    """Draw the tokens of one view on two components, with the variance each explains."""
    explained, place = group["explained_variance"].values[view], group["place"].values
    points = group["pca"].values[view, :, :2]
    if not np.isfinite(explained[0]):  # all rows are parallel
        explained = np.zeros(2)
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)
    if categories:
        for number, label in enumerate(categories):
            axes.plot(*points[place == number].T, MARKERS[number], color=COLOURS[number],
                      markersize=4, label=label)  # fmt: skip
        axes.legend(frameon=False, fontsize=7)
    else:
        x, y = points.T
        axes.scatter(x, y, c=place, cmap="viridis", s=6 if small else 14)
        _name_points(axes, points, names or [str(token) for token in group["token"].values], small)
    axes.set_title(str(group["view"].values[view]), fontsize=7 if small else 9, fontweight="normal")
    axes.set_xlabel(f"{100 * explained[0]:.0f} %", fontsize=7, labelpad=1)
    axes.set_ylabel(f"{100 * explained[1]:.0f} %", fontsize=7, labelpad=1)
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    axes.margins(0.1)


def _name_points(axes: Axes, points: Array, names: Sequence[str], small: bool) -> None:
    """Name the tokens, unless they all lie on one point."""
    if small or not np.ptp(points) > 0:
        return
    for name, point in zip(names, points, strict=True):
        axes.annotate(name, point, (2, 2), textcoords="offset points", fontsize=5.5, color=INK)


def curve(
    axes: Axes,
    x: Array,
    y: Array,
    label: str | None,
    place: int,
    *,
    style: str = "-",
    marker: str = "",
    width: float = 1.5,
) -> None:
    """Draw a line in the colour of its place."""
    axes.plot(x, y, style, marker=marker, markersize=3, linewidth=width,
              color=COLOURS[place % len(COLOURS)], label=label)  # fmt: skip


def share_axis(axes: Axes) -> None:
    """Limit the values to 0..1, with a little room."""
    axes.set_ylim(-0.03, 1.05)


def epoch_axis(axes: Axes, epochs: Array) -> None:
    """Name the axis, and the lines above it."""
    axes.set_xlabel("epoch", fontsize=8)
    axes.set_xlim(0, epochs[-1])
    axes.tick_params(labelsize=7)
    axes.legend(frameon=False, fontsize=7)


def bars(axes: Axes, names: Sequence[str], values: Array, colours: Sequence[int]) -> None:
    """Draw the median of each row of values, and every value as a point; infinity is left out."""
    finite = np.where(np.isfinite(values), values, np.nan)
    places = np.arange(len(names))
    medians = [float(np.median(row)) for row in values]
    shown = [median if np.isfinite(median) else 0.0 for median in medians]
    axes.bar(places, shown, color=[COLOURS[colour] for colour in colours], alpha=0.75)
    for column in finite.T:
        axes.plot(places, column, "o", color=INK, markersize=3, alpha=0.7)
    for place, median in zip(places, medians, strict=True):
        text = f"{median:.0f}" if np.isfinite(median) else "never"
        axes.annotate(text, (place, shown[place]), (0, 4), textcoords="offset points",
                      ha="center", fontsize=7)  # fmt: skip
    axes.set_xticks(places, names, fontsize=8)
    axes.set_ylabel("epochs")
    axes.margins(y=0.12)


def labelled_heat(axes: Axes, shares: Array, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw shares of 0..1 with their numbers."""
    axes.imshow(shares, cmap="Greens", vmin=0, vmax=1.3, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        axes.annotate(f"{share:.2f}", (column, row), ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


def law_panel(axes: Axes, law: xr.Dataset) -> None:
    """Draw a law of labels, what was drawn of it, and what the model makes of it."""
    labels = law["label"].values
    axes.bar(labels, law["label_probability"].values, color=COLOURS[5], alpha=0.6, label="law")
    axes.plot(labels, law["drawn_share"].values, color=FAINT, linewidth=1, label="drawn")
    axes.plot(labels, law["model_probability"].values, "o", color=COLOURS[1], markersize=3,
              label="softmax(W_U w_a)")  # fmt: skip
    r = float(law["r"].values)
    agreement = "r undefined" if np.isnan(r) else f"r {r:.3f}"
    apart = f"KL {float(law['kl']):.3f}, JSD {float(law['jsd']):.3f} nats"
    axes.set_title(f"{law['law'].item()}: {agreement}, {apart}", fontsize=9)
    axes.set_xlabel("label", fontsize=8)
    axes.set_ylabel("probability", fontsize=8)
    axes.set_ylim(bottom=0)


def legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of one panel under all of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def best_marks(figure: Figure, axes: Axes, found: xr.Dataset, title: str) -> None:
    """Draw rho_k of every run, a row each, and mark the frequencies on top."""
    rho_RK = found["rho_k"].values
    picture = axes.imshow(rho_RK, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    rows = np.arange(len(rho_RK))
    axes.plot(found["best_k"].values, rows, "o", markerfacecolor="none", color=INK, markersize=8)
    axes.plot(found["best_k_above_10"].values, rows, "s", markerfacecolor="none", color=INK,
              markersize=5)  # fmt: skip
    axes.set_yticks(rows, [str(seed) for seed in found["run"].values], fontsize=7)
    axes.set_xticks(range(0, rho_RK.shape[1], 5))
    axes.set_xlabel("frequency k", fontsize=8)
    axes.set_ylabel("seed", fontsize=8)
    axes.set_title(f"{title}: rho_k, epoch 1000", fontsize=9)
    figure.colorbar(picture, ax=axes, pad=0.01)


def learning(axes: Any, found: xr.Dataset, title: str) -> None:
    """Draw accuracy, and the loss as a share of its start, which fits the same axis."""
    epochs, loss = found["evaluated"].values, found["training_loss"].values
    curve(axes, epochs, found["accuracy"].values, "accuracy", 0)
    curve(axes, epochs, loss / loss[0], f"loss / {loss[0]:.2f} nats", 1)
    axes.set_title(title)
    share_axis(axes)
    epoch_axis(axes, epochs)
