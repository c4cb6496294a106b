"""One tokenised file of a corpus, whatever its format: its tokens and its document borders.

Shapes: N tokens, D documents of this file.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.integer[Any]]
DocumentEnds = npt.NDArray[np.int64]
Borders = Literal["known", "unknown"]
Format = Literal["megatron", "flat", "datatrove", "hf", "parquet"]


class CorpusFormatError(ValueError):
    """A tokenised file that cannot be read as what it is said to be."""


class MappedTokens:
    """All tokens of a file as one array over its map."""

    def __init__(self, tokens_N: Tokens, mapped: mmap.mmap | None) -> None:
        self.tokens_N = tokens_N
        self._mapped = mapped

    def read(self, start: int, stop: int) -> Tokens:
        """View tokens ``start`` to ``stop``."""
        return self.tokens_N[start:stop]

    def release(self) -> None:
        """Give back the memory of pages read so far; they are read again when they are used."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """What ``corpus build`` wrote beside the tokens, as far as a reader needs it."""

    vocab_size: int | None = None
    tokenizer_hash: str | None = None
    eod: int | None = None
    special: tuple[int, ...] = ()
    skipped_documents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One file, or one pair of files, of tokens."""

    path: Path
    """What an error or a fingerprint names: for Megatron the prefix."""
    format: Format
    dtype: np.dtype[np.integer[Any]]
    doc_ends_D: DocumentEnds
    """Exclusive end of each document in tokens, non-decreasing; the last one is N."""
    read: Callable[[int, int], Tokens]
    """``read(start, stop)``: those tokens; a view where the file can be mapped."""
    release: Callable[[], None] = lambda: None
    """Gives back memory that reading has mapped; views stay valid."""
    borders: Borders = "known"
    skipped_documents: int = 0
    sidecar: Sidecar = field(default_factory=Sidecar)
    notices: tuple[str, ...] = ()
    """What is odd but readable."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return int(self.doc_ends_D[-1]) if self.doc_ends_D.size else 0


def map_tokens(path: Path, dtype: np.dtype[np.integer[Any]]) -> MappedTokens:
    """Map the whole of ``path``; a file of no bytes, which cannot be mapped, is no tokens."""
    if path.stat().st_size == 0:
        return MappedTokens(np.empty(0, dtype), None)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return MappedTokens(np.frombuffer(mapped, dtype), mapped)
