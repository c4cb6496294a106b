"""Speed of a training step: Megatron-core as lm_training drives it, against plain PyTorch.

Usage: python -m benchmarks.training [--steps 60] [--preset NAME] [--seq-length 128] [--batch 16]

Both train the same shape on the same kind of tokens with AdamW, clipping and float32, in one
process, and take turns step by step, so that a busy machine slows both. The plain decoder uses
torch's fused attention and norms, so it is not a weak peer. Prints one JSON object; the ratio is
of the medians, above 1 where Megatron is faster.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.progress import SILENT
from corpus.store import CorpusWriter
from lm_training import cpu
from lm_training.config import PRESETS, ModelConfig, RunConfig, demo_run
from lm_training.distributed import process_groups
from lm_training.megatron_core import quiet
from lm_training.session import open_session

WARM_UP = 5


class PlainLayer(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU."""

    def __init__(self, shape: ModelConfig) -> None:
        super().__init__()
        self.heads, wide = shape.num_attention_heads, shape.ffn_hidden_size
        hidden, attended = shape.hidden_size, shape.num_attention_heads * shape.kv_channels
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(hidden, 3 * attended, bias=False)
        self.output = nn.Linear(attended, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * wide, bias=False)
        self.down = nn.Linear(wide, hidden, bias=False)

    def forward(self, x_BSH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Add attention and feed-forward to the stream."""
        split = self.qkv(self.norms[0](x_BSH)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key, value = split.chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True
        )
        x_BSH = x_BSH + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x_BSH)).chunk(2, -1)
        return x_BSH + self.down(functional.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class PlainDecoder(nn.Module):
    """Token ids to logits."""

    def __init__(self, shape: ModelConfig, seq_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(PlainLayer(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.unembedding = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        frequency = 10_000.0 ** -(torch.arange(0, shape.kv_channels, 2) / shape.kv_channels)
        angle = torch.arange(seq_length)[:, None] * frequency
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1))

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return logits (B, S, V)."""
        x_BSH = self.embedding(tokens_BS)
        for layer in self.layers:
            x_BSH = layer(x_BSH, self.cos, self.sin)
        return self.unembedding(self.norm(x_BSH))


class PlainTrainer:
    """One update of the plain decoder on random tokens."""

    def __init__(self, run: RunConfig) -> None:
        self.model = PlainDecoder(run.model, run.data.seq_length).to(cpu.device())
        train = run.train
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), train.lr, (train.beta1, train.beta2), 1e-8, 0.1
        )
        self.clip_grad = train.clip_grad
        self.size = (train.global_batch_size, run.data.seq_length + 1)

    def update(self) -> float:
        """Forward, backward, clip, AdamW; return the loss."""
        tokens = torch.randint(self.model.unembedding.out_features, self.size, device=cpu.device())
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad)
        self.optimizer.step()
        return loss.item()


def measure(run: RunConfig) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"megatron": [], "plain": []}
    with quiet(), cpu.stand_ins(), process_groups(run.parallel, seed=run.seed):
        opened = open_session(run, resume=False, progress=SILENT, on_checkpoint=None)
        with opened as session:
            plain = PlainTrainer(run)
            for step in range(1, run.steps + 1):
                started = time.perf_counter()
                session.trainer.update(step)
                between = time.perf_counter()
                plain.update()
                seconds["megatron"].append(between - started)
                seconds["plain"].append(time.perf_counter() - between)
    medians = {name: statistics.median(taken[WARM_UP:]) for name, taken in seconds.items()}
    return {
        "megatron_seconds": medians["megatron"],
        "plain_seconds": medians["plain"],
        "megatron_tokens_per_second": run.tokens_per_step / medians["megatron"],
        "ratio": medians["plain"] / medians["megatron"],
        "threads": torch.get_num_threads(),
        "device": str(cpu.device()),
    }


def random_corpus(prefix: Path, vocab_size: int, tokens: int) -> Path:
    with CorpusWriter(prefix, np.dtype(np.int32), vocab_size=vocab_size) as writer:
        drawn = np.random.default_rng(0).integers(0, vocab_size, size=tokens, dtype=np.int32)
        writer.add_document(drawn)
    return prefix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="decoder_demo")
    parser.add_argument("--seq-length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = PRESETS[given.preset]()
        corpus = random_corpus(Path(folder) / "corpus", shape.vocab_size, 1_000_000)
        run = demo_run(
            corpus=corpus, out=Path(folder) / "run", gamma=0.5, steps=given.steps, seed=0
        )
        run = replace(
            run,
            model=shape,
            data=replace(run.data, seq_length=given.seq_length),
            train=replace(run.train, global_batch_size=given.batch),
        )
        print(json.dumps(vars(given) | measure(run)))


if __name__ == "__main__":
    main()
