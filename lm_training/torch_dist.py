"""Writing Megatron's torch_dist format: plan and stage now, write now or in a thread, finish.

Megatron's own writer starts a manager process at every first save (seconds) and forks for
each file. This one plans the same way, with the same planner, so the files are the same, and
writes them through torch.distributed.checkpoint in this process.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from lm_training.megatron_core import (
    MCoreSavePlanner,
    SaveShardedStrategy,
    ShardedTensor,
    mcore_to_pyt_state_dict,
    sharded_state_dict_by_key,
)

_Results = list[WriteResult]


class TorchDistWriter(SaveShardedStrategy):
    """Writes the shards of one checkpoint; ``finish`` makes it readable.

    Parameters
    ----------
    pool
        Writes in this thread pool, from copies, while the caller goes on; None writes at once.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        super().__init__("torch_dist", 1)
        self._pool = pool
        self._storage: FileSystemWriter | None = None
        self._metadata: Metadata | None = None
        self._written: Future[_Results] = Future()

    def save(self, sharded_state_dict: Any, checkpoint_dir: Path | str) -> None:
        """Plan with the other processes and write this one's shards, or start to."""
        shards, _, _ = sharded_state_dict_by_key(sharded_state_dict, keep_only_main_replica=True)
        if self._pool is not None:
            _copy_to_memory(shards)
        planner = MCoreSavePlanner(flatten_state_dict=False)
        planner.set_up_planner(
            mcore_to_pyt_state_dict(shards, False), is_coordinator=dist.get_rank() == 0
        )
        self._storage = FileSystemWriter(checkpoint_dir)
        self._storage.set_up_storage_writer(dist.get_rank() == 0)
        plan = self._agree_on_plan(planner)
        if self._pool is not None:
            self._written = self._pool.submit(self._write, plan, planner)
            return
        try:
            self._written.set_result(self._write(plan, planner))
        except OSError as error:
            self._written.set_exception(error)

    def _agree_on_plan(self, planner: MCoreSavePlanner) -> SavePlan:
        assert self._storage is not None
        plans = _gather(self._storage.prepare_local_plan(planner.create_local_plan()))
        plans, metadata = planner.create_global_plan(plans)
        if dist.get_rank() == 0:
            self._metadata = metadata
        own = self._storage.prepare_global_plan(plans)[dist.get_rank()]
        return planner.finish_plan(own)

    def _write(self, plan: SavePlan, planner: MCoreSavePlanner) -> _Results:
        assert self._storage is not None
        return self._storage.write_data(plan, planner).wait()

    def finish(self) -> None:
        """Wait until every process has written, then write the index of the shards.

        Raises
        ------
        OSError
            On every process, when one of them could not write.
        """
        outcomes = _gather(self._written.exception() or self._written.result())
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if self._metadata is not None:
            assert self._storage is not None
            self._storage.finish(self._metadata, outcomes)

    def can_handle_sharded_objects(self) -> bool:
        """Objects go into the same files as tensors."""
        return True


def _copy_to_memory(shards: dict[str, list[Any]]) -> None:
    """Replace every tensor by a copy that later updates leave alone."""
    for parts in shards.values():
        for part in parts:
            if isinstance(part, ShardedTensor):
                part.data = part.data.detach().to("cpu", copy=True)


def _gather(item: Any) -> list[Any]:
    """Collect one object from every process."""
    if dist.get_world_size() == 1:
        return [item]
    items: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items
