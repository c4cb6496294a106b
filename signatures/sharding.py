"""Shards: where they begin and end, their files, and reads that name a damaged one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from signatures.manifest import FileRecord, Manifest, ShardRecord, file_checksum
from signatures.matrix import Array
from signatures.spec import SignatureFormatError


def ranges(length: int, step: int) -> list[tuple[int, int]]:
    """Element ranges of shards of ``step`` elements; the last may be shorter."""
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def shard_file(name: str, index: int, num_dimensions: int) -> str:
    """Path of a shard in its store; arrays are cut along the first axis only."""
    return "/".join([name, "c", str(index), *["0"] * (num_dimensions - 1)])


def exactly(values: npt.NDArray[Any], dtype: np.dtype[Any], where: str) -> npt.NDArray[Any]:
    """Return ``values`` as ``dtype``, refusing any that it cannot hold.

    Raises
    ------
    ValueError
        Not integers, or beyond the limits of ``dtype``.
    """
    if values.dtype == dtype:
        return values
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{where}: values are {values.dtype}, integers are needed")
    limits = np.iinfo(dtype)
    if values.size and not (limits.min <= int(values.min()) and int(values.max()) <= limits.max):
        raise ValueError(
            f"{where}: values from {values.min()} to {values.max()} do not fit into {dtype}; "
            "give the layout the largest count"
        )
    return values.astype(dtype)


@dataclass(frozen=True, slots=True)
class ShardedArray:
    """An array of an open store; damage that a read meets is named by array and shard."""

    where: Path
    name: str
    array: Array
    ranges: list[tuple[int, int]]
    shards: list[ShardRecord]

    @classmethod
    def open(
        cls,
        where: Path,
        name: str,
        array: Array,
        ranges: list[tuple[int, int]],
        manifest: Manifest,
    ) -> "ShardedArray":
        """Wrap ``array``; raises SignatureFormatError unless the manifest has all its shards."""
        shards = [shard for shard in manifest.shards if shard.array == name]
        if [shard.shard for shard in shards] != list(range(len(ranges))):
            raise SignatureFormatError(
                f"{where}: array {name} has {len(ranges)} shards, the manifest names "
                f"{len(shards)}; count the corpus again"
            )
        return cls(where, name, array, ranges, shards)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Width and sign of an element."""
        return self.array.dtype

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        """Read a contiguous part.

        Raises
        ------
        SignatureFormatError
            A shard that the part touches is missing, cut or altered.
        """
        try:
            return np.asarray(self.array[part])
        except (OSError, MemoryError, SignatureFormatError):
            raise
        except Exception as error:  # zarr and its codecs raise many kinds on altered bytes
            raise SignatureFormatError(
                f"{self.where}: array {self.name}, {self._damage(part)}: {error}; "
                "`staircase signatures verify` lists all damage"
            ) from error

    def _damage(self, part: slice) -> str:
        """Name the altered shards among those that ``part`` touches."""
        touched = [s for s in self.shards if _overlap(self.ranges[s.shard], part)]
        altered = [
            str(s.shard)
            for s in touched
            if file_checksum(self.where / s.file) != FileRecord(s.bytes, s.checksum)
        ]
        return f"shard {', '.join(altered or [str(s.shard) for s in touched])} cannot be read"


def _overlap(shard: tuple[int, int], part: slice) -> bool:
    return bool(shard[0] < part.stop and part.start < shard[1])
