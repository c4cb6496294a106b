"""One page of all figures, with each claim beside its number and whether it holds."""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from corpus.provenance import provenance
from probes.results import ROOT_ATTRIBUTE, open_results
from workflows import page
from workflows.controlled.experiments import EXPERIMENTS
from workflows.controlled.settings import DEVIATIONS

_PAGE, _CLAIMS = "index.html", "claims.json"
_WORDS = {True: "holds", False: "fails", None: "not tested"}
_COLOURS = {True: "#00724f", False: "#b03a00", None: "#666"}


def write_page(out: Path) -> None:
    """Write ``out/index.html`` and ``out/claims.json`` from every result in ``out/results``."""
    records = sorted(_records(out), key=_place)
    summaries = [record["summary"] for record in records]
    (out / _CLAIMS).write_text(json.dumps(summaries, indent=1) + "\n", encoding="utf-8")
    title = "Context Staircase: controlled tasks"
    body = [*_opening(title, records), *_sections(records, out), *_closing(records)]
    partial = out / f"{_PAGE}.partial"
    partial.write_text(page.page(title, body), encoding="utf-8")
    partial.rename(out / _PAGE)


def _records(out: Path) -> Iterator[dict[str, Any]]:
    for path in (out / "results").glob("*.zarr"):
        record = open_results(path).attrs[ROOT_ATTRIBUTE]
        if record["summary"]["id"] in EXPERIMENTS:
            yield record


def _place(record: dict[str, Any]) -> tuple[int, int]:
    return list(EXPERIMENTS).index(record["summary"]["id"]), record["summary"]["seed"]


def _opening(title: str, records: list[dict[str, Any]]) -> Iterator[str]:
    yield page.heading(title, 1)
    yield page.paragraph(
        "Small tasks whose data are listed in full, so that every signature is exact, and toy "
        "models trained on them. Each figure of the paper (arXiv:2608.30315) is made anew; beside "
        "it stand its claims in our words, what was measured, and whether the claim holds. What "
        "does not hold is shown as it came out.",
        "lead",
    )
    held = [claim["holds"] for record in records for claim in record["summary"]["claims"]]
    yield page.paragraph(
        f"{held.count(True)} claims hold, {held.count(False)} fail, {held.count(None)} were not "
        "tested at this size."
    )
    yield page.bullets(
        f"{record['summary']['id']}, seed {record['summary']['seed']}: "
        f"{sum(claim['holds'] is True for claim in record['summary']['claims'])} of "
        f"{len(record['summary']['claims'])} claims hold"
        for record in records
    )


def _sections(records: list[dict[str, Any]], out: Path) -> Iterator[str]:
    for record in records:
        summary = record["summary"]
        experiment = EXPERIMENTS[summary["id"]]
        yield page.heading(f"{experiment.id}: {experiment.title}")
        yield page.paragraph(f"Seed {summary['seed']}, size {record['size']}.", "faint")
        figure = Path(summary["figure"])
        yield page.picture(
            (out / figure).read_bytes(),
            "png",
            name=figure.stem,
            shows=experiment.title,
            reading=experiment.reading,
        )
        yield _table(summary["claims"])


def _table(claims: list[dict[str, Any]]) -> str:
    rows = [
        [
            f'<div style="white-space:normal">{escape(claim["claim"])}</div>',
            _number(claim),
            escape(claim["expected"]),
            f'<b style="color:{_COLOURS[claim["holds"]]}">{_WORDS[claim["holds"]]}</b>',
        ]
        for claim in claims
    ]
    return page.table(["claim", "measured", "expected", ""], rows, numbers=[1, 2])


def _number(claim: dict[str, Any]) -> str:
    if claim["measured"] is None:
        return "" if claim["holds"] is None else "undefined"
    return f"{claim['measured']:.3g}"


def _closing(records: list[dict[str, Any]]) -> Iterator[str]:
    yield page.heading("Settings that the paper leaves out")
    yield page.paragraph(
        "One shared configuration: AdamW, learning rate 2e-3 constant, betas 0.9 and 0.999, eps "
        "1e-8, weight decay 0.1, batches of 100, gamma 1.0, width 128, ids 0 to 100. It differs in:"
    )
    yield page.bullets(
        f"{', '.join(one.experiments)}: {one.changes}; {one.note}" for one in DEVIATIONS
    )
    yield page.heading("Where this came from")
    for record in records:
        name = f"{record['summary']['id']}, seed {record['summary']['seed']}"
        yield page.folded(f"{name}: every run", page.record(record["runs"]))
    yield page.folded("this page", page.record(provenance()))
