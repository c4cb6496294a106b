"""What proves that a store is whole: a record of every shard and of every metadata file."""

import dataclasses
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from signatures.keys import MODULUS
from signatures.placement import read_attributes
from signatures.spec import ATTRIBUTE, SignatureFormatError, StoreSpec

INTEGRITY = "integrity"

_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What was written into one shard; small and picklable."""

    array: str
    """Path of the array in the store, such as ``counts/data``."""
    shard: int
    file: str
    """Path of the file in the store, such as ``counts/data/c/0``."""
    bytes: int
    checksum: int
    """CRC-32 of the file."""
    entries: int
    """Elements along the first axis."""
    sum: int
    """Of all elements, modulo 2^64."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and CRC-32 of a metadata file."""

    bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Attributes of the group ``integrity``."""

    fingerprint: int | None
    dropped_fingerprint: int | None
    even_fingerprint: int | None
    attribute_checksum: int
    """CRC-32 of the root attribute as canonical JSON."""
    files: Mapping[str, FileRecord]
    shards: tuple[ShardRecord, ...]

    def to_attributes(self) -> dict[str, Any]:
        """Return the JSON value."""
        return dataclasses.asdict(self) | {"checksum_algorithm": "crc32"}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> "Manifest":
        """Read the JSON value; raises KeyError, TypeError or ValueError on anything else."""
        names = {entry.name for entry in dataclasses.fields(cls)}
        values = {name: attributes[name] for name in names}
        values["files"] = {name: FileRecord(**file) for name, file in values["files"].items()}
        values["shards"] = tuple(ShardRecord(**shard) for shard in values["shards"])
        return cls(**values)


def file_checksum(path: Path) -> FileRecord:
    """Read ``path`` once, in pieces."""
    checksum = size = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            checksum = zlib.crc32(piece, checksum)
            size += len(piece)
    return FileRecord(size, checksum)


def attribute_checksum(spec: StoreSpec) -> int:
    """CRC-32 of the root attribute of the complete store, as canonical JSON."""
    attribute = dataclasses.replace(spec, complete=True).to_attribute()
    return zlib.crc32(json.dumps(attribute, sort_keys=True, ensure_ascii=False).encode())


def manifest_problems(path: Path, manifest: Manifest, *, deep: bool) -> list[str]:
    """Compare the files of the store at ``path`` with its manifest.

    Metadata files are read, they are small. Shards are looked at for their size, and read for
    their checksum when ``deep``.
    """
    problems = []
    for name, recorded in manifest.files.items():
        problems += _file_problems(path / name, name, recorded, deep=True)
    for shard in manifest.shards:
        recorded = FileRecord(shard.bytes, shard.checksum)
        what = f"array {shard.array}, shard {shard.shard}"
        problems += _file_problems(path / shard.file, what, recorded, deep=deep)
    return problems


def _file_problems(file: Path, what: str, recorded: FileRecord, *, deep: bool) -> list[str]:
    if not file.is_file():
        return [f"{what} is missing ({file})"]
    if (size := file.stat().st_size) != recorded.bytes:
        return [f"{what} has {size} bytes, {recorded.bytes} were written ({file})"]
    if deep and file_checksum(file).checksum != recorded.checksum:
        return [f"{what} was altered: its checksum differs ({file})"]
    return []


def wrapping_sum(values: npt.NDArray[Any]) -> int:
    """Sum of all elements modulo 2^64, without floats."""
    signed = np.issubdtype(values.dtype, np.signedinteger)
    return int(values.sum(dtype=np.int64 if signed else np.uint64)) % MODULUS


def read_head(path: Path) -> tuple[StoreSpec, Manifest]:
    """Read and validate the root attribute and the manifest of the store at ``path``.

    Raises
    ------
    FileNotFoundError
        Nothing at ``path``.
    SignatureFormatError
        Something else than a complete store of this format version.
    """
    attributes = read_attributes(path, "zarr.json")
    if ATTRIBUTE not in attributes:
        raise SignatureFormatError(
            f"{path}: a Zarr group without the attribute {ATTRIBUTE!r}; "
            "a store made by `staircase count` is needed"
        )
    spec = StoreSpec.from_attribute(attributes[ATTRIBUTE], where=str(path))
    if not spec.complete:
        raise SignatureFormatError(
            f"{path}: the store is not complete; its count was interrupted: run it again with "
            "--resume"
        )
    attributes = read_attributes(path, f"{INTEGRITY}/zarr.json")
    try:
        return spec, Manifest.from_attributes(attributes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SignatureFormatError(
            f"{path}: {INTEGRITY}/zarr.json is no manifest ({error!r}); count the corpus again"
        ) from error
