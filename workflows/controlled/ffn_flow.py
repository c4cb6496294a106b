"""The gradient flow of an FFN's embeddings, taken apart by the order of the signatures it reads.

Model (arXiv:2608.30315, Theorems 1 and 2): ``f(X) = W_U sigma(sum_i w_{x_i})`` with
``sigma(z) = C_1 z + .. + C_K z^K`` coordinate by coordinate, and cross-entropy. Gradient flow is
label-driven minus prediction-driven, and with p(X) = 1 / V each part is exactly

    L r_a sum_m A_{a,m} . phi^m(a),   m = 0..min(L, K) - 1,
    A_{a,m}(v, b1..bm) = sum_{k=m+1..K} k C_k binom(L-1, m)
                         sum_{l + n1 + .. + nm = k-1} (k-1)! / (l! n1! .. nm!)
                         w_a^l * u_v * w_b1^n1 * .. * w_bm^nm,   l >= 0, every n >= 1.

The inner sum is (k-1)! times the coefficient of t^(k-1) in ``e^(t w_a) prod_r (e^(t w_br) - 1)``.
The product over r is a truncated power series of the context alone, formed once for each multiset
of context tokens; a cell then takes K products for every k at once.

Shapes: V vocabulary, H hidden size, L positions, N samples, M orders, A anchors, E cells of a
signature, C multisets of context tokens, K degree of sigma and terms of a power series.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb, factorial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import softmax

from signatures.exact import (
    EnumeratedTask,
    ExactSignature,
    cooccurrence_signature,
    label_signature,
    occurrence_probability,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_CHUNK_NUMBERS = 1 << 22
"""Numbers (cells times hidden size) worked on at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolynomialFFN:
    """Parameters of ``W_U sigma(sum_i w_{x_i})``.

    Raises
    ------
    ValueError
        Embedding and unembedding that differ in shape, or no coefficient.
    """

    embedding_VH: FloatArray
    unembedding_VH: FloatArray
    coefficients_K: Sequence[float]
    """C_1..C_K; the monomial z^K has zeros before its last."""

    def __post_init__(self) -> None:
        if self.embedding_VH.shape != self.unembedding_VH.shape:
            raise ValueError(
                f"embedding {self.embedding_VH.shape} and unembedding {self.unembedding_VH.shape} "
                f"differ, required (V, H) for both; give one row per token of the vocabulary"
            )
        if not len(self.coefficients_K):
            raise ValueError("coefficients_K: found none, required C_1..C_K; give at least C_1")

    def logits(self, samples_NL: IntArray) -> FloatArray:
        """``f(X)``, (N, V)."""
        z_NH = self.embedding_VH[samples_NL].sum(axis=1)
        hidden_NH = sum(c * z_NH**k for k, c in enumerate(self.coefficients_K, start=1))
        return np.asarray(hidden_NH @ self.unembedding_VH.T)


