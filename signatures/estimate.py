"""What a count would take: ``--dry-run`` looks at a sample and predicts the rest.

The number of distinct pairs grows as a power of the tokens read, with an exponent that itself
falls. Both are read off nested samples of random stretches of the corpus and carried on.

Shapes: M sampled pairs, E distinct ones, V vocabulary.
"""

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]

from corpus.progress import SILENT, Progress
from corpus.store import InputOptions
from signatures.cost import CostModel, counting_rate, slowness
from signatures.count import absolute
from signatures.kernels import Int64s
from signatures.layout import COUNTS, CSR_ARRAYS, MatrixLayout
from signatures.memory import MIB, SLACK, MemoryPlan
from signatures.planning import Question, partition_units, resolve, share_memory
from signatures.scope import CountOptions, Scope
from signatures.store import create_store, shard_ranges, write_shard

_SAMPLE_TOKENS = 1 << 24
_STRETCHES = 512
_SEED = 1

_MAIN_BYTES, _WORKER_BYTES = 105 * MIB, 100 * MIB
_BUFFER_BYTES = 24 * MIB
_VERIFY_ENTRIES, _VERIFY_BYTES = 1 << 22, 36


def estimate_next_token(
    corpus_paths: Sequence[Path | str] | Path | str,
    *,
    out: Path,
    input: InputOptions | None = None,
    scope: Scope | None = None,
    options: CountOptions | None = None,
    progress: Progress = SILENT,
    sample_tokens: int = _SAMPLE_TOKENS,
) -> dict[str, Any]:
    """Predict what `count_next_token` with the same arguments would take; nothing is kept.

    Returns
    -------
    dict
        tokens, memory_bytes (peak of all processes), disk_bytes (of the store), scratch_bytes
        (beside it until it is complete), entries, seconds, fits.

    Raises
    ------
    ValueError
        As `count_next_token`.
    """
    options, paths = options or CountOptions(), absolute(corpus_paths)
    question = resolve(paths, input or InputOptions(), scope or Scope(), options, progress)
    memory = share_memory(question, options, None)
    stream = question.stream
    tokens = (question.units[1] - question.units[0]) * stream.tokens_per_unit
    partition = min(tokens, partition_units(question, options, memory) * stream.tokens_per_unit)
    with progress.stage("sample", min(tokens, sample_tokens), "tokens") as advance:
        sample = _Sample.draw(question, sample_tokens)
        advance(sample.pairs)
    entries = round(sample.entries_at(tokens))
    partials = sample.entries_at(partition) * max(1, tokens / max(1, partition))
    store_bytes = sample.store_bytes(out, question, entries)
    scratch_bytes = round((partials + entries) * (2 + (2 if question.vocab_size <= 2**16 else 4)))
    token_bytes = question.corpus.dtype.itemsize
    cost = CostModel(
        tokens_per_second=sample.tokens_per_second, token_bytes=token_bytes, slowness=slowness()
    )
    return {
        "tokens": tokens,
        "memory_bytes": _peak(memory, question.vocab_size, partition, entries),
        "disk_bytes": store_bytes,
        "scratch_bytes": scratch_bytes,
        "entries": entries,
        "seconds": cost.seconds(
            tokens=tokens, entries=entries, partials=partials, workers=memory.workers
        ),
        "fits": fits(out, options, store_bytes + scratch_bytes, memory.peak(partition)),
        "partitions": math.ceil(tokens / max(1, partition)),
        "workers": memory.workers,
        "sampled_pairs": sample.pairs,
    }


