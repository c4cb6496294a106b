"""What a run writes down: a JSON line a step, and TensorBoard event files when asked for."""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from lm_training import cpu
from lm_training.config import RunConfig
from lm_training.folder import LOG
from lm_training.parameters import count_parameters

_DENSE_BF16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12}
"""Peak of one chip, from the vendor's data sheets, without sparsity."""


class RunLog:
    """Writes ``out/train.jsonl`` and, on request, ``out/tensorboard``."""

    def __init__(self, run: RunConfig, *, resumed_at: int) -> None:
        self._every = run.log.every
        path = run.out / LOG
        cut_after(path, resumed_at)
        self._lines: TextIO = path.open("a", encoding="utf-8")
        self._board = _event_files(run.out / "tensorboard") if run.log.tensorboard else None

    def write(self, step: int, line: dict[str, Any], *, always: bool = False) -> None:
        """Append one step; others than every ``[log] every``-th only with ``always``."""
        if step % self._every and not always:
            return
        self._lines.write(json.dumps({"step": step} | line) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush everything to the disk."""
        self._lines.flush()
        os.fsync(self._lines.fileno())
        self._lines.close()
        if self._board is not None:
            self._board.close()


def cut_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, and one that was cut short: a resume writes them again."""
    if not path.exists():
        return
    kept = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if line["step"] > step:
            break
        kept.append(text + "\n")
    aside = path.with_name(path.name + ".partial")
    aside.write_text("".join(kept), encoding="utf-8")
    aside.replace(path)


def _event_files(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def flops_per_token(run: RunConfig) -> float:
    """Floating-point operations to train on one token: 6 a weight in a matrix, and attention.

    Causal attention is counted whole, 12 x layers x heads x kv_channels x seq_length, as is
    usual for model FLOPs utilisation (arXiv:2204.02311, appendix B).
    """
    model = run.model
    weights = count_parameters(model).non_embedding + model.vocab_size * model.hidden_size
    width = model.num_attention_heads * model.kv_channels
    return 6 * weights + 12 * model.num_layers * width * run.data.seq_length


def utilisation(run: RunConfig, tokens_per_second: float, processes: int) -> float | None:
    """Return the share of the chips' dense bf16 peak in use (MFU); None where it is unknown."""
    if not cpu.has_cuda():
        return None
    name = torch.cuda.get_device_name()
    peaks = [flops for chip, flops in _DENSE_BF16_FLOPS.items() if chip in name]
    if not peaks:
        return None
    return tokens_per_second * flops_per_token(run) / (peaks[0] * processes)


def peak_memory_bytes() -> int:
    """Return the most memory this process has held: of the GPU with CUDA, else of the machine."""
    if cpu.has_cuda():
        return torch.cuda.max_memory_allocated()
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
