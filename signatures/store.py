"""The signature store on disk: a Zarr v3 group, written shard by shard, complete or not there.

``create_store`` lays the arrays out, ``write_shard`` fills one shard whole (so that two writers
never meet in one), ``complete_store`` reads everything back, proves it and renames. The layout
of a count matrix is AnnData's ``csr_matrix`` encoding, so strangers can open it too. This is the
only file that imports zarr.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.array_spec import ArrayConfigParams
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from corpus.progress import SILENT, Progress
from signatures.layout import (
    COUNTS,
    EVEN,
    ROWS,
    VALUES,
    BlockLayout,
    IntArray,
    MatrixLayout,
    check_blocks,
    check_matrices,
    check_vectors,
    grid,
)
from signatures.manifest import (
    INTEGRITY,
    Manifest,
    ShardRecord,
    attribute_checksum,
    file_checksum,
    manifest_problems,
    read_head,
    wrapping_sum,
)
from signatures.matrix import Array
from signatures.placement import move_into_place, require_free, sync_tree
from signatures.ranking import top_tokens
from signatures.reading import Contents, Signatures, assemble, mix
from signatures.sharding import ShardedArray, exactly, ranges, shard_file
from signatures.spec import ATTRIBUTE, SignatureFormatError, StoreSpec, Totals
from signatures.verification import verify_contents

__all__ = [
    "BlockLayout",
    "MatrixLayout",
    "ShardRecord",
    "SignatureFormatError",
    "Signatures",
    "StoreSpec",
    "Totals",
    "complete_store",
    "create_store",
    "open_signatures",
    "require_free",
    "shard_ranges",
    "top_tokens",
    "verify_store",
    "write_shard",
]

_CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_CODECS = (BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"), Crc32cCodec())
"""Chosen by measurement (docs/store.md); the checksum lets a reader notice an altered chunk."""

_WRITE_ALL: ArrayConfigParams = {"write_empty_chunks": True}
"""Zarr leaves out chunks of zeros by default; here an absent chunk is always damage."""


def create_store(
    partial: Path,
    spec: StoreSpec,
    *,
    matrices: Mapping[str, MatrixLayout],
    vectors: Mapping[str, IntArray],
    blocks: Mapping[str, BlockLayout] | None = None,
) -> None:
    """Lay out an incomplete store at ``partial``, vectors written, matrices to be filled.

    Parameters
    ----------
    partial : Path
        A folder that does not exist, on the file system where the store will be.
    spec : StoreSpec
        ``complete`` is ignored: the attribute says false until ``complete_store``.
    matrices : mapping
        ``counts`` and, with halves, ``halves/even``; none for projected.
    vectors : mapping
        ``token_counts`` and the like (int64); for projected also ``matrix`` (C, R) int8 unless
        ``spec.seed`` stands for it.
    blocks : mapping, optional
        ``rows`` (P,) and ``values`` (P, R), int64, for projected; named with matrix ``""`` in
        ``shard_ranges`` and ``write_shard``.

    Raises
    ------
    FileExistsError
        Something is at ``partial``.
    ValueError
        Arrays that do not belong to a store of this kind, or of other shapes.
    """
    blocks = blocks or {}
    check_vectors(spec, vectors)
    check_matrices(spec, vectors, matrices)
    check_blocks(spec, vectors, blocks)
    if partial.exists():
        raise FileExistsError(
            f"{partial} exists; another count writes there or was interrupted: "
            "go on with --resume, or remove it"
        )
    root = zarr.open_group(_ShardStore(partial), mode="w-", zarr_format=3)
    root.attrs[ATTRIBUTE] = dataclasses.replace(spec, complete=False).to_attribute()
    for name, layout in matrices.items():
        group = root.create_group(name, attributes={**_CSR, "shape": list(layout.shape)})
        _lay_out(group, "data", (layout.entries,), layout.data_dtype)
        _lay_out(group, "indices", (layout.entries,), layout.index_dtype)
        _lay_out(group, "indptr", (layout.shape[0] + 1,), layout.index_dtype)
    for name, block in blocks.items():
        _lay_out(root, name, block.shape, np.dtype(np.int64))
    for name, vector in vectors.items():
        _lay_out(root, name, vector.shape, vector.dtype)
        for shard, (start, stop) in enumerate(shard_ranges(partial, "", name)):
            write_shard(partial, "", name, shard, vector[start:stop])


def shard_ranges(partial: Path, matrix: str, array: str) -> list[tuple[int, int]]:
    """Element ranges (rows, for ``values``) of the shards of an array; shard i is the i-th.

    ``matrix`` is ``counts``, ``halves/even``, or ``""`` for an array at the root.
    """
    return _shards_of(_array(partial, _join(matrix, array)))


def write_shard(
    partial: Path, matrix: str, array: str, index: int, values: npt.NDArray[Any]
) -> ShardRecord:
    """Write shard ``index`` of an array whole; writing it again gives the same file.

    Different shards may be written by any number of threads, processes or machines.

    Raises
    ------
    ValueError
        Other than the shard's number of values, or values that its integers cannot hold.
    """
    name = _join(matrix, array)
    stored = _array(partial, name)
    start, stop = _shards_of(stored)[index]
    needed = (stop - start, *stored.shape[1:])
    if values.shape != needed:
        raise ValueError(f"{name} shard {index}: {values.shape} values given, {needed} needed")
    narrowed = exactly(values, stored.dtype, f"{name} shard {index}")
    file = shard_file(stored.path, index, stored.ndim)
    stored[start:stop] = narrowed
    written = file_checksum(partial / file)
    return ShardRecord(
        array=name,
        shard=index,
        file=file,
        bytes=written.bytes,
        checksum=written.checksum,
        entries=stop - start,
        sum=wrapping_sum(narrowed),
    )


def complete_store(
    partial: Path,
    out: Path,
    *,
    spec: StoreSpec,
    records: Iterable[ShardRecord],
    overwrite: bool,
    fingerprint: int | None = None,
    dropped_fingerprint: int | None = None,
    workers: int = 2,
    progress: Progress = SILENT,
) -> None:
    """Read the store back from disk, prove it, mark it complete and move it to ``out``.

    Parameters
    ----------
    spec : StoreSpec
        The final one; replaces what ``create_store`` wrote.
    records : iterable of ShardRecord
        What ``write_shard`` returned, for every shard of every matrix and block.
    fingerprint : int, optional
        What the counts must add up to, when the counter knows it.
    dropped_fingerprint : int, optional
        Of the mass left out; needed for first-order, else there is none.

    Raises
    ------
    FileExistsError
        ``out`` is there and ``overwrite`` is false, or it is no signature store.
    RuntimeError
        What lies on disk is not what was counted; ``partial`` is left for inspection.
    """
    require_free(out, overwrite=overwrite)
    if spec.kind == "first-order" and dropped_fingerprint is None:
        raise ValueError("a first-order store needs the dropped_fingerprint of what was left out")
    shards = _with_vectors(partial, records)
    manifest = Manifest(
        fingerprint=None,
        dropped_fingerprint={"next-token": 0, "projected": None}.get(
            spec.kind, dropped_fingerprint
        ),
        even_fingerprint=None,
        attribute_checksum=attribute_checksum(spec),
        files={name: file_checksum(partial / name) for name in _metadata_files(partial)},
        shards=shards,
    )
    problems = manifest_problems(partial, manifest, deep=True)
    if not problems:
        contents = _contents(partial, spec, manifest)
        found = verify_contents(contents, shards, workers=workers, progress=progress)
        problems += found.problems
    if not problems and fingerprint not in (None, found.fingerprint):
        problems.append(f"fingerprint is {found.fingerprint}, {fingerprint} was counted")
    if problems:
        raise RuntimeError(f"{partial}: read back and found wrong: {'; '.join(problems)}")
    fingerprints = {n: getattr(found, n) for n in ("fingerprint", "even_fingerprint")}
    _finish(partial, spec, dataclasses.replace(manifest, **fingerprints))
    move_into_place(partial, out)


def open_signatures(
    path: Path | str | Sequence[Path | str], weights: Sequence[float] | None = None
) -> Signatures:
    """Open one store, or several mixed: ``phi(a) = sum_k w_k N_k(a,.) / T_k``, normalised.

    Counts stay on disk until they are asked for. Without ``weights`` the mixture is the plain
    sum of the counts (w_k = T_k, the number of tokens of store k).

    Raises
    ------
    FileNotFoundError
        Nothing at a path.
    SignatureFormatError
        No complete store of this format version, or one with missing, cut or foreign files.
    ValueError
        Stores that cannot be mixed, or weights that do not fit.
    """
    if isinstance(path, Path | str):
        if weights is not None:
            raise ValueError("weights mix several stores; give a list of paths with them")
        return Signatures([_open_one(Path(path))])
    return mix([_open_one(Path(one)) for one in path], weights)


def verify_store(path: Path | str, *, workers: int = 2, progress: Progress = SILENT) -> list[str]:
    """Re-derive everything the store says of itself; return what is wrong with it.

    Checks sizes and checksums of all files, then reads every count: columns, zeros, sums,
    totals, fingerprints.

    Raises
    ------
    FileNotFoundError
        Nothing at ``path``.
    """
    path = Path(path)
    try:
        spec, manifest = read_head(path)
    except SignatureFormatError as error:
        return [str(error)]
    problems = manifest_problems(path, manifest, deep=True)
    if manifest.attribute_checksum != attribute_checksum(spec):
        problems.append(f"root attribute {ATTRIBUTE!r} was altered: its checksum differs")
    if problems:
        return problems
    try:
        contents = _contents(path, spec, manifest)
    except SignatureFormatError as error:
        return [str(error)]
    found = verify_contents(contents, manifest.shards, workers=workers, progress=progress)
    problems = list(found.problems)
    for name in ("fingerprint", "even_fingerprint"):
        if (derived := getattr(found, name)) != (recorded := getattr(manifest, name)):
            problems.append(f"{name} is {derived}, integrity records {recorded}")
    return problems


class _ShardStore(LocalStore):
    """A folder of shards. Reading, an absent shard is an error; zarr would read it as zeros.

    Writing, a shard that is there is never read: it is replaced whole, in one rename, so that a
    task may run twice, even at once.
    """

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read the bytes of ``key``; None for metadata that is not there, and while writing."""
        array, of_shard, coordinates = key.rpartition("/c/")
        if of_shard and not self.read_only:
            return None
        found = await super().get(key, prototype, byte_range)
        if found is None and of_shard:
            raise SignatureFormatError(
                f"{self.root}: array {array}, shard {coordinates.split('/')[0]} is missing; "
                "restore it from a copy, or count the corpus again"
            )
        return found


