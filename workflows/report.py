"""Saved probe results to one page that opens offline, with every figure also as SVG and PNG."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from probes.export import export_tidy
from probes.figures import save_pictures
from probes.interactive import scrubber
from probes.plot import (
    LAYER_TITLES,
    PATH_TITLES,
    TRAINED_TITLES,
    first_order_curves,
    layer_heatmap,
    number_panels,
    rho_over_steps,
    similarity_panels,
)
from probes.results import ROOT_ATTRIBUTE, open_results
from probes.tokens import visible
from workflows import page
from workflows.course import Course, course_of
from workflows.output import refuse_existing, written_aside

_PAGE = "index.html"
_READ_CURVES = (
    "How to read it: rho is 0 when the geometry of the model's rows has nothing of the "
    "signature's, and 1 when the pairwise cosines are in proportion. The band is the 95 % interval "
    "when tokens are drawn anew; hollow markers are steps where tokens permuted at random do as "
    "well in more than 1 of 20 cases. Ceiling: the most that a finite corpus allows, known where "
    "its halves were counted apart. Thin lines: training loss (mean of the steps within "
    "5 %), right axis."
)
_STEP_COLUMNS = (
    "rho",
    "spearman",
    "p",
    "one_minus_mse",
    "rho_centred",
    "rho_mean_removed",
    "rho_partial",
    "rho_square_root",
    "rho_ppmi",
    "cka",
)
_READ_MATRICES = (
    "How to read it: each cell is the cosine of two tokens. All panels have the tokens in one "
    "order, clustered by signature, so that a block of the first panel seen again in another means "
    "the model treats those tokens alike. The early step is where rho peaks (where it first "
    "passes half of its peak, if it peaks at the end)."
)
_READ_LAYERS = (
    "How to read it: one row for each layer, one column for each checkpoint, in the order of "
    "training but not to scale. Red: the layer's output for a token alone has the signature's "
    "geometry; blue: the opposite; a dot: no more than tokens permuted at random."
)
_READ_FIRST_ORDER = (
    "How to read it: one vector over context tokens is trained on some anchors, anew for each "
    "checkpoint, and scored on pairs of others. It says something only where it lies below the "
    "dashed lines, above all below the constant mean. Bands: range over splits."
)
_READ_NUMBERS = (
    "How to read it: tokens that read as whole numbers and occur at least 50 times, each row "
    "scaled to length 1, on the two directions of largest variance. The axes say how much of the "
    "variance the picture holds: a small share means most is not in it."
)


def write_report(
    runs: Mapping[str, Path | str],
    out: Path,
    *,
    title: str = "Context Staircase",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write ``out/index.html`` and ``out/figures/`` from saved results.

    Parameters
    ----------
    runs : mapping of str to Path
        Label of each run and its ``probes.zarr``.
    out : Path
        Folder of the report; it appears whole or not at all.

    Returns
    -------
    dict
        ``report`` (path of the page) and ``runs``: label, curve, peak, final value, fall and
        the sentence on whether rho rises and falls.

    Raises
    ------
    FileExistsError
        ``out`` exists without ``overwrite``, or is not a report.
    ResultFormatError
        A path that holds no probe result.
    """
    if not runs:
        raise ValueError("no result given; name at least one probes.zarr")
    out = Path(out)
    trees = {label: open_results(Path(path)) for label, path in runs.items()}
    refuse_existing(out, overwrite=overwrite, holds=_PAGE)
    courses = {
        label: course_of(tree.children["direct"].to_dataset()) for label, tree in trees.items()
    }
    with written_aside(out) as folder, progress.stage("figures", None, "figures") as advance:
        (folder / "figures").mkdir()
        parts = [
            *_opening(title, trees, courses),
            *_curves(trees, folder / "figures", advance),
            *_geometry(trees, folder / "figures", advance),
            *_tables(trees),
            *_provenance(trees, folder),
        ]
        (folder / _PAGE).write_text(page.page(title, parts), encoding="utf-8")
    return {
        "report": str(out / _PAGE),
        "runs": [{"label": label} | course.as_dict() for label, course in courses.items()],
    }


