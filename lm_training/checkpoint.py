"""Checkpoints: Megatron's torch_dist format plus ``staircase.json``, whole or not there."""

import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from lm_training import cpu
from lm_training.distributed import is_first_process
from lm_training.folder import (
    ASIDE,
    DESCRIPTION,
    OPTIMIZER,
    drop_old_optimizers,
    put_in_place,
    step_name,
)
from lm_training.megatron_core import dist_checkpointing, parallel_state
from lm_training.model import Decoder
from lm_training.torch_dist import TorchDistWriter

EXTRA_STATE = "_extra_state"

RESHARDABLE = {"distrib_optim_sharding_type": "fully_reshardable"}
"""The one sharding of the distributed optimizer that resumes right on CPU and other layouts."""


class CheckpointWriter:
    """Writes the checkpoints of one run.

    Parameters
    ----------
    folder
        ``out/checkpoints``.
    description
        The part of ``staircase.json`` that is the same for every step.
    keep_optimizer
        Newest checkpoints that keep the optimizer state; with 0 it is written only on demand.
    asynchronous
        Let files be written by a thread, from copies, while training goes on.
    on_checkpoint
        Called on the first process with step and path of each checkpoint once it is whole.
    """

    def __init__(
        self,
        folder: Path,
        *,
        decoder: Decoder,
        optimizer: Any,
        description: dict[str, Any],
        keep_optimizer: int,
        asynchronous: bool,
        on_checkpoint: Callable[[int, Path], None] | None = None,
    ) -> None:
        self._folder = folder
        self._decoder = decoder
        self._optimizer = optimizer
        self._description = description
        self._keep_optimizer = keep_optimizer
        self._pool = ThreadPoolExecutor(1) if asynchronous else None
        self._on_checkpoint = on_checkpoint
        self._unfinished: tuple[int, list[TorchDistWriter]] | None = None

    def save(self, step: int, position: dict[str, Any], *, resumable: bool = False) -> None:
        """Save the state after ``step``; ``position`` joins the description.

        ``resumable`` writes the optimizer state whatever the keep policy says.
        """
        self.finish()
        aside = self._folder / (step_name(step) + ASIDE)
        with_optimizer = step > 0 and (resumable or self._keep_optimizer > 0)
        embedding = input_embedding(self._decoder)
        if is_first_process():
            shutil.rmtree(aside, ignore_errors=True)
            (aside / OPTIMIZER if with_optimizer else aside).mkdir(parents=True)
            assert embedding is not None
            description = self._description | {"step": step} | position
            description["embedding_hash"] = hashlib.sha256(embedding.tobytes()).hexdigest()
            (aside / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        dist.barrier()
        self._unfinished = step, self._write_shards(aside, with_optimizer=with_optimizer)
        if self._pool is None:
            self.finish()

    def _write_shards(self, aside: Path, *, with_optimizer: bool) -> list[TorchDistWriter]:
        writers = [TorchDistWriter(self._pool) for _ in range(1 + with_optimizer)]
        with cpu.cuda_means_cpu():
            dist_checkpointing.save(
                weights_state(self._decoder), str(aside), sharded_strategy=writers[0]
            )
            if with_optimizer:
                state = optimizer_state(self._decoder, self._optimizer, is_loading=False)
                dist_checkpointing.save(state, str(aside / OPTIMIZER), sharded_strategy=writers[1])
        return writers

    def finish(self) -> None:
        """Wait for the checkpoint being written, if any, and put it in its place."""
        if self._unfinished is None:
            return
        step, writers = self._unfinished
        self._unfinished = None
        for writer in writers:
            writer.finish()
        if is_first_process():
            path = self._folder / step_name(step)
            put_in_place(path.with_name(path.name + ASIDE), path)
            drop_old_optimizers(self._folder, keep=max(1, self._keep_optimizer))
            if self._on_checkpoint is not None:
                self._on_checkpoint(step, path)
        dist.barrier()

    def close(self) -> None:
        """Let the writing thread end; what was not finished stays aside."""
        if self._pool is not None:
            self._pool.shutdown()


def weights_state(decoder: Decoder, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the sharded weights.

    Without the layers' ``_extra_state``: pickled objects that matter to 8-bit training only.
    """
    state = decoder.inner.sharded_state_dict(metadata=metadata)
    return {name: part for name, part in state.items() if not name.endswith(EXTRA_STATE)}


def optimizer_state(decoder: Decoder, optimizer: Any, *, is_loading: bool) -> dict[str, Any]:
    """Return the optimizer's sharded state, laid out so that any process layout can read it."""
    weights = weights_state(decoder, RESHARDABLE)
    return optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=RESHARDABLE)


def input_embedding(decoder: Decoder) -> npt.NDArray[np.float32] | None:
    """Collect the input embedding (vocab_size, hidden_size); None but on the first process.

    Collective over the first pipeline stage's tensor-parallel processes.
    """
    if not parallel_state.is_pipeline_first_stage():
        return None
    part = decoder.inner.embedding.word_embeddings.weight.detach()
    parts = [torch.empty_like(part) for _ in range(_tensor_ways())]
    dist.all_gather(parts, part, group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(parts).float().cpu().numpy() if is_first_process() else None


def _tensor_ways() -> int:
    return parallel_state.get_tensor_model_parallel_world_size()
