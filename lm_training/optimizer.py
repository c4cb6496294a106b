"""AdamW through Megatron's optimizer, with what its distributed form lacks in 0.16.1."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from lm_training import cpu
from lm_training.config import RunConfig
from lm_training.megatron_core import (
    DistributedDataParallel,
    DistributedOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
)


def build_optimizer(run: RunConfig, model: DistributedDataParallel) -> Any:
    """Build AdamW over ``model``; norms are not decayed, matrices are."""
    train = run.train
    config = OptimizerConfig(
        optimizer="adam",
        lr=train.lr,
        min_lr=train.lr * train.min_lr_ratio,
        weight_decay=train.weight_decay,
        adam_beta1=train.beta1,
        adam_beta2=train.beta2,
        clip_grad=train.clip_grad,
        bf16=train.bf16,
        params_dtype=torch.bfloat16 if train.bf16 else torch.float32,
        use_distributed_optimizer=run.parallel.distributed_optimizer,
    )
    with cpu.cuda_means_cpu():
        optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        group["weight_decay"] = train.weight_decay * group["wd_mult"]
    return optimizer


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Give every parameter group its rate for the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_mult", 1.0)


@contextmanager
def loadable_optimizer(optimizer: Any) -> Iterator[None]:
    """Mend, while loading, what Megatron 0.16.1's distributed optimizer does with torch's AdamW.

    It expects a state that AdamW only creates at the first update, forgets ``step`` when it
    copies that state back, and hands one ``step`` tensor to all parameters, so that AdamW
    would advance it once for each of them.
    """
    parts = [
        part
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        if isinstance(part, DistributedOptimizer)
    ]
    for part in parts:
        _create_state(part.optimizer)
        part._set_main_param_and_optimizer_states = partial(_set_with_step, part)
    try:
        yield
    finally:
        for part in parts:
            del part._set_main_param_and_optimizer_states
            for state in part.optimizer.state.values():
                state["step"] = state["step"].clone()


def _create_state(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def _set_with_step(part: Any, parameter: torch.Tensor, tensors: dict[str, Any]) -> None:
    group, order = part.model_param_group_index_map[parameter]
    state = part.optimizer.state[part.optimizer.param_groups[group]["params"][order]]
    tensors = {"step": state["step"].clone()} | tensors
    DistributedOptimizer._set_main_param_and_optimizer_states(part, parameter, tensors)