def labels_of(paths: Sequence[Path]) -> dict[str, Path]:
    """Label results by their names, or by their folders' when the names are the same.

    Raises
    ------
    ValueError
        Two results that cannot be told apart.
    """
    resolved = [path.resolve() for path in paths]
    for labels in ([p.stem for p in resolved], [p.parent.name for p in resolved]):
        if len(set(labels)) == len(paths):
            return dict(zip(labels, paths, strict=True))
    raise ValueError(
        f"{', '.join(map(str, paths))}: results of one name in folders of one name; "
        "rename one, so that the figures can tell them apart"
    )


def _opening(
    title: str, trees: Mapping[str, xr.DataTree], courses: Mapping[str, Course]
) -> Iterator[str]:
    yield page.heading(title, 1)
    yield page.paragraph(
        "How far the geometry of a language model's token embeddings follows what the training "
        "data says about each token, checkpoint by checkpoint. A token's next-token signature is "
        "how often each token follows it in the corpus; its predecessor signature, what comes "
        "before it.",
        "faint",
    )
    yield page.paragraph("Input embedding against the next-token signature:")
    yield page.bullets(f"{label}: {course.sentence()}" for label, course in courses.items())
    unembedding = {
        label: tree.children["unembedding"].to_dataset()
        for label, tree in trees.items()
        if "unembedding" in tree.children
    }
    if unembedding:
        yield page.paragraph("Unembedding against the predecessor signature:")
        yield page.bullets(
            f"{label}: {course_of(group).sentence()}" for label, group in unembedding.items()
        )


def _curves(trees: Mapping[str, xr.DataTree], figures: Path, advance: Any) -> Iterator[str]:
    yield page.heading("When the embeddings follow the data")
    for path, title in PATH_TITLES.items():
        chosen = {label: tree for label, tree in trees.items() if path in tree.children}
        if not chosen:
            continue
        figure = rho_over_steps(chosen, path)
        image = save_pictures(figure, figures, f"rho_{path}")["svg"]
        yield page.picture(
            image, "svg", name=f"rho_{path}", shows=f"{title}: rho over steps", reading=_READ_CURVES
        )
        advance(1)
    yield from _layers(trees, figures, advance)
    yield from _first_order(trees, figures, advance)
    for label, tree in trees.items():
        yield page.folded(f"Every step of {label} in numbers", _step_table(tree))


def _layers(trees: Mapping[str, xr.DataTree], figures: Path, advance: Any) -> Iterator[str]:
    for path, title in LAYER_TITLES.items():
        for place, (label, tree) in enumerate(trees.items()):
            if path not in tree.children:
                continue
            name = f"{path}_{place}"
            yield page.picture(
                save_pictures(layer_heatmap(tree, path, label), figures, name)["svg"],
                "svg",
                name=name,
                shows=f"{title}: rho by layer and step, {label}",
                reading=_READ_LAYERS,
            )
            advance(1)


def _first_order(trees: Mapping[str, xr.DataTree], figures: Path, advance: Any) -> Iterator[str]:
    for path, title in TRAINED_TITLES.items():
        for place, (label, tree) in enumerate(trees.items()):
            if path not in tree.children or "heldout_mse" not in tree[path]:
                continue
            name = f"{path}_{place}"
            yield page.picture(
                save_pictures(first_order_curves(tree, label, path), figures, name)["svg"],
                "svg",
                name=name,
                shows=f"{title}: held-out error over steps, {label}",
                reading=_READ_FIRST_ORDER,
            )
            advance(1)


def _geometry(trees: Mapping[str, xr.DataTree], figures: Path, advance: Any) -> Iterator[str]:
    yield page.heading("Which tokens are alike")
    yield scrubber(trees)
    for place, (label, tree) in enumerate(trees.items()):
        figure = similarity_panels(tree, label)
        name = f"similarity_{place}"
        yield page.picture(
            save_pictures(figure, figures, name)["png"],
            "png",
            name=name,
            shows=f"Cosine matrices of signature and embeddings, {label}",
            reading=_READ_MATRICES,
        )
        advance(1)
        if "numbers" in tree.children:
            figure = number_panels(tree, label)
            name = f"numbers_{place}"
            yield page.picture(
                save_pictures(figure, figures, name)["svg"],
                "svg",
                name=name,
                shows=f"Number tokens on two principal components, {label}",
                reading=_READ_NUMBERS,
            )
            advance(1)


