"""One GPU, eight minutes: does the 680M model train here, how fast, and where does the time go.

Usage: python -m benchmarks.gpu_check CORPUS_PREFIX [--out DIR] [--steps 160] [--minutes 8]
       python -m benchmarks.gpu_check CORPUS_PREFIX --tiny-cpu     the same path, seconds, no GPU

What happens, in this order: at most 20 MB of the corpus are copied and counted; `staircase train`
runs in bfloat16 at sequence 4096 with the live probe; in the middle it gets SIGTERM, saves, ends
with 130, and a new process goes on with --resume; a few more steps run here under torch's profiler.
Prints a JSON object (loss, tokens/s, MFU, memory, rho_next, shares of time) and one line a check.
Exit code 0: all checks hold; 1: one does not; 2: no CUDA, or a corpus that does not fit.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from corpus.config import load
from corpus.progress import SILENT
from corpus.store import Corpus, CorpusWriter, open_corpus
from lm_training import cpu
from lm_training.config import CheckpointConfig, LogConfig, RunConfig
from lm_training.distributed import process_groups
from lm_training.megatron_core import quiet
from lm_training.model import uses_transformer_engine
from lm_training.session import open_session
from signatures.count import CountOptions, count_next_token

MOST_BYTES = 20_000_000
WARM_UP, PROFILED = 5, 3
MOST_JUMP = 1.0
"""Nats; a resume from other weights starts again near the logarithm of V."""
TRAINING_SHARE = 0.8
"""Of the minutes; the rest is for the profiled steps."""
USER_ERROR, FAILED, STOPPED = 2, 1, 130
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is trained: the real thing, or something that walks the same path."""

    model: str
    """Lines of [model]."""
    seq_length: int
    batch: int
    micro_batch: int
    steps: int
    lr: float
    probe_every: int


FULL = Size(
    model='preset = "decoder_680m"',
    seq_length=4096,
    batch=8,
    micro_batch=2,
    steps=160,
    lr=2.5e-4,
    probe_every=10,
)
TINY = Size(
    model=(
        "num_layers = 2\nhidden_size = 32\nnum_attention_heads = 2\nkv_channels = 16\n"
        "ffn_hidden_size = 64\nvocab_size = {vocab_size}"
    ),
    seq_length=32,
    batch=4,
    micro_batch=2,
    steps=60,
    lr=1e-2,
    probe_every=10,
)
RUN = """
out = "run"
[model]
{model}
[data]
corpus = "tokens"
seq_length = {seq_length}
[train]
steps = {steps}
global_batch_size = {batch}
micro_batch_size = {micro_batch}
lr = {lr}
bf16 = true
[checkpoint]
early_until = 16
every = {steps}
keep_optimizer = 1
[log]
probe_every = {probe_every}
signatures = "next_token.zarr"
"""
KINDS = {
    "attention": ("attention", "flash", "fmha", "sdpa"),
    "matrix products": ("gemm", "matmul", "::mm", "addmm", "bmm", "cutlass", "nvjet", "cublas"),
    "optimizer": ("adam", "multi_tensor", "foreach", "lamb"),
    "communication": ("nccl", "c10d", "gloo", "all_reduce"),
    "copies and casts": ("memcpy", "memset", "copy_", "_to_copy", "::to", "cast"),
    "loss": ("softmax", "cross_entropy", "nll"),
}
"""What a kernel is for, by pieces of its name, the first that fits; the rest is element-wise."""


