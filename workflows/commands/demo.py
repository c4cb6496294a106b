"""``staircase demo``: the whole story on real text in minutes."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Folder to write; it appears whole or not at all.",
)
@click.option("--overwrite", is_flag=True, help="Replace the output of an earlier demo.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def demo_command(out: Path, overwrite: bool, as_json: bool) -> None:
    """Show on real text how embeddings climb the staircase, in about four minutes.

    Gathers the Python source files of this machine (nothing is downloaded), trains a
    tokenizer, counts next-token signatures, trains two small decoders that differ only in
    the initialisation exponent gamma, probes every checkpoint, and writes a report.
    """
    from workflows.demo import run_demo, summary
    from workflows.terminal import print_json, say, terminal_progress

    result = run_demo(out, overwrite=overwrite, progress=terminal_progress())
    say(summary(result))
    if as_json:
        print_json(result)
