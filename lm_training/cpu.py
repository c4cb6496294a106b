"""What Megatron-core needs to run without CUDA. With CUDA everything here does nothing.

Megatron names the device "cuda" in factory calls, asks which CUDA device is current, and
checks tensor types by name. The stand-ins answer for the CPU, for as long as a context is
open, and leave torch as it was.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def has_cuda() -> bool:
    """Whether training runs on CUDA and NCCL rather than on CPU and gloo."""
    return torch.cuda.is_available()


def device() -> torch.device:
    """Device of this process's share of the model."""
    return torch.device("cuda", torch.cuda.current_device()) if has_cuda() else torch.device("cpu")


@contextmanager
def stand_ins() -> Iterator[None]:
    """Let ``torch.cuda.current_device`` name the CPU and ``synchronize`` return at once."""
    if has_cuda():
        yield
        return
    replaced = {name: getattr(torch.cuda, name) for name in ("current_device", "synchronize")}
    setattr(torch.cuda, "current_device", lambda: "cpu")  # noqa: B010 - mypy refuses the plain form
    setattr(torch.cuda, "synchronize", lambda device=None: None)  # noqa: B010
    try:
        yield
    finally:
        for name, function in replaced.items():
            setattr(torch.cuda, name, function)


@contextmanager
def cuda_means_cpu() -> Iterator[None]:
    """Make ``device="cuda"`` the CPU in every torch call inside."""
    if has_cuda():
        yield
        return
    with _CudaMeansCpu():
        yield


def as_written() -> AbstractContextManager[None]:
    """Suspend ``cuda_means_cpu`` where devices are named right: each call then costs less."""
    return nullcontext() if has_cuda() else torch._C.DisableTorchFunction()


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites the calls in which Megatron takes CUDA for granted."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron sorts parameters by names such as "torch.cuda.FloatTensor".
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = kwargs | {"device": "cpu"}
        return func(*args, **kwargs)