def _lay_out(group: zarr.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    chunks, shards = grid(shape, dtype.itemsize)
    group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        compressors=_CODECS,
        fill_value=0,
    )


def _array(partial: Path, name: str) -> zarr.Array[Any]:
    """Open an array for writing."""
    try:
        array = zarr.open_array(_ShardStore(partial), path=name, mode="r+", zarr_format=3)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{partial}: no array {name!r} here: {error}") from error
    return cast("zarr.Array[Any]", array.with_config(_WRITE_ALL))


def _join(matrix: str, array: str) -> str:
    return f"{matrix}/{array}" if matrix else array


def _shards_of(array: zarr.Array[Any]) -> list[tuple[int, int]]:
    assert array.shards is not None
    return ranges(array.shape[0], array.shards[0])


def _with_vectors(partial: Path, records: Iterable[ShardRecord]) -> tuple[ShardRecord, ...]:
    """Add records of the arrays that ``create_store`` wrote, and check that none is lacking."""
    known = {(record.array, record.shard): record for record in records}
    root = zarr.open_group(_ShardStore(partial, read_only=True), mode="r", zarr_format=3)
    for name, array in root.arrays():
        if name not in (ROWS, VALUES):
            known |= _records_on_disk(partial, name, array)
    for name, array in _all_arrays(root):
        for shard in range(len(_shards_of(array))):
            if (name, shard) not in known:
                raise RuntimeError(
                    f"{partial}: no record of array {name}, shard {shard}: it was never written; "
                    "run the count again with --resume"
                )
    return tuple(known[key] for key in sorted(known))


