"""Measures every checkpoint of a series once, here or on Dask workers, and keeps each measurement.

A measurement is an ``.npz`` beside the result to be, written aside and renamed, with the hash
of the embedding and of all else it depends on: an interrupted run takes up where it stopped.
"""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

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


class ChainedProbe(PathProbe, Protocol):
    """A probe that may begin a step with what it found at the one before."""

    def measure(
        self, checkpoint: LayeredCheckpoint, before: Mapping[str, Measured] | None = None
    ) -> dict[str, Measured]:
        """Return named arrays for each path; ``before`` is None at the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One checkpoint's measurement, and where it is kept."""

    probes: Sequence[PathProbe]
    checkpoint: LayeredCheckpoint
    path: Path
    identity: str


def measure_series(
    series: Sequence[LayeredCheckpoint],
    probes: Sequence[PathProbe],
    *,
    chained: Sequence[ChainedProbe] = (),
    folder: Path,
    runner: Runner | None = None,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, Measured]], int]:
    """Measure each checkpoint with every probe, or take what ``folder`` holds of it.

    Checkpoints are shared among the workers of ``runner``; with ``chained`` probes they go one
    after the other, and a measurement holds only after the same steps before it.

    Returns
    -------
    list of dict, int
        For each step, path name to arrays; and how many steps were taken from ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runner = runner or InProcess()
    shared, chain = _tasks(series, probes, folder), _chain(series, chained, folder)
    missing = [task for task in shared if _load(task) is None]
    missing_in_chain = [number for number, task in enumerate(chain) if _load(task) is None]
    missing_steps = {task.checkpoint.step for task in missing}
    missing_steps |= {chain[number].checkpoint.step for number in missing_in_chain}
    with progress.stage("probe checkpoints", len(series), "checkpoints") as advance:
        advance(len(series) - len(missing))
        for _ in runner.run(_measure_one, [(task,) for task in missing]):
            advance(1)
    if chain:
        with progress.stage("probe checkpoints in order", len(series), "checkpoints") as advance:
            advance(len(series) - len(missing_in_chain))
            for number in missing_in_chain:
                before = chain[number - 1] if number else None
                list(runner.run(_measure_after, [(chain[number], before)]))
                advance(1)
    measured = []
    for number, task in enumerate(shared):
        measured.append((_load(task) or {}) | (_load(chain[number]) or {} if chain else {}))
    return measured, len(series) - len(missing_steps)


def _tasks(
    series: Sequence[LayeredCheckpoint], probes: Sequence[PathProbe], folder: Path
) -> list[_Task]:
    key = " ".join(probe.key() for probe in probes)
    return [
        _Task(
            probes=list(probes),
            checkpoint=checkpoint,
            path=folder / f"step_{checkpoint.step:07d}.npz",
            identity=f"{key} {checkpoint.embedding_hash}",
        )
        for checkpoint in series
    ]


def _chain(
    series: Sequence[LayeredCheckpoint], probes: Sequence[ChainedProbe], folder: Path
) -> list[_Task]:
    """Return a task for each step whose identity says which steps came before it."""
    tasks: list[_Task] = []
    for task in _tasks(series, probes, folder) if probes else ():
        before = tasks[-1].identity if tasks else ""
        digest = hashlib.sha256(f"{before} after {task.identity}".encode()).hexdigest()
        name = f"chain_{task.path.name}"
        tasks.append(replace(task, path=folder / name, identity=f"chain {digest}"))
    return tasks


def _measure_one(task: _Task) -> None:
    measured: dict[str, Measured] = {}
    for probe in task.probes:
        measured |= probe.measure(task.checkpoint)
    _save(task, measured)


def _measure_after(task: _Task, before: _Task | None) -> None:
    found_before = None
    if before is not None and (found_before := _load(before)) is None:
        raise FileNotFoundError(f"{before.path}: gone or cut; go on with --resume")
    measured: dict[str, Measured] = {}
    for probe in cast(Sequence[ChainedProbe], task.probes):
        measured |= probe.measure(task.checkpoint, found_before)
    _save(task, measured)


def _save(task: _Task, measured: Mapping[str, Measured]) -> None:
    arrays = {f"{name}/{key}": a for name, group in measured.items() for key, a in group.items()}
    partial = task.path.with_name(task.path.name + ".writing")
    with partial.open("wb") as file:
        np.savez(file, identity=np.asarray(task.identity), **arrays)  # type: ignore[arg-type]
    partial.replace(task.path)


def _load(task: _Task) -> dict[str, Measured] | None:
    """Read a saved measurement; None when there is none, or it is of something else."""
    try:
        with np.load(task.path, allow_pickle=False) as saved:
            if str(saved["identity"]) != task.identity:
                return None
            measured: dict[str, Measured] = {}
            for name in saved.files:
                if name != "identity":
                    group, _, key = name.partition("/")
                    measured.setdefault(group, {})[key] = saved[name]
            return measured
    except (FileNotFoundError, KeyError, zipfile.BadZipFile, ValueError, EOFError):
        return None