@dataclass(frozen=True, slots=True)
class _Sample:
    """Pairs of random stretches, counted."""

    pairs: int
    tokens: int
    keys_E: Int64s
    counts_E: Int64s
    growth: tuple[tuple[int, int], ...]
    """(tokens, distinct pairs) of nested samples."""
    tokens_per_second: float

    @classmethod
    def draw(cls, question: Question, sample_tokens: int) -> "_Sample":
        """Sample, or take all where it is little."""
        stretches = _stretches(question, sample_tokens)
        keys = [_keys(question, start, stop) for start, stop in stretches]
        growth = []
        unique: tuple[Int64s, Int64s] = (np.empty(0, np.int64), np.empty(0, np.int64))
        for share in (4, 2, 1):
            part = keys[: max(1, len(keys) // share)]
            taken = sum(stop - start for start, stop in stretches[: len(part)])
            drawn = np.concatenate(part) if part else np.empty(0, np.int64)
            unique = np.unique(drawn, return_counts=True)
            growth.append((taken * question.stream.tokens_per_unit, unique[0].size))
        rate = _rate(question, stretches)
        total = int(unique[1].sum())
        return cls(total, growth[-1][0], *unique, tuple(growth), rate)

    def entries_at(self, tokens: int) -> float:
        """Distinct pairs of that many tokens."""
        return grown_to(self.growth, tokens)[0]

    def store_bytes(self, out: Path, question: Question, entries: int) -> int:
        """Size of the store: a small one of the sample is written, and what it takes scaled."""
        folder = Path(tempfile.mkdtemp(prefix=f"{out.name}.dry-run-", dir=existing_folder(out)))
        try:
            fixed, matrix = _write_small(folder / "store", self, question)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return round(fixed + matrix * entries / max(1, self.keys_E.size))


def grown_to(growth: Sequence[tuple[int, int]], tokens: int) -> tuple[float, float]:
    """Carry distinct things in three nested samples on to ``tokens``.

    Returns
    -------
    tuple of float
        Distinct things, and the exponent by which they still grow there.
    """
    (n_1, d_1), (n_2, d_2), (n_3, d_3) = growth
    if d_1 == 0 or n_1 == n_2 or n_2 == n_3:
        return float(d_3), 0.0
    early = math.log(d_2 / d_1) / math.log(n_2 / n_1)
    late = math.log(d_3 / d_2) / math.log(n_3 / n_2)
    fall = min(1.0, late / early) if early > 0 else 0.0
    doublings = math.log2(tokens / n_3)
    if doublings <= 0:
        return float(d_3 * (tokens / n_3) ** max(late, early)), late
    # The exponent of the k-th further doubling is late * fall^k.
    steps = np.arange(1, math.ceil(doublings) + 1)
    lengths = np.minimum(1.0, doublings - (steps - 1))
    grown = float(d_3 * 2 ** (late * (fall**steps * lengths).sum()))
    return grown, float(late * fall ** steps[-1])


def _stretches(question: Question, sample_tokens: int) -> list[tuple[int, int]]:
    """Ranges of units, in random order: all of the corpus, or as many as the sample takes."""
    start, stop = question.units
    wanted = _STRETCHES
    length = max(1, sample_tokens // (wanted * question.stream.tokens_per_unit))
    every = -(-(stop - start) // length)
    random = np.random.default_rng(_SEED)
    chosen = random.permutation(every)[:wanted] if every > wanted else random.permutation(every)
    lows = start + chosen * length
    return [(int(low), min(int(low) + length, stop)) for low in lows]


def _keys(question: Question, start: int, stop: int) -> Int64s:
    """Pairs whose input lies in the range, as input * V + label."""
    block = question.stream.block(start, stop, "whole")
    inputs = [np.arange(low, high) for low, high in zip(block.starts_S, block.stops_S, strict=True)]
    positions = np.concatenate([*inputs, np.empty(0, np.int64)]).astype(np.int64)
    tokens = block.tokens_N[positions].astype(np.int64)
    return tokens * question.vocab_size + block.tokens_N[positions + 1].astype(np.int64)


def _rate(question: Question, stretches: list[tuple[int, int]]) -> float:
    """Tokens a second of counting, on one worker: a stretch to warm up, then a sample's worth."""
    start, stop = question.units
    longest = _SAMPLE_TOKENS // question.stream.tokens_per_unit
    ranges = [stretches[0], (start, min(start + longest, stop))] if stretches else []
    return counting_rate(question.stream, ranges, vocab_size=question.vocab_size)


def _write_small(path: Path, sample: _Sample, question: Question) -> tuple[int, int]:
    """Bytes of everything else, and of the entries, in a store of the sample."""
    size, entries = question.vocab_size, sample.keys_E.size
    rows, columns = np.divmod(sample.keys_E, size)
    arrays: dict[str, npt.NDArray[Any]] = {
        "data": sample.counts_E,
        "indices": columns,
        "indptr": np.searchsorted(rows, np.arange(size + 1)),
    }
    largest = int(sample.counts_E.max(initial=0))
    layout = MatrixLayout(shape=(size, size), entries=entries, max_count=largest)
    create_store(
        path,
        question.spec_of_sample(entries),
        matrices={COUNTS: layout},
        vectors={"token_counts": np.bincount(rows, sample.counts_E, size).astype(np.int64)},
    )
    for name in CSR_ARRAYS:
        for shard, (start, stop) in enumerate(shard_ranges(path, COUNTS, name)):
            write_shard(path, COUNTS, name, shard, arrays[name][start:stop])
    whole = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    matrix = sum(
        file.stat().st_size
        for name in ("data", "indices")
        for file in (path / COUNTS / name).rglob("*")
        if file.is_file()
    )
    return whole - matrix, matrix


def _peak(memory: MemoryPlan, vocab_size: int, partition: int, entries: int) -> int:
    """Peak of all processes: while counting, or while the store is read back."""
    is_many = memory.workers > 1
    idle = _MAIN_BYTES + _WORKER_BYTES * memory.workers * is_many
    buffers = min(_BUFFER_BYTES, 16 * partition) + 40 * vocab_size
    counting = idle + memory.workers * round(buffers + partition * memory.token_bytes)
    verifying = _MAIN_BYTES + _VERIFY_BYTES * min(entries, (memory.workers + 1) * _VERIFY_ENTRIES)
    return max(counting, verifying)


def fits(out: Path, options: CountOptions, disk: int, memory: int) -> bool:
    """Whether disk and memory are there now, and the memory is within what was allowed."""
    allowed = options.memory + SLACK if options.memory is not None else math.inf
    available = psutil.virtual_memory().available
    return shutil.disk_usage(existing_folder(out)).free > disk and memory <= min(allowed, available)


def existing_folder(out: Path) -> Path:
    """Nearest folder above ``out`` that is there."""
    folder = out.resolve().parent
    while not folder.exists():
        folder = folder.parent
    return folder
