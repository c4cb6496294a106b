"""Output folders: whole or not at all, and never in place of what is not ours."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def refuse_existing(out: Path, *, overwrite: bool, holds: str) -> None:
    """Refuse to replace ``out`` unless asked to, and unless it holds the file ``holds``.

    Raises
    ------
    FileExistsError
        ``out`` exists without ``overwrite``, or was not made by the command that replaces it.
    """
    if not out.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{out}: exists; pass --overwrite to replace it, or another --out")
    if not (out / holds).exists():
        raise FileExistsError(
            f"{out}: exists and holds no {holds}, so it is no earlier output of this command and "
            "is left alone; remove it yourself or choose another --out"
        )


@contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """Yield a folder beside ``out`` that becomes ``out`` only if nothing is raised."""
    work = out.with_name(out.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    if out.exists():
        shutil.rmtree(out)
    work.rename(out)
