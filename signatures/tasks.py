"""The tasks of a count: each takes a job and bounds, writes its result under its own name.

All are safe to run twice, and at the same time.

Shapes: N tokens, P pairs, E entries, V vocabulary.
"""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corpus.fingerprint import block_digest
from corpus.store import Corpus, CorpusFormatError, InputOptions
from signatures.job import CountJob, open_once, open_stream
from signatures.kernels import Int64s, Ints, bitmap_words, histogram, reduce_rows, sort_labels
from signatures.keys import Keys
from signatures.partials import Partial, PartialRecord, finished, writing
from signatures.segments import Block, Half
from signatures.store import ShardRecord, write_shard

_BUFFER_ENTRIES = 1 << 21
_SCAN_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class Counted:
    """What counting some partitions gave."""

    records: tuple[tuple[PartialRecord, ...], ...]
    """One a partition, of its whole or its halves."""
    reused: int
    """Partitions that were finished before."""
    seconds: float
    """Spent in counting, files included."""


def check_sight(scratch: Path, run: str) -> str | None:
    """Say what is wrong when this process does not see the scratch folder of the run."""
    where = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        found = (scratch / "run").read_text()
    except OSError as error:
        return f"{where} cannot read {scratch / 'run'} ({error.strerror})"
    return None if found == run else f"{where} sees another {scratch / 'run'}"


def digest_blocks(
    run: str, paths: tuple[Path, ...], input: InputOptions, first: int, last: int
) -> list[bytes]:
    """Hash some of the blocks that make the fingerprint of a corpus."""
    corpus = open_once(run, paths, input)
    blocks = corpus.fingerprint_blocks()[first:last]
    return [block_digest(corpus.files[file], block) for file, block in blocks]


def count_partitions(job: CountJob, first: int, last: int) -> Counted:
    """Count partitions ``first`` to ``last``, those that are finished excepted."""
    started = time.perf_counter()
    records, reused = [], 0
    for partition in range(first, last):
        found = [finished(job.partial(partition, half)) for half in job.division]
        whole = [record for record in found if record is not None]
        if len(whole) == len(found):
            reused += 1
            records.append(tuple(whole))
        else:
            records.append(tuple(_count_half(job, partition, half) for half in job.division))
    return Counted(tuple(records), reused, time.perf_counter() - started)


def count_tokens(job: CountJob, first: int, last: int) -> Int64s:
    """Positions of each token in partitions ``first`` to ``last``: (V,)."""
    counts_V = np.zeros(job.vocab_size, np.int64)
    corpus, stream = open_stream(job)
    for partition in range(first, last):
        block = stream.block(*job.bounds(partition), "whole")
        counts_V += histograms(job, corpus, block)[1]
    return counts_V


@dataclass(frozen=True, slots=True)
class BlockTask:
    """One shard of a dense array, and the row ranges that hold its rows."""

    store: Path
    array: str
    index: int
    bounds: tuple[int, int]
    ranges: tuple[tuple[Path, int], ...]
    """An ``.npy`` file of each range and the place of its first row."""


