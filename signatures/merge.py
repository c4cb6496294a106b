"""Several finished stores into one: the parts of one count, or more corpus.

The counts of a merged store are sums of integers, so the parts of a count merge into the store
that one run would have made, to the bit.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corpus.progress import SILENT, Progress
from signatures.context_merge import check_contexts, join_first_order, join_projected, join_vectors
from signatures.context_stages import write_block_stage
from signatures.keys import Keys
from signatures.layout import COUNTS, EVEN, MATRIX, ROWS, VALUES, BlockLayout, IntArray
from signatures.memory import MemoryPlan, MemorySampler, plan_memory
from signatures.reading import Signatures
from signatures.run import Built
from signatures.schedule import Runner, open_runner
from signatures.scratch import Scratch, hold_scratch
from signatures.sources import StoreMatrix
from signatures.spec import StoreSpec, Totals
from signatures.stages import Merged, merge_stage, write_stage
from signatures.store import complete_store, create_store, open_signatures

_ALIKE = ("kind", "scope", "seq_length", "order", "window", "seed", "tokenizer", "eod")


def merge_stores(
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    overwrite: bool = False,
    workers: int = 1,
    memory: int | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Add the counts of several stores of one kind into a new one.

    Parameters
    ----------
    paths : sequence of paths
        All parts of one count (``--part I/N``), in any order, or stores of different corpora of
        scope document.
    memory : int, optional
        Bytes of all processes together; None: half of what is available.

    Returns
    -------
    dict
        store, stores, tokens, documents, pairs, entries, seconds, peak_memory_bytes.

    Raises
    ------
    ValueError
        Stores that do not add up to a count of one stream: of different kinds, scopes,
        tokenizers, packed but no parts of one count, or parts of which some are missing or twice.
    FileExistsError
        There is something at ``out`` and ``overwrite`` is false.
    """
    started = time.perf_counter()
    out = Path(out).resolve()
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists; pass --overwrite to replace it, or choose another")
    stores = [(Path(path).resolve(), open_signatures(Path(path))) for path in paths]
    stores = _arranged(stores)
    spec = _merged_spec([(path, store.spec) for path, store in stores])
    with MemorySampler() as sampler, hold_scratch(out) as scratch:
        try:
            spec = _merge(stores, spec, scratch, out, overwrite, workers, memory, progress)
        finally:
            scratch.remove()
    return {
        "store": str(out),
        "stores": len(stores),
        **dataclasses.asdict(spec.totals),
        "seconds": time.perf_counter() - started,
        "peak_memory_bytes": sampler.peak,
    }


def _merge(
    stores: Sequence[tuple[Path, Signatures]],
    spec: StoreSpec,
    scratch: Scratch,
    out: Path,
    overwrite: bool,
    workers: int,
    memory: int | None,
    progress: Progress,
) -> StoreSpec:
    plan = plan_memory(
        memory,
        workers,
        vocab_size=spec.vocab_size,
        token_bytes=8.0,
        pairs=spec.totals.pairs,
        corpus_bytes=16 * spec.vocab_size * len(stores),
    )
    store = scratch.folder / "store"
    join = {"next-token": _join, "first-order": _join_contexts, "projected": _join_projections}
    with open_runner(plan.workers, environment=plan.environment) as runner:
        built = join[spec.kind](runner, stores, spec, store, plan, progress)
    complete_store(
        store,
        out,
        spec=built.spec,
        records=built.records,
        overwrite=overwrite,
        fingerprint=built.fingerprint,
        dropped_fingerprint=built.dropped_fingerprint,
        workers=plan.workers,
        progress=progress,
    )
    return built.spec


def _join(
    runner: Runner,
    stores: Sequence[tuple[Path, Signatures]],
    spec: StoreSpec,
    store: Path,
    plan: MemoryPlan,
    progress: Progress,
) -> Built:
    """Write next-token counts."""
    has_halves, keys = bool(spec.parameters.get("halves")), Keys(spec.vocab_size)
    merged: dict[str, Merged] = {}
    for name in (COUNTS, EVEN) if has_halves else (COUNTS,):
        merged[name] = merge_stage(
            runner,
            [StoreMatrix(path, name) for path, _ in stores],
            store.with_name(f"merged-{name.replace('/', '-')}"),
            keys=keys,
            memory=plan.task_memory,
            progress=progress,
        )
    vectors = _vectors(stores, spec, has_halves)
    return _written(runner, spec, store, keys, merged, vectors, plan, progress)


