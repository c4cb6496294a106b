"""Learning rate of a step: a pure function, so that a resumed run needs no state for it."""

import math

from lm_training.config import RunConfig


def learning_rate(step: int, run: RunConfig) -> float:
    """Return the rate of update ``step`` (1 is the first): linear warm-up, then cosine.

    Warm-up ends at its full rate on its last step and starts above zero, so that the first
    update moves the weights; the last step has ``min_lr_ratio`` of the peak.
    """
    train, total = run.train, run.steps
    warmup = math.ceil(train.warmup_ratio * total)
    if step <= warmup:
        return train.lr * step / warmup
    if total == warmup:
        return train.lr
    done = (step - warmup) / (total - warmup)
    floor = train.min_lr_ratio
    return train.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
