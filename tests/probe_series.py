"""A store and checkpoints small enough to check by eye, written as a real run writes them."""

import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter

from tests.stores import write_next_token

VOCAB = 24
HIDDEN = 16
MODEL = {
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "num_attention_heads": 2,
    "kv_channels": 8,
    "ffn_hidden_size": 12,
}
LAYERS = "decoder.layers."


def write_checkpoint(
    folder: Path, step: int, rows: np.ndarray, outputs: np.ndarray | None = None, **record: object
) -> Path:
    """A torch_dist folder as Megatron-core names its tensors, with its staircase.json."""
    tensors = {"embedding.word_embeddings.weight": torch.tensor(rows, dtype=torch.float32)}
    tensors |= layer_tensors(rows.shape[1])
    if outputs is not None:
        tensors["output_layer.weight"] = torch.tensor(outputs, dtype=torch.float32)
    path = folder / f"step_{step:07d}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(tensors, storage_writer=FileSystemWriter(path), no_dist=True)
    digest = hashlib.sha256(rows.astype(np.float32).tobytes()).hexdigest()
    config = {"model": MODEL | {"hidden_size": rows.shape[1]}, "data": {"seq_length": 20}}
    description = {"step": step, "vocab_size": VOCAB, "embedding_hash": digest, "config": config}
    description |= record
    (path / "staircase.json").write_text(json.dumps(description))
    return path


def layer_tensors(hidden: int) -> dict[str, torch.Tensor]:
    """Random layers, stacked."""
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "self_attention.linear_qkv.weight": (48, hidden),
        "self_attention.linear_qkv.layer_norm_weight": (hidden,),
        "self_attention.linear_proj.weight": (hidden, 16),
        "mlp.linear_fc1.weight": (24, hidden),
        "mlp.linear_fc1.layer_norm_weight": (hidden,),
        "mlp.linear_fc2.weight": (hidden, 12),
    }
    tensors = {
        LAYERS + name: torch.randn(2, *shape, generator=generator) for name, shape in shapes.items()
    }
    return tensors | {"decoder.final_layernorm.weight": torch.ones(hidden)}


def documents(seed: int = 0) -> list[list[int]]:
    """Documents of a chain that prefers some successors, so that signatures differ."""
    generator = np.random.default_rng(seed)
    chain = generator.dirichlet(np.full(VOCAB, 0.15), size=VOCAB)
    made = []
    for _ in range(40):
        token, document = int(generator.integers(VOCAB)), []
        for _ in range(100):
            document.append(token)
            token = int(generator.choice(VOCAB, p=chain[token]))
        made.append(document)
    return made


def write_series(folder: Path, steps: tuple[int, ...] = (0, 4, 16, 64)) -> tuple[list[Path], Path]:
    """Checkpoints whose embedding moves towards the signature, and the store: (paths, store)."""
    store = folder / "next_token.zarr"
    counts = write_next_token(store, documents(), VOCAB).toarray().astype(float)
    generator = np.random.default_rng(1)
    projection, noise = generator.normal(size=(2, VOCAB, HIDDEN))
    signature = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    paths = [
        write_checkpoint(
            folder / "checkpoints",
            step,
            0.1 * noise + step / 64 * (signature @ projection),
            noise[::-1] + step,
        )
        for step in steps
    ]
    return paths, store
