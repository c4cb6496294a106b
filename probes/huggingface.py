"""Checkpoints in Hugging Face folders, from ``config.json`` and safetensors directly.

Llama, Qwen2, Qwen3, GPT-NeoX (Pythia) and GPT-2. What a family does that ``DecoderSpec`` cannot
say (scaled RoPE, sliding windows) is refused, never ignored.

Shapes: n tokens asked for, V vocabulary, H hidden size, A heads, K channels a head.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from corpus.tokenize import tokenizer_hash
from probes.decoder import Decoder, DecoderSpec, Layer, decoder_from, layer_from
from probes.families import FAMILIES, Family
from probes.tokens import TokenTexts
from probes.torch_dist import CheckpointFormatError
from probes.vocabulary import IntArray, RowArray, hash_rows, take_rows


class HuggingFaceCheckpoint:
    """A folder as ``save_pretrained`` writes it; the step is the number its name ends in.

    Raises
    ------
    CheckpointFormatError
        A file is missing or damaged, or the model is none of the families.
    """

    def __init__(self, folder: Path, *, vocab_size: int | None = None) -> None:
        self.folder = folder
        self._config = _read_config(folder)
        self._family: Family = FAMILIES[self._config["model_type"]]
        self.spec: DecoderSpec = self._family.spec(self._config, str(folder))
        self._files = _tensor_files(folder)
        self._tokenizer = folder / "tokenizer.json"
        own = TokenTexts(self._tokenizer).vocab_size if self._tokenizer.is_file() else None
        self.vocab_size = own or vocab_size or self.spec.vocab_size
        if self.vocab_size > self.spec.vocab_size:
            raise CheckpointFormatError(
                f"{folder}: {self.spec.vocab_size} embedding rows found, {self.vocab_size} needed "
                "by the tokenizer; they belong to different models"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a path."""
        return partial(HuggingFaceCheckpoint, vocab_size=self.vocab_size), (self.folder,)

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def step(self) -> int:
        """The number at the end of the folder's name; 0 when there is none."""
        found = re.search(r"(\d+)$", self.folder.name)
        return int(found[1]) if found else 0

    @cached_property
    def tokenizer_hash(self) -> str | None:
        """Hash of the folder's ``tokenizer.json``, if it has one."""
        return tokenizer_hash(self._tokenizer) if self._tokenizer.is_file() else None

    @cached_property
    def embedding_hash(self) -> str:
        """Computed from the weights."""
        return hash_rows(self._tensor(self._family.embedding).float().numpy())

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self.spec.num_layers

    def input_embedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows of the word embedding, positions not added."""
        rows_VH = self._tensor(self._family.embedding).float().numpy()
        return take_rows(rows_VH[: self.vocab_size], tokens_n, self.name)

    def unembedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows of the output layer, or of the embedding when the two are tied."""
        name = self._family.embedding if self.spec.tied else self._family.unembedding
        rows_VH = self._tensor(name).float().numpy()
        return take_rows(rows_VH[: self.vocab_size], tokens_n, self.name)

    def layer(self, index: int) -> Layer:
        """Read one layer and nothing else."""
        weights = self._family.layer(self._tensor, index, self.spec)
        return layer_from(self.spec, weights)

    def decoder(self) -> Decoder:
        """Read the whole model."""
        return decoder_from(self.spec, dict(self._weights()))

    def describe(self) -> dict[str, Any]:
        """Return the configuration."""
        return {"name": self.folder.name, "config": self._config}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        embedding = self._tensor(self._family.embedding)
        yield "embedding.weight", embedding
        tied = self.spec.tied
        yield "unembedding.weight", embedding if tied else self._tensor(self._family.unembedding)
        if self._family.positions:
            yield "positions.weight", self._tensor(self._family.positions)
        yield "final_norm.weight", self._tensor(f"{self._family.final_norm}.weight")
        if self.spec.normalization == "LayerNorm":
            yield "final_norm.bias", self._tensor(f"{self._family.final_norm}.bias")
        for index in range(self.num_layers):
            layer = self._family.layer(self._tensor, index, self.spec)
            yield from ((f"layers.{index}.{name}", weight) for name, weight in layer.items())

    def _tensor(self, name: str) -> Tensor:
        """Read one tensor; the base model's prefix may be there or not."""
        found = name if name in self._files else name.partition(".")[2]
        if found not in self._files:
            raise CheckpointFormatError(
                f"{self.folder}: no tensor {name!r}, it is needed; found "
                f"{', '.join(sorted(self._files)[:3])}, ..."
            )
        try:
            with safe_open(self._files[found], framework="pt") as file:
                tensor: Tensor = file.get_tensor(found)
        except (OSError, SafetensorError) as error:
            raise CheckpointFormatError(
                f"{self._files[found]}: {name} does not read back ({error}); download it again"
            ) from error
        return tensor


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointFormatError(
            f"{path}: not readable as JSON ({error}); download it again"
        ) from error
    if config.get("model_type") not in FAMILIES:
        raise CheckpointFormatError(
            f"{path}: model_type {config.get('model_type')!r} found, one of "
            f"{sorted(FAMILIES)} needed"
        )
    return config


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor, from the index or from the one file itself."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {name: folder / file for name, file in places.items()}
        if missing := sorted({file.name for file in files.values() if not file.is_file()}):
            raise CheckpointFormatError(f"{folder}: {missing} not found, named in {index.name}")
        return files
    single = folder / "model.safetensors"
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (OSError, SafetensorError) as error:
        raise CheckpointFormatError(
            f"{single}: not readable ({error}); a safetensors checkpoint is needed "
            "(save_pretrained writes one)"
        ) from error
