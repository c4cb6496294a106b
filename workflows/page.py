"""The parts of an HTML page that needs nothing but itself: no network, and no script to be read."""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_CSS = """
:root { color-scheme: light; --ink: #222; --faint: #666; --line: #ddd; --wash: #f6f6f4; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: #fff; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 1080px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem; }
p, li { max-width: 46rem; }
.lead { font-size: 1.08rem; }
.faint, figcaption { color: var(--faint); font-size: .9rem; }
figure { margin: 1rem 0 1.6rem; }
figure img { width: 100%; height: auto; display: block; }
figcaption { margin-top: .4rem; max-width: 54rem; }
.table { overflow: auto; max-height: 27rem; border: 1px solid var(--line); border-radius: 4px; }
table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { padding: .28rem .6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid #eee; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--wash); font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  background: var(--wash); padding: .05em .3em; border-radius: 3px; white-space: pre; }
pre { background: var(--wash); padding: .8rem; overflow: auto; font-size: .8rem;
  border-radius: 4px; max-height: 27rem; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem; }
.pair > div { flex: 1 1 26rem; min-width: 0; }
#scrub label { margin-right: 1rem; }
#scrub-step { width: 22rem; max-width: 60vw; vertical-align: middle; }
details > summary { cursor: pointer; margin: .8rem 0; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole document; ``title`` is plain text, ``body`` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """Return a heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text, of the given class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def picture(image: bytes, kind: str, *, name: str, shows: str, reading: str) -> str:
    """Return an embedded ``svg`` or ``png`` with a caption that says how to read it.

    The caption links the same figure as files in ``figures/`` beside the page.
    """
    media = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    data = base64.b64encode(image).decode("ascii")
    links = " ".join(f'<a href="figures/{name}.{end}">{end.upper()}</a>' for end in ("svg", "png"))
    return (
        f'<figure><img src="data:{media};base64,{data}" alt="{escape(shows)}">'
        f"<figcaption>{escape(reading)} {links}</figcaption></figure>"
    )


def link(file: str, text: str) -> str:
    """Return a link to a file beside the page."""
    return f'<p><a href="{escape(file)}">{escape(text)}</a></p>'


def code(text: str) -> str:
    """Return text as code, escaped."""
    return f"<code>{escape(text)}</code>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> str:
    """Return a table that scrolls; cells are HTML, ``numbers`` are columns set to the right."""
    classes = [' class="number"' if place in numbers else "" for place in range(len(header))]
    head = "".join(f"<th{c}>{escape(h)}</th>" for h, c in zip(header, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{c}>{h}</td>" for h, c in zip(row, classes, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def folded(title: str, content: str) -> str:
    """Return HTML that opens at a click."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def record(values: Any) -> str:
    """Return nested values as indented JSON."""
    return f"<pre>{escape(json.dumps(values, indent=1, ensure_ascii=False))}</pre>"
