"""Which pairs of a corpus count, and how the work is cut: the settings of a count."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What one context is.

    Raises
    ------
    ValueError
        Settings that contradict each other.
    """

    kind: Literal["document", "packed"] = "document"
    seq_length: int | None = None
    """Inputs a sample; packed only."""
    order: Path | None = None
    """ORDER file of a run; packed only. Without it the stream is the files as they stand."""
    window: int | None = None
    """Tokens before a position that are its context; document only, not for next-token."""

    def __post_init__(self) -> None:
        if self.kind not in ("document", "packed"):
            raise ValueError(f"scope {self.kind!r}: unknown, document or packed is needed")
        if self.kind == "document" and (self.seq_length is not None or self.order is not None):
            raise ValueError(
                "--seq-length and --order cut the stream that a trainer packs; they need "
                "--scope packed"
            )
        if self.kind == "packed" and self.window is not None:
            raise ValueError(
                "--window limits the context inside a document; --scope document has it"
            )
        for name, value in (("seq_length", self.seq_length), ("window", self.window)):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: at least 1 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions:
    """How the work is done; nothing here but ``part`` and ``halves`` changes a result.

    Raises
    ------
    ValueError
        Settings that contradict each other.
    """

    workers: int | None = None
    """Processes on this machine; None: one a core, as far as there is work and memory."""
    scheduler: str | None = None
    """Address of a Dask scheduler, such as ``tcp://host:8786``, instead of own processes."""
    part: tuple[int, int] | None = None
    """(I, N): count the I-th of N parts only; I is taken modulo N, so 0..N-1 and 1..N both do."""
    partition_tokens: int | None = None
    """Tokens that are counted at once; None: as many as memory allows and the workers can share."""
    halves: bool = False
    memory: int | None = None
    """Bytes of all processes together; None: half of what is available, at most 4 GB a worker."""
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.scheduler is not None:
            raise ValueError("--workers starts processes here, --scheduler uses others; give one")
        if self.resume and self.overwrite:
            raise ValueError("--resume goes on with what is there, --overwrite drops it; give one")
        if self.part is not None and not (self.part[1] >= 1 and 0 <= self.part[0] <= self.part[1]):
            raise ValueError(
                f"--part {self.part[0]}/{self.part[1]}: I/N with 0 <= I <= N and N >= 1 is needed"
            )
        for name, value in (("workers", self.workers), ("partition tokens", self.partition_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: at least 1 is needed")
