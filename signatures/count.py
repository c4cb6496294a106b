"""Next-token counts of a corpus, exact at any size, into a signature store.

partition -> kernel -> partial on scratch; merge by row range; prefix sum; one task per shard;
read back, proven, renamed. Nothing that is counted passes through the driving process.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus.progress import SILENT, Progress
from corpus.store import InputOptions
from signatures.job import CountJob
from signatures.layout import EVEN
from signatures.memory import MemoryPlan, MemorySampler
from signatures.planning import Question, make_job, notices, resolve, share_memory
from signatures.schedule import Runner, open_runner
from signatures.scope import CountOptions, Scope
from signatures.scratch import hold_scratch
from signatures.segments import Half
from signatures.spec import StoreSpec
from signatures.stages import (
    Merged,
    Tally,
    check_workers,
    count_stage,
    fingerprint_stage,
    merge_stage,
    token_counts,
    write_stage,
)
from signatures.store import ShardRecord, complete_store, create_store, open_signatures

__all__ = ["CountOptions", "Scope", "count_next_token"]


@dataclass
class _Log:
    """What a run tells of itself."""

    progress: Progress
    notices: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    partitions: int = 0
    reused: int = 0
    kernel_seconds: float = 0.0
    """Of all workers, spent in counting partitions."""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a stage."""
        started = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


def count_next_token(
    corpus_paths: Sequence[Path | str] | Path | str,
    *,
    out: Path,
    input: InputOptions | None = None,
    scope: Scope | None = None,
    options: CountOptions | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Count which token follows which: P(x_{s+1} = v | x_s = a) before the division.

    Parameters
    ----------
    corpus_paths : path or sequence of paths
        What ``open_corpus`` takes; several count as one corpus.
    out : Path
        The store to make. Scratch files stand beside it until it is complete.

    Returns
    -------
    dict
        What ``staircase count next-token --json`` prints.

    Raises
    ------
    ValueError
        Options that do not fit each other, the corpus or what is already there.
    FileExistsError
        There is a store at ``out``.
    RuntimeError
        A scheduler or its workers failed, or scratch files were altered.
    OSError
        The disk is full.
    """
    started = time.perf_counter()
    paths = [corpus_paths] if isinstance(corpus_paths, Path | str) else corpus_paths
    absolute = tuple(Path(path).resolve() for path in paths)
    out, options, log = Path(out).resolve(), options or CountOptions(), _Log(progress)
    peak = None
    if out.exists() and not options.overwrite:
        spec = _finished_already(out, options, log)
    else:
        with MemorySampler() as sampler:
            question = resolve(
                absolute, input or InputOptions(), scope or Scope(), options, progress
            )
            log.notices += notices(question)
            spec = _count_aside(question, out, options, log)
        peak = sampler.peak
    return _report(out, spec, log, time.perf_counter() - started, peak)


def _finished_already(out: Path, options: CountOptions, log: _Log) -> StoreSpec:
    if not options.resume:
        raise FileExistsError(
            f"{out} exists; pass --overwrite to replace it, or choose another --out"
        )
    log.notices.append(f"{out} is complete; nothing was left to do")
    return open_signatures(out).spec


def _count_aside(question: Question, out: Path, options: CountOptions, log: _Log) -> StoreSpec:
    """Count in the scratch folder; whatever goes wrong, only finished partitions stay there."""
    with hold_scratch(out) as scratch:
        if options.resume and scratch.manifest() is None:
            log.notices.append(f"nothing to resume for {out}; started afresh")
        try:
            with open_runner(_workers(question, options), options.scheduler) as runner:
                memory = share_memory(question, options, runner.workers)
                with log.timed("fingerprint"):
                    fingerprint_stage(runner, scratch.run, question.corpus, log.progress)
                job = make_job(question, options, memory, scratch)
                spec, merged, records = _build(runner, question, job, memory, log)
            with log.timed("verify"):
                complete_store(
                    job.store,
                    out,
                    spec=spec,
                    records=records,
                    overwrite=options.overwrite,
                    fingerprint=merged.fingerprint,
                    workers=memory.workers,
                    progress=log.progress,
                )
        except BaseException:
            scratch.drop_unfinished()
            raise
        scratch.remove()
    return spec


def _workers(question: Question, options: CountOptions) -> int:
    """Workers that the memory allows; those of a scheduler are known once it answers."""
    return 1 if options.scheduler else share_memory(question, options, None).workers


def _build(
    runner: Runner, question: Question, job: CountJob, memory: MemoryPlan, log: _Log
) -> tuple[StoreSpec, Merged, list[ShardRecord]]:
    """Run the stages on the workers; the store is left unproven in the scratch folder."""
    check_workers(runner, job)
    with log.timed("count"):
        tally = count_stage(runner, job, log.progress)
    log.partitions, log.reused = job.num_partitions, tally.reused
    log.kernel_seconds = tally.kernel_seconds
    matrices: dict[str, tuple[Half, ...]] = {"counts": job.division}
    vectors = {"token_counts": token_counts(job, job.division)}
    if job.halves:
        matrices[EVEN] = ("even",)
        vectors["even_token_counts"] = token_counts(job, ("even",))
    with log.timed("merge"):
        merged = {
            name: merge_stage(
                runner,
                job.sources(halves),
                job.scratch / f"merged-{len(halves)}-{halves[0]}",
                vocab_size=job.vocab_size,
                memory=job.task_memory,
                progress=log.progress,
            )
            for name, halves in matrices.items()
        }
    _check_merge(merged, tally)
    spec = question.spec(pairs=tally.pairs, entries=merged["counts"].entries)
    layouts = {name: one.layout(job.vocab_size) for name, one in merged.items()}
    with log.timed("write"):
        create_store(job.store, spec, matrices=layouts, vectors=vectors)
        records = write_stage(
            runner, job.store, merged, at_once=memory.shard_writers, progress=log.progress
        )
    return spec, merged["counts"], records


def _check_merge(merged: dict[str, Merged], tally: Tally) -> None:
    """Prove that the merged counts are those of the partitions, to the bit.

    Raises
    ------
    RuntimeError
        They are not: a scratch file was altered.
    """
    expected = {"counts": tally.fingerprint, EVEN: tally.even_fingerprint}
    for name, one in merged.items():
        if one.fingerprint != expected[name]:
            raise RuntimeError(
                f"{one.indptr.parent}: the merged counts of {name} are not those of the "
                "partitions; scratch files were altered: start again with --overwrite"
            )


def _report(
    out: Path, spec: StoreSpec, log: _Log, seconds: float, peak: int | None
) -> dict[str, Any]:
    totals = spec.totals
    return {
        "store": str(out),
        "tokens": totals.tokens,
        "documents": totals.documents,
        "empty_documents": totals.empty_documents,
        "pairs": totals.pairs,
        "entries": totals.entries,
        "vocab_size": spec.vocab_size,
        "vocab_source": spec.vocab_source,
        "seconds": seconds,
        "tokens_per_second": totals.tokens / seconds,
        "peak_memory_bytes": peak,
        "partitions": log.partitions,
        "reused_partitions": log.reused,
        "stage_seconds": log.seconds,
        "kernel_seconds": log.kernel_seconds,
        "notices": log.notices,
    }
