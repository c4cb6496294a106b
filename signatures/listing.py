"""The first task of a count of contexts: list the occurrences of anchors in some partitions.

Nothing is added up here: an occurrence is kept as the place where its context ends in a list of
items, and sorted by its row. What is written is a few bytes an occurrence.

Shapes: N tokens, S segments, V vocabulary, A anchors, I items, H hits, R rows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.store import Corpus
from signatures.context_kernels import (
    group_hits,
    list_prefixes,
    list_windows,
    new_state,
    new_sums,
)
from signatures.contexts import Contexts, load_contexts
from signatures.job import ContextJob, open_stream
from signatures.kernels import Int64s, Ints, bitmap_words
from signatures.occurrences import (
    OccurrenceRecord,
    finished_occurrences,
    write_occurrences,
)
from signatures.segments import Block, Half
from signatures.tasks import histograms

_HEAD_TOKENS = 1 << 22
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """What listing some partitions gave."""

    records: tuple[tuple[OccurrenceRecord, ...], ...]
    """One a partition, of its whole or its halves."""
    reused: int
    """Partitions that were finished before."""
    seconds: float


def list_partitions(job: ContextJob, first: int, last: int) -> Listed:
    """List partitions ``first`` to ``last``, those that are finished excepted."""
    started = time.perf_counter()
    records, reused = [], 0
    for partition in range(first, last):
        paths = [job.count.partial(partition, half) for half in job.count.division]
        found = [finished_occurrences(path) for path in paths]
        whole = [record for record in found if record is not None]
        reused += len(whole) == len(found)
        if len(whole) < len(found):
            whole = [_list_half(job, partition, half) for half in job.count.division]
        records.append(tuple(whole))
    return Listed(tuple(records), reused, time.perf_counter() - started)


def _list_half(job: ContextJob, partition: int, half: Half) -> OccurrenceRecord:
    """List one partition, or half of it, into its partial."""
    contexts = load_contexts(job.count.run, job.count.scratch, job.count.vocab_size)
    corpus, stream = open_stream(job.count)
    block = stream.block(*job.count.bounds(partition), half, apart=True)
    inputs_V, token_counts_V = histograms(job.count, corpus, block)
    scan = _Scan(job, contexts, inputs_V[contexts.anchors_A], block)
    scan.run(corpus, block)
    record, arrays = scan.result(int(token_counts_V.sum()))
    write_occurrences(
        job.count.partial(partition, half),
        record,
        arrays,
        occurrences_A=scan.occurrences_A,
        dropped_A=scan.dropped_A,
        token_counts_V=token_counts_V,
    )
    assert record.pairs == int(inputs_V[contexts.anchors_A].sum()), "a kernel lost an occurrence"
    return record


class _Scan:
    """One pass over a block, and what comes of it."""

    def __init__(self, job: ContextJob, contexts: Contexts, pairs_A: Int64s, block: Block) -> None:
        size = contexts.vocab_size
        self._window = job.count.scope.window
        self._contexts = contexts
        self._state, self._sums = new_state(), new_sums()
        self.occurrences_A = np.zeros(contexts.anchors_A.size, np.int64)
        self.dropped_A = np.zeros(contexts.anchors_A.size, np.int64)
        # A list begun before the block brings its head along: each token once, or the window.
        before = min(-int(block.begins_S.min(initial=0)), self._window or size)
        most = int((block.stops_S - block.starts_S).sum()) + before
        self._items_I = np.empty(most, contexts.item_dtype)
        self._links_I = np.empty(most, np.uint32)
        self._begins_A = np.cumsum(pairs_A) - pairs_A
        self._places_A = self._begins_A.copy()
        pairs = int(pairs_A.sum())
        self._labels_H, self._lasts_H = np.empty((2, pairs), np.uint32)
        self._firsts_H = np.empty(pairs if self._window else 0, np.uint32)
        # Lists are numbered from 1, places of a window from 0.
        self._seen_V = np.full(size, -1 if self._window else 0, np.int64)

    def run(self, corpus: Corpus, block: Block) -> None:
        """List every segment."""
        if self._window is not None:
            self._run_windows(corpus, block)
            return
        fresh_S = np.ones(block.starts_S.size, np.uint8)
        for piece_N in _head(corpus, block):
            whole = np.zeros(1, np.int64), np.array([piece_N.size], np.int64)
            self._list(piece_N, *whole, fresh_S[:1].copy(), counted=False)
            fresh_S[0] = 0
        self._list(block.tokens_N, block.starts_S, block.stops_S, fresh_S, counted=True)

    def result(self, tokens: int) -> tuple[OccurrenceRecord, dict[str, Array]]:
        """Sort the hits by row; return what to write."""
        items, size = int(self._state[0]), self._contexts.vocab_size
        most = int((self._places_A - self._begins_A).sum())
        rows_R, ends_R, sizes_R = np.empty((3, most), np.int64)
        lasts_H = np.empty(most, np.uint32)
        firsts_H = np.empty(most if self._window else 0, np.uint32)
        rows, hits = group_hits(
            self._begins_A, self._places_A, size, self._links_I,
            self._labels_H, self._firsts_H, self._lasts_H,
            np.zeros(size, np.int64), np.zeros(bitmap_words(size), np.uint64),
            rows_R, ends_R, sizes_R, firsts_H, lasts_H,
        )  # fmt: skip
        arrays: dict[str, Array] = {
            "items": self._items_I[:items],
            "links": self._links_I[:items],
            "rows": rows_R[:rows],
            "ends": ends_R[:rows],
            "sizes": sizes_R[:rows],
            "lasts": lasts_H,
        }
        if self._window is not None:
            arrays["firsts"] = firsts_H
        record = OccurrenceRecord(
            hits=hits,
            pairs=int(self.occurrences_A.sum()),
            increments=int(sizes_R[:rows].sum()),
            tokens=tokens,
            fingerprint=int(self._sums[2]),
            dropped_fingerprint=int(self._sums[3]),
            lengths=(items, rows),
        )
        return record, arrays

    def _list(
        self,
        tokens_N: Ints,
        starts_S: Int64s,
        stops_S: Int64s,
        fresh_S: npt.NDArray[np.uint8],
        *,
        counted: bool,
    ) -> None:
        contexts = self._contexts
        list_prefixes(
            tokens_N, starts_S, stops_S, fresh_S, counted,
            contexts.anchor_V, contexts.context_V, contexts.hashes_V, self._seen_V,
            self._state, self._sums, self.occurrences_A, self.dropped_A,
            self._items_I, self._links_I, self._places_A, self._labels_H, self._lasts_H,
        )  # fmt: skip

    def _run_windows(self, corpus: Corpus, block: Block) -> None:
        contexts, window = self._contexts, self._window
        assert window is not None
        assert block.origin is not None, "a window needs scope document"
        begins_S = np.maximum(block.begins_S, block.starts_S - window)
        head = max(0, -int(begins_S.min(initial=0)))
        tokens_N = block.tokens_N
        if head:
            end = block.origin + tokens_N.size
            tokens_N = corpus.tokens(block.origin - head, end).view()
            tokens_N.flags.writeable = False
        list_windows(
            tokens_N, begins_S + head, block.starts_S + head, block.stops_S + head, window,
            contexts.anchor_V, contexts.context_V, contexts.hashes_V, self._seen_V,
            np.full(contexts.vocab_size, -1, np.int64), self._state, self._sums,
            self.occurrences_A, self.dropped_A, np.empty(self._items_I.size, np.int64),
            self._items_I, self._links_I,
            self._places_A, self._labels_H, self._firsts_H, self._lasts_H,
        )  # fmt: skip


def _head(corpus: Corpus, block: Block) -> Iterator[Ints]:
    """Yield the tokens of the first segment's document (sample) that lie before the block."""
    if block.origin is None or not block.begins_S.size or block.begins_S[0] >= 0:
        return
    assert block.starts_S[0] == 0, "only a list that reaches into the block has a head"
    for at in range(block.origin + int(block.begins_S[0]), block.origin, _HEAD_TOKENS):
        piece = corpus.tokens(at, min(at + _HEAD_TOKENS, block.origin)).view()
        piece.flags.writeable = False
        yield piece
        corpus.release()
