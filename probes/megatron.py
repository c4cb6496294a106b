"""Checkpoints of Megatron-core: a torch_dist folder with its ``staircase.json``, read without it.

Shapes: n tokens asked for, V vocabulary, H hidden size, G query groups, K channels a head.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from probes.decoder import Decoder, DecoderSpec, Layer, decoder_from, layer_from
from probes.torch_dist import CheckpointFormatError, TorchDistReader
from probes.vocabulary import IntArray, RowArray, hash_rows, take_rows

_INPUT, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_LAYERS = "decoder.layers."
_NEEDED_KEYS = ("step", "vocab_size")


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

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a path."""
        return MegatronCheckpoint, (self.folder,)

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
        return take_rows(rows_VH[: self.vocab_size], tokens_n, self.name)

    def unembedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows of the output layer, or of the embedding when the two are tied."""
        tied = _OUTPUT not in self._reader.names()
        rows_VH = self._rows(_INPUT if tied else _OUTPUT)
        return take_rows(rows_VH[: self.vocab_size], tokens_n, self.name)

    def describe(self) -> dict[str, Any]:
        """All of ``staircase.json``."""
        return {"name": self.folder.name, **self._record}

    def _rows(self, tensor: str) -> RowArray:
        return self._reader.read(tensor).float().numpy()

    @property
    def spec(self) -> DecoderSpec:
        """The architecture, from the resolved configuration of the run."""
        try:
            model = self._record["config"]["model"]
            heads = int(model["num_attention_heads"])
            return DecoderSpec(
                vocab_size=self._reader.shape(_INPUT)[0],
                hidden_size=self.hidden_size,
                num_layers=int(model["num_layers"]),
                num_attention_heads=heads,
                num_query_groups=int(model.get("num_query_groups") or heads),
                kv_channels=int(model["kv_channels"]),
                ffn_hidden_size=int(model["ffn_hidden_size"]),
                rotary_channels=int(model["kv_channels"]),
                tied=_OUTPUT not in self._reader.names(),
            )
        except (KeyError, TypeError) as error:
            raise CheckpointFormatError(
                f"{self.folder / 'staircase.json'}: no {error} under config.model; it is needed "
                "to rebuild the layers"
            ) from error

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self.spec.num_layers

    def layer(self, index: int) -> Layer:
        """Read one layer and nothing else."""
        return layer_from(self.spec, self._layer_weights(index))

    def decoder(self) -> Decoder:
        """Read the whole model."""
        weights = {
            "embedding.weight": self._reader.read(_INPUT),
            "final_norm.weight": self._reader.read("decoder.final_layernorm.weight"),
        }
        weights["unembedding.weight"] = (
            weights["embedding.weight"] if self.spec.tied else self._reader.read(_OUTPUT)
        )
        for index in range(self.num_layers):
            for name, weight in self._layer_weights(index).items():
                weights[f"layers.{index}.{name}"] = weight
        return decoder_from(self.spec, weights)

    def _layer_weights(self, index: int) -> Mapping[str, Tensor]:
        """Split Megatron's fused matrices: per group [queries, key, value]; [gate, up]."""
        spec = self.spec

        def read(name: str) -> Tensor:
            return self._reader.read(_LAYERS + name, first=index)

        fused = read("self_attention.linear_qkv.weight")
        grouped = fused.view(spec.num_query_groups, -1, spec.kv_channels, spec.hidden_size)
        gate, up = read("mlp.linear_fc1.weight").chunk(2)
        return {
            "attention_norm.weight": read("self_attention.linear_qkv.layer_norm_weight"),
            "attention.query.weight": grouped[:, :-2].flatten(0, 2),
            "attention.key.weight": grouped[:, -2].flatten(0, 1),
            "attention.value.weight": grouped[:, -1].flatten(0, 1),
            "attention.output.weight": read("self_attention.linear_proj.weight"),
            "ffn_norm.weight": read("mlp.linear_fc1.layer_norm_weight"),
            "feed_forward.gate.weight": gate,
            "feed_forward.up.weight": up,
            "feed_forward.down.weight": read("mlp.linear_fc2.weight"),
        }


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
