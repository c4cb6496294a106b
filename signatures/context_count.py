"""First-order and projected counts of a corpus: what follows a token, given what came before.

partition -> occurrences on scratch; row ranges added up over all partitions; prefix sum; one task
per shard; read back, proven against sums of the scan, renamed.

Shapes: A anchors, C context tokens, V vocabulary, Q columns of a projection.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corpus.progress import SILENT, Progress
from corpus.store import InputOptions
from signatures.context_stages import (
    Listing,
    Sums,
    Vectors,
    list_stage,
    project_stage,
    sum_stage,
    sum_vectors,
    token_stage,
    write_block_stage,
)
from signatures.contexts import ContextOptions, Contexts
from signatures.count import absolute
from signatures.job import ContextJob, CountJob
from signatures.keys import MODULUS
from signatures.layout import COUNTS, EVEN, MATRIX, ROWS, VALUES, BlockLayout
from signatures.memory import MemoryPlan
from signatures.planning import Question, resolve
from signatures.run import Built, RunLog, run_count
from signatures.schedule import Runner
from signatures.scope import CountOptions, Scope
from signatures.stages import write_stage
from signatures.store import create_store


def count_contexts(
    corpus_paths: Sequence[Path | str] | Path | str,
    *,
    out: Path,
    contexts: ContextOptions,
    input: InputOptions | None = None,
    scope: Scope | None = None,
    options: CountOptions | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Count, for each anchor, label and context token, how often it was present before.

    The counts before the division of ``phi_1(a)[v, b] = P(x_{s+1} = v, b in X_{<s} | x_s = a)``
    (arXiv:2608.30315, eq. 20), or their product with a matrix over the context tokens.

    Parameters
    ----------
    corpus_paths : path or sequence of paths
        What ``open_corpus`` takes; several count as one corpus.
    out : Path
        The store to make. Scratch files stand beside it until it is complete.
    contexts : ContextOptions
        Anchors, context tokens, and what is made of them.

    Returns
    -------
    dict
        What ``staircase count first-order --json`` (``projected``) prints.

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
        return resolve(
            paths, input or InputOptions(), scope or Scope(), options, progress, contexts
        )

    build = _build_first_order if contexts.kind == "first-order" else _build_projected
    return run_count(ask, build, out, options, RunLog(progress))


def _list(
    runner: Runner, question: Question, count: CountJob, log: RunLog
) -> tuple[ContextJob, Contexts, Listing]:
    """Settle which tokens are meant, then list the occurrences of all partitions."""
    asked = question.contexts
    assert asked is not None
    counts_V = np.zeros(question.vocab_size, np.int64)
    with log.timed("rank"):
        if asked.needs_counts:
            whole = dataclasses.replace(count, units=(0, question.stream.num_units))
            counts_V = token_stage(runner, whole, log.progress)
        contexts = asked.resolve(counts_V, question.corpus.special)
    contexts.save(count.scratch)
    # Parts keep every entry: what is rare in a part may be frequent in the whole.
    job = ContextJob(count=count, min_count=1 if question.part else asked.min_count)
    with log.timed("list"):
        listing = list_stage(runner, job, log.progress)
    log.reused = listing.reused
    log.facts |= {
        "anchors": contexts.anchors_A.size,
        "context_tokens": contexts.context_tokens_C.size,
        "increments": listing.increments,
        "kernel_seconds": listing.seconds,
    }
    return job, contexts, listing


def _build_first_order(
    runner: Runner, question: Question, count: CountJob, memory: MemoryPlan, log: RunLog
) -> Built:
    """List, add up and write first-order counts."""
    job, contexts, listing = _list(runner, question, count, log)
    with log.timed("add up"):
        sums = sum_stage(runner, job, contexts, listing.increments, log.progress)
    _check_sums(sums, listing, exact_even=job.min_count == 1)
    log.facts |= {"sum_seconds": sums.seconds, "reused_ranges": sums.reused}
    merged = {COUNTS: sums.whole} | ({EVEN: sums.even} if sums.even else {})
    spec = question.spec(pairs=listing.pairs, entries=sums.whole.entries)
    layouts = {name: one.layout(contexts.keys) for name, one in merged.items()}
    with log.timed("write"):
        create_store(count.store, spec, matrices=layouts, vectors=_vectors(job, contexts, sums))
        records = write_stage(
            runner, count.store, merged, at_once=memory.shard_writers, progress=log.progress
        )
    dropped = (listing.dropped_fingerprint + sums.left_out_fingerprint) % MODULUS
    log.facts |= {"dropped_fingerprint": dropped, "fingerprint": sums.whole.fingerprint}
    return Built(spec, records, sums.whole.fingerprint, dropped)


def _check_sums(sums: Sums, listing: Listing, *, exact_even: bool) -> None:
    """Prove that the sums are those of the scan, to the bit.

    Raises
    ------
    RuntimeError
        They are not: a scratch file was altered.
    """
    found = (sums.whole.fingerprint + sums.left_out_fingerprint) % MODULUS
    is_wrong = found != listing.fingerprint
    if sums.even is not None and exact_even:
        is_wrong |= sums.even.fingerprint != listing.even_fingerprint
    if is_wrong:
        raise RuntimeError(
            f"{sums.whole.indptr.parent.parent}: the sums are not those of the occurrences; "
            "scratch files were altered: start again with --overwrite"
        )


def _anchor_vectors(contexts: Contexts, vectors: Vectors) -> dict[str, Any]:
    return {
        "anchors": contexts.anchors_A,
        "context_tokens": contexts.context_tokens_C,
        "anchor_occurrences": vectors.occurrences_A,
        "dropped": vectors.dropped_A,
        "token_counts": vectors.token_counts_V,
    }


def _vectors(job: ContextJob, contexts: Contexts, sums: Sums) -> dict[str, Any]:
    num_anchors = contexts.anchors_A.size
    vectors = _anchor_vectors(contexts, sum_vectors(job, num_anchors, job.count.division))
    vectors["dropped"] = vectors["dropped"] + sums.left_out_A
    if job.count.halves:
        even = _anchor_vectors(contexts, sum_vectors(job, num_anchors, ("even",)))
        vectors["even_anchor_occurrences"] = even["anchor_occurrences"]
        vectors["even_dropped"] = even["dropped"] + sums.even_left_out_A
        vectors["even_token_counts"] = even["token_counts"]
    return vectors


def _build_projected(
    runner: Runner, question: Question, count: CountJob, memory: MemoryPlan, log: RunLog
) -> Built:
    """List, project and write."""
    job, contexts, listing = _list(runner, question, count, log)
    with log.timed("project"):
        projection = project_stage(runner, job, contexts, listing.increments, log.progress)
    log.facts |= {"sum_seconds": projection.seconds, "reused_ranges": projection.reused}
    spec = question.spec(pairs=listing.pairs, entries=sum(projection.rows))
    vectors = _anchor_vectors(
        contexts, sum_vectors(job, contexts.anchors_A.size, job.count.division)
    )
    assert contexts.matrix_CQ is not None
    if spec.seed is None:
        vectors[MATRIX] = contexts.matrix_CQ
    shape = (spec.totals.entries, contexts.matrix_CQ.shape[1])
    blocks = {ROWS: BlockLayout(shape=shape[:1]), VALUES: BlockLayout(shape=shape)}
    with log.timed("write"):
        create_store(count.store, spec, matrices={}, vectors=vectors, blocks=blocks)
        records = write_block_stage(
            runner, count.store, projection, memory.shard_writers, log.progress
        )
    return Built(spec, records, None)
