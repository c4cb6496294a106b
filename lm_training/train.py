"""A training run from a config: build, resume, update step by step, log, keep checkpoints."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist

from corpus.progress import SILENT, Progress
from lm_training import cpu
from lm_training.checkpoint import input_embedding
from lm_training.config import RunConfig
from lm_training.distributed import process_groups
from lm_training.folder import (
    CHECKPOINTS,
    read_description,
    refuse_existing,
    step_of,
    whole_checkpoints,
)
from lm_training.log import peak_memory_bytes, utilisation
from lm_training.megatron_core import quiet
from lm_training.resume import refuse_other_run
from lm_training.session import Probe, Session, open_session
from lm_training.stop import StopRequest, stop_on_sigterm
from lm_training.trainer import DivergedError, Update

__all__ = ["Probe", "train"]


def train(
    run: RunConfig,
    *,
    resume: bool = False,
    progress: Progress = SILENT,
    on_checkpoint: Callable[[int, Path], None] | None = None,
    probe: Probe | None = None,
) -> dict[str, Any]:
    """Train the decoder of ``run`` and leave the run in ``run.out``.

    Under torchrun every process calls it with the same ``run``; otherwise it runs in this
    process, without any network port, and can be called again.

    Parameters
    ----------
    resume
        Go on from the newest checkpoint that holds an optimizer state; from step 0 where there
        is no checkpoint.
    on_checkpoint
        Called with step and path of each checkpoint, once it is whole.
    probe
        Called every ``[log] probe_every`` steps, on the first process.

    Returns
    -------
    dict
        out, steps, resumed_from (step or None), stopped_at (step at which a SIGTERM ended the
        run, or None), loss (of the last step; None when nothing was left to do), tokens, seconds.

    Raises
    ------
    FileExistsError
        There is a run in ``run.out`` and ``resume`` is not given.
    ValueError
        Corpus, layout or checkpoint do not fit the run.
    DivergedError
        A RuntimeError: the loss or the gradient became NaN or infinite. Checkpoints of earlier
        steps stay.
    """
    refuse_existing(run.out, resume=resume)
    if resume and _finished(run):
        return _result(run, done=run.steps, resumed_from=run.steps, loss=None, seconds=0.0)
    started = time.monotonic()
    with ExitStack() as stack:
        for context in (quiet(), cpu.stand_ins()):
            stack.enter_context(context)
        stop = stack.enter_context(stop_on_sigterm())
        stack.enter_context(process_groups(run.parallel, seed=run.seed))
        opened = open_session(run, resume=resume, progress=progress, on_checkpoint=on_checkpoint)
        session = stack.enter_context(opened)
        _steps(session, stop, progress, probe)
    return _result(
        run,
        done=session.done,
        resumed_from=session.start if session.resumed else None,
        loss=session.loss,
        seconds=round(time.monotonic() - started, 3),
    )


def _finished(run: RunConfig) -> bool:
    """Whether the last step of ``run`` is there as a checkpoint."""
    newest = whole_checkpoints(run.out / CHECKPOINTS)[-1:]
    for path in newest:
        refuse_other_run(path, run, read_description(path))
    return [step_of(path) for path in newest] == [run.steps]


def _result(
    run: RunConfig, *, done: int, resumed_from: int | None, loss: float | None, seconds: float
) -> dict[str, Any]:
    return {
        "out": str(run.out),
        "steps": done,
        "resumed_from": resumed_from,
        "stopped_at": done if done < run.steps else None,
        "loss": loss,
        "tokens": done * run.tokens_per_step,
        "seconds": seconds,
    }


def _steps(session: Session, stop: StopRequest, progress: Progress, probe: Probe | None) -> None:
    """Make every update that is left; return early when a SIGTERM asks for it."""
    run = session.run
    kept = set(run.checkpoint_steps())
    if session.start == 0 and 0 in kept:
        _save(session)
    with progress.stage(
        "train", run.tokens_per_step * (run.steps - session.start), "tokens"
    ) as tell:
        for step in range(session.start + 1, run.steps + 1):
            began = time.monotonic()
            update = _update(session, step, stop)
            session.done, session.loss = step, update.loss
            _log(session, update, time.monotonic() - began, probe)
            if step in kept or update.stop_asked:
                _save(session, resumable=update.stop_asked)
            tell(run.tokens_per_step)
            if update.stop_asked:
                break
    session.checkpoints.finish()


def _update(session: Session, step: int, stop: StopRequest) -> Update:
    try:
        return session.trainer.update(step, stop=stop.asked)
    except DivergedError:
        session.checkpoints.finish()  # an earlier step may still be on its way to the disk
        raise


def _save(session: Session, *, resumable: bool = False) -> None:
    run, step = session.run, session.done
    position = {
        "tokens_seen": step * run.tokens_per_step,
        "samples_seen": step * run.train.global_batch_size,
    }
    session.checkpoints.save(step, position, resumable=resumable)


def _log(session: Session, update: Update, seconds: float, probe: Probe | None) -> None:
    """Write the line of the step just made, with the live probe when it is due."""
    run, step = session.run, session.done
    probed: Mapping[str, float] = {}
    due = run.log.probe_every is not None and step % run.log.probe_every == 0
    if due:
        embedding = input_embedding(session.decoder)
        if embedding is not None and probe is not None:
            probed = probe(embedding)
    if session.log is None:
        return
    rate = run.tokens_per_step / seconds
    line = {
        "loss": update.loss,
        "grad_norm": update.grad_norm,
        "lr": update.lr,
        "tokens": step * run.tokens_per_step,
        "tokens_per_second": round(rate, 1),
        "mfu": utilisation(run, rate, dist.get_world_size()),
        "memory_bytes": peak_memory_bytes(),
    }
    session.log.write(step, line | dict(probed), always=due or step == run.steps)
