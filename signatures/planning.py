"""From what was asked to a plan: vocabulary, partitions that fit into memory, identity.

Shapes: D documents.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from corpus.progress import Progress
from corpus.provenance import provenance
from corpus.store import Corpus, InputOptions, open_corpus
from signatures.contexts import ContextOptions
from signatures.job import CountJob, save_order
from signatures.memory import MemoryPlan, plan_memory
from signatures.order import Order, order_hash, read_order
from signatures.schedule import usable_cores
from signatures.scope import CountOptions, Scope
from signatures.scratch import Scratch, differences
from signatures.segments import DocumentStream, FileStream, OrderStream, Stream
from signatures.spec import Kind, StoreSpec, Totals, VocabSource

_SCAN_TOKENS = 1 << 24
_TOKENS_WORTH_A_WORKER = 150_000_000
_LISTED_WORTH_A_WORKER = 5_000_000
_PARTITIONS_A_WORKER = 4
_LEAST_TOKENS = 1 << 23
_MOST_LISTED = 1 << 24  # larger partitions of occurrences only make a lost one dearer
_CONTEXT_BYTES = 64  # of a token whose occurrences are listed: items, hits, and sorting them
_SEGMENT_BYTES = 64  # of a document in a block: its borders, and what they are computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a corpus, resolved: all that decides the counts."""

    paths: tuple[Path, ...]
    input: InputOptions
    scope: Scope
    halves: bool
    part: tuple[int, int] | None
    corpus: Corpus
    order: Order | None
    vocab_size: int
    vocab_source: VocabSource
    contexts: ContextOptions | None = None
    """What a first-order or projected count asks for besides."""

    @property
    def kind(self) -> Kind:
        """What is counted."""
        return self.contexts.kind if self.contexts else "next-token"

    @property
    def stream(self) -> Stream:
        """The corpus through the scope."""
        if self.scope.kind == "document":
            return DocumentStream(self.corpus)
        if self.order is not None:
            return OrderStream(self.corpus, self.order)
        return FileStream(self.corpus, self.scope.seq_length)

    @property
    def units(self) -> tuple[int, int]:
        """Units of the stream to count: all, or this part's."""
        index, parts = self.part or (0, 1)
        total = self.stream.num_units
        return total * index // parts, total * (index + 1) // parts

    def identity(self) -> dict[str, Any]:
        """Whatever changes a count; equal identities make equal stores."""
        return {
            "scope": self.scope.kind,
            "seq_length": self.order.seq_length if self.order else self.scope.seq_length,
            "order": self._order_name(),
            "kind": self.kind,
            "window": self.scope.window,
            "vocab_size": self.vocab_size,
            "vocab_source": self.vocab_source,
            "parameters": self.parameters(),
            "corpus": [source["sha256"] for source in self.corpus.fingerprints],
        }

    def parameters(self) -> dict[str, Any]:
        """List the resolved options, less those of how the work is cut and run."""
        return {
            "format": self.corpus.format,
            "dtype": self.input.dtype,
            "tokens_column": self.input.tokens_column,
            "halves": self.halves,
            "part": f"{self.part[0]}/{self.part[1]}" if self.part else None,
            **(self.contexts.parameters(self.vocab_size) if self.contexts else {}),
        }

    def spec(self, *, pairs: int, entries: int) -> StoreSpec:
        """Say what the store says of itself."""
        identity = self.identity()
        origin = provenance()
        return StoreSpec(
            kind=self.kind,
            vocab_size=self.vocab_size,
            vocab_source=self.vocab_source,
            totals=self._totals(pairs, entries),
            scope=self.scope.kind,
            seq_length=identity["seq_length"],
            order=identity["order"],
            window=self.scope.window,
            seed=self.contexts.seed if self.contexts else None,
            eod=self.corpus.eod,
            special=self.corpus.special,
            borders=self.corpus.borders,
            corpus=tuple(self.corpus.fingerprints),
            tokenizer=self.corpus.tokenizer_hash,
            parameters=identity["parameters"],
            versions=origin.pop("versions"),
            provenance=origin,
        )

    def spec_of_sample(self, entries: int) -> StoreSpec:
        """Spec of a store that holds some of the counts, never to be completed."""
        nothing = Totals(tokens=0, documents=0, empty_documents=0, pairs=0, entries=entries)
        return StoreSpec(
            kind=self.kind,
            vocab_size=self.vocab_size,
            vocab_source=self.vocab_source,
            totals=nothing,
            seed=self.contexts.seed if self.contexts else None,
            parameters=self.parameters() | {"part": "0/0"},
        )

    def _order_name(self) -> str | None:
        if self.scope.kind == "document":
            return None
        return "file" if self.scope.order is None else order_hash(self.scope.order)

    def _totals(self, pairs: int, entries: int) -> Totals:
        start, stop = self.units
        stream, ends_D = self.stream, self.corpus.doc_ends_D
        index, parts = self.part or (0, 1)
        if self.order is not None:
            first, last = (ends_D.size * i // parts for i in (index, index + 1))
        else:
            # Empty documents before the first token belong to the first part alone.
            first = int(np.searchsorted(ends_D, start, side="right")) if index else 0
            last = int(np.searchsorted(ends_D, stop, side="right"))
        starts = np.concatenate([np.zeros(1, np.int64), ends_D])[first:last]
        return Totals(
            tokens=(stop - start) * stream.tokens_per_unit,
            documents=last - first,
            empty_documents=int((ends_D[first:last] == starts).sum()),
            pairs=pairs,
            entries=entries,
        )


def resolve(
    paths: tuple[Path, ...],
    input: InputOptions,
    scope: Scope,
    options: CountOptions,
    progress: Progress,
    contexts: ContextOptions | None = None,
) -> Question:
    """Open the corpus and settle everything that decides the counts.

    Raises
    ------
    ValueError
        The scope does not go with what is counted, the corpus or the ORDER file.
    """
    _check_scope(scope, options, contexts)
    if options.halves and scope.kind == "packed" and not (scope.order or scope.seq_length):
        raise ValueError("--halves of scope packed are even and odd samples; give --seq-length")
    corpus = open_corpus(paths, input)
    order = None
    if scope.order is not None:
        scope = dataclasses.replace(scope, order=scope.order.resolve())
        order = read_order(
            cast("Path", scope.order), corpus.doc_ends_D, seq_length=scope.seq_length
        )
    vocab_size, source = _vocabulary(corpus, progress)
    index, parts = options.part or (0, 1)
    return Question(
        paths=paths,
        input=input,
        scope=scope,
        halves=options.halves,
        part=(index % parts, parts) if parts > 1 else None,
        corpus=corpus,
        order=order,
        vocab_size=vocab_size,
        vocab_source=source,
        contexts=contexts,
    )


def _check_scope(scope: Scope, options: CountOptions, contexts: ContextOptions | None) -> None:
    if contexts is None:
        if scope.window is not None:
            raise ValueError("--window: the next token has no window; first-order and projected do")
        return
    if scope.kind == "packed" and not (scope.order or scope.seq_length):
        raise ValueError(
            "--scope packed: a context is the part of a sample before a token; give --seq-length, "
            "or an ORDER file"
        )
    if contexts.kind == "projected" and options.halves:
        raise ValueError(
            "--halves: a projected store has none; count twice, from corpora of half the documents"
        )


def notices(question: Question) -> list[str]:
    """Say what is odd about the corpus but countable."""
    found = list(question.corpus.notices)
    if question.corpus.borders == "unknown" and question.scope.kind == "document":
        found.append(
            f"{question.corpus.paths[0]}: document borders unknown, counted as one document a "
            "file; give --eod ID if a token ends documents"
        )
    return found


def share_memory(question: Question, options: CountOptions, workers: int | None) -> MemoryPlan:
    """Fit the workers into memory; ``workers`` is given for those of a scheduler."""
    corpus, stream = question.corpus, question.stream
    tokens = (question.units[1] - question.units[0]) * stream.tokens_per_unit
    label_bytes = 2 if question.vocab_size <= 2**16 else 4
    token_bytes = _CONTEXT_BYTES if question.contexts else label_bytes
    is_copied = len(corpus.files) > 1 or question.order is not None or corpus.format in _READ
    density = (question.stream.num_units if question.order else corpus.num_documents) / max(
        1, stream.num_tokens
    )
    borders = 8 * corpus.num_documents * (1 + (len(corpus.files) > 1))
    if workers is None:
        worth = _LISTED_WORTH_A_WORKER if question.contexts else _TOKENS_WORTH_A_WORKER
        workers = options.workers or min(usable_cores(), tokens // worth)
    return plan_memory(
        options.memory,
        max(1, workers),
        vocab_size=question.vocab_size,
        token_bytes=token_bytes + is_copied * corpus.dtype.itemsize + density * _SEGMENT_BYTES,
        pairs=tokens,
        corpus_bytes=borders,
    )


def partition_units(question: Question, options: CountOptions, memory: MemoryPlan) -> int:
    """Units of a partition: as asked, or what memory allows and every worker gets some of.

    Raises
    ------
    ValueError
        Partitions of the size asked for do not fit into memory.
    """
    stream = question.stream
    start, stop = question.units
    most = memory.most_tokens
    if (asked := options.partition_tokens) is not None:
        if asked > most and (stop - start) * stream.tokens_per_unit > most:
            raise ValueError(
                f"--partition-tokens {asked}: with this --memory and {memory.workers} worker(s) a "
                f"partition may have {most} tokens; lower it, or raise --memory"
            )
        return max(1, asked // stream.tokens_per_unit)
    tokens = (stop - start) * stream.tokens_per_unit
    shared = -(-tokens // (memory.workers * _PARTITIONS_A_WORKER))
    wanted = tokens if memory.workers == 1 else max(shared, _LEAST_TOKENS)
    if question.contexts:
        wanted = min(wanted, _MOST_LISTED)
    return max(1, min(wanted, most) // stream.tokens_per_unit)


def make_job(
    question: Question, options: CountOptions, memory: MemoryPlan, scratch: Scratch
) -> CountJob:
    """Begin the scratch folder, or go on with it; return what the tasks need to know.

    Raises
    ------
    ValueError
        What is there is unfinished and neither ``resume`` nor ``overwrite`` says what to do, or
        it is another count.
    """
    manifest = question.identity() | {
        "units_per_partition": partition_units(question, options, memory),
        "units": list(question.units),
    }
    found = scratch.manifest()
    if found is not None and options.resume:
        if options.partition_tokens is None:
            manifest["units_per_partition"] = found.get("units_per_partition")
        if changed := differences(found, manifest):
            raise ValueError(
                f"{scratch.folder}: not the same count, cannot resume: {'; '.join(changed)}; "
                "count as before, or start again with --overwrite"
            )
        scratch.go_on()
    elif found is not None and not options.overwrite:
        raise ValueError(
            f"{scratch.folder}: an unfinished count is there; go on with --resume, or start again "
            "with --overwrite"
        )
    else:
        scratch.begin(manifest)
    if question.order is not None:
        save_order(scratch.folder, question.order)
    return CountJob(
        run=scratch.run,
        scratch=scratch.folder,
        corpus_paths=question.paths,
        input=question.input,
        scope=question.scope,
        vocab_size=question.vocab_size,
        halves=question.halves,
        units=question.units,
        units_per_partition=manifest["units_per_partition"],
        tokens_per_unit=question.stream.tokens_per_unit,
        task_memory=memory.task_memory,
    )


_READ = {"parquet", "hf", "mixed"}
"""Formats whose tokens are not mapped as they stand but read into memory."""


def _vocabulary(corpus: Corpus, progress: Progress) -> tuple[int, VocabSource]:
    if corpus.vocab_size is not None:
        return corpus.vocab_size, corpus.vocab_source or "given"
    largest = max((0, *corpus.special))
    with progress.stage("find the largest id", corpus.num_tokens, "tokens") as advance:
        for start, stop in corpus.partitions(_SCAN_TOKENS):
            largest = max(largest, int(corpus.tokens(start, stop).max()))
            advance(stop - start)
    return largest + 1, "largest-id"
