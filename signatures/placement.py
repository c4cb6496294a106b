"""A store in its folder: is the place free, is everything on disk, one rename to be there."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from signatures.spec import ATTRIBUTE, SignatureFormatError


def require_free(out: Path, *, overwrite: bool) -> None:
    """Refuse to write a store over something.

    Raises
    ------
    FileExistsError
        A store is at ``out`` and ``overwrite`` is false, or what is there is no store at all.
    """
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise FileExistsError(f"{out} exists; pass --overwrite to replace it, or choose another")
    try:
        is_store = ATTRIBUTE in read_attributes(out, "zarr.json")
    except SignatureFormatError:
        is_store = False
    if not is_store:
        raise FileExistsError(
            f"{out} exists and is no signature store; it is not replaced: remove it, or choose "
            "another place"
        )


def read_attributes(path: Path, file: str) -> dict[str, Any]:
    """Read the attributes of the Zarr group in the store at ``path`` with metadata ``file``.

    Raises
    ------
    FileNotFoundError
        Nothing at ``path``.
    SignatureFormatError
        Another kind of thing, or metadata that is cut or altered.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such store{_previous_hint(path)}")
    if not path.is_dir():
        raise SignatureFormatError(
            f"{path}: a file; a signature store is a folder, made by `staircase count`"
        )
    if not (path / file).is_file():
        raise SignatureFormatError(
            f"{path}: no {file} here; a folder made by `staircase count` is needed"
        )
    try:
        metadata = json.loads((path / file).read_bytes())
        attributes = metadata.get("attributes", {})
        if metadata["node_type"] == "group" and isinstance(attributes, dict):
            return attributes
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SignatureFormatError(
            f"{path}: {file} is cut or altered ({error}); restore it from a copy, or count the "
            "corpus again"
        ) from error
    raise SignatureFormatError(f"{path}: {file} describes no Zarr group with attributes")


def move_into_place(partial: Path, out: Path) -> None:
    """Rename ``partial`` to ``out``; a store that is there is moved aside first, then removed.

    ``out`` is missing only between two renames. When that moment is the process's last, the
    previous store lies whole beside ``out``.
    """
    previous = _previous(out)
    replaces = out.exists()
    if replaces:
        if previous.exists():
            shutil.rmtree(previous)
        out.rename(previous)
    try:
        partial.rename(out)
    except OSError:
        if replaces:
            previous.rename(out)
        raise
    _sync(out.parent)
    if replaces:
        shutil.rmtree(previous)


def sync_tree(folder: Path, *, only: tuple[str, ...] | None = None) -> None:
    """Force files (all, or the named) and the folders that list them onto the disk."""
    if only is not None:
        for name in only:
            _sync(folder / name)
        _sync(folder)
        return
    for place, _, files in os.walk(folder):
        for name in files:
            _sync(Path(place, name))
        _sync(Path(place))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _previous(out: Path) -> Path:
    return out.with_name(f".{out.name}.previous")


def _previous_hint(path: Path) -> str:
    if not _previous(path).exists():
        return ""
    return f"; an interrupted replacement left the previous one at {_previous(path)}: rename it"
