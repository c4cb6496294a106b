"""Training in several processes, as torchrun starts them, without paying for imports each time.

A fork server imports Megatron once; every process of a run is forked from it and joins the
others through a port on this machine.
"""

import json
import multiprocessing
import os
import signal
import socket
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from corpus.store import CorpusWriter
from lm_training.config import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)

VOCAB_SIZE = 256
LAYOUTS = {
    "dp1": (1, ParallelConfig()),
    "dp2": (2, ParallelConfig()),
    "tp2": (2, ParallelConfig(tensor=2)),
    "pp2": (2, ParallelConfig(pipeline=2)),
    "dp2-distributed-optimizer": (2, ParallelConfig(distributed_optimizer=True)),
}
"""Number of processes and how the model is cut over them."""


def write_corpus(prefix: Path, documents: list[list[int]] | None = None) -> Path:
    """Write ``documents``, or a fixed random text in which the next token can be learned."""
    if documents is None:
        generator = np.random.default_rng(7)
        documents = [
            (np.cumsum(generator.integers(0, 3, size=200)) % VOCAB_SIZE).tolist() for _ in range(40)
        ]
    with CorpusWriter(
        prefix, np.dtype(np.uint16), vocab_size=VOCAB_SIZE, sidecar={"vocab_size": VOCAB_SIZE}
    ) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.uint16))
    return prefix


def small_run(corpus: Path, out: Path, **changes: object) -> RunConfig:
    """Ten steps of a two-layer decoder; every step from 0 a checkpoint."""
    run = RunConfig(
        out=out,
        seed=3,
        model=ModelConfig(
            num_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            kv_channels=24,
            ffn_hidden_size=128,
            vocab_size=VOCAB_SIZE,
            gamma=0.5,
        ),
        data=DataConfig(corpus=corpus, seq_length=32),
        train=TrainConfig(
            steps=10, global_batch_size=8, micro_batch_size=2, lr=3e-3, warmup_ratio=0.3
        ),
        checkpoint=CheckpointConfig(early_until=1, every=1),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def train_in_processes(
    run: RunConfig, processes: int, *, resume: bool = False, stop_after: int | None = None
) -> None:
    """Train ``run`` in new processes; SIGTERM reaches the first once ``stop_after`` is saved."""
    context = _fork_server()
    port = _free_port()
    started = [
        context.Process(target=_train, args=(run, rank, processes, port, resume, stop_after))
        for rank in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
    assert codes == [0] * processes, f"exit codes {codes}"


def _train(
    run: RunConfig, rank: int, processes: int, port: int, resume: bool, stop_after: int | None
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    warnings.simplefilter("error")
    import torch

    from lm_training.train import train

    torch.set_num_threads(1)

    def stop(step: int, path: Path) -> None:
        if step == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    train(run, resume=resume, on_checkpoint=stop)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_log(run: RunConfig) -> list[dict[str, float]]:
    """Every line of the run's train.jsonl."""
    text = (run.out / "train.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def curve(run: RunConfig, name: str = "loss") -> list[float]:
    """One number a step."""
    return [line[name] for line in read_log(run)]


def start_process(function, *arguments):  # type: ignore[no-untyped-def]
    """Start ``function`` in a new process of the fork server."""
    process = _fork_server().Process(target=function, args=arguments)
    process.start()
    return process


def _fork_server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lm_training.train"])
    return context
