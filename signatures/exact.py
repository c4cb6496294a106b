"""Order-m signatures of a finite, enumerated task, exact until the last division.

A sample (X, y) is drawn by its weight, then a position I uniformly, and x_I = a is given. With
(J1..Jm) an ordered tuple of m distinct other positions, uniform over all of them
(arXiv:2608.30315, the definitions before Theorem 1):

    label signature          phi_y(a)[v, b1..bm] = P(y = v, x_J1 = b1, .., x_Jm = bm | x_I = a)
    co-occurrence signature  phi(a)[b1..bm]      = P(x_J1 = b1, .., x_Jm = bm | x_I = a)

A sample that holds a twice counts twice. Only what each sample holds matters, not where, so a
task may list multisets with the number of their arrangements as weight.

Shapes: N samples, L positions, V vocabulary, A anchors, M order, E cells that are not zero.
"""

from dataclasses import dataclass
from itertools import combinations, permutations
from math import factorial, perm, prod
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from signatures.enumerated import (
    EnumeratedTask,
    FloatArray,
    IntArray,
    occurrence_probability,
    occurrences,
    require_countable,
    require_ids,
    require_integers,
)

__all__ = [
    "EnumeratedTask",
    "ExactSignature",
    "cooccurrence_signature",
    "label_signature",
    "occurrence_probability",
]

DENSE_ENTRIES = 1 << 24
"""A signature of at most so many entries, zeros among them, fits as a dense array (128 MiB)."""

