"""Starting one training process a GPU (or a CPU share) with torchrun."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType


def launch(arguments: Sequence[str], *, nproc_per_node: int) -> int:
    """Run ``staircase`` with ``arguments`` in ``nproc_per_node`` processes on this machine.

    SIGTERM and Ctrl-C reach every process. Returns the exit code of torchrun: 0, or not.
    """
    child = subprocess.Popen(command(arguments, nproc_per_node=nproc_per_node))

    def forward(signum: int, frame: FrameType | None) -> None:
        child.send_signal(signum)

    before = signal.signal(signal.SIGTERM, forward)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()  # the terminal has sent it the same signal
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def command(arguments: Sequence[str], *, nproc_per_node: int) -> list[str]:
    """Return the torchrun command of one machine; docs/training.md has that of several."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={nproc_per_node}",
        "--module",
        "workflows",
        *arguments,
    ]


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ
