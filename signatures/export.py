"""Counts of a store as a file that scipy reads, written piece by piece.

Shapes: E entries, R rows.
"""

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import save_npz

from corpus.progress import SILENT, Progress
from signatures.matrix import BLOCK_ENTRIES, Array, StoredCounts
from signatures.reading import Signatures


def export_npz(
    signatures: Signatures, out: Path, *, anchor: int | None = None, progress: Progress = SILENT
) -> dict[str, Any]:
    """Write the integer counts as an ``.npz`` for ``scipy.sparse.load_npz``.

    The whole matrix is copied in pieces, never held in memory. With ``anchor``, the (V, C) counts
    of one anchor of a first-order store.

    Returns
    -------
    dict
        out, shape, entries, dtype.

    Raises
    ------
    ValueError
        A store without such counts, or ``out`` without the ending ``.npz``.
    FileExistsError
        Something is at ``out``.
    """
    if out.suffix != ".npz":
        raise ValueError(f"{out}: scipy reads files that end in .npz; name --out so")
    if out.exists():
        raise FileExistsError(f"{out} exists; remove it, or choose another --out")
    if anchor is None:
        counts = cast("StoredCounts", signatures.counts)
        shape, dtype, entries = counts.shape, counts.data.dtype, counts.entries
        _write_aside(out, lambda path: _copy(counts, path, progress))
    else:
        matrix = signatures.anchor_counts(anchor)
        shape, dtype, entries = matrix.shape, matrix.dtype, matrix.nnz
        _write_aside(out, lambda path: save_npz(path, matrix))
    return {"out": str(out), "shape": list(shape), "entries": entries, "dtype": str(dtype)}


def _write_aside(out: Path, write: Callable[[Path], None]) -> None:
    partial = out.with_name(f".{out.stem}.{os.getpid()}.partial.npz")
    try:
        write(partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _copy(counts: StoredCounts, path: Path, progress: Progress) -> None:
    """Write the members of scipy's format one after another, each in pieces."""
    total = sum(array.shape[0] for array in (counts.data, counts.indices, counts.indptr))
    with (
        progress.stage(f"exporting {counts.where}", total, "values") as advance,
        zipfile.ZipFile(path, "w", allowZip64=True) as archive,
    ):
        for name in ("data", "indices", "indptr"):
            array: Array = getattr(counts, name)
            pieces = _pieces(array)
            _write_member(archive, name, array.shape, array.dtype, pieces, advance)
        small = {"shape": counts.shape, "format": b"csr", "_is_array": True}
        for name, value in small.items():
            member = np.array(value)
            _write_member(archive, name, member.shape, member.dtype, [member], lambda size: None)


def _pieces(array: Array) -> Iterable[npt.NDArray[Any]]:
    for start in range(0, array.shape[0], BLOCK_ENTRIES):
        yield array[start : min(start + BLOCK_ENTRIES, array.shape[0])]


def _write_member(
    archive: zipfile.ZipFile,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    pieces: Iterable[npt.NDArray[Any]],
    advance: Callable[[float], None],
) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for piece in pieces:
            member.write(piece.tobytes())
            advance(piece.size)
