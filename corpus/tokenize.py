"""Text to a tokenised corpus, in parallel, in one pass, in the order of the sources.

Shapes: N tokens of a block, D documents of a block, V vocabulary.
"""

import os
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from corpus.encoding import (
    EncodedBlock,
    Encoder,
    EncodingOptions,
    encode_in_worker,
    load_tokenizer,
    one_thread,
    start_worker,
)
from corpus.megatron import dtype_for
from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from corpus.sources import Block, Source, SourceError, find_sources, read_blocks
from corpus.store import open_corpus
from corpus.tokenizer import read_tokenizer, special_tokens, tokenizer_hash, vocabulary_size
from corpus.training import train_tokenizer
from corpus.writer import CorpusWriter

__all__ = ["build_corpus", "tokenizer_hash", "train_tokenizer"]

_LISTED_PROBLEMS = 1000
_BYTES_A_WORKER = 4 << 20
"""A process takes a second to start, in which another encodes about this much."""
_BLOCKS_A_WORKER = 3
"""Blocks in flight: enough that no worker waits, few enough that memory stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadOptions:
    text_column: str
    block_bytes: int = 1 << 20


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What a build has met so far."""

    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    special_seen: Counter[str] = field(default_factory=Counter)
    largest_id: int = -1

    def note(self, problem: str) -> None:
        """Count ``problem``; the first thousand are listed."""
        self.num_problems += 1
        if len(self.problems) < _LISTED_PROBLEMS:
            self.problems.append(problem)


