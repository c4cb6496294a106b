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


def write_checkpoint(
    folder: Path, step: int, rows: np.ndarray, outputs: np.ndarray | None = None, **record: object
) -> Path:
    """A torch_dist folder of the two embeddings, with its staircase.json."""
    tensors = {"embedding.word_embeddings.weight": torch.tensor(rows, dtype=torch.float32)}
    if outputs is not None:
        tensors["output_layer.weight"] = torch.tensor(outputs, dtype=torch.float32)
    path = folder / f"step_{step:07d}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(tensors, storage_writer=FileSystemWriter(path), no_dist=True)
    digest = hashlib.sha256(rows.astype(np.float32).tobytes()).hexdigest()
    description = {"step": step, "vocab_size": VOCAB, "embedding_hash": digest} | record
    (path / "staircase.json").write_text(json.dumps(description))
    return path


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
