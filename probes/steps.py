"""Measures every checkpoint of a series once, here or on Dask workers, and keeps each measurement.

A measurement is an ``.npz`` beside the result to be, written aside and renamed, with the hash
of the embedding and of all else it depends on: an interrupted run takes up where it stopped.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import xarray as xr

from corpus.progress import SILENT, Progress
from probes.assemble import Draws
from probes.checkpoints import LayeredCheckpoint
from probes.measure import Measured
from probes.vocabulary import IntArray
from signatures.schedule import InProcess, Runner


class PathProbe(Protocol):
    """Measures some paths of a checkpoint, and turns the measured series into groups."""

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""

    def measure(self, checkpoint: LayeredCheckpoint) -> dict[str, Measured]:
        """Return named arrays for each path."""

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return the groups of the result."""


def measure_series(
    series: Sequence[LayeredCheckpoint],
    probes: Sequence[PathProbe],
    *,
    folder: Path,
    runner: Runner | None = None,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, Measured]], int]:
    """Measure each checkpoint with every probe, or take what ``folder`` holds of it.

    Returns
    -------
    list of dict, int
        For each step, path name to arrays; and how many steps were taken from ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = " ".join(probe.key() for probe in probes)
    paths = [folder / f"step_{checkpoint.step:07d}.npz" for checkpoint in series]
    names = [f"{key} {checkpoint.embedding_hash}" for checkpoint in series]
    places = [n for n in range(len(series)) if _load(paths[n], names[n]) is None]
    tasks = [(list(probes), series[n], paths[n], names[n]) for n in places]
    with progress.stage("probe checkpoints", len(series), "checkpoints") as advance:
        advance(len(series) - len(tasks))
        for _ in (runner or InProcess()).run(_measure_one, tasks):
            advance(1)
    measured = [_load(path, name) for path, name in zip(paths, names, strict=True)]
    return [found for found in measured if found is not None], len(series) - len(tasks)


def _measure_one(
    probes: Sequence[PathProbe], checkpoint: LayeredCheckpoint, path: Path, identity: str
) -> None:
    measured: dict[str, Measured] = {}
    for probe in probes:
        measured |= probe.measure(checkpoint)
    _save(path, identity, measured)


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
