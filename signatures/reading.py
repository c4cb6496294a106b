"""Signatures as their readers see them: probabilities of tokens, from counts that stay on disk.

Shapes: V vocabulary size, A anchors, C context tokens, N tokens asked for, R projection columns.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from signatures.layout import COUNTS, CSR_ARRAYS, EVEN, MATRIX, ROWS, VALUES
from signatures.matrix import (
    BLOCK_ENTRIES,
    Array,
    Counts,
    OddCounts,
    StoredCounts,
    SummedCounts,
    row_sums,
)
from signatures.signs import sign_matrix
from signatures.spec import Kind, SignatureFormatError, StoreSpec, Totals

Half = Literal["even", "odd"]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """One store, opened: what it says of itself, and its arrays on disk."""

    where: str
    spec: StoreSpec
    counts: StoredCounts | None
    """None for projected."""
    even: StoredCounts | None
    arrays: Mapping[str, Array]
    """Vectors, and for projected ``rows``, ``values`` and perhaps ``matrix``."""

    def chosen(self, half: Half | None) -> Counts:
        """Return the counts of all documents (samples), or of a half of them."""
        if self.counts is None:
            raise ValueError(f"{self.where}: a {self.spec.kind} store has no matrix of counts")
        if half is None:
            return self.counts
        if self.even is None:
            raise ValueError(f"{self.where}: no halves in this store; count with --halves")
        return self.even if half == "even" else OddCounts(self.counts, self.even)

    def vector(self, name: str, half: Half | None = None) -> Int64s:
        """Read a vector whole; of a half, where the store has it."""
        if half == "odd":
            return self.vector(name) - self.vector(name, "even")
        full_name = name if half is None else f"even_{name}"
        if full_name not in self.arrays:
            raise ValueError(f"{self.where}: no {full_name} in this {self.spec.kind} store")
        array = self.arrays[full_name]
        return array[0 : array.shape[0]].astype(np.int64)


def assemble(
    path: Path, spec: StoreSpec, arrays: Mapping[str, Array], shapes: Mapping[str, Any]
) -> Contents:
    """Put the arrays of a store together; ``shapes`` are those its matrices say they have.

    Raises
    ------
    SignatureFormatError
        A matrix without a shape, or without one of its arrays.
    """
    matrices = {}
    for name, shape in shapes.items():
        where = f"{path}/{name}"
        try:
            rows, columns = map(int, shape)
            parts = {part: arrays[f"{name}/{part}"] for part in CSR_ARRAYS}
        except (KeyError, TypeError, ValueError) as error:
            raise SignatureFormatError(f"{where}: no CSR matrix of counts: {error!r}") from error
        matrices[name] = StoredCounts(where, name, shape=(rows, columns), **parts)
    return Contents(
        where=str(path),
        spec=spec,
        counts=matrices.get(COUNTS),
        even=matrices.get(EVEN),
        arrays={name: array for name, array in arrays.items() if "/" not in name},
    )


@dataclass(frozen=True)
class Signatures:
    """One store, a half of one, or a mixture of several.

    A mixture weighs store k by w_k / T_k, T_k its number of tokens; the default w_k = T_k makes
    it the plain, exact sum of the counts.
    """

    sources: Sequence[Contents]
    weights: tuple[float, ...] | None = None
    chosen_half: Half | None = None

    @cached_property
    def spec(self) -> StoreSpec:
        """What was counted; of a mixture, the totals are sums."""
        return mixed_spec([source.spec for source in self.sources], self.weights)

    @property
    def where(self) -> str:
        """Paths of the stores, for messages."""
        return ", ".join(source.where for source in self.sources)

    @cached_property
    def counts(self) -> Counts:
        """Integer counts, exact: ``.take(rows)`` or ``.blocks()``.

        Raises
        ------
        ValueError
            A weighted mixture has no integer counts; a projected store no matrix.
        """
        if self.weights is not None:
            raise ValueError("a weighted mixture has no integer counts; open it without weights")
        terms = [source.chosen(self.chosen_half) for source in self.sources]
        return terms[0] if len(terms) == 1 else SummedCounts(terms)

    @cached_property
    def token_counts(self) -> Int64s:
        """Occurrences of each token, all positions: (V,)."""
        return self._summed("token_counts")

    @cached_property
    def anchors(self) -> Int64s:
        """Token ids of the anchors: (A,)."""
        return self.sources[0].vector("anchors")

    @cached_property
    def context_tokens(self) -> Int64s:
        """Token ids of the columns of a first-order signature: (C,)."""
        return self.sources[0].vector("context_tokens")

    @cached_property
    def anchor_occurrences(self) -> Int64s:
        """Occurrences of each anchor with a label: (A,)."""
        return self._summed("anchor_occurrences")

    @cached_property
    def dropped(self) -> Int64s:
        """Count mass left out for each anchor: (A,)."""
        return self._summed("dropped")

    def half(self, which: Half) -> "Signatures":
        """Signatures of the even or odd documents (samples) alone.

        Raises
        ------
        ValueError
            The store was counted without halves, or this is a half already.
        """
        if which not in ("even", "odd"):
            raise ValueError(f"half {which!r} is asked for, 'even' or 'odd' is needed")
        if self.chosen_half is not None:
            raise ValueError(f"these signatures are the {self.chosen_half} half already")
        for source in self.sources:
            source.chosen(which)
        return dataclasses.replace(self, chosen_half=which)

    def next_token(self, token: int) -> Floats:
        """``phi_nt(a)[v] = P(x_{s+1} = v | x_s = a)``: (V,); all zero for a token never seen.

        Source: arXiv:2608.30315, section 6; definition in docs/store.md.
        """
        row: Floats = self.next_token_matrix([token]).toarray()[0]
        return row

    def next_token_matrix(self, tokens: npt.ArrayLike) -> csr_array[Any]:
        """Next-token signatures of ``tokens`` as rows: float64 (N, V)."""
        self._require("next-token")
        return _normalised(self._mixed(lambda counts: counts.take(tokens)))

    def predecessor_matrix(self, tokens: npt.ArrayLike) -> csr_array[Any]:
        """Row i is ``P(x_s = u | x_{s+1} = tokens[i])``: float64 (N, V).

        One scan over all counts in bounded blocks: seconds for 100 million entries.
        """
        self._require("next-token")
        tokens_N = _ids(tokens, self.spec.vocab_size)

        def columns(counts: Counts) -> csr_array[Any]:
            parts = [block[:, tokens_N] for _, block in counts.blocks()]
            return csr_array(vstack(parts, format="csr").T.tocsr())

        return _normalised(self._mixed(columns))

    def first_order(self, anchor: int) -> csr_array[Any]:
        """``phi_1(a)[v, b] = P(x_{s+1} = v, b in X_{<s} | x_s = a)``: float64 (V, C).

        Source: arXiv:2608.30315, eq. 20. Not normalised over (v, b): a context token is present
        or not, so each label is counted once for every distinct token before it. Columns follow
        ``context_tokens``.
        """
        self._require("first-order")
        rows, index = self._anchor_rows(anchor), self._anchor_index(anchor)
        joint = self._mixed(lambda counts: counts.take(rows))
        data_E = joint.data / (self._weighted_occurrences[index] or 1.0)
        return csr_array((data_E, joint.indices, joint.indptr), shape=joint.shape)

    def first_order_parts(
        self, entries: int = BLOCK_ENTRIES
    ) -> Iterator[tuple[int, csr_array[Any]]]:
        """Yield the signatures of all anchors in one scan, about ``entries`` entries at a time.

        Each part is (number of its first row, float64 rows); row ``a * V + v`` is label v of the
        anchor at place a. Of a mixture every store is scanned: parts of the same row add up.
        """
        self._require("first-order")
        occurrences_A = np.where(self._weighted_occurrences > 0, self._weighted_occurrences, 1.0)
        for scale, source in zip(self._scales(), self.sources, strict=True):
            for first_row, counts in source.chosen(self.chosen_half).blocks(entries):
                places_R = np.arange(first_row, first_row + counts.shape[0]) // self.spec.vocab_size
                lengths_R = np.diff(counts.indptr)
                data_E = counts.data / np.repeat(occurrences_A[places_R], lengths_R)
                if scale != 1:
                    data_E *= scale
                yield (
                    first_row,
                    csr_array((data_E, counts.indices, counts.indptr), shape=counts.shape),
                )

    def anchor_counts(self, anchor: int) -> csr_array[Any]:
        """Integer first-order counts of an anchor: (V, C), row = label."""
        self._require("first-order")
        return self.counts.take(self._anchor_rows(anchor))

    def projected(self, anchor: int) -> tuple[Int64s, Int64s]:
        """Labels (L,) and integer sums (L, R) of an anchor: first-order counts times the matrix."""
        self._require("projected")
        if len(self.sources) > 1:
            raise ValueError("projected stores are not mixed; open one at a time")
        index, size = self._anchor_index(anchor), self.spec.vocab_size
        start, stop = np.searchsorted(self._projected_rows, [index * size, (index + 1) * size])
        values = self.sources[0].arrays[VALUES][int(start) : int(stop)]
        return self._projected_rows[start:stop] - index * size, values

    @cached_property
    def projection_matrix(self) -> npt.NDArray[np.int8]:
        """Matrix of a projected store, (C, R): as stored, or drawn again from its seed."""
        self._require("projected")
        (contents,) = self.sources
        if MATRIX in contents.arrays:
            matrix_CQ: npt.NDArray[np.int8] = contents.arrays[MATRIX][0 : self.context_tokens.size]
            return matrix_CQ
        assert contents.spec.seed is not None, "the spec asks for one of the two"
        columns = contents.arrays[VALUES].shape[1]
        return sign_matrix(self.context_tokens, columns, contents.spec.seed)

    @cached_property
    def _projected_rows(self) -> Int64s:
        return self.sources[0].vector(ROWS)

    def _anchor_rows(self, anchor: int) -> Int64s:
        size = self.spec.vocab_size
        return np.arange(size, dtype=np.int64) + self._anchor_index(anchor) * size

    def _anchor_index(self, anchor: int) -> int:
        (found,) = np.nonzero(self.anchors == anchor)
        if not found.size:
            raise ValueError(
                f"{self.where}: token {anchor} is not among the {self.anchors.size} "
                "anchors of this store; count again with it in --anchors"
            )
        return int(found[0])

    def _require(self, kind: Kind) -> None:
        if (found := self.sources[0].spec.kind) != kind:
            raise ValueError(
                f"{self.where}: a {found} store; a {kind} store is needed, "
                f"made by `staircase count {kind}`"
            )

    @cached_property
    def _weighted_occurrences(self) -> Floats:
        """What the counts of each anchor are divided by: (A,)."""
        vectors = (source.vector("anchor_occurrences", self.chosen_half) for source in self.sources)
        scaled = [scale * v for scale, v in zip(self._scales(), vectors, strict=True)]
        return np.asarray(np.sum(scaled, axis=0), np.float64)

    def _summed(self, name: str) -> Int64s:
        vectors = [source.vector(name, self.chosen_half) for source in self.sources]
        total: Int64s = np.sum(vectors, axis=0, dtype=np.int64)
        return total

    def _scales(self) -> list[float]:
        if self.weights is None:
            return [1] * len(self.sources)
        totals = [source.spec.totals.tokens for source in self.sources]
        return [w / t if t else 0.0 for w, t in zip(self.weights, totals, strict=True)]

    def _mixed(self, part: Callable[[Counts], csr_array[Any]]) -> csr_array[Any]:
        """Apply ``part`` to the counts: exact integers, or floats for a weighted mixture."""
        if self.weights is None:
            return part(self.counts)
        terms = zip(self._scales(), self.sources, strict=True)
        first, *others = (
            part(source.chosen(self.chosen_half)).astype(np.float64) * scale
            for scale, source in terms
        )
        return csr_array(sum(others, start=first))


def mix(sources: Sequence[Contents], weights: Sequence[float] | None) -> Signatures:
    """Signatures of several corpora as one.

    Raises
    ------
    ValueError
        No store; weights of another number or not positive; stores that cannot be compared.
    """
    if not sources:
        raise ValueError("no store is named; at least one is needed")
    if weights is not None:
        if len(weights) != len(sources):
            raise ValueError(f"{len(weights)} weights for {len(sources)} stores; one each")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"weights are {list(weights)}; each must be a positive number")
    for source in sources[1:]:
        _check_comparable(sources[0], source)
    return Signatures(tuple(sources), None if weights is None else tuple(map(float, weights)))


def mixed_spec(specs: Sequence[StoreSpec], weights: Sequence[float] | None) -> StoreSpec:
    """Describe a mixture: fields of the first store, totals added up, sources listed."""
    first = specs[0]
    if len(specs) == 1:
        return first
    names = [field.name for field in dataclasses.fields(Totals)]
    totals = Totals(**{name: sum(getattr(s.totals, name) for s in specs) for name in names})
    eods = {spec.eod for spec in specs}
    return dataclasses.replace(
        first,
        totals=totals,
        eod=first.eod if len(eods) == 1 else None,
        special=tuple(sorted({token for spec in specs for token in spec.special})),
        borders="known" if all(spec.borders == "known" for spec in specs) else "unknown",
        corpus=tuple(source for spec in specs for source in spec.corpus),
        parameters={
            "mixture": [dict(spec.parameters) for spec in specs],
            "weights": None if weights is None else list(weights),
        },
    )


def _check_comparable(one: Contents, other: Contents) -> None:
    names = ("kind", "vocab_size", "tokenizer", "scope", "seq_length", "window")
    for name in names:
        left, right = getattr(one.spec, name), getattr(other.spec, name)
        if left != right:
            raise ValueError(
                f"{other.where}: {name} is {right!r}, but {left!r} in {one.where}; to mix them "
                "count both with the same --tokenizer or --vocab-size, and the same scope"
            )
    if one.spec.kind == "next-token":
        return
    for name in ("anchors", "context_tokens"):
        if not np.array_equal(one.vector(name), other.vector(name)):
            raise ValueError(
                f"{other.where}: other {name} than {one.where}; only stores counted alike can be "
                "mixed"
            )


def _normalised(matrix: csr_array[Any]) -> csr_array[Any]:
    """Divide each row by its sum; rows without entries stay empty."""
    if np.issubdtype(matrix.dtype, np.integer):
        sums = row_sums(matrix).astype(np.float64)
    else:
        sums = np.asarray(matrix.sum(axis=1), np.float64)
    lengths = np.diff(matrix.indptr)
    data = matrix.data.astype(np.float64) / np.repeat(sums, lengths)
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _ids(tokens: npt.ArrayLike, vocab_size: int) -> Int64s:
    tokens_N = np.atleast_1d(np.asarray(tokens)).astype(np.int64)
    wrong = tokens_N[(tokens_N < 0) | (tokens_N >= vocab_size)]
    if wrong.size:
        raise ValueError(f"token {wrong[0]} is asked for, ids 0 to {vocab_size - 1} are stored")
    return tokens_N
