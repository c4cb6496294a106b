"""What a range of a corpus means in a scope: tokens, and the segments of them that make pairs.

A *unit* is what a range counts in: a token position, or a sample when an ORDER file names samples.
Ranges of units are cut anywhere; together they hold every pair once.

Shapes: N tokens of a block (one of look-ahead included), S segments, D documents, Q pieces that a
block is gathered from.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from corpus.store import Corpus
from signatures.kernels import Int64s, Ints, copy_pieces
from signatures.order import Order

Half = Literal["whole", "even", "odd"]


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens in memory or mapped, and where in them inputs lie."""

    tokens_N: Ints
    starts_S: Int64s
    stops_S: Int64s
    """Inputs are ``[start, stop)``; the label of the last stands at ``stop``."""
    others: Int64s
    """Positions that are counted as tokens without being inputs: last tokens of documents."""
    begins_S: Int64s
    """Where the document (sample) of each segment begins: below 0, before the first token."""
    origin: int | None
    """Corpus position of the first token; None when gathered from many places."""

    @property
    def num_pairs(self) -> int:
        """Inputs, each with a label."""
        return int((self.stops_S - self.starts_S).sum())


class Stream(Protocol):
    """A corpus seen through a scope."""

    num_units: int
    tokens_per_unit: int
    num_tokens: int
    """Positions that ``token_counts`` counts."""

    def block(self, start: int, stop: int, half: Half, *, apart: bool = False) -> Block:
        """Return the pairs whose input lies in units ``start`` to ``stop``.

        ``apart`` makes every sample a segment of its own, as every document is.
        """


class DocumentStream:
    """Pairs inside documents."""

    tokens_per_unit = 1

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self.num_units = self.num_tokens = corpus.num_tokens

    def block(self, start: int, stop: int, half: Half, *, apart: bool = False) -> Block:
        """Clip the documents that overlap the range; half of them for a half."""
        ends_D = self._corpus.doc_ends_D
        first = int(np.searchsorted(ends_D, start, side="right"))
        last = min(int(np.searchsorted(ends_D, stop, side="left")) + 1, ends_D.size)
        before = ends_D[first - 1 : first] if first else np.zeros(1, np.int64)
        chosen = _every(half, first)
        stops = ends_D[first:last][chosen]
        starts = np.concatenate([before, ends_D[first : last - 1]])[: last - first][chosen]
        filled = stops > starts
        starts, stops = starts[filled], stops[filled]
        inner = np.maximum(starts, start)
        ended = stops <= stop
        return Block(
            tokens_N=_read(self._corpus, start, stop),
            starts_S=inner - start,
            stops_S=np.minimum(stops - 1, stop) - start,
            others=stops[ended] - 1 - start,
            begins_S=starts - start,
            origin=start,
        )


class FileStream:
    """Every adjacent pair of the files as they stand, whatever the documents."""

    tokens_per_unit = 1

    def __init__(self, corpus: Corpus, seq_length: int | None) -> None:
        self._corpus = corpus
        self._seq_length = seq_length
        self.num_units = self.num_tokens = corpus.num_tokens

    def block(self, start: int, stop: int, half: Half, *, apart: bool = False) -> Block:
        """One segment; for a half, or ``apart``, the samples (of that parity)."""
        last = self.num_tokens - 1
        if half == "whole" and not apart:
            begins = starts = np.array([start], np.int64)
            stops = np.array([stop], np.int64)
        else:
            assert self._seq_length is not None, "the planning asks for a sample length"
            first = start // self._seq_length
            samples = np.arange(first, -(-stop // self._seq_length))[_every(half, first)]
            begins = samples * self._seq_length
            starts = np.maximum(begins, start)
            stops = np.minimum(begins + self._seq_length, stop)
        holds_last = bool(((starts <= last) & (last < stops)).any())
        return Block(
            tokens_N=_read(self._corpus, start, stop),
            starts_S=starts - start,
            stops_S=np.minimum(stops, last) - start,
            others=np.array([last - start] if holds_last else [], np.int64),
            begins_S=begins - start,
            origin=start,
        )


class OrderStream:
    """The samples that a run took, out of the stream that its data set concatenates."""

    def __init__(self, corpus: Corpus, order: Order) -> None:
        self._corpus = corpus
        self._order = order
        self.num_units = order.samples.size
        self.tokens_per_unit = order.seq_length
        self.num_tokens = self.num_units * order.seq_length

    def block(self, start: int, stop: int, half: Half, *, apart: bool = False) -> Block:
        """Gather the samples; neighbours in the stream make one segment unless ``apart``."""
        samples = np.asarray(self._order.samples[start:stop])
        if half != "whole":
            samples = samples[samples % 2 == (half == "odd")]
        fresh = (np.diff(samples, prepend=-2) != 1) | apart
        lengths = np.diff(np.flatnonzero(np.append(fresh, True))) * self._order.seq_length
        froms = samples[fresh] * self._order.seq_length
        starts = np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int64)
        tokens_N = np.empty(starts[-1], self._corpus.dtype)
        self._gather(froms, lengths + 1, starts[:-1], tokens_N)
        tokens_N.flags.writeable = False
        return Block(
            tokens_N=tokens_N,
            starts_S=starts[:-1],
            stops_S=starts[:-1] + lengths,
            others=np.empty(0, np.int64),
            begins_S=starts[:-1],
            origin=None,
        )

    def _gather(self, froms: Int64s, sizes: Int64s, targets: Int64s, out_N: Ints) -> None:
        """Copy stream ranges to their places in ``out_N``."""
        pieces = self._order.pieces(froms, sizes, targets)
        origin = 0
        for file in self._corpus.files:
            inside = (pieces.sources >= origin) & (pieces.sources < origin + file.num_tokens)
            if inside.any():
                copy_pieces(
                    _readonly(file.read(0, file.num_tokens)),
                    pieces.sources[inside] - origin,
                    pieces.targets[inside],
                    pieces.sizes[inside],
                    out_N,
                )
            origin += file.num_tokens


def _every(half: Half, first: int) -> slice:
    """Choose the even or odd ones of things numbered from ``first``."""
    if half == "whole":
        return slice(None)
    return slice((first + (half == "odd")) % 2, None, 2)


def _read(corpus: Corpus, start: int, stop: int) -> Ints:
    """Tokens of the range and one more, where there is one."""
    return _readonly(corpus.tokens(start, min(stop + 1, corpus.num_tokens)))


def _readonly(tokens: Ints) -> Ints:
    """Make copies look like mapped tokens, which cannot be written to: one compilation fits."""
    view = tokens.view()
    view.flags.writeable = False
    return view