_KEYS = 1 << 63


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactSignature:
    """One signature of some anchors, kept as integer counts of multisets of context tokens.

    ``dense()`` and ``sparse()`` give the probabilities in the form asked for, ``fitting()`` in
    the one that fits (`DENSE_ENTRIES`); ``np.asarray(signature)`` is the dense one.
    """

    anchors_A: IntArray
    order: int
    vocab_size: int
    has_label: bool
    """False: a co-occurrence signature, whose arrays lack the mode of the label."""
    anchor_E: IntArray
    """Place of the anchor of each cell in ``anchors_A``."""
    label_E: IntArray
    """0 throughout without a label."""
    context_EM: IntArray
    """Context tokens of each cell, in rising order."""
    counts_E: IntArray
    """Weighted number of (sample, I, set of M positions) that hold the cell."""
    totals_A: IntArray
    """Weighted number of (sample, I, set of M positions) of each anchor."""
    tuple_totals_A: IntArray
    """The same for ordered tuples of M positions: ``totals_A`` times M!."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``dense()``: (A, V, V, ..) with the label's mode, if any, after the anchor."""
        return (len(self.anchors_A),) + (self.vocab_size,) * (self.order + self.has_label)

    @property
    def is_small(self) -> bool:
        """Whether ``dense()`` has at most `DENSE_ENTRIES` entries."""
        return prod(self.shape) <= DENSE_ENTRIES

    @property
    def multiset_probabilities(self) -> FloatArray:
        """Probability of each cell, its context taken as a multiset, (E,); 1 in all per anchor."""
        return np.asarray(self.counts_E / self.totals_A[self.anchor_E])

    def fitting(self) -> FloatArray | csr_array[Any]:
        """``dense()`` if that is small, else ``sparse()``."""
        return self.dense() if self.is_small else self.sparse()

    def dense(self) -> FloatArray:
        """Probabilities, ``shape``; symmetric in the modes of the context."""
        counts = np.zeros(prod(self.shape), np.int64)
        for places_E in self._arrangements():
            counts[places_E] += self.counts_E  # the cells of one arrangement differ
        counts_A = counts.reshape(len(self.anchors_A), -1)
        return np.asarray(counts_A / self.tuple_totals_A[:, None]).reshape(self.shape)

    def sparse(self) -> csr_array[Any]:
        """Probabilities, (A * V, V**M): row = place of the anchor * V + label.

        (A, V**M) without a label. Column = ``((b1 * V + b2) * V + ..) + bM``.
        """
        rows = len(self.anchors_A) * (self.vocab_size if self.has_label else 1)
        columns = self.vocab_size**self.order
        row, column = np.divmod(np.concatenate(list(self._arrangements())), columns)
        counts = np.tile(self.counts_E, len(row) // len(self.counts_E))
        matrix: csr_array[Any] = csr_array((counts, (row, column)), shape=(rows, columns))
        matrix.sum_duplicates()
        labels = rows // len(self.anchors_A)
        per_entry = np.repeat(np.repeat(self.tuple_totals_A, labels), np.diff(matrix.indptr))
        return csr_array((matrix.data / per_entry, matrix.indices, matrix.indptr), matrix.shape)

    def _arrangements(self) -> list[IntArray]:
        """Flat places of the cells for every order of their context, M! arrays (E).

        A context that holds a token n times meets each of its arrangements n! times, as do the
        tuples of positions.
        """
        head_E = self.anchor_E * (self.vocab_size if self.has_label else 1) + self.label_E
        return [
            _packed(head_E, self.context_EM[:, order], self.vocab_size)
            for order in permutations(range(self.order))
        ]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.dense() if dtype is None else self.dense().astype(dtype)


def label_signature(
    task: EnumeratedTask, order: int, anchors: npt.ArrayLike | None = None
) -> ExactSignature:
    """``phi_y`` of the anchors, shape (A, V, V, ..) with ``order`` modes after the label.

    ``anchors`` are token ids; every token that occurs, in rising order, when not given.

    Raises
    ------
    ValueError
        An order that L positions do not allow, an anchor that never occurs or stands twice, or
        more cells than 64-bit keys tell apart.
    """
    return _signature(task, order, anchors, has_label=True)


def cooccurrence_signature(
    task: EnumeratedTask, order: int, anchors: npt.ArrayLike | None = None
) -> ExactSignature:
    """``phi`` of the anchors, shape (A, V, ..) with ``order`` modes: ``phi_y`` less the label.

    Raises
    ------
    ValueError
        As `label_signature`.
    """
    return _signature(task, order, anchors, has_label=False)


def _signature(
    task: EnumeratedTask, order: int, anchors: npt.ArrayLike | None, *, has_label: bool
) -> ExactSignature:
    if not 0 <= order < task.length:
        raise ValueError(
            f"order {order}: samples of {task.length} positions have orders 0 to "
            f"{task.length - 1}; ask for one of these"
        )
    occurrences_V = occurrences(task)
    tuples = perm(task.length - 1, order)
    require_countable(float(occurrences_V.max()) * tuples)
    anchors_A = _chosen_anchors(anchors, occurrences_V)
    keys_E, counts_E = _count(task, order, anchors_A, has_label=has_label)
    head_E, context_EM = _unpacked(keys_E, order, task.vocab_size)
    anchor_E, label_E = np.divmod(head_E, task.vocab_size if has_label else 1)
    return ExactSignature(
        anchors_A=anchors_A,
        order=order,
        vocab_size=task.vocab_size,
        has_label=has_label,
        anchor_E=anchor_E,
        label_E=label_E,
        context_EM=context_EM,
        counts_E=counts_E,
        totals_A=occurrences_V[anchors_A] * (tuples // factorial(order)),
        tuple_totals_A=occurrences_V[anchors_A] * tuples,
    )


def _count(
    task: EnumeratedTask, order: int, anchors_A: IntArray, *, has_label: bool
) -> tuple[IntArray, IntArray]:
    """Keys of the cells that occur, rising, and their counts."""
    heads = len(anchors_A) * (task.vocab_size if has_label else 1)
    if heads * task.vocab_size**order >= _KEYS:
        raise ValueError(
            f"order {order} over {task.vocab_size} tokens: {heads * task.vocab_size**order:.1e} "
            f"cells, 64-bit keys tell 9.2e18 apart; give the tokens that occur ids without gaps"
        )
    place_V = np.full(task.vocab_size, -1)
    place_V[anchors_A] = np.arange(len(anchors_A))
    parts = []
    for position in range(task.length):
        place_N = place_V[task.samples_NL[:, position]]
        kept = place_N >= 0
        head = place_N[kept]
        if has_label:
            head = head * task.vocab_size + task.labels_N[kept]
        others = [other for other in range(task.length) if other != position]
        for chosen in combinations(others, order):
            context = np.sort(task.samples_NL[kept][:, list(chosen)], axis=1)
            keys = _packed(head, context, task.vocab_size)
            parts.append(_summed(keys, task.weights_N[kept]))
    return _summed(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _summed(keys: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Add the counts of equal keys; int64 throughout."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return keys[starts], np.add.reduceat(counts, starts)


def _packed(head_E: IntArray, context_EM: IntArray, vocab_size: int) -> IntArray:
    """``((head * V + b1) * V + ..) + bM``."""
    keys_E = head_E
    for tokens_E in context_EM.T:
        keys_E = keys_E * vocab_size + tokens_E
    return keys_E


def _unpacked(keys_E: IntArray, order: int, vocab_size: int) -> tuple[IntArray, IntArray]:
    """Head and context that `_packed` made a key of."""
    context_EM = np.empty((len(keys_E), order), np.int64)
    for mode in reversed(range(order)):
        keys_E, context_EM[:, mode] = np.divmod(keys_E, vocab_size)
    return keys_E, context_EM


def _chosen_anchors(anchors: npt.ArrayLike | None, occurrences_V: IntArray) -> IntArray:
    if anchors is None:
        return np.flatnonzero(occurrences_V)
    anchors_A = np.atleast_1d(require_integers("anchors", anchors))
    require_ids("anchors", anchors_A, len(occurrences_V))
    if never := anchors_A[occurrences_V[anchors_A] == 0].tolist():
        raise ValueError(f"anchors {never} never occur in the task; ask for tokens that do")
    if len(np.unique(anchors_A)) < len(anchors_A) or not len(anchors_A):
        raise ValueError(
            f"anchors: found {anchors_A.tolist()}, required one or more tokens; name each once"
        )
    return anchors_A