def prepare(prefix: Path, folder: Path) -> Corpus:
    """Copy whole documents up to 20 MB, and count them."""
    given = open_corpus(prefix)
    if given.format != "megatron" or not given.num_tokens:
        raise SystemExit(_complain(f"{prefix}: a .bin/.idx pair with tokens is needed"))
    size = given.vocab_size or int(given.tokens(0, given.num_tokens).max()) + 1
    most = max(1, MOST_BYTES // given.dtype.itemsize)
    sidecar = {"vocab_size": size, "tokenizer_hash": given.tokenizer_hash}
    with CorpusWriter(folder / "tokens", given.dtype, size, sidecar) as writer:
        start = 0
        for end in given.doc_ends_D.tolist():
            if start and end > most:
                break
            writer.add_document(given.tokens(start, min(end, most)))
            start = end
    options = CountOptions(workers=1)
    count_next_token(folder / "tokens", out=folder / "next_token.zarr", options=options)
    return open_corpus(folder / "tokens")


def write_run(folder: Path, size: Size, vocab_size: int) -> Path:
    values = {name: getattr(size, name) for name in size.__dataclass_fields__}
    values["model"] = size.model.format(vocab_size=vocab_size)
    (folder / "run.toml").write_text(RUN.format(**values))
    return folder / "run.toml"


def train_interrupted(folder: Path, stop_at: int, deadline: float) -> list[int]:
    """Train, SIGTERM after step ``stop_at``, resume in a new process; the two exit codes."""
    codes = []
    for flags in ([], ["--resume"]):
        command = [sys.executable, "-m", "workflows", "train", "run.toml", *flags]
        path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *sys.path])
        process = subprocess.Popen(command, cwd=folder, env=os.environ | {"PYTHONPATH": path})
        is_told = bool(flags)
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise SystemExit(_complain("out of time; lower --steps", FAILED))
            if not is_told and len(log_of(folder)) >= stop_at:
                process.send_signal(signal.SIGTERM)
                is_told = True
            time.sleep(_POLL_SECONDS)
        codes.append(process.returncode)
    return codes


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Whole lines of train.jsonl, one a step."""
    path = folder / "run" / "train.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def shares_of_time(run: RunConfig) -> dict[str, float]:
    """Profile a few steps in this process; the share of each kind of work in the wall time."""
    activities = [ProfilerActivity.CUDA] if cpu.has_cuda() else [ProfilerActivity.CPU]
    with quiet(), cpu.stand_ins(), process_groups(run.parallel, seed=run.seed):
        opened = open_session(run, resume=False, progress=SILENT, on_checkpoint=None)
        with opened as session:
            for step in range(1, WARM_UP + 1):
                session.trainer.update(step)
            began = time.perf_counter()
            with profile(activities=activities) as profiler:
                for step in range(WARM_UP + 1, WARM_UP + PROFILED + 1):
                    session.trainer.update(step)  # ends with the loss on the CPU, so is complete
                wall = time.perf_counter() - began
    seconds = dict.fromkeys([*KINDS, "element-wise and norms"], 0.0)
    for event in profiler.key_averages():
        taken = event.self_device_time_total if cpu.has_cuda() else event.self_cpu_time_total
        seconds[_kind(event.key)] += taken / 1e6
    seconds["not in a kernel"] = max(0.0, wall - sum(seconds.values()))
    whole = sum(seconds.values())
    return {name: round(taken / whole, 4) for name, taken in seconds.items()}


def _kind(kernel: str) -> str:
    name = kernel.lower()
    for kind, pieces in KINDS.items():
        if any(piece in name for piece in pieces):
            return kind
    return "element-wise and norms"


def describe(log: list[dict[str, Any]]) -> dict[str, Any]:
    """Say what the log says: medians after the warm-up, the loss at both ends, the live probe."""
    settled = log[WARM_UP:]

    def middle(name: str) -> float | None:
        values = [line[name] for line in settled if line[name] is not None]
        return statistics.median(values) if values else None

    return {
        "steps": len(log),
        "tokens_per_second": middle("tokens_per_second"),
        "mfu": middle("mfu"),
        "peak_memory_gigabytes": round(max(line["memory_bytes"] for line in log) / 1e9, 2),
        "loss": [log[0]["loss"], log[-1]["loss"]],
        "rho_next": [[line["step"], line["rho_next"]] for line in log if "rho_next" in line],
    }


def checks_of(log: list[dict[str, Any]], codes: list[int], size: Size) -> dict[str, bool]:
    """Say what must hold on any machine; speed is stated, not judged."""
    losses = [line["loss"] for line in log]
    rho = [line["rho_next"] for line in log if "rho_next" in line]
    return {
        "the first process saved and ended with 130": codes[0] == STOPPED,
        "the second went on to the end": codes[1] == 0 and len(log) == size.steps,
        "every step is logged once": [line["step"] for line in log] == [*range(1, len(log) + 1)],
        "the loss falls": statistics.mean(losses[-5:]) < statistics.mean(losses[:5]) - 0.1,
        "the loss jumps nowhere, the resume included": _largest_jump(losses) < MOST_JUMP,
        "rho_next is a number at every probe": bool(rho) and all(-1 <= one <= 1 for one in rho),
    }


def _largest_jump(losses: list[float]) -> float:
    """Most nats that a step stands above the mean of the five before it."""
    places = range(WARM_UP, len(losses))
    return max((losses[n] - statistics.mean(losses[n - 5 : n]) for n in places), default=0.0)


def _complain(message: str, code: int = USER_ERROR) -> int:
    print(f"gpu_check: {message}", file=sys.stderr)
    return code


def check(prefix: Path, folder: Path, size: Size, seconds: float) -> int:
    started = time.monotonic()
    vocab_size = prepare(prefix, folder).vocab_size
    assert vocab_size is not None, "the copy is written with one"
    run_file = write_run(folder, size, vocab_size)
    os.chdir(folder)
    run = load(run_file, RunConfig)
    if vocab_size > run.model.vocab_size:
        return _complain(f"{prefix}: vocabulary of {vocab_size}, the model has fewer rows")
    codes = train_interrupted(folder, size.steps // 2, started + TRAINING_SHARE * seconds)
    log = log_of(folder)
    if not log:
        return _complain(f"training said nothing; exit codes {codes}", FAILED)
    profiled = replace(
        run,
        out=folder / "profiled",
        checkpoint=CheckpointConfig(early=False, every=size.steps, keep_optimizer=0),
        log=LogConfig(),
    )
    result = {
        "device": torch.cuda.get_device_name() if cpu.has_cuda() else "cpu",
        "transformer_engine": uses_transformer_engine(),
        "torch": torch.__version__,
        **describe(log),
        "shares_of_time": shares_of_time(profiled),
        "seconds": round(time.monotonic() - started, 1),
    }
    checks = checks_of(log, codes, size)
    print(json.dumps(result | {"checks": checks}, indent=1))
    for text, holds in checks.items():
        print(f"{'ok    ' if holds else 'FAILED'} {text}", file=sys.stderr)
    return 0 if all(checks.values()) else FAILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="prefix of a .bin/.idx pair of real text")
    parser.add_argument("--out", type=Path, help="folder for the run; default a temporary one")
    parser.add_argument("--steps", type=int, help=f"default {FULL.steps}, tiny {TINY.steps}")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="all told; training is ended at 80 %%"
    )
    parser.add_argument("--tiny-cpu", action="store_true", help="a tiny model, on the CPU")
    given = parser.parse_args()
    if given.tiny_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not cpu.has_cuda():
        return _complain("no CUDA device found, one is needed; --tiny-cpu runs without")
    size = TINY if given.tiny_cpu else FULL
    size = replace(size, steps=given.steps or size.steps)
    corpus = given.corpus.resolve()
    if given.out is not None:
        given.out.mkdir(parents=True)
        return check(corpus, given.out.resolve(), size, 60 * given.minutes)
    with tempfile.TemporaryDirectory() as folder:
        return check(corpus, Path(folder), size, 60 * given.minutes)


if __name__ == "__main__":
    sys.exit(main())
