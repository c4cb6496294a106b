"""What a probe needs of a checkpoint, and how a series of them is opened.

A probe asks for rows of embeddings by token; it never sees a file. Megatron and Hugging Face
folders satisfy the protocol here, toy models where they are made.

Shapes: n tokens asked for, V vocabulary, H hidden size.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from probes.decoder import Decoder
from probes.huggingface import HuggingFaceCheckpoint
from probes.megatron import MegatronCheckpoint
from probes.torch_dist import CheckpointFormatError
from probes.vocabulary import IntArray, RowArray


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


class LayerMaps(Protocol):
    """What one layer does to a row by itself."""

    def ffn(self, rows_nH: Tensor) -> Tensor:
        """``MLP(norm(w))``, (n, H)."""

    def value_output(self, rows_nH: Tensor, *, gain: bool = False, bias: bool = False) -> Tensor:
        """``W_O W_V w``, (n, H)."""


class LayeredCheckpoint(Checkpoint, Protocol):
    """A checkpoint whose layers can be looked into."""

    @property
    def num_layers(self) -> int:
        """Layers of the model."""

    def layer(self, index: int) -> LayerMaps:
        """Return one layer, counted from 0."""

    def decoder(self) -> Decoder:
        """Return the whole model, to run it over a text."""


def open_series(
    paths: Iterable[Path | str], *, vocab_size: int | None = None
) -> list[LayeredCheckpoint]:
    """Open checkpoint folders, or folders of ``step_*`` folders, as a series sorted by step.

    ``vocab_size`` is the true V of Hugging Face folders that hold no tokenizer.

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
    series = [_open(folder, vocab_size) for folder in folders]
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


def _open(folder: Path, vocab_size: int | None) -> LayeredCheckpoint:
    if (folder / "config.json").exists():
        return HuggingFaceCheckpoint(folder, vocab_size=vocab_size)
    return MegatronCheckpoint(folder)


def _checkpoint_folders(path: Path) -> list[Path]:
    """``path`` itself, or the step folders in it or in its ``checkpoints``."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; a checkpoint folder is needed")
    if any((path / name).exists() for name in ("staircase.json", ".metadata", "config.json")):
        return [path]
    for parent in (path, path / "checkpoints"):
        if steps := [step for step in parent.glob("*") if step.is_dir() and _number(step)]:
            return sorted(steps)
    raise CheckpointFormatError(
        f"{path}: no checkpoint found (no staircase.json, no step_* folder); give a folder that "
        "`staircase train` or Hugging Face's save_pretrained wrote"
    )


def _number(folder: Path) -> re.Match[str] | None:
    """Match a whole step name, so that a ``step_0000128.partial`` is passed over."""
    return re.fullmatch(r"(step|checkpoint)[_-]?\d+", folder.name)
