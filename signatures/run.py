"""One run of a count, whatever is counted: it is made aside, proven, and put in its place."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus.progress import Progress
from signatures.job import CountJob
from signatures.memory import MemoryPlan, MemorySampler
from signatures.planning import Question, make_job, notices, share_memory
from signatures.schedule import Runner, open_runner
from signatures.scope import CountOptions
from signatures.scratch import hold_scratch
from signatures.spec import StoreSpec
from signatures.stages import check_workers, fingerprint_stage
from signatures.store import ShardRecord, complete_store, open_signatures


@dataclass
class RunLog:
    """What a run tells of itself."""

    progress: Progress
    notices: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    partitions: int = 0
    reused: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """Whatever else a kind of count reports."""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a stage."""
        started = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Built:
    """A store that is written and not yet proven."""

    spec: StoreSpec
    records: list[ShardRecord]
    fingerprint: int | None
    dropped_fingerprint: int | None = None


Build = Callable[[Runner, Question, CountJob, MemoryPlan, RunLog], Built]
"""Runs the stages on the workers; the store is left unproven in the scratch folder."""


def run_count(
    ask: Callable[[], Question], build: Build, out: Path, options: CountOptions, log: RunLog
) -> dict[str, Any]:
    """Count what ``ask`` resolves into a store at ``out``; return what the command prints.

    Raises
    ------
    ValueError, FileExistsError, RuntimeError, OSError
        As `count_next_token`.
    """
    started = time.perf_counter()
    peak = None
    if out.exists() and not options.overwrite:
        spec = _finished_already(out, options, log)
    else:
        with MemorySampler() as sampler:
            question = ask()
            log.notices += notices(question)
            spec = _count_aside(question, build, out, options, log)
        peak = sampler.peak
    return _report(out, spec, log, time.perf_counter() - started, peak)


def _finished_already(out: Path, options: CountOptions, log: RunLog) -> StoreSpec:
    if not options.resume:
        raise FileExistsError(
            f"{out} exists; pass --overwrite to replace it, or choose another --out"
        )
    log.notices.append(f"{out} is complete; nothing was left to do")
    return open_signatures(out).spec


def _count_aside(
    question: Question, build: Build, out: Path, options: CountOptions, log: RunLog
) -> StoreSpec:
    """Count in the scratch folder; whatever goes wrong, only finished work stays there."""
    with hold_scratch(out) as scratch:
        if options.resume and scratch.manifest() is None:
            log.notices.append(f"nothing to resume for {out}; started afresh")
        try:
            with _opened(question, options) as runner:
                memory = share_memory(question, options, runner.workers)
                with log.timed("fingerprint"):
                    fingerprint_stage(runner, scratch.run, question.corpus, log.progress)
                job = make_job(question, options, memory, scratch)
                log.partitions = job.num_partitions
                check_workers(runner, job)
                built = build(runner, question, job, memory, log)
            with log.timed("verify"):
                complete_store(
                    job.store,
                    out,
                    spec=built.spec,
                    records=built.records,
                    overwrite=options.overwrite,
                    fingerprint=built.fingerprint,
                    dropped_fingerprint=built.dropped_fingerprint,
                    workers=memory.workers,
                    progress=log.progress,
                )
        except BaseException:
            scratch.drop_unfinished()
            raise
        scratch.remove()
    return built.spec


def _opened(question: Question, options: CountOptions) -> AbstractContextManager[Runner]:
    """Begin as many workers as the memory allows; those of a scheduler are there."""
    if options.scheduler:
        return open_runner(1, options.scheduler)
    plan = share_memory(question, options, None)
    return open_runner(plan.workers, environment=plan.environment)


def _report(
    out: Path, spec: StoreSpec, log: RunLog, seconds: float, peak: int | None
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
        **log.facts,
        "notices": log.notices,
    }
