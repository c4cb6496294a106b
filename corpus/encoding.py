"""A worker's part of building a corpus: a block of raw records in, token ids out.

Shapes: N tokens of a block, D documents of a block.
"""

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.records import Fault, texts_of
from corpus.sources import Block
from corpus.tokenizer import TokenizerFormatError, read_tokenizer, special_tokens

_THREADS = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """What every worker is told once."""

    tokenizer: Path
    text_column: str = "text"
    eod: int | None = None
    """Appended to every document that holds a token."""
    allow_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """The documents of one block, end to end."""

    tokens_N: npt.NDArray[np.uint32]
    lengths_D: npt.NDArray[np.int64]
    faults: list[Fault]
    special_seen: dict[str, int]
    """Special-token texts met in documents, and how often."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the tokenizers library from starting threads: a process is a core here."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


class Encoder:
    """Encodes blocks with one tokenizer."""

    def __init__(self, options: EncodingOptions) -> None:
        self._options = options
        self._tokenizer = load_tokenizer(options.tokenizer, allow_special=options.allow_special)
        self._special = _pattern(special_tokens(read_tokenizer(options.tokenizer)))

    def encode(self, block: Block) -> EncodedBlock:
        """Token ids of every text in ``block``, and the faults of the other records."""
        records = list(texts_of(block, self._options.text_column))
        texts = [record for record in records if isinstance(record, str)]
        faults = [record for record in records if isinstance(record, Fault)]
        tail = [] if self._options.eod is None else [self._options.eod]
        # An empty text stays a document of no tokens, so that documents match rows.
        ids = [
            found + tail if (found := encoding.ids) else found
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        lengths_D = np.fromiter(map(len, ids), np.int64, len(ids))
        return EncodedBlock(
            tokens_N=np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths_D.sum())),
            lengths_D=lengths_D,
            faults=faults,
            special_seen=self._count_special(texts),
        )

    def _count_special(self, texts: list[str]) -> dict[str, int]:
        if self._special is None:
            return {}
        return Counter(chain.from_iterable(map(self._special.findall, texts)))


def load_tokenizer(path: Path, *, allow_special: bool) -> Any:
    """Load the tokenizer at ``path``, without the padding and truncation it may be saved with.

    Raises
    ------
    TokenizerFormatError
        The tokenizers library cannot read it.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFormatError(
            f"{path}: the tokenizers library cannot read it ({error}); save it again with "
            "tokenizers, or train one with `staircase corpus train-tokenizer`"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = not allow_special
    return tokenizer


def _pattern(special: dict[str, int]) -> re.Pattern[str] | None:
    """Find special-token texts, the longer of two that start alike."""
    texts = sorted((text for text in special if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


_encoder: Encoder | None = None
"""A worker process's own."""


def start_worker(options: EncodingOptions) -> None:
    """Prepare a worker process: load the tokenizer, and end when the parent does."""
    global _encoder
    # An interrupt from the keyboard reaches every process; the parent answers for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[_THREADS] = "false"
    _encoder = Encoder(options)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def encode_in_worker(block: Block) -> EncodedBlock:
    """Encode ``block`` with the tokenizer of ``start_worker``."""
    assert _encoder is not None
    return _encoder.encode(block)


def _end_with_parent() -> None:
    """End when the parent does: killed outright, it cannot stop its workers, which would wait."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
