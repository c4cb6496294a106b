"""The samples of several runs side by side.

Shapes: R runs, N samples, B batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workflows.controlled.models import ModelConfig, model_inputs
from workflows.controlled.tasks import ControlledTask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackedSamples:
    """Samples of every running run; inputs that all runs share are held once."""

    inputs: Tensor
    """(R, N, ..), or (1, N, ..) when all are the same."""
    labels: Tensor
    """(R, N)."""
    weights: Tensor
    """(R, N), integers."""

    @classmethod
    def of(
        cls, model: ModelConfig, tasks: Sequence[ControlledTask], dtype: torch.dtype
    ) -> "StackedSamples":
        """Lay out the samples of each run's task."""
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
        """Samples of one run."""
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

    def take(self, kept: Tensor) -> "StackedSamples":
        """Keep some of the runs."""
        inputs = self.inputs if len(self.inputs) == 1 else self.inputs[kept]
        return StackedSamples(inputs=inputs, labels=self.labels[kept], weights=self.weights[kept])
