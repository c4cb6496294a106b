"""Training of toy models: AdamW on several runs at once, checkpoints in memory.

Runs that differ only in seed, labels, learning rate, weight decay or gamma are stacked (`models`).
Each has its own generator, and no number of one enters another, so a run is the same whatever is
stacked beside it, as far as the matrix library multiplies each matrix of a batch by itself.

Shapes: R runs, N samples, B batch, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workflows.controlled.models import (
    ModelConfig,
    Parameters,
    initial_parameters,
    logits,
    model_inputs,
    trainable_names,
)
from workflows.controlled.runs import RunConfig, RunLog, TrainedRun
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
        self._data = _Data.of(self._alike.model, tasks, dtype)
        self._totals = self._data.totals()
        self._generators = [torch.Generator().manual_seed(config.seed) for config in configs]
        drawn = [
            initial_parameters(config.model, task, generator)
            for config, task, generator in zip(configs, tasks, self._generators, strict=True)
        ]
        self._parameters = {
            name: torch.cat([one[name] for one in drawn]).to(dtype) for name in drawn[0]
        }
        # First and second moment, and room to compute the step in.
        self._moments = {
            name: tuple(torch.zeros_like(self._parameters[name]) for _ in range(3))
            for name in trainable_names(self._parameters)
        }
        self._lr = _per_run([config.lr for config in configs], dtype)
        self._decay = _per_run([1 - config.lr * config.weight_decay for config in configs], dtype)
        self._running = torch.arange(len(configs))
        self._logs = [RunLog() for _ in configs]
        self.epoch = self._updates = 0
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
        """One AdamW step of every run (Loshchilov and Hutter, arXiv:1711.05101)."""
        names = list(self._moments)
        leaves = [self._parameters[name].requires_grad_() for name in names]
        loss = (_losses(self._alike.model, self._parameters, inputs, labels)[0] * shares).sum()
        gradients = torch.autograd.grad(loss, leaves)
        self._updates += 1
        config, n = self._alike, self._updates
        root, rate = (1 - config.beta2**n) ** 0.5, self._lr / (1 - config.beta1**n)
        with torch.no_grad():
            for name, leaf, gradient in zip(names, leaves, gradients, strict=True):
                leaf.requires_grad_(False)
                first, second, scratch = self._moments[name]
                first.lerp_(gradient, 1 - config.beta1)
                second.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
                torch.sqrt(second, out=scratch)
                scratch.div_(root).add_(config.eps)
                torch.div(first, scratch, out=scratch)
                leaf.mul_(self._decay).sub_(scratch.mul_(rate))

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
        self._moments = {n: tuple(m[kept] for m in many) for n, many in self._moments.items()}
        self._lr, self._decay = self._lr[kept], self._decay[kept]
        self._data = self._data.take(kept)

    def _keep(self, places: Sequence[int]) -> None:
        for place in places:
            values = {name: rows[place].numpy().copy() for name, rows in self._parameters.items()}
            self._logs[int(self._running[place])].kept(self.epoch, values)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, for ``torch.save``."""
        return {
            "epoch": self.epoch,
            "updates": self._updates,
            "running": self._running,
            "parameters": self._parameters,
            "moments": self._moments,
            "generators": [generator.get_state() for generator in self._generators],
            "logs": [log.state() for log in self._logs],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken; the configurations must be the same."""
        kept = state["running"]
        self.epoch, self._updates = state["epoch"], state["updates"]
        self._running, self._parameters = kept, state["parameters"]
        self._moments = state["moments"]
        self._lr, self._decay = self._lr[kept], self._decay[kept]
        self._data = self._data.take(kept)
        for generator, one in zip(self._generators, state["generators"], strict=True):
            generator.set_state(one)
        self._logs = [RunLog.restored(one) for one in state["logs"]]


def train(
    configs: Sequence[RunConfig], after_epoch: Callable[[Training], None] | None = None
) -> list[TrainedRun]:
    """Train runs that stack, and return each, in the order given."""
    training = Training(configs)
    while not training.finished:
        training.run_epoch()
        if after_epoch is not None:
            after_epoch(training)
    return training.result()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Data:
    """Samples of every running run; inputs that all runs share are held once."""

    inputs: Tensor
    """(R, N, ..), or (1, N, ..) when all are the same."""
    labels: Tensor
    """(R, N)."""
    weights: Tensor
    """(R, N), integers."""

    @classmethod
    def of(cls, model: ModelConfig, tasks: Sequence[ControlledTask], dtype: torch.dtype) -> "_Data":
        samples = [task.enumerated.samples_NL for task in tasks]
        shared = all((one == samples[0]).all() for one in samples)
        chosen = tasks[:1] if shared else tasks
        labels = [torch.from_numpy(task.enumerated.labels_N) for task in tasks]
        weights = [torch.from_numpy(task.enumerated.weights_N) for task in tasks]
        return cls(
            inputs=torch.stack([model_inputs(model, task, dtype) for task in chosen]),
            labels=torch.stack(labels),
            weights=torch.stack(weights),
        )

    @property
    def num_samples(self) -> int:
        return self.labels.shape[1]

    def totals(self) -> list[int]:
        """Weight of all samples of each run."""
        return [int(total) for total in self.weights.sum(dim=1)]

    def everything(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, labels, and the share of each sample in the loss."""
        shares_RN = self.weights.double() / self.weights.sum(dim=1, keepdim=True)
        return self.inputs.expand(len(self.labels), *self.inputs.shape[1:]), self.labels, shares_RN

    def batch(self, chosen_RB: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Take the chosen samples of each run; None: all."""
        if chosen_RB is None:
            return self.everything()
        if len(self.inputs) == 1:
            inputs = self.inputs[0][chosen_RB]
        else:
            inputs = self.inputs[torch.arange(len(chosen_RB))[:, None], chosen_RB]
        share = torch.full((1, 1), 1.0 / chosen_RB.shape[1], dtype=torch.float64)
        return inputs, self.labels.gather(1, chosen_RB), share

    def take(self, kept: Tensor) -> "_Data":
        """Keep some of the runs."""
        inputs = self.inputs if len(self.inputs) == 1 else self.inputs[kept]
        return _Data(inputs=inputs, labels=self.labels[kept], weights=self.weights[kept])


def _losses(
    model: ModelConfig, parameters: Parameters, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every sample, (R, B), and the logits, (R, B, V)."""
    logits_RBV = logits(model, parameters, inputs)
    losses = torch.nn.functional.cross_entropy(
        logits_RBV.flatten(0, 1), labels.flatten(), reduction="none"
    )
    return losses.view(labels.shape), logits_RBV


def _per_run(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)[:, None, None]
