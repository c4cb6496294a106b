"""Trained runs on disk, named by the hash of their configuration: trained once, read by many.

A long stack also leaves its state every minute, so that an interrupted one goes on where it was.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.training import Training
from workflows.terminal import say

_SECONDS_BETWEEN_STATES = 60.0
_SECONDS_BETWEEN_LINES = 15.0
_PARAMETER = "parameter."
_STATE_FORMAT = 2
"""Raised when what a state holds changes; those of before are passed over."""


def run_path(folder: Path, config: RunConfig) -> Path:
    """File of the run."""
    return folder / f"{config.key()}.npz"


def save_run(run: TrainedRun, folder: Path) -> None:
    """Write the run; it appears whole or not at all."""
    path = run_path(folder, run.config)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez(
            file,
            record=np.array(json.dumps(run.config.record())),
            evaluated=run.evaluated_E,
            loss=run.loss_E,
            hits=run.hits_E,
            total=np.array(run.total),
            kept=run.kept_T,
            **{_PARAMETER + name: rows for name, rows in run.parameters.items()},  # type: ignore[arg-type]
        )
    partial.rename(path)


def load_run(folder: Path, config: RunConfig) -> TrainedRun:
    """Read the run of this configuration."""
    with np.load(run_path(folder, config)) as stored:
        return TrainedRun(
            config=config,
            evaluated_E=stored["evaluated"],
            loss_E=stored["loss"],
            hits_E=stored["hits"],
            total=int(stored["total"]),
            kept_T=stored["kept"],
            parameters={
                name.removeprefix(_PARAMETER): stored[name]
                for name in stored.files
                if name.startswith(_PARAMETER)
            },
        )


def train_stack(configs: Sequence[RunConfig], folder: Path, title: str) -> float:
    """Train runs that stack and save each; return the seconds it took.

    It uses one thread, so that a run is the same on any number of workers.
    """
    torch.set_num_threads(1)
    started = time.monotonic()
    keeper = _Keeper(folder / f"{_stack_key(configs)}.{_STATE_FORMAT}.state", title)
    training = keeper.begun(configs)
    while not training.finished:
        training.run_epoch()
        keeper.after_epoch(training)
    for run in training.result():
        save_run(run, folder)
    keeper.path.unlink(missing_ok=True)
    return time.monotonic() - started


class _Keeper:
    """Says how far a stack is, and keeps its state on disk."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        self._title = title
        self._said = self._kept = self._started = time.monotonic()
        self._first = 0

    def begun(self, configs: Sequence[RunConfig]) -> Training:
        """Return the stack where an earlier process left it, or at its start."""
        training = Training(configs)
        if self.path.exists():
            training.restore(torch.load(self.path, weights_only=True))
            say(f"{self._title}: goes on at epoch {training.epoch}")
        self._first = training.epoch
        return training

    def after_epoch(self, training: Training) -> None:
        now = time.monotonic()
        if now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            done = training.epoch - self._first
            left = (training.epochs - training.epoch) * (now - self._started) / done
            say(
                f"{self._title}: epoch {training.epoch} of {training.epochs}, "
                f"accuracy {training.last_accuracy:.2f}, at most {left:.0f} s left"
            )
        if now - self._kept >= _SECONDS_BETWEEN_STATES:
            self._kept = now
            partial = self.path.with_suffix(".partial")
            torch.save(training.state(), partial)
            partial.rename(self.path)


def _stack_key(configs: Sequence[RunConfig]) -> str:
    return hashlib.sha256("".join(config.key() for config in configs).encode()).hexdigest()[:16]
