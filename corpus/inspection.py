"""What a corpus holds: sizes, lengths, frequencies, and what is wrong with it.

Shapes: N tokens, D documents, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.parts import Tokens
from corpus.progress import SILENT, Progress
from corpus.store import Corpus, InputOptions, open_corpus

_BLOCK = 1 << 22
_LARGEST_TABLE = 1 << 24
"""Frequencies are counted below this id, so that one wild id cannot ask for gigabytes."""
_PERCENTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)


def inspect_corpus(
    paths: Path | str | Sequence[Path | str],
    options: InputOptions | None = None,
    *,
    top: int = 20,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Scan a corpus once, in blocks, and describe it: the keys of ``corpus inspect --json``.

    Raises
    ------
    CorpusFormatError
        A file that cannot be opened as a corpus. What can be opened and is odd is in ``problems``.
    """
    corpus = open_corpus(paths, options)
    scan = _scan(corpus, progress)
    return {
        "format": corpus.format,
        "dtype": corpus.dtype.name,
        "documents": corpus.num_documents,
        "empty_documents": corpus.num_empty_documents,
        "skipped_documents": corpus.num_skipped_documents,
        "tokens": corpus.num_tokens,
        "max_token": scan.largest if corpus.num_tokens else None,
        "min_token": scan.smallest if corpus.num_tokens else None,
        "distinct_tokens": int(np.count_nonzero(scan.counts)),
        "vocab_size": corpus.vocab_size,
        "vocab_source": corpus.vocab_source,
        "tokenizer_hash": corpus.tokenizer_hash,
        "eod": corpus.eod,
        "special": list(corpus.special),
        "borders": corpus.borders,
        "length_percentiles": _length_percentiles(corpus),
        "top_tokens": _top_tokens(scan.counts, top, corpus.options.tokenizer),
        "fingerprint": corpus.fingerprint,
        "files": corpus.compute_fingerprints(progress),
        "problems": [*corpus.notices, *scan.problems(corpus), *_border_problems(corpus, scan)],
    }


@dataclass(slots=True, kw_only=True)
class _Scan:
    """What one pass over the tokens has met."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    largest: int = -1
    smallest: int = 2**63
    outside: int = 0
    """Ids below zero, or not below V where V is known."""
    first_outside: tuple[int, int] | None = None
    """Position and id."""

    def take(self, tokens_N: Tokens, start: int, vocab_size: int | None) -> None:
        """Count a block that starts at position ``start``."""
        low, high = int(tokens_N.min()), int(tokens_N.max())
        self.smallest, self.largest = min(self.smallest, low), max(self.largest, high)
        limit = vocab_size if vocab_size is not None else high + 1
        if low < 0 or high >= limit:
            outside = np.flatnonzero((tokens_N < 0) | (tokens_N >= limit))
            self.outside += outside.size
            if self.first_outside is None:
                at = int(outside[0])
                self.first_outside = (start + at, int(tokens_N[at]))
        if low < 0 or high >= _LARGEST_TABLE:
            tokens_N = tokens_N[(tokens_N >= 0) & (tokens_N < _LARGEST_TABLE)]
        found = np.bincount(tokens_N.astype(np.intp, copy=False), minlength=self.counts.size)
        found[: self.counts.size] += self.counts
        self.counts = found

    def problems(self, corpus: Corpus) -> Iterator[str]:
        """Ids that no table can take."""
        if self.first_outside is not None:
            position, token = self.first_outside
            path, document, place = corpus.locate(position)
            needed = "negative" if token < 0 else f"outside the vocabulary of {corpus.vocab_size}"
            yield (
                f"{path}: id {token} at document {document}, position {place} is {needed} "
                f"({self.outside} such ids); give the tokenizer that made the corpus, or build it "
                "again"
            )
        elif self.largest >= _LARGEST_TABLE:
            yield (
                f"ids reach {self.largest}: frequencies are counted below {_LARGEST_TABLE} only; "
                "is the token type right?"
            )


def _scan(corpus: Corpus, progress: Progress) -> _Scan:
    scan = _Scan()
    with progress.stage("scan", corpus.num_tokens, "tokens") as advance:
        for start, stop in corpus.partitions(_BLOCK):
            scan.take(corpus.tokens(start, stop), start, corpus.vocab_size)
            corpus.release()
            advance(stop - start)
    return scan


def _border_problems(corpus: Corpus, scan: _Scan) -> Iterator[str]:
    """Say what is odd about documents and their ends."""
    if corpus.borders == "unknown":
        yield (
            "borders unknown: a flat file does not say where documents end; name the end token "
            "with --eod"
        )
    if corpus.num_documents == 0:
        yield "no documents"
    elif corpus.num_tokens == 0:
        yield "no tokens: every document is empty"
    eod = corpus.eod
    if eod is not None and corpus.num_tokens and (eod >= scan.counts.size or not scan.counts[eod]):
        yield f"the end token {eod} never occurs"


def _length_percentiles(corpus: Corpus) -> dict[str, float] | None:
    """Document lengths in tokens; exact, the higher of two at a tie of ranks."""
    if not corpus.num_documents:
        return None
    lengths_D = np.diff(corpus.doc_ends_D, prepend=0)
    found = np.percentile(lengths_D, _PERCENTILES, method="nearest", overwrite_input=True)
    return {f"p{at}": int(value) for at, value in zip(_PERCENTILES, found, strict=True)}


def _top_tokens(
    counts_V: npt.NDArray[np.int64], top: int, tokenizer: Path | None
) -> list[dict[str, Any]]:
    """List the most frequent ids, ties to the lower id, with text where a tokenizer is given."""
    ids = np.argsort(-counts_V, kind="stable")[:top]
    ids = ids[counts_V[ids] > 0]
    texts: list[str | None] = [None] * ids.size
    if tokenizer is not None:
        from corpus.encoding import load_tokenizer

        loaded = load_tokenizer(tokenizer, allow_special=True)
        texts = [loaded.decode([int(id_)], skip_special_tokens=False) for id_ in ids]
    return [
        {"token": int(id_), "count": int(counts_V[id_]), "text": text}
        for id_, text in zip(ids, texts, strict=True)
    ]


def describe(result: dict[str, Any]) -> Iterator[str]:
    """Lines for people."""
    vocabulary = result["vocab_size"]
    source = f" ({result['vocab_source']})" if result["vocab_source"] else ""
    yield f"format      {result['format']}, {result['dtype']}, borders {result['borders']}"
    yield (
        f"documents   {result['documents']:,} ({result['empty_documents']:,} empty, "
        f"{result['skipped_documents']:,} skipped)"
    )
    yield f"tokens      {result['tokens']:,} ({result['distinct_tokens']:,} distinct)"
    yield f"largest id  {result['max_token']}; vocabulary {vocabulary or 'unknown'}{source}"
    if result["length_percentiles"]:
        lengths = ", ".join(f"{at} {n:,}" for at, n in result["length_percentiles"].items())
        yield f"lengths     {lengths}"
    yield f"fingerprint {result['fingerprint']}"
    for one in result["top_tokens"]:
        text = "" if one["text"] is None else f"  {one['text']!r}"
        yield f"  {one['token']:>8} {one['count']:>14,}{text}"
    yield from (f"problem: {problem}" for problem in result["problems"])