def _join_contexts(
    runner: Runner,
    stores: Sequence[tuple[Path, Signatures]],
    spec: StoreSpec,
    store: Path,
    plan: MemoryPlan,
    progress: Progress,
) -> Built:
    """Write first-order counts."""
    joined = join_first_order(
        runner, stores, store.with_name("merged"), memory=plan.task_memory, progress=progress
    )
    keys = Keys(spec.vocab_size, joined.vectors["anchors"], joined.vectors["context_tokens"])
    built = _written(runner, spec, store, keys, joined.matrices, joined.vectors, plan, progress)
    return dataclasses.replace(built, dropped_fingerprint=joined.dropped_fingerprint)


def _join_projections(
    runner: Runner,
    stores: Sequence[tuple[Path, Signatures]],
    spec: StoreSpec,
    store: Path,
    plan: MemoryPlan,
    progress: Progress,
) -> Built:
    """Write projected sums."""
    projection = join_projected(runner, stores, store.with_name("merged"), progress)
    vectors = join_vectors(stores, halves=False)
    (contents,) = stores[0][1].sources
    if MATRIX in contents.arrays:
        vectors[MATRIX] = contents.arrays[MATRIX][0 : vectors["context_tokens"].size]
    entries, width = sum(projection.rows), contents.arrays[VALUES].shape[1]
    spec = dataclasses.replace(spec, totals=dataclasses.replace(spec.totals, entries=entries))
    blocks = {ROWS: BlockLayout(shape=(entries,)), VALUES: BlockLayout(shape=(entries, width))}
    create_store(store, spec, matrices={}, vectors=vectors, blocks=blocks)
    return Built(
        spec, write_block_stage(runner, store, projection, plan.shard_writers, progress), None
    )


def _written(
    runner: Runner,
    spec: StoreSpec,
    store: Path,
    keys: Keys,
    merged: dict[str, Merged],
    vectors: Mapping[str, IntArray],
    plan: MemoryPlan,
    progress: Progress,
) -> Built:
    """Write matrices that lie merged on scratch."""
    totals = dataclasses.replace(spec.totals, entries=merged[COUNTS].entries)
    spec = dataclasses.replace(spec, totals=totals)
    layouts = {name: one.layout(keys) for name, one in merged.items()}
    create_store(store, spec, matrices=layouts, vectors=vectors)
    records = write_stage(runner, store, merged, at_once=plan.shard_writers, progress=progress)
    return Built(spec, records, merged[COUNTS].fingerprint)


def _vectors(
    stores: Sequence[tuple[Path, Signatures]], spec: StoreSpec, has_halves: bool
) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    vectors = {"token_counts": np.zeros(spec.vocab_size, np.int64)}
    if has_halves:
        vectors["even_token_counts"] = np.zeros(spec.vocab_size, np.int64)
    for _, store in stores:
        vectors["token_counts"][: store.spec.vocab_size] += store.token_counts
        if has_halves:
            even_V = store.half("even").token_counts
            vectors["even_token_counts"][: store.spec.vocab_size] += even_V
    return vectors


def _arranged(stores: list[tuple[Path, Signatures]]) -> list[tuple[Path, Signatures]]:
    """Check that the stores belong together; parts in order of their numbers.

    Raises
    ------
    ValueError
        They do not; the message names the store.
    """
    if not stores:
        raise ValueError("no store given; name the stores to merge")
    first_path, first = stores[0]
    for path, store in stores:
        for name in _ALIKE:
            _require_alike(name, first_path, first.spec, path, store.spec)
        if bool(store.spec.parameters.get("halves")) != bool(first.spec.parameters.get("halves")):
            raise ValueError(
                f"{path}: one of it and {first_path} has halves, the other not; count both alike"
            )
    parts = any(_is_part(store.spec) for _, store in stores)
    if first.spec.kind != "next-token":
        check_contexts(stores, parts=parts)
    if parts:
        return _parts_in_order(stores)
    if first.spec.scope == "packed" and len(stores) > 1:
        raise ValueError(
            f"{stores[1][0]}: scope packed; the pair over the join and the cuts of samples would "
            "be wrong. Count all the corpus in one run, or merge the parts (--part I/N) of one"
        )
    return stores


