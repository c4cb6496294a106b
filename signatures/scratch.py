"""The scratch folder of a count: one run at a time, and what a later run may go on with.

It stands beside the store and is called after it; it goes when the store is complete. The
manifest says what is being counted, so that a resumed run never mixes two counts.
"""

import fcntl
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIALS, SUMS = "partials", "sums"
"""What a resumed run goes on with: finished partitions, and finished sums over row ranges."""
_MANIFEST = "manifest.json"


class Scratch:
    """The folder, held by this run alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = uuid.uuid4().hex
        (folder / "run").write_text(self.run)

    def manifest(self) -> dict[str, Any] | None:
        """Return what an earlier run was counting; None when it did not get so far."""
        try:
            found = json.loads((self.folder / _MANIFEST).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Drop all that is left of other counts and say what is being counted now."""
        self._clear(keep={"run", "lock"})
        (self.folder / PARTIALS).mkdir()
        aside = self.folder / f"{_MANIFEST}.tmp"
        aside.write_text(json.dumps(manifest, indent=1))
        aside.replace(self.folder / _MANIFEST)

    def go_on(self) -> None:
        """Keep the finished partitions of the same count; drop everything else."""
        self._clear(keep={"run", "lock", PARTIALS, SUMS, _MANIFEST})
        self._drop_temporary()

    def remove(self) -> None:
        """Drop everything: the store is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop_unfinished(self) -> int:
        """Tidy up after an error; return how many finished partials stay for ``--resume``."""
        self._clear(keep={"run", "lock", PARTIALS, SUMS, _MANIFEST})
        self._drop_temporary()
        kept = sum(1 for _ in (self.folder / PARTIALS).glob("*.npz"))
        if not kept:
            self.remove()
        return kept

    def _drop_temporary(self) -> None:
        for name in (PARTIALS, SUMS):
            for left in (self.folder / name).glob("*.tmp"):
                left.unlink(missing_ok=True)

    def _clear(self, keep: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.name in keep:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def scratch_folder(out: Path) -> Path:
    """Folder beside ``out``, on the same file system, so that the store can be renamed."""
    return out.with_name(out.name + ".scratch")


@contextmanager
def hold_scratch(out: Path) -> Iterator[Scratch]:
    """Open the scratch folder of ``out`` for this run alone.

    The lock is the operating system's: it goes with the process, however that ends.

    Raises
    ------
    ValueError
        Another run is counting into the same store.
    """
    folder = scratch_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            raise ValueError(
                f"{out}: another run is counting into it ({holder or 'just starting'}); wait for "
                "it, stop it, or choose another --out"
            ) from error
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield Scratch(folder)
    finally:
        os.close(descriptor)


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ, in words."""
    return [
        f"{key} was {found.get(key)!r} and is {wanted.get(key)!r}"
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key) != wanted.get(key)
    ]