def _records_on_disk(
    partial: Path, name: str, array: zarr.Array[Any]
) -> dict[tuple[str, int], ShardRecord]:
    records = {}
    for shard, (start, stop) in enumerate(_shards_of(array)):
        file = shard_file(name, shard, array.ndim)
        found, total = file_checksum(partial / file), wrapping_sum(np.asarray(array[start:stop]))
        records[name, shard] = ShardRecord(
            name, shard, file, found.bytes, found.checksum, stop - start, total
        )
    return records


def _all_arrays(root: zarr.Group) -> list[tuple[str, zarr.Array[Any]]]:
    members = root.members(max_depth=None)
    return [(name, member) for name, member in members if isinstance(member, zarr.Array)]


def _metadata_files(partial: Path) -> list[str]:
    """Metadata of all groups and arrays but the root and ``integrity``, which name the others."""
    files = (file.relative_to(partial).as_posix() for file in partial.rglob("zarr.json"))
    return sorted(set(files) - {"zarr.json", f"{INTEGRITY}/zarr.json"})


def _finish(partial: Path, spec: StoreSpec, manifest: Manifest) -> None:
    """Write ``integrity``, force everything to disk, and only then say complete."""
    root = zarr.open_group(_ShardStore(partial), mode="r+", zarr_format=3)
    for abandoned in partial.rglob("*.partial"):  # a writer that was killed leaves its file
        abandoned.unlink()
    root.create_group(INTEGRITY, attributes=manifest.to_attributes(), overwrite=True)
    sync_tree(partial)
    root.attrs[ATTRIBUTE] = dataclasses.replace(spec, complete=True).to_attribute()
    sync_tree(partial, only=("zarr.json",))


def _open_one(path: Path) -> Contents:
    spec, manifest = read_head(path)
    if problems := manifest_problems(path, manifest, deep=False):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SignatureFormatError(
            f"{path}: {problems[0]}{more}; restore the files from a copy, or count the corpus again"
        )
    return _contents(path, spec, manifest)


def _contents(path: Path, spec: StoreSpec, manifest: Manifest) -> Contents:
    """Open all arrays that the manifest names; raises SignatureFormatError."""
    try:
        root = zarr.open_group(_ShardStore(path, read_only=True), mode="r", zarr_format=3)
        names = [n.removesuffix("/zarr.json") for n in manifest.files]
        members = {name: root[name] for name in names}
    except (KeyError, ValueError, FileNotFoundError) as error:
        raise SignatureFormatError(f"{path}: metadata cannot be read: {error}") from error
    arrays = {
        name: ShardedArray.open(path, name, cast("Array", member), _shards_of(member), manifest)
        for name, member in members.items()
        if isinstance(member, zarr.Array)
    }
    shapes = {name: members[name].attrs.get("shape") for name in (COUNTS, EVEN) if name in members}
    return assemble(path, spec, arrays, shapes)