@dataclass(frozen=True, kw_only=True, eq=False)
class CellTable:
    """One signature as `_contract` reads it: cells with the place of their context."""

    anchors_A: IntArray
    anchor_E: IntArray
    label_E: IntArray
    probability_E: FloatArray
    """Of the cell with its context as a multiset: A_{a,m} is symmetric in the context."""
    contexts_CM: IntArray
    """Every multiset of context tokens that occurs."""
    context_E: IntArray

    @classmethod
    def of(cls, signature: ExactSignature) -> "CellTable":
        """Find the multisets that occur."""
        contexts_CM, context_E = np.unique(signature.context_EM, axis=0, return_inverse=True)
        return cls(
            anchors_A=signature.anchors_A,
            anchor_E=signature.anchor_E,
            label_E=signature.label_E,
            probability_E=signature.multiset_probabilities,
            contexts_CM=contexts_CM,
            context_E=context_E,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSignatures:
    """Signatures of one task, order by order, counted once for as many models as wanted."""

    task: EnumeratedTask
    label: tuple[CellTable, ...]
    cooccurrence: tuple[CellTable, ...]
    sample: tuple[CellTable, ...]
    """Label signatures with the number of the sample as its label: P(X, b1..bm | a)."""

    @classmethod
    def of(cls, task: EnumeratedTask, num_orders: int) -> "TaskSignatures":
        """Count orders 0..min(L, ``num_orders``) - 1; K orders are all that degree K reads."""
        orders = range(min(task.length, num_orders))
        num_samples = len(task.labels_N)
        numbered = replace(
            task,
            labels_N=np.arange(num_samples),
            vocab_size=max(num_samples, task.vocab_size),
        )
        return cls(
            task=task,
            label=tuple(CellTable.of(label_signature(task, m)) for m in orders),
            cooccurrence=tuple(CellTable.of(cooccurrence_signature(task, m)) for m in orders),
            sample=tuple(CellTable.of(label_signature(numbered, m)) for m in orders),
        )


def label_driven_orders(signatures: TaskSignatures, model: PolynomialFFN) -> FloatArray:
    """Order-m terms of ``E[N_a(X) sigma'(sum w) * u_y]``, (M, V, H); their sum is all of it."""
    return _terms(signatures, signatures.label, model, model.unembedding_VH)


def prediction_driven_orders(signatures: TaskSignatures, model: PolynomialFFN) -> FloatArray:
    """Order-m terms of ``E[N_a(X) sigma'(sum w) * (W_U^T 1 / V)]``, (M, V, H): p(X) = 1 / V."""
    mean_1H = model.unembedding_VH.mean(axis=0, keepdims=True)
    return _terms(signatures, signatures.cooccurrence, model, mean_1H)


def residual_orders(signatures: TaskSignatures, model: PolynomialFFN) -> FloatArray:
    """Order-m terms of the whole flow, (M, V, H): ``W_U^T (e_y - p(X))`` in place of u_y.

    Theorem 1 holds for any vector that a sample carries, not only for one that its label
    chooses; with the model's own p(X) the terms sum to minus the gradient of the loss.
    """
    task = signatures.task
    residual_NV = -softmax(model.logits(task.samples_NL), axis=1)
    residual_NV[np.arange(len(task.labels_N)), task.labels_N] += 1.0
    return _terms(signatures, signatures.sample, model, residual_NV @ model.unembedding_VH)


def order_shares(terms_MVH: FloatArray) -> FloatArray:
    """Share of each order: Frobenius norm of its term over the sum of these norms, (M,).

    NaN throughout where every term is zero.
    """
    norms_M = np.sqrt(np.einsum("mvh,mvh->m", terms_MVH, terms_MVH))
    total = norms_M.sum()
    return np.asarray(norms_M / total if total > 0 else np.full_like(norms_M, np.nan))


def stirling_second(n: int, k: int) -> int:
    """Return the number of partitions of n things into k parts that are not empty, S(n, k)."""
    signed: int = sum((-1) ** (k - j) * comb(k, j) * j**n for j in range(k + 1))
    return signed // factorial(k)


def combinatorial_factor(order: int, degree: int) -> int:
    """``B_m(K) = (m+1)! S(K-1, m+1)``, the coefficients of A_{a,m} with l >= 1 (Proposition 2)."""
    return factorial(order + 1) * stirling_second(degree - 1, order + 1)


def coefficient_sum(order: int, degree: int) -> int:
    """``m! S(K, m+1)``, the same sum with the terms of l = 0, as A_{a,m} has them."""
    return factorial(order) * stirling_second(degree, order + 1)


def _terms(
    signatures: TaskSignatures,
    by_order: Sequence[CellTable],
    model: PolynomialFFN,
    label_vectors: FloatArray,
) -> FloatArray:
    """``L r_a A_{a,m} . phi^m(a)`` of every order and token, with one vector for each label."""
    task = signatures.task
    num_orders = min(task.length, len(model.coefficients_K))
    assert len(by_order) >= num_orders, "signatures counted for a lower degree"
    scale_V = task.length * occurrence_probability(task)
    terms_MVH = np.zeros((num_orders, *model.embedding_VH.shape))
    for order, term_VH in enumerate(terms_MVH):
        anchors_A = by_order[order].anchors_A
        contracted_AH = _contract(by_order[order], model, label_vectors)
        ways = comb(task.length - 1, order)
        term_VH[anchors_A] = ways * scale_V[anchors_A, None] * contracted_AH
    return terms_MVH


def _contract(table: CellTable, model: PolynomialFFN, label_vectors: FloatArray) -> FloatArray:
    """Sum A_{a,m} less binom(L-1, m) against the signature, (A, H)."""
    degree, order = len(model.coefficients_K), table.contexts_CM.shape[1]
    weights_KAH = _anchor_weights(model.embedding_VH[table.anchors_A], model.coefficients_K)
    growth_KCH = _context_series(model.embedding_VH, table.contexts_CM, degree)
    sums_AH = np.zeros((len(table.anchors_A), label_vectors.shape[1]))
    for cells in _chunks(len(table.anchor_E), sums_AH.shape[1]):
        anchor_e, context_e = table.anchor_E[cells], table.context_E[cells]
        label_eH = label_vectors[table.label_E[cells]]
        of_anchor_Ae: csr_array[Any] = csr_array(
            (table.probability_E[cells], (anchor_e, np.arange(len(anchor_e)))),
            shape=(len(sums_AH), len(anchor_e)),
        )
        for power in range(order, degree):  # the product has no lower powers
            grown_eH = growth_KCH[power, context_e] * label_eH
            sums_AH += weights_KAH[power] * (of_anchor_Ae @ grown_eH)
    return sums_AH


def _anchor_weights(anchors_AH: FloatArray, coefficients_K: Sequence[float]) -> FloatArray:
    """``sum_{k>j} k C_k (k-1)! w_a^(k-1-j) / (k-1-j)!`` by the context's power j, (K, A, H)."""
    degree = len(coefficients_K)
    series_KAH = _exponential(anchors_AH, degree)
    weights_KAH = np.zeros_like(series_KAH)
    for k, coefficient in enumerate(coefficients_K, start=1):
        weights_KAH[:k] += factorial(k) * coefficient * series_KAH[k - 1 :: -1]
    return weights_KAH


def _context_series(embedding_VH: FloatArray, contexts_CM: IntArray, degree: int) -> FloatArray:
    """Coefficients of ``prod_r (e^(t w_br) - 1)`` up to t^(degree - 1), (K, C, H)."""
    tokens_KVH = _exponential(embedding_VH, degree)
    product_KCH = np.zeros((degree, len(contexts_CM), embedding_VH.shape[1]))
    product_KCH[0] = 1.0
    for tokens_C in contexts_CM.T:
        factor_KCH = tokens_KVH[:, tokens_C]
        for power in reversed(range(degree)):  # in place: a power reads lower ones only
            lower, factors = product_KCH[:power], factor_KCH[power:0:-1]
            product_KCH[power] = np.einsum("kch,kch->ch", lower, factors)
    return product_KCH


def _exponential(base_eH: FloatArray, degree: int) -> FloatArray:
    """Coefficients of ``e^(t w)`` up to t^(degree - 1), (K, e, H)."""
    series_KeH = np.ones((degree, *base_eH.shape))
    for power in range(1, degree):
        series_KeH[power] = series_KeH[power - 1] * base_eH / power
    return series_KeH


def _chunks(num_cells: int, numbers_a_cell: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // numbers_a_cell)
    for start in range(0, num_cells, size):
        yield slice(start, start + size)
