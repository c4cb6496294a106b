"""The gradient flow of an FFN's embeddings, taken apart by the order of the signatures it reads.

Model (arXiv:2608.30315, Theorems 1 and 2): ``f(X) = W_U sigma(sum_i w_{x_i})`` with
``sigma(z) = C_1 z + .. + C_K z^K`` coordinate by coordinate, and cross-entropy. Gradient flow is
label-driven minus prediction-driven, and with p(X) = 1 / V each part is exactly

    L r_a sum_m A_{a,m} . phi^m(a),   m = 0..min(L, K) - 1,
    A_{a,m}(v, b1..bm) = sum_{k=m+1..K} k C_k binom(L-1, m)
                         sum_{l + n1 + .. + nm = k-1} (k-1)! / (l! n1! .. nm!)
                         w_a^l * u_v * w_b1^n1 * .. * w_bm^nm,   l >= 0, every n >= 1.

The inner sum is (k-1)! times the coefficient of t^(k-1) in ``e^(t w_a) prod_r (e^(t w_br) - 1)``,
so a product of truncated power series yields it for every k at once.

Shapes: V vocabulary, H hidden size, L positions, N samples, M orders, E cells of a signature,
K degree of sigma.
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

_CHUNK_NUMBERS = 1 << 22
"""Numbers of one power series in memory at a time."""


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

    def logits(self, samples_NL: npt.NDArray[np.int64]) -> FloatArray:
        """``f(X)``, (N, V)."""
        z_NH = self.embedding_VH[samples_NL].sum(axis=1)
        hidden_NH = sum(c * z_NH**k for k, c in enumerate(self.coefficients_K, start=1))
        return np.asarray(hidden_NH @ self.unembedding_VH.T)


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSignatures:
    """Signatures of one task, order by order, counted once for as many models as wanted."""

    task: EnumeratedTask
    label: tuple[ExactSignature, ...]
    cooccurrence: tuple[ExactSignature, ...]
    sample: tuple[ExactSignature, ...]
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
            label=tuple(label_signature(task, m) for m in orders),
            cooccurrence=tuple(cooccurrence_signature(task, m) for m in orders),
            sample=tuple(label_signature(numbered, m) for m in orders),
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
    by_order: Sequence[ExactSignature],
    model: PolynomialFFN,
    label_vectors: FloatArray,
) -> FloatArray:
    """``L r_a A_{a,m} . phi^m(a)`` of every order and token, with one vector for each label."""
    task = signatures.task
    scale_V = task.length * occurrence_probability(task)
    terms_MVH = np.zeros((min(len(by_order), len(model.coefficients_K)), *model.embedding_VH.shape))
    for order, term_VH in enumerate(terms_MVH):
        signature = by_order[order]
        anchors_A = signature.anchors_A
        contracted_AH = _contract(signature, model, label_vectors)
        ways = comb(task.length - 1, order)
        term_VH[anchors_A] = ways * scale_V[anchors_A, None] * contracted_AH
    return terms_MVH


def _contract(
    signature: ExactSignature, model: PolynomialFFN, label_vectors: FloatArray
) -> FloatArray:
    """Sum A_{a,m} less binom(L-1, m) against the signature, (A, H).

    A is symmetric in the context, so each multiset counts once with all of its probability.
    """
    sums_AH = np.zeros((len(signature.anchors_A), model.embedding_VH.shape[1]))
    probability_E = signature.multiset_probabilities
    for cells in _chunks(len(probability_E), sums_AH.shape[1] * len(model.coefficients_K)):
        anchor_e = signature.anchor_E[cells]
        series_eH = _series_sum(
            model.embedding_VH[signature.anchors_A[anchor_e]],
            [model.embedding_VH[tokens_e] for tokens_e in signature.context_EM[cells].T],
            model.coefficients_K,
        )
        series_eH *= label_vectors[signature.label_E[cells]]
        places = (anchor_e, np.arange(len(anchor_e)))
        sums: csr_array[Any] = csr_array(
            (probability_E[cells], places), shape=(len(sums_AH), len(anchor_e))
        )
        sums_AH += sums @ series_eH
    return sums_AH


def _series_sum(
    anchor_eH: FloatArray, contexts: Sequence[FloatArray], coefficients_K: Sequence[float]
) -> FloatArray:
    """``sum_k k C_k (k-1)! [t^(k-1)] e^(t w_a) prod_r (e^(t w_br) - 1)``, (e, H)."""
    degree = len(coefficients_K)
    series_KeH = _exponential(anchor_eH, degree)
    for context_eH in contexts:
        factor_KeH = _exponential(context_eH, degree)
        series_KeH = np.stack(
            [
                np.einsum("neh,neh->eh", series_KeH[:power], factor_KeH[power:0:-1])
                for power in range(degree)
            ]
        )
    weights_K = [factorial(k) * c for k, c in enumerate(coefficients_K, start=1)]
    return np.asarray(np.einsum("k,keh->eh", weights_K, series_KeH))


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
