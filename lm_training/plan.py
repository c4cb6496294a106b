"""What a run will take, from its config alone: nothing is built, no GPU and no corpus needed."""

from typing import Any

from lm_training.config import RunConfig
from lm_training.parameters import count_parameters

_FLOAT32, _BFLOAT16 = 4, 2


def plan(run: RunConfig) -> dict[str, Any]:
    """Return parameters, non_embedding_parameters, tokens, steps, checkpoints, checkpoint_bytes.

    ``checkpoint_bytes`` is what all checkpoints together hold at the end: the weights of each
    and the optimizer state of the newest ``keep_optimizer``.
    """
    counts = count_parameters(run.model)
    kept = run.checkpoint_steps()
    with_optimizer = min(run.checkpoint.keep_optimizer, len([step for step in kept if step]))
    weight = _BFLOAT16 if run.train.bf16 else _FLOAT32
    return {
        "parameters": counts.total,
        "non_embedding_parameters": counts.non_embedding,
        "tokens": run.steps * run.tokens_per_step,
        "steps": run.steps,
        "checkpoints": len(kept),
        "checkpoint_bytes": counts.total
        * (weight * len(kept) + _optimizer_bytes(run) * with_optimizer),
    }


def _optimizer_bytes(run: RunConfig) -> int:
    """Two moments a parameter, and the float32 weights where the model's are not the main ones."""
    has_main_weights = run.train.bf16 or run.parallel.distributed_optimizer
    return _FLOAT32 * (3 if has_main_weights else 2)
