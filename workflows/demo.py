"""The whole story on real text: gather, tokenise, count, train twice, probe, report.

The text is what is on every machine with Python: the standard library's source and that of
the installed packages. Two decoders are trained, the same but for the initialisation
exponent, because the contrast between them is the point of the paper (arXiv:2608.30315).
"""

import contextlib
import json
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from workflows.output import refuse_existing, written_aside

RESULT = "demo.json"
"""Written last; a folder that holds it is a whole demo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Every choice the demo makes; recorded in its result."""

    max_text_bytes: int = 30_000_000
    gammas: tuple[float, ...] = (0.8, 0.5)
    """Small initialisation, and the ordinary one for contrast."""
    steps: int = 1000
    """Optimiser updates of each run."""
    tokens: str = "top:200"
    permutations: int = 999
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredText:
    """What ``gather_text`` took."""

    files: int
    bytes: int
    skipped: int
    """Files that are not UTF-8."""


def run_demo(
    out: Path,
    *,
    overwrite: bool = False,
    settings: DemoSettings | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Run every stage and leave the results in ``out``.

    Everything is written to ``out`` + ``.partial`` and renamed at the end, and every path
    that the results record is relative to that folder, so ``out`` can be moved.

    Returns
    -------
    dict
        ``report`` (path of the page), ``seconds``, ``text``, and ``runs``: for each gamma
        the curve ``rho_next`` as (step, rho) pairs with its peak and final value.

    Raises
    ------
    FileExistsError
        ``out`` exists and ``overwrite`` is not given, or it is no demo's output.
    """
    started = time.monotonic()
    out = out.absolute()
    refuse_existing(out, overwrite=overwrite, holds=RESULT)
    with written_aside(out) as work, contextlib.chdir(work):
        result = _run_stages(settings or DemoSettings(), progress)
        result["seconds"] = round(time.monotonic() - started, 1)
        Path(RESULT).write_text(json.dumps(result, indent=1) + "\n")
    return result | {"report": str(out / result["report"])}


def _run_stages(settings: DemoSettings, progress: Progress) -> dict[str, Any]:
    """Every stage in the current folder."""
    text = gather_text(Path("text.jsonl"), max_bytes=settings.max_text_bytes, progress=progress)
    _build_corpus(progress)
    _count(progress)
    runs = [_train_and_probe(gamma, settings, progress) for gamma in settings.gammas]
    _report(settings.gammas, progress)
    return {
        "report": "report/index.html",
        "text": asdict(text),
        "runs": runs,
        "settings": asdict(settings),
        "provenance": provenance(),
    }


def gather_text(out: Path, *, max_bytes: int, progress: Progress = SILENT) -> GatheredText:
    """Write the machine's Python source files, in a fixed order, as JSON lines to ``out``.

    First the standard library, then the installed packages, each sorted by path, until the
    next file would pass ``max_bytes``.
    """
    files = taken = skipped = 0
    with (
        progress.stage("gather text", max_bytes, "B") as advance,
        out.open("w", encoding="utf-8") as lines,
    ):
        for name, path in _source_files():
            content = path.read_bytes()
            if taken + len(content) > max_bytes:
                break
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                skipped += 1
                continue
            lines.write(json.dumps({"text": text, "source": name}) + "\n")
            files += 1
            taken += len(content)
            advance(len(content))
    if not files:
        raise FileNotFoundError(
            f"{sysconfig.get_path('stdlib')}: no .py files here; "
            "install Python with the source of its standard library"
        )
    return GatheredText(files=files, bytes=taken, skipped=skipped)


def _source_files() -> Iterator[tuple[str, Path]]:
    """Name and path of every source file; names say nothing of the machine."""
    stdlib, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    for path in sorted(stdlib.rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.relative_to(stdlib).as_posix(), path
    for path in sorted(packages.rglob("*.py")):
        yield path.relative_to(packages).as_posix(), path


def _build_corpus(progress: Progress) -> None:
    from corpus.tokenize import build_corpus, train_tokenizer
    from lm_training.config import decoder_demo

    text, tokenizer = Path("text.jsonl"), Path("tokenizer.json")
    vocab_size = decoder_demo().vocab_size
    train_tokenizer([text], vocab_size=vocab_size, out=tokenizer, progress=progress)
    build_corpus([text], tokenizer=tokenizer, out=Path("corpus"), progress=progress)


def _count(progress: Progress) -> None:
    from corpus.store import InputOptions
    from signatures.count import CountOptions, Scope, count_next_token

    count_next_token(
        [Path("corpus")],
        out=Path("next_token.zarr"),
        input=InputOptions(),
        scope=Scope(kind="document"),
        options=CountOptions(halves=True),  # how far two halves agree is the ceiling of rho
        progress=progress,
    )


def _train_and_probe(gamma: float, settings: DemoSettings, progress: Progress) -> dict[str, Any]:
    from lm_training.config import demo_run
    from lm_training.train import train
    from probes.probe import probe_series

    out = Path(run_name(gamma))
    run = demo_run(
        corpus=Path("corpus"), out=out, gamma=gamma, steps=settings.steps, seed=settings.seed
    )
    train(run, progress=progress)
    probed = probe_series(
        sorted((out / "checkpoints").glob("step_*")),
        signatures=Path("next_token.zarr"),
        tokens=settings.tokens,
        tokenizer=Path("tokenizer.json"),
        permutations=settings.permutations,
        train_log=out / "train.jsonl",
        out=out / "probes.zarr",
        progress=progress,
    )
    return {
        "gamma": gamma,
        **_course("rho_next", probed["direct"]),
        "unembedding": _course("rho_predecessor", probed["unembedding"]),
    }


def _course(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the curve called ``name`` as (step, rho) pairs, with its peak and its end."""
    curve = [(row["step"], row["rho"]) for row in rows]
    peak_step, peak_rho = max(curve, key=lambda point: point[1])
    return {name: curve, "peak_step": peak_step, "peak_rho": peak_rho, "final_rho": curve[-1][1]}


def run_name(gamma: float) -> str:
    """Folder of the run with this exponent."""
    return f"gamma_{gamma}"


def _report(gammas: tuple[float, ...], progress: Progress) -> None:
    from workflows.report import write_report

    with progress.stage("report", 1, "pages") as advance:
        write_report(
            {f"gamma {gamma}": Path(run_name(gamma)) / "probes.zarr" for gamma in gammas},
            out=Path("report"),
            title="Context Staircase on Python source code",
        )
        advance(1)


def summary(result: dict[str, Any]) -> str:
    """Return the closing lines for the terminal."""
    text = result["text"]
    lines = [
        f"\n{text['files']:,} files, {text['bytes'] / 1e6:.1f} MB of text; "
        f"{result['seconds']:.0f} s in all.",
        "How far the geometry follows the data: correlation rho of the cosine similarities of",
        "  input embeddings and next-token signatures,",
        *(_line(run["gamma"], "rho_next", run) for run in result["runs"]),
        "  unembeddings and predecessor signatures.",
        *(_line(run["gamma"], "rho_predecessor", run["unembedding"]) for run in result["runs"]),
    ]
    lines.append(f"Open the report: {result['report']}")
    return "\n".join(lines)


def _line(gamma: float, name: str, course: dict[str, Any]) -> str:
    """Return one run's curve in words."""
    first, last = course[name][0], course[name][-1]
    return (
        f"    gamma {gamma}: {first[1]:+.2f} at step {first[0]}, peak {course['peak_rho']:.2f} at "
        f"step {course['peak_step']}, {last[1]:.2f} at step {last[0]}"
    )
