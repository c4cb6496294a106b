"""A training run from a config: build, resume, update step by step, log, keep checkpoints."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from lm_training import cpu
from lm_training.checkpoint import CheckpointWriter, input_embedding
from lm_training.config import RunConfig
from lm_training.data import Batches, build_dataset, open_source, order_hash
from lm_training.distributed import is_first_process, process_groups
from lm_training.folder import (
    CHECKPOINTS,
    FORMAT_VERSION,
    ORDER,
    read_description,
    refuse_existing,
    remove_unfinished,
    resume_point,
    step_of,
    whole_checkpoints,
)
from lm_training.log import RunLog, peak_memory_bytes, utilisation
from lm_training.megatron_core import quiet
from lm_training.model import Decoder, build_decoder
from lm_training.optimizer import build_optimizer
from lm_training.resume import load, refuse_other_data, refuse_other_run, resolved
from lm_training.stop import StopRequest, stop_on_sigterm
from lm_training.trainer import Trainer, Update

Probe = Callable[[npt.NDArray[np.float32]], Mapping[str, float]]
"""Takes the live input embedding (vocab_size, hidden_size); what it returns joins the log."""


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
    RuntimeError
        The loss or the gradient became NaN or infinite.
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
        session = stack.enter_context(_session(run, resume, progress, on_checkpoint, probe))
        _steps(session, stop, progress)
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


@dataclass(slots=True)
class _Session:
    """A run under way in this process."""

    run: RunConfig
    decoder: Decoder
    trainer: Trainer
    checkpoints: CheckpointWriter
    log: RunLog | None
    """Only on the first process."""
    probe: Probe | None
    resumed: bool
    start: int
    """Updates made before this session."""
    done: int = field(default=0)
    loss: float | None = None


@contextmanager
def _session(
    run: RunConfig,
    resume: bool,
    progress: Progress,
    on_checkpoint: Callable[[int, Path], None] | None,
    probe: Probe | None,
) -> Iterator[_Session]:
    """Build everything; close files and threads whatever happens."""
    folder = run.out / CHECKPOINTS
    newest = resume_point(folder) if resume else None
    source = _on_first_process(lambda: open_source(run, progress))
    dataset = build_dataset(run, source.weights, run.out / ORDER)
    facts = {
        "format_version": FORMAT_VERSION,
        "config": resolved(run),
        "vocab_size": source.vocab_size,
        "tokenizer_hash": source.tokenizer_hash,
        "corpus": source.fingerprints,
        "order_hash": order_hash(dataset, run.steps * run.train.global_batch_size),
        "provenance": provenance(),
    }
    decoder = build_decoder(run)
    optimizer = build_optimizer(run, decoder.wrapped)
    start = step_of(newest) if newest else 0
    if newest is not None:
        description = read_description(newest)
        refuse_other_run(newest, run, description)
        refuse_other_data(newest, description, facts)
        load(newest, decoder, optimizer)
    if is_first_process():
        remove_unfinished(folder)
    checkpoints = CheckpointWriter(
        folder,
        decoder=decoder,
        optimizer=optimizer,
        description=facts,
        keep_optimizer=run.checkpoint.keep_optimizer,
        asynchronous=_asynchronous(run),
        on_checkpoint=on_checkpoint,
    )
    trainer = Trainer(run, decoder, optimizer, Batches(dataset, run))
    log = RunLog(run, resumed_at=start) if is_first_process() else None
    session = _Session(
        run, decoder, trainer, checkpoints, log, probe, newest is not None, start, done=start
    )
    try:
        yield session
    finally:
        checkpoints.close()
        if log is not None:
            log.close()


def _on_first_process(compute: Callable[[], Any]) -> Any:
    """Compute once and tell every process; an error is everyone's."""
    outcome: list[Any] = [None]
    if is_first_process():
        try:
            outcome = [compute()]
        except (ValueError, OSError) as error:
            outcome = [error]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(outcome)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _asynchronous(run: RunConfig) -> bool:
    wanted = run.checkpoint.asynchronous
    return cpu.has_cuda() if wanted is None else wanted


def _steps(session: _Session, stop: StopRequest, progress: Progress) -> None:
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
            update = session.trainer.update(step, stop=stop.asked)
            session.done, session.loss = step, update.loss
            _log(session, update, time.monotonic() - began)
            if step in kept or update.stop_asked:
                _save(session, resumable=update.stop_asked)
            tell(run.tokens_per_step)
            if update.stop_asked:
                break
    session.checkpoints.finish()


def _save(session: _Session, *, resumable: bool = False) -> None:
    run, step = session.run, session.done
    position = {
        "tokens_seen": step * run.tokens_per_step,
        "samples_seen": step * run.train.global_batch_size,
    }
    session.checkpoints.save(step, position, resumable=resumable)


def _log(session: _Session, update: Update, seconds: float) -> None:
    """Write the line of the step just made, with the live probe when it is due."""
    run, step = session.run, session.done
    probed: Mapping[str, float] = {}
    due = bool(run.log.probe_every) and step % (run.log.probe_every or 1) == 0
    if due and session.probe is not None:
        embedding = input_embedding(session.decoder)
        if embedding is not None:
            probed = session.probe(embedding)
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
