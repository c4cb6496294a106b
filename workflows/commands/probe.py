"""``staircase probe``: checkpoints against the signatures of their corpus."""

from pathlib import Path

import click


@click.command()
@click.argument(
    "checkpoints",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="CHECKPOINTS...",
)
@click.option(
    "--signatures",
    type=click.Path(path_type=Path),
    required=True,
    metavar="STORE",
    help="Next-token store of the training corpus.",
)
@click.option(
    "--tokens",
    default="top:200",
    show_default=True,
    metavar="WHICH",
    help="Tokens compared: top:N, rank:A-B, all, or a file of ids.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="tokenizer.json",
    help="Gives tokens their text and finds the numbers among them.",
)
@click.option(
    "--permutations",
    type=click.IntRange(min=1),
    default=999,
    show_default=True,
    help="Of the permutation p.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="probes.zarr", help="Result."
)
@click.option("--resume", is_flag=True, help="Take up what an interrupted run has measured.")
@click.option("--overwrite", is_flag=True, help="Replace an existing result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def probe_command(
    checkpoints: tuple[Path, ...],
    signatures: Path,
    tokens: str,
    tokenizer: Path | None,
    permutations: int,
    out: Path,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Compare every checkpoint with the signatures of its corpus.

    CHECKPOINTS are step_* folders, or a run's folder that holds them. The input embedding goes
    against the next-token signature, the unembedding against the predecessor signature.
    """
    from probes.probe import probe_series
    from workflows.terminal import print_json, say, terminal_progress

    result = probe_series(
        checkpoints,
        signatures=signatures,
        tokens=tokens,
        tokenizer=tokenizer,
        permutations=permutations,
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if resume:
        say(_resumed(out, result))
    if as_json:
        print_json(result)
        return
    for path in ("direct", "unembedding"):
        rows = [row for row in result[path] if row["rho"] == row["rho"]]
        if rows:
            best = max(rows, key=lambda row: row["rho"])
            say(
                f"{path}: rho {rows[0]['rho']:.3f} at step {rows[0]['step']}, at most "
                f"{best['rho']:.3f} at step {best['step']} (p = {best['p']:.3f}), "
                f"{rows[-1]['rho']:.3f} at step {rows[-1]['step']}"
            )
        else:
            say(f"{path}: rho is undefined at every step")
    say(f"{out}: written; draw it with `staircase report {out} --out report/`")


def _resumed(out: Path, result: dict[str, object]) -> str:
    """Say what --resume found."""
    if result.get("finished_before"):
        return f"{out}: finished before; nothing to do"
    reused = result["reused_steps"]
    return f"{out}: {reused} steps reused" if reused else f"{out}: nothing to resume, begun afresh"
