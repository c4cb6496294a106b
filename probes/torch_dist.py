"""Single tensors out of a torch_dist checkpoint: no Megatron, no process group.

A torch_dist folder holds a ``.metadata`` pickle and ``.distcp`` files of saved chunks. Only
the chunks that overlap the wanted box are read, so one layer of a stacked weight costs one
layer.
"""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

_METADATA_MODULES = ("torch.distributed.checkpoint.", "pathlib", "collections")
"""Only classes are taken from these."""
_METADATA_NAMES = {"Size", "_get_layout", "_MEM_FORMAT_ENCODING"}


class CheckpointFormatError(ValueError):
    """The folder holds no checkpoint that can be read, or one that is damaged."""


class TorchDistReader:
    """The tensors of one torch_dist folder, read by name.

    Raises
    ------
    CheckpointFormatError
        No readable ``.metadata``, or a ``.distcp`` file that is missing or cut short.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metadata = _read_metadata(folder)
        self._check_files()

    def names(self) -> list[str]:
        """Names of the tensors, sorted."""
        entries = self._metadata.state_dict_metadata.items()
        return sorted(name for name, kind in entries if isinstance(kind, TensorStorageMetadata))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor ``name``."""
        return tuple(self._entry(name).size)

    def read(self, name: str, *, first: int | None = None) -> Tensor:
        """Tensor ``name``, or its slice ``[first]`` along dimension 0, in its saved dtype.

        Raises
        ------
        CheckpointFormatError
            No such tensor, or bytes that do not read back as one.
        """
        entry = self._entry(name)
        offsets, sizes = [0] * len(entry.size), list(entry.size)
        if first is not None:
            offsets[0], sizes[0] = first, 1
        planner = _OneBox(torch.empty(sizes, dtype=entry.properties.dtype), offsets)
        box = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        items = create_read_items_for_chunk_list(name, entry, [box])
        reader = FileSystemReader(self.folder)
        reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        try:
            reader.read_data(LoadPlan(items), planner).wait()
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, AssertionError) as error:
            raise CheckpointFormatError(
                f"{self.folder}: {name} does not read back ({error}); copy the checkpoint again"
            ) from error
        return planner.target if first is None else planner.target[0]

    def _entry(self, name: str) -> TensorStorageMetadata:
        entry = self._metadata.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            found = ", ".join(self.names()[:4])
            raise CheckpointFormatError(
                f"{self.folder}: no tensor {name!r} (found {found}, ...); a Megatron-core GPT "
                "checkpoint is needed"
            )
        return entry

    def _check_files(self) -> None:
        """Compare the size of every file with the chunks that the metadata places in it."""
        ends: dict[str, int] = {}
        for info in self._metadata.storage_data.values():
            ends[info.relative_path] = max(
                ends.get(info.relative_path, 0), info.offset + info.length
            )
        for name, end in sorted(ends.items()):
            path = self.folder / name
            size = path.stat().st_size if path.exists() else None
            if size is None or size < end:
                found = "no such file" if size is None else f"{size:,} bytes"
                raise CheckpointFormatError(
                    f"{path}: {found} found, {end:,} bytes needed; copy the checkpoint again"
                )


class _OneBox(LoadPlanner):
    """Receives the pieces of one box of one tensor."""

    def __init__(self, target: Tensor, offsets: Sequence[int]) -> None:
        self.target = target
        self._offsets = offsets

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Part of the box that ``read_item`` fills; its offsets count from the box's corner."""
        piece = self.target
        for dim, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            piece = piece.narrow(dim, start, length)
        return piece

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing to do: the piece is a view of the target."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Refuse: only tensors are asked for."""
        raise AssertionError(f"{read_item} is not a tensor")

    def set_up_planner(self, *arguments: Any, **keywords: Any) -> None:
        """Nothing to plan."""

    def create_local_plan(self) -> LoadPlan:
        """Return no plan: the caller makes it."""
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plan unchanged."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return central_plan


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickles checkpoint metadata and nothing that could run code of its own."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_METADATA_MODULES) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        if module in ("torch", "torch.serialization") and (
            name in _METADATA_NAMES or isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read_metadata(folder: Path) -> Metadata:
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
    except FileNotFoundError as error:
        raise CheckpointFormatError(
            f"{folder}: no .metadata file; a torch_dist checkpoint folder (step_*) is needed"
        ) from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointFormatError(
            f"{path}: not readable as checkpoint metadata ({error}); copy the checkpoint again"
        ) from error
    if not isinstance(metadata, Metadata):
        raise CheckpointFormatError(f"{path}: holds {type(metadata).__name__}, needed Metadata")
    return metadata
