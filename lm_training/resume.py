"""Going on from a checkpoint: which one, whether it fits this run, and loading it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lm_training import cpu
from lm_training.checkpoint import EXTRA_STATE, optimizer_state, weights_state
from lm_training.config import RunConfig
from lm_training.folder import OPTIMIZER, CheckpointFormatError
from lm_training.megatron_core import ShardedTensor, ShardedTensorFactory, dist_checkpointing
from lm_training.metadata import stored_shapes
from lm_training.model import Decoder
from lm_training.optimizer import loadable_optimizer


def resolved(run: RunConfig) -> dict[str, Any]:
    """Return ``run`` as plain values, ready for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(run), default=str))
    return plain


def refuse_other_run(path: Path, run: RunConfig, description: dict[str, Any]) -> None:
    """Refuse to go on with another model, other data or another schedule.

    Where the run lives, how it is cut over processes, and what is kept and logged may change.

    Raises
    ------
    CheckpointFormatError
        Lists every key that differs.
    """
    before, now = (_decisive(config) for config in (description["config"], resolved(run)))
    differing = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise CheckpointFormatError(
            f"{path}: belongs to another run: {'; '.join(differing)}; put these back, or start "
            "afresh in another out"
        )


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    """Flatten the keys that decide the numbers of a run."""
    model = {f"model.{name}": value for name, value in config["model"].items() if name != "preset"}
    train = {
        f"train.{name}": value
        for name, value in config["train"].items()
        if name != "micro_batch_size"
    }
    data = {"data.seq_length": config["data"]["seq_length"]}
    return {"seed": config["seed"]} | model | train | data


def refuse_other_data(path: Path, description: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a corpus or a sample order other than the checkpoint's; names may differ."""
    for key in ("tokenizer_hash", "order_hash"):
        if description[key] != now[key]:
            raise CheckpointFormatError(
                f"{path}: trained with {key} {str(description[key])[:12]}, this run has "
                f"{str(now[key])[:12]}; resume on the corpus it was trained on"
            )
    before, after = (
        [(file["sha256"], file["tokens"]) for file in facts["corpus"]]
        for facts in (description, now)
    )
    if before != after:
        raise CheckpointFormatError(
            f"{path}: the corpus is not the one it was trained on (tokens {before} before, {after} "
            "now); put the old files back, or start afresh in another out"
        )


def load(path: Path, decoder: Decoder, optimizer: Any) -> None:
    """Load weights and optimizer state, onto whatever layout this run has.

    Raises
    ------
    CheckpointFormatError
        Keys are missing or unexpected, or shapes differ; all are listed.
    """
    with cpu.cuda_means_cpu(), torch.no_grad():
        weights = weights_state(decoder)
        refuse_mismatch(path, weights)
        loaded = dist_checkpointing.load(weights, str(path))
        absent = decoder.inner.load_state_dict(loaded, strict=False).missing_keys
        assert all(name.endswith(EXTRA_STATE) for name in absent), absent
        with loadable_optimizer(optimizer):
            state = optimizer_state(decoder, optimizer, is_loading=True)
            refuse_mismatch(path / OPTIMIZER, state)
            optimizer.load_state_dict(dist_checkpointing.load(state, str(path / OPTIMIZER)))


def refuse_mismatch(path: Path, wanted: Any) -> None:
    """Compare what all processes together want with what ``path`` holds."""
    shapes: dict[str, tuple[int, ...]] = {}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, _global_shapes(wanted))
    for part in every:
        shapes |= part
    stored = stored_shapes(path)
    problems = [f"missing {sorted(missing)}"] if (missing := shapes.keys() - stored.keys()) else []
    if unexpected := stored.keys() - shapes.keys():
        problems.append(f"unexpected {sorted(unexpected)}")
    problems += [
        f"{key} is {stored[key]}, {shape} is needed"
        for key, shape in sorted(shapes.items())
        if key in stored and stored[key] != shape
    ]
    if problems:
        raise CheckpointFormatError(
            f"{path}: does not fit this model: {'; '.join(problems)}; use the run file that it was "
            "trained with"
        )


def _global_shapes(state: Any) -> dict[str, tuple[int, ...]]:
    """Return key and whole shape of every sharded tensor inside ``state``."""
    if isinstance(state, ShardedTensor):
        return {state.key: tuple(state.global_shape)}
    if isinstance(state, ShardedTensorFactory):
        state = state.build()
    if isinstance(state, dict):
        state = list(state.values())
    found: dict[str, tuple[int, ...]] = {}
    if isinstance(state, list | tuple):
        for item in state:
            found |= _global_shapes(item)
    return found
