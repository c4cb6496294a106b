"""Next-token counts of a corpus, exact at any size, into a signature store.

partition -> kernel -> partial on scratch; merge by row range; prefix sum; one task per shard;
read back, proven, renamed. Nothing that is counted passes through the driving process.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus.progress import SILENT, Progress
from corpus.store import InputOptions
from signatures.job import CountJob
from signatures.keys import Keys
from signatures.layout import EVEN
from signatures.memory import MemoryPlan
from signatures.planning import Question, resolve
from signatures.run import Built, RunLog, run_count
from signatures.schedule import Runner
from signatures.scope import CountOptions, Scope
from signatures.segments import Half
from signatures.stages import (
    Merged,
    Tally,
    count_stage,
    merge_stage,
    token_counts,
    write_stage,
)
from signatures.store import create_store

__all__ = ["CountOptions", "Scope", "count_next_token"]


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
    out, options = Path(out).resolve(), options or CountOptions()

    def ask() -> Question:
        paths = absolute(corpus_paths)
        return resolve(paths, input or InputOptions(), scope or Scope(), options, progress)

    return run_count(ask, _build, out, options, RunLog(progress))


def absolute(paths: Sequence[Path | str] | Path | str) -> tuple[Path, ...]:
    """One path or several, as every process finds them."""
    one_or_more = [paths] if isinstance(paths, Path | str) else paths
    return tuple(Path(path).resolve() for path in one_or_more)


def _build(
    runner: Runner, question: Question, job: CountJob, memory: MemoryPlan, log: RunLog
) -> Built:
    """Count, merge and write next-token counts."""
    with log.timed("count"):
        tally = count_stage(runner, job, log.progress)
    log.reused, log.facts["kernel_seconds"] = tally.reused, tally.kernel_seconds
    keys = Keys(job.vocab_size)
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
                keys=keys,
                memory=job.task_memory,
                progress=log.progress,
            )
            for name, halves in matrices.items()
        }
    _check_merge(merged, tally)
    spec = question.spec(pairs=tally.pairs, entries=merged["counts"].entries)
    layouts = {name: one.layout(keys) for name, one in merged.items()}
    with log.timed("write"):
        create_store(job.store, spec, matrices=layouts, vectors=vectors)
        records = write_stage(
            runner, job.store, merged, at_once=memory.shard_writers, progress=log.progress
        )
    return Built(spec, records, merged["counts"].fingerprint)


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
