"""Measures every checkpoint of a series once, and keeps each measurement for a resumed run.

A measurement is an ``.npz`` beside the result to be, written aside and renamed, with the hash
of the embedding and of the signature geometry it belongs to.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from corpus.progress import SILENT, Progress
from probes.checkpoints import Checkpoint
from probes.measure import Measured

Measure = Callable[[Checkpoint], Mapping[str, Measured]]
"""All paths of one checkpoint: path name to named arrays."""


def measure_series(
    series: Sequence[Checkpoint],
    measure: Measure,
    *,
    folder: Path,
    key: str,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, Measured]], int]:
    """Measure each checkpoint, or take what ``folder`` holds of it under the same ``key``.

    Returns
    -------
    list of dict, int
        For each step, path name to arrays; and how many steps were taken from ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    measured, reused = [], 0
    with progress.stage("probe checkpoints", len(series), "checkpoints") as advance:
        for checkpoint in series:
            path = folder / f"step_{checkpoint.step:07d}.npz"
            identity = f"{key} {checkpoint.embedding_hash}"
            found = _load(path, identity)
            reused += found is not None
            if found is None:
                found = {name: dict(arrays) for name, arrays in measure(checkpoint).items()}
                _save(path, identity, found)
            measured.append(found)
            advance(1)
    return measured, reused


def _save(path: Path, identity: str, measured: Mapping[str, Measured]) -> None:
    arrays = {f"{name}/{key}": a for name, group in measured.items() for key, a in group.items()}
    partial = path.with_name(path.name + ".writing")
    with partial.open("wb") as file:
        np.savez(file, identity=np.asarray(identity), **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def _load(path: Path, identity: str) -> dict[str, Measured] | None:
    """Read a saved measurement; None when there is none, or it is of something else."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            if str(saved["identity"]) != identity:
                return None
            measured: dict[str, Measured] = {}
            for name in saved.files:
                if name != "identity":
                    group, _, key = name.partition("/")
                    measured.setdefault(group, {})[key] = saved[name]
            return measured
    except (FileNotFoundError, KeyError, zipfile.BadZipFile, ValueError, EOFError):
        return None
