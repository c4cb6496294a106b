"""What every still figure shares: colours, style, the step axis, names that can be drawn, files.

Colours are Okabe and Ito's, told apart with any colour vision.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT = "#222222", "#767676"
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",
    "svg.hashsalt": "context-staircase",
}


@contextmanager
def styled_figure(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of that many inches in the house style."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def step_axis(axes: Axes, steps: Sequence[npt.NDArray[Any]]) -> None:
    """Linear to step 1, logarithmic from there; ticks at 0, powers of 4, and the last step."""
    last = max(int(one.max()) for one in steps)
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.6)
    powers = [4**k for k in range(20) if 4**k * 1.6 < last]
    axes.set_xticks([0, *powers, last], [f"{tick:,}" for tick in (0, *powers, last)])
    axes.minorticks_off()
    axes.set_xlim(-0.15, last * 1.08)
    axes.set_xlabel("step (optimiser updates; linear to 1, then logarithmic)")


def drawable(text: str) -> str:
    """Replace characters that the figure font lacks by their code points."""
    return "".join(c if _font_has(c) else f"\\u{ord(c):04x}" for c in text)


@cache
def _font_has(character: str) -> bool:
    return bool(get_font(findfont(FontProperties())).get_char_index(ord(character)))


def picture_bytes(figure: Figure, kind: str) -> bytes:
    """Render the figure as ``svg`` or ``png``; equal figures give equal bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def save_pictures(figure: Figure, folder: Path, name: str) -> dict[str, bytes]:
    """Write ``name.svg`` and ``name.png`` into ``folder``; return their bytes by kind."""
    images = {kind: picture_bytes(figure, kind) for kind in ("svg", "png")}
    for kind, image in images.items():
        (folder / f"{name}.{kind}").write_bytes(image)
    return images


def loaded(results: xr.DataTree, name: str) -> xr.Dataset:
    """Return one group as a Dataset, in memory."""
    dataset: xr.Dataset = results.children[name].to_dataset()
    return dataset.load()
