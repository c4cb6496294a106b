"""What proves that a store is whole: a record of every shard, and a fingerprint of its counts.

Shapes: R rows, E entries of a block, A anchors, C context tokens, V vocabulary size.
"""

import dataclasses
import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.progress import Advance
from signatures.kernels import csr_fingerprint
from signatures.layout import IntArray
from signatures.matrix import Block, StoredCounts, row_sums
from signatures.spec import StoreSpec

_READ_BYTES = 1 << 22
_MODULUS = 1 << 64


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
    return int(values.sum(dtype=np.int64 if signed else np.uint64)) % _MODULUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a scan over all stored counts adds up to."""

    entries: int
    total: int
    fingerprint: int
    row_sums_R: npt.NDArray[np.uint64] | None
    column_sums_C: npt.NDArray[np.uint64] | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """How rows and columns of a matrix translate into the keys of the fingerprint."""

    vocab_size: int
    anchors_A: IntArray | None
    context_tokens_C: IntArray | None

    def pieces(self, block: Block) -> Iterator[tuple[int, Block]]:
        """Yield (key of the first row, rows with consecutive keys)."""
        if self.anchors_A is None or self.context_tokens_C is None:
            yield block.first_row, block
            return
        context_E = self.context_tokens_C[block.indices_E]
        size = self.vocab_size
        last_row = block.first_row + block.indptr_R1.size - 1
        for a in range(block.first_row // size, -(-last_row // size)):
            first, last = max(block.first_row, a * size), min(last_row, (a + 1) * size)
            indptr_R1 = block.indptr_R1[first - block.first_row : last - block.first_row + 1]
            part = slice(int(indptr_R1[0]), int(indptr_R1[-1]))
            key = int(self.anchors_A[a]) * size + (first - a * size)
            yield key, Block(first, indptr_R1 - indptr_R1[0], context_E[part], block.data_E[part])


def block_fingerprint(block: Block, keys: Keys) -> int:
    """Sum over entries of count x h(1, row key) x h(2, context), modulo 2^64."""
    total = 0
    for key, piece in keys.pieces(block):
        total += int(csr_fingerprint(piece.indptr_R1, piece.indices_E, piece.data_E, key))
    return total % _MODULUS


def block_problems(block: Block, columns: int) -> list[str]:
    """Entries that a sound matrix cannot have: zeros, unsorted or repeated or foreign columns."""
    rows = f"rows {block.first_row} to {block.first_row + block.indptr_R1.size - 2}"
    problems = []
    if block.data_E.size and not block.data_E.all():
        problems.append(f"{rows}: a count of 0 is stored")
    indices_E = block.indices_E
    if indices_E.size and (indices_E.min() < 0 or indices_E.max() >= columns):
        problems.append(f"{rows}: a column outside 0 to {columns - 1}")
    falls = np.flatnonzero(indices_E[1:] <= indices_E[:-1]) + 1
    if not np.isin(falls, block.indptr_R1).all():
        problems.append(f"{rows}: columns are not ascending, or one comes twice")
    return problems


def scan(
    counts: StoredCounts, keys: Keys, *, sums: bool, workers: int, advance: Advance
) -> Findings:
    """Read every count from disk, ``workers`` blocks at a time, and add up what they say.

    Row and column sums are kept for ``sums`` only: a first-order matrix has too many rows.
    """
    rows_R = np.zeros(counts.shape[0], np.uint64) if sums else None
    columns_C = np.zeros(counts.shape[1], np.uint64) if sums else None
    total = fingerprint = 0
    problems: list[str] = []
    for block, found in _checked_blocks(counts, workers):
        advance(block.data_E.size)
        problems += found
        if found:
            continue
        total += int(block.data_E.sum(dtype=np.uint64))
        fingerprint += block_fingerprint(block, keys)
        if rows_R is not None and columns_C is not None:
            _add_sums(block, rows_R, columns_C)
    return Findings(
        entries=counts.entries,
        total=total,
        fingerprint=fingerprint % _MODULUS,
        row_sums_R=rows_R,
        column_sums_C=columns_C,
        problems=tuple(problems),
    )


def _checked_blocks(counts: StoredCounts, workers: int) -> Iterator[tuple[Block, list[str]]]:
    """Read and check blocks in threads, a few ahead of the caller, and yield them in order."""

    def read(rows: tuple[int, int]) -> tuple[Block, list[str]]:
        block = counts.raw_block(*rows)
        return block, block_problems(block, counts.shape[1])

    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[Block, list[str]]]] = deque()
        for rows in counts.row_ranges():
            waiting.append(pool.submit(read, rows))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _add_sums(
    block: Block, rows_R: npt.NDArray[np.uint64], columns_C: npt.NDArray[np.uint64]
) -> None:
    """Add a block's row and column sums, exactly."""
    matrix = block.matrix(columns_C.size)
    rows_R[block.first_row : block.first_row + block.indptr_R1.size - 1] += row_sums(matrix)
    columns_C += matrix.astype(np.uint64).sum(axis=0)
