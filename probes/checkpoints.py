"""What a probe needs of a checkpoint, and how a series of them is opened.

A probe asks for rows of embeddings by token; it never sees a file. Megatron and Hugging Face
folders satisfy the protocol here, toy models where they are made.

Shapes: n tokens asked for, V vocabulary, H hidden size.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from probes.torch_dist import CheckpointFormatError, TorchDistReader

IntArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]

_INPUT, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_NEEDED_KEYS = ("step", "vocab_size")


class Checkpoint(Protocol):
    """A model at one step of its training."""

    @property
    def name(self) -> str:
        """How a message names it."""

    @property
    def step(self) -> int:
        """Optimiser updates done."""

    @property
    def vocab_size(self) -> int:
        """The true V: rows beyond it are padding and never returned."""

    @property
    def tokenizer_hash(self) -> str | None:
        """Hash of the tokenizer that made the training corpus; None when unknown."""

    @property
    def embedding_hash(self) -> str:
        """SHA-256 of the float32 bytes of the input embedding."""

    def input_embedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows w_a of the input embedding, (n, H); all V rows when no tokens are named."""

    def unembedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows u_v of the unembedding, (n, H)."""

    def describe(self) -> dict[str, Any]:
        """Facts for the provenance of a result."""


class MegatronCheckpoint:
    """A torch_dist folder with its ``staircase.json``.

    Raises
    ------
    CheckpointFormatError
        A file is missing, cut short, or lacks a key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._record = _read_record(folder / "staircase.json")
        self._reader = TorchDistReader(folder)
        rows, self.hidden_size = self._reader.shape(_INPUT)
        if rows < self.vocab_size:
            raise CheckpointFormatError(
                f"{folder}: {rows} embedding rows found, vocab_size {self.vocab_size} needed "
                "(staircase.json); they belong to different models"
            )

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def step(self) -> int:
        """Optimiser updates done."""
        return int(self._record["step"])

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer."""
        return int(self._record["vocab_size"])

    @property
    def tokenizer_hash(self) -> str | None:
        """As written by the training run."""
        return self._record.get("tokenizer_hash")

    @property
    def embedding_hash(self) -> str:
        """As written by the training run; computed when it wrote none."""
        recorded = self._record.get("embedding_hash")
        return str(recorded) if recorded else hash_rows(self.input_embedding())

    def input_embedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows of the word embedding; what is read must hash to what was recorded."""
        rows_VH = self._rows(_INPUT)
        recorded = self._record.get("embedding_hash")
        if recorded and recorded != hash_rows(rows_VH):
            raise CheckpointFormatError(
                f"{self.folder}: the embedding read is not the one recorded in staircase.json "
                "(hashes differ); files of two checkpoints were mixed, copy it again"
            )
        return _take(rows_VH[: self.vocab_size], tokens_n, self.name)

    def unembedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows of the output layer, or of the embedding when the two are tied."""
        tied = _OUTPUT not in self._reader.names()
        rows_VH = self._rows(_INPUT if tied else _OUTPUT)
        return _take(rows_VH[: self.vocab_size], tokens_n, self.name)

    def describe(self) -> dict[str, Any]:
        """All of ``staircase.json``."""
        return {"name": self.folder.name, **self._record}

    def _rows(self, tensor: str) -> RowArray:
        return self._reader.read(tensor).float().numpy()


def open_series(paths: Iterable[Path | str]) -> list[Checkpoint]:
    """Open checkpoint folders, or folders of ``step_*`` folders, as a series sorted by step.

    Raises
    ------
    CheckpointFormatError
        A folder that is no checkpoint, a step that does not load, two steps with one number
        or with identical embeddings, or steps of different vocabularies or tokenizers; the
        message names the steps.
    """
    folders = [folder for path in paths for folder in _checkpoint_folders(Path(path))]
    if not folders:
        raise CheckpointFormatError("no checkpoint given; name at least one step_* folder")
    series: list[Checkpoint] = [_open(folder) for folder in folders]
    series.sort(key=lambda checkpoint: checkpoint.step)
    check_series(series)
    return series


def check_series(series: Sequence[Checkpoint]) -> None:
    """Refuse a series that is not the course of one model (see `open_series`)."""
    first = series[0]
    steps: dict[int, Checkpoint] = {}
    hashes: dict[str, Checkpoint] = {}
    for checkpoint in series:
        if (twin := steps.setdefault(checkpoint.step, checkpoint)) is not checkpoint:
            raise CheckpointFormatError(
                f"{checkpoint.name}: step {checkpoint.step} again, already in {twin.name}; "
                "name each step once"
            )
        twin = hashes.setdefault(checkpoint.embedding_hash, checkpoint)
        if twin is not checkpoint:
            raise CheckpointFormatError(
                f"{checkpoint.name}: the same embedding as {twin.name}, though the steps differ; "
                "one of the two holds the weights of another step, leave it out"
            )
        _check_alike(checkpoint, first)


def _check_alike(checkpoint: Checkpoint, first: Checkpoint) -> None:
    for what, found, needed in (
        ("vocabulary size", checkpoint.vocab_size, first.vocab_size),
        ("tokenizer hash", checkpoint.tokenizer_hash, first.tokenizer_hash),
    ):
        if found != needed and None not in (found, needed):
            raise CheckpointFormatError(
                f"{checkpoint.name}: {what} {found} found, {needed} needed as in {first.name}; "
                "a series is one run"
            )


def hash_rows(rows: RowArray) -> str:
    """SHA-256 of the float32 bytes of an embedding, row by row."""
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).data).hexdigest()


def _open(folder: Path) -> Checkpoint:
    return MegatronCheckpoint(folder)


def _checkpoint_folders(path: Path) -> list[Path]:
    """``path`` itself, or the step folders in it or in its ``checkpoints``."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; a checkpoint folder is needed")
    if (path / "staircase.json").exists() or (path / ".metadata").exists():
        return [path]
    for parent in (path, path / "checkpoints"):
        if steps := [step for step in parent.glob("step*") if step.is_dir() and _number(step)]:
            return sorted(steps)
    raise CheckpointFormatError(
        f"{path}: no checkpoint found (no staircase.json, no step_* folder); give a folder that "
        "`staircase train` wrote"
    )


def _number(folder: Path) -> re.Match[str] | None:
    """Match a whole step name, so that a ``step_0000128.partial`` is passed over."""
    return re.fullmatch(r"step[_-]?\d+", folder.name)


def _take(rows_VH: RowArray, tokens_n: IntArray | None, name: str) -> RowArray:
    if tokens_n is None:
        return rows_VH
    if tokens_n.size and (tokens_n.min() < 0 or tokens_n.max() >= len(rows_VH)):
        raise ValueError(
            f"{name}: token {int(tokens_n.max())} asked for, {len(rows_VH)} rows found; "
            "the signatures belong to another vocabulary"
        )
    return np.ascontiguousarray(rows_VH[tokens_n])


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointFormatError(
            f"{path}: not found; it is written last, so the checkpoint is incomplete: "
            "leave this step out or train on with --resume"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointFormatError(
            f"{path}: not JSON ({error}); copy the checkpoint again"
        ) from error
    missing = [key for key in _NEEDED_KEYS if not isinstance(record.get(key), int)]
    if missing:
        raise CheckpointFormatError(f"{path}: no whole number under {missing}; it is needed")
    return record