def block_task(task: BlockTask) -> ShardRecord:
    """Assemble one shard and write it whole."""
    start, stop = task.bounds
    pieces = []
    for path, place in task.ranges:
        array = np.load(path, mmap_mode="r")
        low, high = max(start - place, 0), min(stop - place, array.shape[0])
        if low < high:
            pieces.append(array[low:high])
    return write_shard(task.store, "", task.array, task.index, np.concatenate(pieces))


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of one array, and the merged row ranges that hold its elements."""

    store: Path
    matrix: str
    array: str
    index: int
    bounds: tuple[int, int]
    ranges: tuple[tuple[Path, int], ...]
    """Each merged range and the place of its first entry in the matrix."""
    indptr: Path
    dtype: str
    """Of the array in the store: entries are read into it as they lie."""


def shard_task(task: ShardTask) -> ShardRecord:
    """Assemble one shard and write it whole."""
    start, stop = task.bounds
    if task.array == "indptr":
        values = np.load(task.indptr, mmap_mode="r")[start:stop].astype(task.dtype)
    else:
        values = np.empty(stop - start, task.dtype)
        for path, place in task.ranges:
            _fill(task, Partial(path), place, values)
    return write_shard(task.store, task.matrix, task.array, task.index, values)


def _fill(task: ShardTask, source: Partial, place: int, values: Ints) -> None:
    """Read what the shard holds of a merged range, whose first entry stands at ``place``."""
    start, stop = task.bounds
    low, high = max(start - place, 0), min(stop - place, source.record.entries)
    if low >= high:
        return
    read = source.counts if task.array == "data" else source.columns
    # Every count fits: the width in the store is that of the largest.
    read(low, values[low + place - start : high + place - start])


def _count_half(job: CountJob, partition: int, half: Half) -> PartialRecord:
    """Count one partition, or half of it, into its partial."""
    corpus, stream = open_stream(job)
    block = stream.block(*job.bounds(partition), half)
    inputs_V, token_counts_V = histograms(job, corpus, block)
    ends_V = np.cumsum(inputs_V) - inputs_V
    labels_P = np.empty(block.num_pairs, job.label_dtype)
    sort_labels(block.tokens_N, block.starts_S, block.stops_S, ends_V, labels_P)
    path = job.partial(partition, half)
    keys = Keys(job.vocab_size)
    with writing(path, (0, job.vocab_size), keys, job.label_dtype, np.uint32) as writer:
        for first_row, entries_R, columns_E, counts_E in _reduced(labels_P, ends_V):
            writer.append(first_row, entries_R, columns_E, counts_E)
        record = writer.finish(token_counts_V)
    assert record.total == block.num_pairs, "a kernel lost or invented a pair"
    return record


def histograms(job: CountJob, corpus: Corpus, block: Block) -> tuple[Int64s, Int64s]:
    """Count inputs by token and all positions by token; check every id of the block."""
    inputs_V = np.zeros(job.vocab_size, np.int64)
    others_V = np.zeros(job.vocab_size, np.int64)
    labels_V = np.zeros(job.vocab_size, np.int64)
    # The label behind the last input of a segment may lie outside every segment.
    last = block.stops_S[block.stops_S > block.starts_S]
    for starts, stops, counts_V in (
        (block.starts_S, block.stops_S, inputs_V),
        (block.others, block.others + 1, others_V),
        (last, last + 1, labels_V),
    ):
        if histogram(block.tokens_N, starts, stops, counts_V) >= 0:
            _refuse_ids(job, corpus, block)
    return inputs_V, inputs_V + others_V


def _refuse_ids(job: CountJob, corpus: Corpus, block: Block) -> None:
    """Name file, document and position of the first id outside the vocabulary."""
    if block.origin is not None:
        corpus.check_ids(job.vocab_size, block.tokens_N, block.origin)
    for at in range(0, corpus.num_tokens, _SCAN_TOKENS):
        tokens_N = corpus.tokens(at, min(at + _SCAN_TOKENS, corpus.num_tokens))
        corpus.check_ids(job.vocab_size, tokens_N, at)
    raise CorpusFormatError(
        f"{corpus.paths[0]}: an id outside the vocabulary of {job.vocab_size} came and went; the "
        "corpus is being changed while it is counted"
    )


def _reduced(labels_P: Ints, ends_V: Int64s) -> Iterator[tuple[int, Int64s, Ints, Ints]]:
    """Rows of distinct columns and counts, a buffer at a time."""
    vocab_size = ends_V.size
    capacity = 1 + max(vocab_size, min(_BUFFER_ENTRIES, labels_P.size))
    columns_E = np.empty(capacity, labels_P.dtype)
    counts_E = np.empty(capacity, np.uint32)
    dense_V = np.zeros(vocab_size, np.uint32)
    bitmap_W = np.zeros(bitmap_words(vocab_size), np.uint64)
    entries_V = np.zeros(vocab_size, np.int64)
    row = 0
    while row < vocab_size:
        first = row
        row, entries = reduce_rows(
            labels_P, ends_V, first, dense_V, bitmap_W, columns_E, counts_E, entries_V
        )
        yield first, entries_V[first:row], columns_E[:entries], counts_E[:entries]
