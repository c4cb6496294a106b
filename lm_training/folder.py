"""The folder of a run: names, which checkpoints are whole, and which one to go on from.

Layout::

    out/train.jsonl                           a line a step
    out/order/                                sample order of the data set
    out/checkpoints/step_0000128/             weights, torch_dist; staircase.json describes them
    out/checkpoints/step_0000128/optimizer/   what a resume needs; only in the newest few
    out/checkpoints/step_0000256.partial/     being written, or left by a killed run; never read
"""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
LOG = "train.jsonl"
CHECKPOINTS = "checkpoints"
ORDER = "order"
DESCRIPTION = "staircase.json"
OPTIMIZER = "optimizer"
ASIDE = ".partial"


class CheckpointFormatError(ValueError):
    """A checkpoint that this run cannot go on from."""


def refuse_existing(out: Path, *, resume: bool) -> None:
    """Refuse to write into a run that is there already.

    Raises
    ------
    FileExistsError
        There is one, and ``resume`` is not given.
    """
    if not resume and ((out / LOG).exists() or (out / CHECKPOINTS).exists()):
        raise FileExistsError(
            errno.EEXIST,
            "holds a run already; pass --resume to go on with it, or choose another out",
            str(out),
        )


def step_name(step: int) -> str:
    """Return the folder name of a step; names sort as the steps do."""
    return f"step_{step:07d}"


def step_of(path: Path) -> int:
    """Return the step a checkpoint folder is named for."""
    return int(path.name.removeprefix("step_"))


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` that are whole, oldest first."""
    found = (path for path in folder.glob("step_*") if path.suffix != ASIDE)
    return sorted(path for path in found if (path / DESCRIPTION).is_file())


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove what a killed run left half-written; return what was removed."""
    left = sorted(folder.glob(f"*{ASIDE}"))
    for path in left:
        shutil.rmtree(path)
    return left


def resume_point(folder: Path) -> Path | None:
    """Return the newest checkpoint that a run can go on from; None where there is none at all.

    Raises
    ------
    CheckpointFormatError
        There are checkpoints, but past step 0 none holds the optimizer state.
    """
    whole = whole_checkpoints(folder)
    resumable = [path for path in whole if (path / OPTIMIZER).is_dir()]
    if not resumable and len(whole) > 1:
        raise CheckpointFormatError(
            f"{folder}: {len(whole)} checkpoints, none with optimizer state ([checkpoint] "
            "keep_optimizer = 0); a run cannot go on from weights alone: start it afresh in "
            "another out, with keep_optimizer of at least 1"
        )
    return resumable[-1] if resumable else None


def read_description(path: Path) -> dict[str, Any]:
    """Read ``staircase.json`` of a checkpoint."""
    description: dict[str, Any] = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
    if description.get("format_version") != FORMAT_VERSION:
        raise CheckpointFormatError(
            f"{path / DESCRIPTION}: format_version {description.get('format_version')!r}, this "
            f"code reads {FORMAT_VERSION}; resume with the version that wrote it"
        )
    return description


def put_in_place(aside: Path, path: Path) -> None:
    """Rename a whole checkpoint to its final name, durably; replace an older one of that step."""
    if path.exists():
        replaced = path.with_name(path.name + ".replaced" + ASIDE)
        path.rename(replaced)
        aside.rename(path)
        shutil.rmtree(replaced)
    else:
        aside.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def drop_old_optimizers(folder: Path, *, keep: int) -> None:
    """Remove the optimizer state of all but the newest ``keep`` checkpoints that have one."""
    for path in [path for path in whole_checkpoints(folder) if (path / OPTIMIZER).is_dir()][:-keep]:
        dropped = folder / f"{path.name}.{OPTIMIZER}{ASIDE}"
        (path / OPTIMIZER).rename(dropped)
        shutil.rmtree(dropped)
