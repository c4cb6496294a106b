"""``staircase train``: the decoder of a run file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workflows.terminal import print_json, say, terminal_progress

if TYPE_CHECKING:
    from lm_training.config import RunConfig
    from lm_training.train import Probe


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path), metavar="RUN.toml")
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), help="Processes to start here, one a GPU."
)
@click.option("--resume", is_flag=True, help="Go on from the newest resumable checkpoint.")
@click.option(
    "--dry-run", is_flag=True, help="Print parameters, steps, checkpoints and their bytes; stop."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def train_command(
    run_file: Path, nproc_per_node: int | None, resume: bool, dry_run: bool, as_json: bool
) -> int:
    """Train a decoder with Megatron-core, as RUN.toml says.

    --nproc-per-node starts several processes on this machine; under torchrun, which several
    machines need, it is one of the processes. Runs that ship stand in workflows/runs/.
    """
    from corpus.config import load
    from lm_training.config import RunConfig

    run = load(run_file, RunConfig)
    if dry_run:
        _print_plan(run, as_json=as_json)
        return 0
    if nproc_per_node is not None:
        return _launch(run, run_file, nproc_per_node, resume=resume, as_json=as_json)
    return _train(run, resume=resume, as_json=as_json)


def _print_plan(run: "RunConfig", *, as_json: bool) -> None:
    from lm_training.plan import plan

    planned = plan(run)
    if as_json:
        print_json(planned)
        return
    say(f"parameters      {planned['parameters']:>18,}")
    say(f"  non-embedding {planned['non_embedding_parameters']:>18,}")
    say(f"tokens          {planned['tokens']:>18,}")
    say(f"steps           {planned['steps']:>18,}")
    say(f"checkpoints     {planned['checkpoints']:>18,}")
    say(f"  GB in all     {planned['checkpoint_bytes'] / 1e9:>18,.1f}")


def _launch(
    run: "RunConfig", run_file: Path, processes: int, *, resume: bool, as_json: bool
) -> int:
    """Check what can be checked at once, then start the processes."""
    from lm_training.folder import refuse_existing
    from lm_training.launch import launch

    if "WORLD_SIZE" in os.environ:
        raise click.UsageError("torchrun has started this process; leave --nproc-per-node out.")
    refuse_existing(run.out, resume=resume)
    flags = ["--resume"] * resume + ["--json"] * as_json
    return launch(["train", str(run_file), *flags], nproc_per_node=processes)


def _train(run: "RunConfig", *, resume: bool, as_json: bool) -> int:
    """Train in this process; only the first of several speaks."""
    from corpus.progress import SILENT
    from lm_training.train import train

    first = os.environ.get("RANK", "0") == "0"
    if first and resume:
        _say_where_from(run)
    result = train(
        run,
        resume=resume,
        progress=terminal_progress() if first else SILENT,
        probe=_probe(run) if first else None,
    )
    if first:
        _tell(result, as_json=as_json)
    return 0 if result["stopped_at"] is None else 130


def _say_where_from(run: "RunConfig") -> None:
    from lm_training.folder import CHECKPOINTS, resume_point, step_of, whole_checkpoints

    folder = run.out / CHECKPOINTS
    if [step_of(path) for path in whole_checkpoints(folder)[-1:]] == [run.steps]:
        return  # finished; the closing line says so
    newest = resume_point(folder)
    say(f"going on from {newest}" if newest else f"{run.out}: no checkpoint; starting at step 0")


def _probe(run: "RunConfig") -> "Probe | None":
    if run.log.signatures is None:
        return None
    from workflows.live_probe import live_probe

    return live_probe(run.log.signatures)


def _tell(result: dict[str, Any], *, as_json: bool) -> None:
    out, stopped = result["out"], result["stopped_at"]
    if stopped is not None:
        say(f"{out}: stopped by SIGTERM after step {stopped}, which is saved; go on with --resume")
    elif result["loss"] is None:
        say(f"{out}: finished already, at step {result['steps']}")
    else:
        say(
            f"{out}: step {result['steps']}, loss {result['loss']:.4f}, "
            f"{result['tokens']:,} tokens; checkpoints in {out}/checkpoints"
        )
    if as_json:
        print_json(result)
