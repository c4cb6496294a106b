"""What a count costs in time: the model that ``--dry-run`` and docs/benchmarks.md share.

Shapes: N tokens, S segments, V vocabulary, P pairs.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from signatures.kernels import Int64s, Ints, bitmap_words, histogram, reduce_rows, sort_labels
from signatures.segments import Stream

_BUFFER_ENTRIES = 1 << 21
_TURNS, _LOOPS, _LOOP_SECONDS = 3, 1_000_000, 0.045


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a count whose kernels are compiled and whose tokens are in the page cache.

    ``start + finish + (tokens / count + bytes / hash + partials x merge + entries x write) / w``,
    w workers, ``start`` only where worker processes are started. The rate of counting is measured
    on the corpus itself; the rest is of the machine that docs/benchmarks.md describes, times how
    much slower this one is now.
    """

    tokens_per_second: float
    """Of the kernels, on one worker."""
    token_bytes: int
    """Of a token on disk."""
    slowness: float = 1.0
    """As `slowness` measures it; of everything but counting."""
    hash_bytes_per_second: float = 1e9
    merge_seconds: float = 15e-9
    """An entry of a partial."""
    write_seconds: float = 120e-9
    """An entry of the store, written and read back."""
    start_seconds: float = 2.5
    finish_seconds: float = 0.4

    def seconds(self, *, tokens: int, entries: float, partials: float, workers: int) -> float:
        """Predict the wall time.

        Parameters
        ----------
        entries, partials : float
            Distinct pairs of the whole, and summed over partitions.
        """
        others = (
            tokens * self.token_bytes / self.hash_bytes_per_second
            + partials * self.merge_seconds
            + entries * self.write_seconds
        )
        start = self.start_seconds if workers > 1 else 0.0
        once = self.slowness * (start + self.finish_seconds)
        return once + (tokens / self.tokens_per_second + self.slowness * others) / workers


def slowness() -> float:
    """Measure how many times slower this machine is, now and busy as it is, than the documented.

    A plain loop of Python is timed: it leans on no instruction that some processors lack.
    """
    return statistics.median(_loop_seconds() for _ in range(_TURNS)) / _LOOP_SECONDS


def _loop_seconds() -> float:
    began, total = time.perf_counter(), 0
    for number in range(_LOOPS):
        total += number & 7
    return time.perf_counter() - began


def counting_rate(stream: Stream, ranges: Sequence[tuple[int, int]], *, vocab_size: int) -> float:
    """Tokens a second of the kernels on the last of some ranges of units; the others warm up.

    Without ranges there is nothing to count, and the rate is infinite.
    """
    seconds, low, high = 0.0, 0, 0
    for low, high in ranges:
        block = stream.block(low, high, "whole")
        began = time.perf_counter()
        _count(block.tokens_N, block.starts_S, block.stops_S, vocab_size)
        seconds = time.perf_counter() - began
    if high == low:
        return math.inf
    return (high - low) * stream.tokens_per_unit / max(seconds, 1e-9)


def _count(tokens_N: Ints, starts_S: Int64s, stops_S: Int64s, vocab_size: int) -> None:
    """Run the kernels of one partition, and drop what they find."""
    inputs_V = np.zeros(vocab_size, np.int64)
    if histogram(tokens_N, starts_S, stops_S + 1, np.zeros(vocab_size, np.int64)) >= 0:
        return  # the count itself will name the id that is no token
    histogram(tokens_N, starts_S, stops_S, inputs_V)
    ends_V = np.cumsum(inputs_V) - inputs_V
    dtype: type[np.integer[Any]] = np.uint16 if vocab_size <= 2**16 else np.uint32
    labels_P: Ints = np.empty(int(inputs_V.sum()), dtype)
    sort_labels(tokens_N, starts_S, stops_S, ends_V, labels_P)
    capacity = 1 + max(vocab_size, min(_BUFFER_ENTRIES, labels_P.size))
    columns, counts = np.empty(capacity, dtype), np.empty(capacity, np.uint32)
    dense_V = np.zeros(vocab_size, np.uint32)
    bitmap_W = np.zeros(bitmap_words(vocab_size), np.uint64)
    row = 0
    while row < vocab_size:
        row, _ = reduce_rows(labels_P, ends_V, row, dense_V, bitmap_W, columns, counts, inputs_V)
