"""``staircase probe``: checkpoints against the signatures of their corpus."""

from pathlib import Path
from typing import Any

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
    "--first-order",
    type=click.Path(path_type=Path),
    metavar="STORE",
    help="First-order store of the corpus, for the first-order probe.",
)
@click.option(
    "--projected",
    type=click.Path(path_type=Path),
    metavar="STORE",
    help="Projected store of the corpus: its anchors are compared, any number of them.",
)
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="CORPUS",
    help="Corpus the model reads for the attention path; left out without it.",
)
@click.option(
    "--corpus-tokens",
    type=click.IntRange(min=2),
    default=200_000,
    show_default=True,
    metavar="N",
    help="Tokens of it, whole documents from its start.",
)
@click.option(
    "--seq-length",
    type=click.IntRange(min=1),
    metavar="L",
    help="Longest piece the model reads at once  [default: the run's, else 1024]",
)
@click.option(
    "--warm-start",
    is_flag=True,
    help="Start the first-order fits of a checkpoint from the one before: cheaper, one after the "
    "other, larger held-out errors (docs/probes.md).",
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
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes of this machine that checkpoints are shared among.",
)
@click.option("--scheduler", metavar="tcp://..", help="Dask scheduler to use instead of them.")
@click.option("--resume", is_flag=True, help="Take up what an interrupted run has measured.")
@click.option("--overwrite", is_flag=True, help="Replace an existing result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def probe_command(
    checkpoints: tuple[Path, ...],
    signatures: Path,
    tokens: str,
    tokenizer: Path | None,
    first_order: Path | None,
    projected: Path | None,
    corpus: Path | None,
    corpus_tokens: int,
    seq_length: int | None,
    warm_start: bool,
    permutations: int,
    out: Path,
    workers: int,
    scheduler: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Compare every checkpoint with the signatures of its corpus.

    CHECKPOINTS are step_* folders, a run's folder that holds them, or Hugging Face folders named
    step... . The input embedding and every layer's FFN go against the next-token signature, the
    unembedding against the predecessor signature, attention (with --corpus) against the
    attention-path signature of its layer.
    """
    from probes.probe import probe_series
    from signatures.memory import keep_freed_memory
    from workflows.terminal import print_json, say, terminal_progress

    keep_freed_memory()
    result = probe_series(
        checkpoints,
        signatures=signatures,
        tokens=tokens,
        tokenizer=tokenizer,
        first_order=first_order,
        projected=projected,
        corpus=corpus,
        corpus_tokens=corpus_tokens,
        seq_length=seq_length,
        warm_start=warm_start,
        permutations=permutations,
        out=out,
        workers=workers,
        scheduler=scheduler,
        resume=resume,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if resume:
        say(_resumed(out, result))
    if as_json:
        print_json(result)
        return
    for path in ("direct", "unembedding", "ffn", "attention"):
        if path in result:
            say(_course(path, result[path]))
    if "projected" in result:
        say(_course("projected, untrained", result["projected"]))
    for path in ("first_order", "projected"):
        if "heldout_mse" in result.get(path, [{}])[-1]:
            say(_trained(path, result[path][-1]))
    say(f"{out}: written; draw it with `staircase report {out} --out report/`")


def _course(path: str, rows: list[dict[str, Any]]) -> str:
    """Say in a line where rho began, peaked and ended."""
    defined = [row for row in rows if row["rho"] == row["rho"]]
    if not defined:
        return f"{path}: rho is undefined at every step"
    best = max(defined, key=lambda row: row["rho"])
    layer = f", layer {best['layer']}" if "layer" in best else ""
    same = [row for row in defined if row.get("layer") == best.get("layer")]
    return (
        f"{path}: rho {same[0]['rho']:.3f} at step {same[0]['step']}, at most {best['rho']:.3f} "
        f"at step {best['step']} (p = {best['p']:.3f}), {same[-1]['rho']:.3f} at step "
        f"{same[-1]['step']}{layer}"
    )


def _trained(path: str, last: dict[str, Any]) -> str:
    """Say in a line what the trained probe was worth at the last step."""
    return (
        f"{path.replace('_', ' ')}, trained: held-out mse {last['heldout_mse']:.4f} at step "
        f"{last['step']}, constant mean {last['baseline_mse']:.4f}, shuffled anchors "
        f"{last['shuffled_mse']:.4f}"
    )


def _resumed(out: Path, result: dict[str, object]) -> str:
    """Say what --resume found."""
    if result.get("finished_before"):
        return f"{out}: finished before; nothing to do"
    reused = result["reused_steps"]
    return f"{out}: {reused} steps reused" if reused else f"{out}: nothing to resume, begun afresh"