def _require_alike(
    name: str, first_path: Path, first: StoreSpec, path: Path, spec: StoreSpec
) -> None:
    one, other = getattr(first, name), getattr(spec, name)
    if one != other:
        raise ValueError(
            f"{path}: {name} is {other!r}, {one!r} in {first_path}; only counts of one {name} add "
            "up: count both alike"
        )


def _parts_in_order(stores: list[tuple[Path, Signatures]]) -> list[tuple[Path, Signatures]]:
    first_path, first = stores[0]
    numbered: dict[int, tuple[Path, Signatures]] = {}
    parts = int(str(first.spec.parameters.get("part") or "0/0").split("/")[1])
    for path, store in stores:
        if _count_of(store.spec, parts) != _count_of(first.spec, parts):
            raise ValueError(f"{path}: no part of the same count as {first_path}; leave it out")
        number = int(str(store.spec.parameters["part"]).split("/")[0])
        if number in numbered:
            raise ValueError(
                f"{path}: part {number}/{parts} is given twice, here and in "
                f"{numbered[number][0]}; leave one out"
            )
        numbered[number] = (path, store)
    if missing := sorted(set(range(parts)) - numbered.keys()):
        raise ValueError(
            f"{first_path}: part(s) {', '.join(f'{i}/{parts}' for i in missing)} of this count are "
            "missing; count them and name all parts"
        )
    return [numbered[number] for number in range(parts)]


def _count_of(spec: StoreSpec, parts: int) -> Any:
    """Whatever the parts of one count have in common."""
    parameters = dict(spec.parameters)
    number = str(parameters.pop("part", None) or "").split("/")
    sources = [source["sha256"] for source in spec.corpus]
    return parameters, number[1:] == [str(parts)], sources, spec.vocab_size, spec.vocab_source


def _merged_spec(specs: list[tuple[Path, StoreSpec]]) -> StoreSpec:
    """Spec of the sum; ``entries`` is known when the counts are merged."""
    first = specs[0][1]
    names = ("tokens", "documents", "empty_documents", "pairs")
    sums = {name: sum(getattr(spec.totals, name) for _, spec in specs) for name in names}
    parts = _is_part(first)
    corpus = first.corpus if parts else tuple(one for _, spec in specs for one in spec.corpus)
    special = sorted({token for _, spec in specs for token in spec.special})
    unknown = any(spec.borders == "unknown" for _, spec in specs)
    return dataclasses.replace(
        first,
        vocab_size=_vocab_size(specs),
        totals=Totals(**sums, entries=0),
        corpus=corpus,
        special=tuple(special),
        borders="unknown" if unknown else "known",
        parameters={**first.parameters, "part": None},
        complete=False,
    )


def _vocab_size(specs: list[tuple[Path, StoreSpec]]) -> int:
    """One V; where it was taken from the largest id it is a lower bound, and the larger holds."""
    fixed = {spec.vocab_size: path for path, spec in specs if spec.vocab_source != "largest-id"}
    largest = max(spec.vocab_size for _, spec in specs)
    if len(fixed) > 1:
        (one, first), (other, second), *_ = fixed.items()
        raise ValueError(
            f"{second}: vocab_size is {other}, {one} in {first}; only counts of one vocabulary add "
            "up: count both with one tokenizer or --vocab-size"
        )
    if fixed and largest > next(iter(fixed)):
        size, path = next(iter(fixed.items()))
        raise ValueError(f"{path}: vocab_size is {size}, another store has ids to {largest - 1}")
    return largest


def _is_part(spec: StoreSpec) -> bool:
    return spec.parameters.get("part") is not None
