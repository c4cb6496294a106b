"""One update: forward and backward through Megatron's schedule, clip, AdamW."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from lm_training import cpu
from lm_training.config import RunConfig
from lm_training.data import Batches
from lm_training.megatron_core import (
    finalize_model_grads,
    get_forward_backward_func,
    parallel_state,
)
from lm_training.model import Decoder
from lm_training.optimizer import set_learning_rate
from lm_training.schedule import learning_rate


class DivergedError(RuntimeError):
    """The loss or the gradient is NaN or infinite; every process raises it at the same step."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one update measured, the same on every process."""

    loss: float
    """Mean cross-entropy over the tokens of the step, in nats, before the update."""
    grad_norm: float
    """Euclidean norm of the gradient before clipping."""
    lr: float
    stop_asked: bool
    """Whether some process was asked to stop."""


class Trainer:
    """The model, its optimizer and its data, ready for the next step."""

    def __init__(self, run: RunConfig, decoder: Decoder, optimizer: Any, batches: Batches) -> None:
        self._run = run
        self._model = decoder.wrapped
        self._optimizer = optimizer
        self._batches = batches
        self._schedule = get_forward_backward_func()
        decoder.inner.config.finalize_model_grads_func = finalize_model_grads
        decoder.inner.config.grad_scale_func = optimizer.scale_loss
        self._positions_1S = torch.arange(run.data.seq_length, device=cpu.device())[None]

    def update(self, step: int, *, stop: bool = False) -> Update:
        """Make update ``step`` (from 1); ``stop`` says whether this process was asked to stop.

        Raises
        ------
        DivergedError
            The weights of a step that went wrong must not be saved.
        """
        rate = learning_rate(step, self._run)
        set_learning_rate(self._optimizer, rate)
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        with cpu.cuda_means_cpu():
            losses = self._forward_backward(step)
            loss, stop_asked = self._agree(losses, stop)
            _refuse_non_finite(step, "loss", loss)
            _, grad_norm, _ = self._optimizer.step()
        _refuse_non_finite(step, "gradient norm", float(grad_norm))
        return Update(loss, float(grad_norm), rate, stop_asked)

    def _forward_backward(self, step: int) -> list[torch.Tensor]:
        """Return the mean loss of each micro-batch; empty but on the last pipeline stage."""
        return self._schedule(
            forward_step_func=self._forward,
            data_iterator=self._batches.of_step(step),
            model=[self._model],
            num_microbatches=self._batches.num_microbatches,
            seq_length=self._run.data.seq_length,
            micro_batch_size=self._batches.micro_batch_size,
            forward_only=False,
        )

    def _forward(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], model: Any) -> Any:
        with cpu.as_written():
            inputs_BS, labels_BS = next(batches)
            positions_BS = self._positions_1S.expand_as(inputs_BS)
            return model(inputs_BS, positions_BS, None, labels=labels_BS), _mean_loss

    def _agree(self, losses: list[torch.Tensor], stop: bool) -> tuple[float, bool]:
        """Mean loss over the step and whether anyone was asked to stop; one exchange for both."""
        device = cpu.device()
        told = torch.zeros(2, dtype=torch.float64, device=device)
        if losses:
            copies = parallel_state.get_data_parallel_world_size()
            copies *= parallel_state.get_tensor_model_parallel_world_size()
            told[0] = torch.stack(losses).double().mean() / copies
        told[1] = float(stop)
        dist.all_reduce(told)
        loss, stops = told.tolist()
        return loss, stops > 0


def _mean_loss(losses_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss = losses_BS.float().mean()
    # The schedule divides the first in place by the number of micro-batches.
    return loss, loss.detach().clone()


def _refuse_non_finite(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise DivergedError(
            f"step {step}: {what} is {value}; nothing of this step was saved. Resume from the last "
            "checkpoint with a lower lr, or look at the data of this step"
        )
