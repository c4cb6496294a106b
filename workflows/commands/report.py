"""``staircase report``: saved probe results to a page that opens offline."""

from pathlib import Path

import click


@click.command()
@click.argument(
    "results",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="probes.zarr...",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--title", default="Context Staircase", show_default=True, help="Of the page.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def report_command(
    results: tuple[Path, ...], out: Path, title: str, overwrite: bool, as_json: bool
) -> None:
    """Draw one or several probe results as a page, with every figure as SVG and PNG too.

    Several results are drawn together, each under the name of its folder.
    """
    from workflows.report import labels_of, write_report
    from workflows.terminal import print_json, say, terminal_progress

    written = write_report(
        labels_of(results),
        out,
        title=title,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(written)
        return
    for run in written["runs"]:
        say(f"{run['label']}: {run['sentence']}")
    say(f"Open {written['report']}")
