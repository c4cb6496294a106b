"""Process groups: one process without any network port, or those torchrun started."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from lm_training import cpu
from lm_training.config import ParallelConfig
from lm_training.megatron_core import parallel_state, tensor_parallel


@contextmanager
def process_groups(parallel: ParallelConfig, *, seed: int) -> Iterator[None]:
    """Open the groups that ``parallel`` asks for and take them down again.

    Raises
    ------
    ValueError
        The number of processes cannot be cut that way.
    """
    if parallel.tensor > 1:
        # Lets communication overlap computation on GPUs; read when CUDA starts.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    _start()
    try:
        ways, world = parallel.tensor * parallel.pipeline, dist.get_world_size()
        if world % ways:
            raise ValueError(
                f"{world} process(es) cannot hold tensor = {parallel.tensor} x pipeline = "
                f"{parallel.pipeline}; start a multiple of {ways} with --nproc-per-node"
            )
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
        )
        if cpu.has_cuda():
            tensor_parallel.model_parallel_cuda_manual_seed(seed)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def some_process_group(*, seed: int) -> AbstractContextManager[None]:
    """Open a group of one where there is none: Megatron's blended data set asks for its rank."""
    return nullcontext() if dist.is_initialized() else process_groups(ParallelConfig(), seed=seed)


def _start() -> None:
    backend = "nccl" if cpu.has_cuda() else "gloo"
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:  # torchrun
        if cpu.has_cuda():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # in memory: no port is opened
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def is_first_process() -> bool:
    """Whether this process writes logs and reports; true as well outside any group."""
    return not dist.is_initialized() or dist.get_rank() == 0
