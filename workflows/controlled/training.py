"""Training of toy models, several at once, with checkpoints in memory.

Runs that differ only in seed, labels, learning rate, weight decay or gamma are stacked (`models`).
Each has its own generator, and no number of one enters another, so a run is the same whatever is
stacked beside it, as far as the matrix library multiplies each matrix of a batch by itself.

Shapes: R runs, N samples, B batch, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workflows.controlled.models import (
    ModelConfig,
    Parameters,
    initial_parameters,
    logits,
)
from workflows.controlled.optimizer import StackedAdamW
from workflows.controlled.runs import RunConfig, RunLog, TrainedRun
from workflows.controlled.samples import StackedSamples
from workflows.controlled.tasks import ControlledTask, built

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Training:
    """A stack of runs on its way; `state` and `restore` carry it over an interruption."""

    def __init__(self, configs: Sequence[RunConfig]) -> None:
        assert len({config.stacks_with() for config in configs}) == 1, "these runs do not stack"
        self._configs = list(configs)
        self._alike = configs[0]
        tasks = [built(config.task) for config in configs]
        self._check_weights(tasks[0])
        dtype = _DTYPES[self._alike.dtype]
        self._data = StackedSamples.of(self._alike.model, tasks, dtype)
        self._totals = self._data.totals()
        self._generators = [torch.Generator().manual_seed(config.seed) for config in configs]
        drawn = [
            initial_parameters(config.model, task, generator)
            for config, task, generator in zip(configs, tasks, self._generators, strict=True)
        ]
        self._parameters = {
            name: torch.cat([one[name] for one in drawn]).to(dtype) for name in drawn[0]
        }
        self._optimizer = StackedAdamW(configs, self._parameters)
        self._running = torch.arange(len(configs))
        self._logs = [RunLog() for _ in configs]
        self.epoch = 0
        self._keep(range(len(configs)))
        self._evaluate()

    def _check_weights(self, task: ControlledTask) -> None:
        if self._alike.batch_size is not None and (task.enumerated.weights_N != 1).any():
            raise ValueError(
                "weighted samples in mini batches: a batch of multisets is no batch of sequences; "
                "use batch_size None (full batch)"
            )

    @property
    def finished(self) -> bool:
        """Whether every run has ended."""
        return not len(self._running) or self.epoch >= self._alike.epochs

    @property
    def epochs(self) -> int:
        """Epochs that the longest run takes."""
        return self._alike.epochs

    @property
    def last_accuracy(self) -> float:
        """Mean over runs of the last accuracy evaluated."""
        pairs = zip(self._logs, self._totals, strict=True)
        return sum(log.hits[-1] / total for log, total in pairs) / len(self._logs)

    def run_epoch(self) -> None:
        """Train every running run for one epoch; evaluate and keep what is due."""
        for chosen_RB in self._batches():
            self._update(*self._data.batch(chosen_RB))
        self.epoch += 1
        last = self.epoch == self._alike.epochs
        if last or self.epoch % self._alike.evaluate_every == 0 or self.epoch == 1:
            self._evaluate()
        if last or self.epoch in self._alike.checkpoints:
            self._keep(range(len(self._running)))

    def result(self) -> list[TrainedRun]:
        """Return each run, in the order given."""
        pairs = zip(self._configs, self._logs, self._totals, strict=True)
        return [log.finished(config, total) for config, log, total in pairs]

    def _batches(self) -> list[Tensor | None]:
        """Split the data anew for each run; None stands for all of it."""
        if self._alike.batch_size is None:
            return [None]
        size = self._data.num_samples
        orders = [torch.randperm(size, generator=self._generators[i]) for i in self._running]
        return list(torch.stack(orders).split(self._alike.batch_size, dim=1))

    def _update(self, inputs: Tensor, labels: Tensor, shares: Tensor) -> None:
        """One optimiser update of every run."""
        names = self._optimizer.names
        leaves = [self._parameters[name].requires_grad_() for name in names]
        loss = (_losses(self._alike.model, self._parameters, inputs, labels)[0] * shares).sum()
        gradients = torch.autograd.grad(loss, leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)
        self._optimizer.step(self._parameters, dict(zip(names, gradients, strict=True)))

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Log loss and hits of every running run; end those that are accurate enough."""
        inputs, labels, shares = self._data.everything()
        losses_RN, logits_RNV = _losses(self._alike.model, self._parameters, inputs, labels)
        losses = (losses_RN.double() * shares).sum(dim=1).tolist()
        right_RN = logits_RNV.argmax(dim=2) == labels
        hits = (right_RN * self._data.weights).sum(dim=1).tolist()
        for run, loss, hit in zip(self._running.tolist(), losses, hits, strict=True):
            self._logs[run].evaluated(self.epoch, loss, hit)
        if self._alike.stop_accuracy is not None:
            self._end_accurate(self._alike.stop_accuracy)

    def _end_accurate(self, accuracy: float) -> None:
        totals = [self._totals[run] for run in self._running]
        hits = [self._logs[run].hits[-1] for run in self._running]
        ended = [hit >= accuracy * total for hit, total in zip(hits, totals, strict=True)]
        if not any(ended):
            return
        self._keep([place for place, end in enumerate(ended) if end])
        kept = torch.tensor([place for place, end in enumerate(ended) if not end], dtype=torch.long)
        self._running = self._running[kept]
        self._parameters = {name: rows[kept] for name, rows in self._parameters.items()}
        self._optimizer.take(kept)
        self._data = self._data.take(kept)

    def _keep(self, places: Sequence[int]) -> None:
        for place in places:
            values = {name: rows[place].numpy().copy() for name, rows in self._parameters.items()}
            self._logs[int(self._running[place])].kept(self.epoch, values)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, for ``torch.save``."""
        return {
            "epoch": self.epoch,
            "running": self._running,
            "parameters": self._parameters,
            "optimizer": self._optimizer.state(),
            "generators": [generator.get_state() for generator in self._generators],
            "logs": [log.state() for log in self._logs],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken; the configurations must be the same."""
        kept = state["running"]
        self.epoch, self._running = state["epoch"], kept
        self._parameters = state["parameters"]
        self._optimizer.restore(state["optimizer"], kept)
        self._data = self._data.take(kept)
        for generator, one in zip(self._generators, state["generators"], strict=True):
            generator.set_state(one)
        self._logs = [RunLog.restored(one) for one in state["logs"]]


def train(configs: Sequence[RunConfig]) -> list[TrainedRun]:
    """Train runs that stack, and return each, in the order given."""
    training = Training(configs)
    while not training.finished:
        training.run_epoch()
    return training.result()


def _losses(
    model: ModelConfig, parameters: Parameters, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every sample, (R, B), and the logits, (R, B, V)."""
    logits_RBV = logits(model, parameters, inputs)
    losses = torch.nn.functional.cross_entropy(
        logits_RBV.flatten(0, 1), labels.flatten(), reduction="none"
    )
    return losses.view(labels.shape), logits_RBV
