"""The index of a torch_dist checkpoint, read without running what somebody put into it.

torch reads ``.metadata`` with plain pickle. Here only the classes that torch itself writes
there can be made, so a checkpoint from elsewhere is refused before torch opens it.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from lm_training.folder import CheckpointFormatError

_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath"},
}


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor in a torch_dist folder.

    Raises
    ------
    CheckpointFormatError
        No index, or one that holds what no checkpoint needs.
    """
    metadata = _read(folder / ".metadata")
    return {
        name: tuple(facts.size)
        for name, facts in metadata.state_dict_metadata.items()
        if isinstance(facts, TensorStorageMetadata)
    }


def _read(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            metadata = _OnlyMetadata(file).load()
    except FileNotFoundError as error:
        raise CheckpointFormatError(
            f"{path.parent}: no .metadata here; a whole torch_dist folder is needed, copy it again"
        ) from error
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        raise CheckpointFormatError(
            f"{path}: no index of a checkpoint ({error}); copy the checkpoint again, and trust it "
            "no further if it came from elsewhere"
        ) from error
    assert isinstance(metadata, Metadata)
    return metadata


class _OnlyMetadata(pickle.Unpickler):
    """Makes the classes of a checkpoint's index and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        known = name in _CLASSES.get(module, ())
        if module == "torch":
            known = name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)
        if not known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
