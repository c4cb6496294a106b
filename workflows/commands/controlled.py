"""``staircase controlled``: the paper's figures from a few lines of task definition."""

from pathlib import Path
from typing import Any

import click

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


@click.group()
def controlled_command() -> None:
    """Make every figure of the paper from its controlled tasks, each claim measured."""


@controlled_command.command("list")
@_JSON
def list_command(as_json: bool) -> None:
    """Name the experiments."""
    from workflows.controlled.experiments import EXPERIMENTS
    from workflows.terminal import print_json

    if as_json:
        print_json([{"id": one.id, "title": one.title} for one in EXPERIMENTS.values()])
        return
    for one in EXPERIMENTS.values():
        click.echo(f"{one.id:12} {one.title}")


def _seeds(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.BadParameter(f"{text!r}: whole numbers with commas are needed, such as 0,1,2.")
    return [int(part) for part in dict.fromkeys(parts)]


@controlled_command.command("run")
@click.argument("ids", nargs=-1, required=True, metavar="ID...|all")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("controlled-output"),
    show_default=True,
    help="Folder of results, figures and index.html; what it holds already is not made again.",
)
@click.option("--seeds", default="0", show_default=True, callback=_seeds, help="With commas.")
@click.option("--quick", is_flag=True, help="Minutes; claims that need more stay untested.")
@click.option("--full", is_flag=True, help="With the runs that take hours (fig5, L = 4).")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; default all cores.")
@_JSON
def run_command(
    ids: tuple[str, ...],
    out: Path,
    seeds: list[int],
    quick: bool,
    full: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run experiments, and say of each claim whether it holds.

    Interrupted, the same command goes on where it stopped.
    """
    from workflows.controlled.execution import run_experiments
    from workflows.terminal import print_json, say, terminal_progress

    if quick and full:
        raise click.UsageError("--quick and --full are two sizes; give one.")
    found = run_experiments(
        ids,
        out,
        seeds=seeds,
        size="quick" if quick else "full" if full else "standard",
        workers=workers,
        progress=terminal_progress(),
    )
    for one in found:
        say(_readable(one))
    say(f"Open the page: {out / 'index.html'}")
    if as_json:
        print_json(found)


def _readable(found: dict[str, Any]) -> str:
    """Return the claims of one experiment, a line each."""
    words = {True: "holds", False: "FAILS", None: "not tested"}
    lines = [f"{found['id']}, seed {found['seed']}"]
    for claim in found["claims"]:
        number = "undefined" if claim["measured"] is None else f"{claim['measured']:.3g}"
        measured = "" if claim["holds"] is None else f": {number} ({claim['expected']})"
        lines.append(f"  {words[claim['holds']]:10}  {claim['claim']}{measured}")
    return "\n".join(lines)
