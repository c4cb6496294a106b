"""AdamW over stacked parameters.

Source: Loshchilov and Hutter, arXiv:1711.05101. Shapes: R runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workflows.controlled.models import Parameters, trainable_names
from workflows.controlled.runs import RunConfig


class StackedAdamW:
    """One step for all runs, each with its own learning rate and weight decay."""

    def __init__(self, configs: Sequence[RunConfig], parameters: Parameters) -> None:
        self._shared = configs[0]
        dtype = parameters["embedding"].dtype
        self._lr = _per_run([config.lr for config in configs], dtype)
        self._decay = _per_run([1 - config.lr * config.weight_decay for config in configs], dtype)
        # First and second moment, and room to compute the step in.
        self._moments = {
            name: tuple(torch.zeros_like(parameters[name]) for _ in range(3))
            for name in trainable_names(parameters)
        }
        self._updates = 0

    @property
    def names(self) -> list[str]:
        """Names of the parameters that are trained."""
        return list(self._moments)

    @torch.no_grad()
    def step(self, parameters: Parameters, gradients: Mapping[str, Tensor]) -> None:
        """Update the trained parameters in place."""
        self._updates += 1
        beta1, beta2 = self._shared.beta1, self._shared.beta2
        root = (1 - beta2**self._updates) ** 0.5
        rate = self._lr / (1 - beta1**self._updates)
        for name, (first, second, scratch) in self._moments.items():
            gradient = gradients[name]
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            torch.sqrt(second, out=scratch)
            scratch.div_(root).add_(self._shared.eps)
            torch.div(first, scratch, out=scratch)
            parameters[name].mul_(self._decay).sub_(scratch.mul_(rate))

    def take(self, kept: Tensor) -> None:
        """Go on with some of the runs."""
        self._lr, self._decay = self._lr[kept], self._decay[kept]
        self._moments = {n: tuple(m[kept] for m in many) for n, many in self._moments.items()}

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs besides the runs that are still there."""
        return {"updates": self._updates, "moments": self._moments}

    def restore(self, state: Mapping[str, Any], kept: Tensor) -> None:
        """Undo `state` in an optimiser of all runs, of which those of ``kept`` are still there."""
        self.take(kept)
        self._updates, self._moments = state["updates"], state["moments"]


def _per_run(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)[:, None, None]
