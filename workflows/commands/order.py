"""``staircase corpus order``: the samples a run takes."""

from pathlib import Path

import click

from workflows.terminal import print_json, say


def _read_steps(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Read ``A:B`` as two integers."""
    if value is None:
        return None
    first, _, last = value.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise click.BadParameter(f"found {value!r}; two steps such as 0:128 are needed")
    return int(first), int(last)


@click.command("order")
@click.argument("run_file", type=click.Path(path_type=Path), metavar="RUN.toml")
@click.option(
    "--steps",
    metavar="A:B",
    callback=_read_steps,
    help="Only what is seen from the checkpoint of step A to that of step B; 0:B is all before B.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="ORDER.npz")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def order_command(
    run_file: Path, steps: tuple[int, int] | None, out: Path, overwrite: bool, as_json: bool
) -> None:
    """Write which samples a training run takes, for `staircase count --scope packed --order`.

    For a blend, ORDER is a folder with one file a source.
    """
    from corpus.config import load
    from lm_training.config import RunConfig
    from lm_training.order import write_order

    result = write_order(
        load(run_file, RunConfig),
        out,
        steps=steps,
        overwrite=overwrite,
    )
    if as_json:
        print_json(result)
        return
    first, last = result["steps"]
    say(
        f"{out}: {result['samples']:,} samples of {result['seq_length']:,} tokens, steps {first} "
        f"to {last}, in {len(result['files'])} file(s)"
    )