def _step_table(tree: xr.DataTree) -> str:
    group: xr.Dataset = tree.children["direct"].to_dataset().load()
    columns = [name for name in _STEP_COLUMNS if name in group]
    header = ["step", *columns, "rho, 95 % interval"]
    rows = [
        [f"{int(step):,}"]
        + [_number(group[name].values[place]) for name in columns]
        + [" to ".join(_number(bound) for bound in group["rho_interval"].values[place])]
        for place, step in enumerate(group["step"].values)
    ]
    note = page.paragraph(
        "Input embedding against next-token signature. spearman: rank correlation. p: one-sided, "
        "tokens permuted. one_minus_mse: 1 less the mean squared difference of the cosines. "
        "rho_centred: after each row lost its own mean. rho_mean_removed: after the mean row was "
        "taken from all. rho_partial: log occurrences of both tokens held fixed. rho_square_root, "
        "rho_ppmi: other readings of the signature. cka: linear, debiased. "
        + _signature_note(group),
        "faint",
    )
    return note + page.table(header, rows, numbers=range(len(header)))


def _signature_note(group: xr.Dataset) -> str:
    """Say what holds for all steps: coverage of the interval, and the ceiling with its origin."""
    covered = 100 * float(group["null_coverage"].values)
    note = (
        f"The interval held the true value in {covered:.0f} % of random embeddings, whose rho is 0."
    )
    if "ceiling" in group:
        note += (
            f" Signatures of even and odd documents correlate at "
            f"{_number(group['half_correlation'].values)}, so the signature's reliability is "
            f"{_number(group['reliability'].values)} (Spearman-Brown) and its square root "
            f"{_number(group['ceiling'].values)} the most that rho can be expected to reach."
        )
    return note


def _tables(trees: Mapping[str, xr.DataTree]) -> Iterator[str]:
    """Nearest tokens by signature: of the first run, and of others with another signature."""
    yield page.heading("Nearest tokens by signature")
    yield page.paragraph(
        "What the data alone says is alike: the tokens whose next-token signatures have the "
        "largest cosine, in brackets, with those of the tokens above. No model is involved. "
        "\N{OPEN BOX} is a space, \N{RETURN SYMBOL} a line end, \N{RIGHTWARDS ARROW TO BAR} a tab."
    )
    shown: list[str] = []
    for label, tree in trees.items():
        html = _neighbor_table(tree.children["neighbors"].to_dataset().load())
        if html not in shown:
            shown.append(html)
            yield page.heading(f"Corpus of {label}", 3) + html if len(shown) > 1 else html


def _neighbor_table(group: xr.Dataset) -> str:
    rows = []
    for place, token in enumerate(group["token_text"].values):
        near = zip(
            group["nearest_text"].values[place],
            group["nearest_similarity"].values[place],
            strict=True,
        )
        cells = [f"{page.code(visible(str(text)))} ({_number(cosine, 2)})" for text, cosine in near]
        occurrences = f"{int(group['occurrences'].values[place]):,}"
        rows.append([page.code(visible(str(token))), occurrences, ", ".join(cells)])
    return page.table(["token", "occurrences", "nearest, with cosine"], rows, numbers=[1])


def _provenance(trees: Mapping[str, xr.DataTree], folder: Path) -> Iterator[str]:
    yield page.heading("Where this came from")
    yield page.paragraph(
        "Everything needed to make it again: versions, commit, resolved configuration, seeds, "
        "fingerprints of the corpus and of every checkpoint.",
        "faint",
    )
    for place, (label, tree) in enumerate(trees.items()):
        for kind in ("csv", "parquet"):
            export_tidy(tree, folder / f"metrics_{place}.{kind}")
        yield page.link(f"metrics_{place}.csv", f"every metric of {label} as a table (CSV)")
        yield page.link(f"metrics_{place}.parquet", "the same as parquet")
        yield page.folded(label, page.record(tree.attrs[ROOT_ATTRIBUTE]))
    yield page.folded("this page", page.record(provenance()))


def _number(value: Any, decimals: int = 3) -> str:
    return "undefined" if not np.isfinite(value) else f"{float(value):.{decimals}f}"
