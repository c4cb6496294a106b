"""A run under way in this process: model, optimizer, data, log and checkpoints, opened together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from corpus.progress import Progress
from corpus.provenance import provenance
from lm_training import cpu
from lm_training.checkpoint import CheckpointWriter
from lm_training.config import RunConfig
from lm_training.data import (
    Batches,
    Source,
    build_dataset,
    fingerprints,
    open_source,
    order_hash,
)
from lm_training.distributed import is_first_process
from lm_training.folder import (
    CHECKPOINTS,
    FORMAT_VERSION,
    ORDER,
    read_description,
    remove_unfinished,
    resume_point,
    step_of,
)
from lm_training.log import RunLog
from lm_training.model import Decoder, build_decoder
from lm_training.optimizer import build_optimizer
from lm_training.resume import load, refuse_other_data, refuse_other_run, resolved
from lm_training.trainer import Trainer

Probe = Callable[[npt.NDArray[np.float32]], Mapping[str, float]]
"""Takes the live input embedding (vocab_size, hidden_size); what it returns joins the log."""


@dataclass(slots=True)
class Session:
    """A run under way in this process."""

    run: RunConfig
    decoder: Decoder
    trainer: Trainer
    checkpoints: CheckpointWriter
    log: RunLog | None
    """Only on the first process."""
    resumed: bool
    start: int
    """Updates made before this session."""
    done: int
    """Updates made so far."""
    loss: float | None = None
    """Of the last update."""


@contextmanager
def open_session(
    run: RunConfig,
    *,
    resume: bool,
    progress: Progress,
    on_checkpoint: Callable[[int, Path], None] | None,
) -> Iterator[Session]:
    """Build everything, on every process together; close files and threads whatever happens."""
    folder = run.out / CHECKPOINTS
    newest = resume_point(folder) if resume else None
    source: Source = _on_first_process(lambda: open_source(run))
    dataset = build_dataset(run, source.weights, run.out / ORDER)
    facts = _facts(run, source, dataset, progress)
    decoder = build_decoder(run)
    optimizer = build_optimizer(run, decoder.wrapped)
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
    start = step_of(newest) if newest else 0
    log = RunLog(run, resumed_at=start) if is_first_process() else None
    try:
        yield Session(run, decoder, trainer, checkpoints, log, newest is not None, start, start)
    finally:
        checkpoints.close()
        if log is not None:
            log.close()


def _facts(run: RunConfig, source: Source, dataset: Any, progress: Progress) -> dict[str, Any]:
    """Return what the description of every checkpoint of this run says."""
    return {
        "format_version": FORMAT_VERSION,
        "config": resolved(run),
        "vocab_size": source.vocab_size,
        "tokenizer_hash": source.tokenizer_hash,
        "corpus": _on_first_process(lambda: fingerprints(run, progress)),
        "order_hash": order_hash(dataset, run.steps * run.train.global_batch_size),
        "provenance": provenance(),
    }


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