def build_corpus(
    sources: Sequence[Path | str] | Path | str,
    *,
    tokenizer: Path,
    out: Path,
    text_column: str = "text",
    append_eod: bool = True,
    eod_token: str = "<|endoftext|>",
    allow_special: bool = False,
    on_error: Literal["fail", "skip"] = "fail",
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Tokenise ``sources`` into ``out.bin``, ``out.idx`` and ``out.json``.

    Parameters
    ----------
    sources
        Files and folders: jsonl, parquet, arrow, ``datasets`` folders; any other file is one
        document. ``.gz`` and ``.zst`` are read as what they hold. A folder is its files, sorted.
    append_eod, eod_token
        End every document that holds a token with ``eod_token``, which the tokenizer must have.
    allow_special
        Let special-token text in documents become the special token; by default it is plain text.
    on_error
        ``fail``: the first broken record ends the build. ``skip``: it is left out and listed.
    workers
        Processes; all cores unless told. The result does not depend on it.

    Returns
    -------
    dict
        What the sidecar says, and what ``corpus build --json`` prints.

    Raises
    ------
    SourceError
        A broken record under ``fail``; names file and line.
    FileExistsError
        A corpus stands at ``out`` and ``overwrite`` is off.
    RuntimeError
        A worker process died.
    """
    found = find_sources(sources)
    tokenizer = Path(tokenizer)
    vocab_size, special, eod = _tokenizer_facts(tokenizer, eod_token if append_eod else None)
    sidecar: dict[str, Any] = {
        "vocab_size": vocab_size,
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "tokenizer": tokenizer.name,
        "eod": eod,
        "special": sorted(special.values()),
    }
    encoding = EncodingOptions(
        tokenizer=tokenizer, text_column=text_column, eod=eod, allow_special=allow_special
    )
    tally = _Tally()
    reading = _ReadOptions(text_column=text_column)
    with (
        CorpusWriter(
            out, dtype_for(vocab_size), vocab_size, sidecar, overwrite=overwrite
        ) as writer,
        progress.stage("tokenise", sum(source.size for source in found), "bytes") as advance,
        # Closed here, not when it is collected: on an error the workers must end at once.
        closing(_encoded_blocks(found, reading, encoding, workers)) as blocks,
    ):
        for block, encoded in blocks:
            _take(block, encoded, writer, tally, on_error)
            advance(block.source_bytes)
        sidecar.update(_outcome(found, tally, allow_special))
    return _report(Path(out), sidecar, tally)


def _tokenizer_facts(path: Path, eod_token: str | None) -> tuple[int, dict[str, int], int | None]:
    """V, the special tokens, and the id of the end token."""
    facts = read_tokenizer(path)
    vocab_size = vocabulary_size(facts)
    if eod_token is None:
        return vocab_size, special_tokens(facts), None
    eod = load_tokenizer(path, allow_special=True).token_to_id(eod_token)
    if eod is None:
        has = sorted(special_tokens(facts))[:8]
        raise ValueError(
            f"{path}: no token {eod_token!r} to end documents with; its special tokens are {has}: "
            "name one with --eod-token, or pass --no-append-eod"
        )
    return vocab_size, special_tokens(facts), int(eod)


def _encoded_blocks(
    sources: Sequence[Source], reading: _ReadOptions, encoding: EncodingOptions, workers: int | None
) -> Generator[tuple[Block, EncodedBlock], None, None]:
    """Encode every block, in the order of the sources."""
    chosen = _num_workers(sources) if workers is None else workers
    if chosen < 1:
        raise ValueError(f"{chosen} workers: at least 1 is needed")
    blocks = read_blocks(sources, reading)
    if chosen == 1:
        # Alone by choice is one core; alone for little work is the library's threads.
        threads = nullcontext if workers is None else one_thread
        encoder = Encoder(encoding)
        for block in blocks:
            with threads():
                encoded = encoder.encode(block)
            yield block, encoded
        return
    with _pool(chosen, encoding) as pool:
        waiting: deque[tuple[Block, Future[EncodedBlock]]] = deque()
        for block in blocks:
            waiting.append((block, pool.submit(encode_in_worker, block)))
            if len(waiting) >= _BLOCKS_A_WORKER * chosen:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)


def _num_workers(sources: Sequence[Source]) -> int:
    """All cores, but no more processes than the work is worth starting."""
    worth = sum(source.size for source in sources) // _BYTES_A_WORKER
    return max(1, min(len(os.sched_getaffinity(0)), worth))


@contextmanager
def _pool(workers: int, encoding: EncodingOptions) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes: a fork would copy the threads' locks of whoever calls."""
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=start_worker, initargs=(encoding,)
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a tokenising process died (killed, or out of memory); rerun with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _first(
    waiting: deque[tuple[Block, Future[EncodedBlock]]],
) -> tuple[Block, EncodedBlock]:
    block, future = waiting.popleft()
    return block, future.result()


def _take(
    block: Block, encoded: EncodedBlock, writer: CorpusWriter, tally: _Tally, on_error: str
) -> None:
    """Write one block's documents; count or refuse what is broken in it."""
    problems = [f"{block.path}: {block.unit} {one.number}: {one.reason}" for one in encoded.faults]
    tally.skipped += len(encoded.faults)
    if block.broken:
        problems.append(f"{block.path}: {block.broken}; what follows is lost")
    if problems and on_error == "fail":
        raise SourceError(
            f"{problems[0]}; mend the source, or pass --on-error skip to leave it out"
        )
    for problem in problems:
        tally.note(problem)
    writer.add_documents(encoded.tokens_N, encoded.lengths_D)
    tally.special_seen.update(encoded.special_seen)
    if encoded.tokens_N.size:
        tally.largest_id = max(tally.largest_id, int(encoded.tokens_N.max()))


def _outcome(sources: Sequence[Source], tally: _Tally, allow_special: bool) -> dict[str, Any]:
    """Gather what is known at the end, for the sidecar."""
    return {
        "skipped_documents": tally.skipped,
        "num_problems": tally.num_problems,
        "problems": tally.problems,
        "special_text_seen": dict(sorted(tally.special_seen.items())),
        "special_text": "special token" if allow_special else "plain text",
        "sources": [
            {"name": source.path.name, "sha256": source.sha256, "bytes": source.size}
            for source in sources
        ],
        "provenance": provenance(),
    }


def _report(out: Path, sidecar: dict[str, Any], tally: _Tally) -> dict[str, Any]:
    """Open what was written, so that the numbers printed are those of the files."""
    corpus = open_corpus(out)
    return {
        "corpus": str(out),
        "format": corpus.format,
        "dtype": corpus.dtype.name,
        "documents": corpus.num_documents,
        "empty_documents": corpus.num_empty_documents,
        "skipped_documents": corpus.num_skipped_documents,
        "tokens": corpus.num_tokens,
        "max_token": tally.largest_id if corpus.num_tokens else None,
        "vocab_size": corpus.vocab_size,
        "borders": corpus.borders,
        **{name: value for name, value in sidecar.items() if name != "format"},
    }
