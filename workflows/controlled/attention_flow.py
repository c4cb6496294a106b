"""The label-driven gradient of an attention-only model's embeddings: value + key + query.

Model (arXiv:2608.30315, Theorem 3): ``f(X) = W_U W_O sum_s a_s W_V w_{x_s}``, a the softmax over
s of ``w_{x_s}^T W_QK w_{x_L} / sqrt(H)``, ``W_QK = W_K^T W_Q``, and the query at the last position.
Each part contracts a signature times psi, the conditional mean of the attention it names:

    value = L r_a (W_U W_OV)^T (phi psi)(v),                                psi = E[a_I | ..]
    key   = L r_a / sqrt(H) W_QK [ sum (phi psi)(v, x_L=b) (u_v . W_OV w_a) w_b
                                 - sum_s sum (phi psi)(v, x_L=b, x_s=c) (u_v . W_OV w_c) w_b ],
            psi = E[a_I | ..], then E[a_I a_s | ..]
    query = P(x_L=a) / sqrt(H) W_QK^T [ sum_s sum (phi psi)(v, x_s=b | x_L=a) (u_v . W_OV w_b) w_b
                                 - sum_{s,t} sum (phi psi)(v, x_s=b, x_t=c | x_L=a)
                                   (u_v . W_OV w_c) w_b ],   psi = E[a_s | ..], then E[a_s a_t | ..]

The paper prints W_QK in the query part; its transpose is right. With positional embeddings every
``w_{x_s}`` of a contraction is ``w_{x_s} + p_s``, so the tables keep the position I as a mode too.

Shapes: V vocabulary, H hidden size, D width of the head, L positions, N samples, A = V anchors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from signatures.exact import EnumeratedTask, occurrence_probability

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionOnly:
    """Parameters of the attention-only model."""

    embedding_VH: FloatArray
    unembedding_VH: FloatArray
    query_DH: FloatArray
    key_DH: FloatArray
    value_DH: FloatArray
    output_HD: FloatArray
    positions_LH: FloatArray
    """Zeros for a model without positional embeddings."""

    @property
    def query_key(self) -> FloatArray:
        """``W_QK = W_K^T W_Q``, (H, H)."""
        return np.asarray(self.key_DH.T @ self.query_DH)

    @property
    def output_value(self) -> FloatArray:
        """``W_OV = W_O W_V``, (H, H)."""
        return np.asarray(self.output_HD @ self.value_DH)

    def placed_embeddings(self) -> FloatArray:
        """``w_b + p_s``, (L, V, H)."""
        return np.asarray(self.positions_LH[:, None] + self.embedding_VH)

    def attention(self, samples_NL: IntArray) -> FloatArray:
        """Weights of the last position's query, (N, L)."""
        placed_NLH = self.embedding_VH[samples_NL] + self.positions_LH
        scores_NL = np.einsum("nlh,hg,ng->nl", placed_NLH, self.query_key, placed_NLH[:, -1])
        return np.asarray(softmax(scores_NL / np.sqrt(placed_NLH.shape[2]), axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionParts:
    """The three parts of the label-driven gradient, each (V, H)."""

    value: FloatArray
    key: FloatArray
    query: FloatArray
    query_as_printed: FloatArray
    """The query part with W_QK in place of its transpose; wrong, kept to show it."""

    @property
    def total(self) -> FloatArray:
        """Return the whole label-driven gradient."""
        return self.value + self.key + self.query


def attention_label_driven(task: EnumeratedTask, model: AttentionOnly) -> AttentionParts:
    """Evaluate Theorem 3 by its signature tables; rows of tokens that never occur are zero.

    The tables are dense, L^2 V^4 numbers for the largest: made for tasks of a few tokens.
    """
    tables = _Tables(task, model.attention(task.samples_NL))
    placed_LVH = model.placed_embeddings()
    match_LVV = np.einsum("vh,hg,lag->lav", model.unembedding_VH, model.output_value, placed_LVH)
    scale_A = task.length * occurrence_probability(task)[:, None]
    last_A = _last_probability(task)[:, None]
    root = np.sqrt(placed_LVH.shape[2])
    key_AH = _key_contraction(tables, match_LVV, placed_LVH)
    query_AH = _query_contraction(tables, match_LVV, placed_LVH)
    label_AV = tables.given_anchor([], attended=[])
    return AttentionParts(
        value=scale_A * (label_AV.sum(axis=0) @ model.unembedding_VH @ model.output_value),
        key=scale_A / root * (key_AH @ model.query_key.T),
        query=last_A / root * (query_AH @ model.query_key),
        query_as_printed=last_A / root * (query_AH @ model.query_key.T),
    )


def _key_contraction(
    tables: "_Tables", match_LVV: FloatArray, placed_LVH: FloatArray
) -> FloatArray:
    """Bracket of the key part, (A, H): modes i anchor's place, a, v label, b last, c at s."""
    length = len(placed_LVH)
    last = length - 1
    one_iavb = tables.given_anchor([last], attended=[])
    bracket_AH = np.einsum("iavb,iav,bh->ah", one_iavb, match_LVV, placed_LVH[last])
    for s in range(length):
        two_iavbc = tables.given_anchor([last, s], attended=[s])
        bracket_AH -= np.einsum("iavbc,cv,bh->ah", two_iavbc, match_LVV[s], placed_LVH[last])
    return np.asarray(bracket_AH)


def _query_contraction(
    tables: "_Tables", match_LVV: FloatArray, placed_LVH: FloatArray
) -> FloatArray:
    """Bracket of the query part, (A, H): modes a at the last place, v label, b at s, c at t."""
    length = len(placed_LVH)
    bracket_AH = np.zeros_like(placed_LVH[0])
    for s in range(length):
        one_avb = tables.given_last([s], attended=[s])
        bracket_AH += np.einsum("avb,bv,bh->ah", one_avb, match_LVV[s], placed_LVH[s])
        for t in range(length):
            two_avbc = tables.given_last([s, t], attended=[s, t])
            bracket_AH -= np.einsum("avbc,cv,bh->ah", two_avbc, match_LVV[t], placed_LVH[s])
    return np.asarray(bracket_AH)


class _Tables:
    """Signatures times psi: conditional probabilities, each sample weighted by its attention."""

    def __init__(self, task: EnumeratedTask, attention_NL: FloatArray) -> None:
        self._task, self._attention_NL = task, attention_NL

    def given_anchor(self, places: Sequence[int], *, attended: Sequence[int]) -> FloatArray:
        """``(phi psi)(v, x_places = .. | x_I = a)`` by I, (L, A, V, V, ..); psi holds a_I.

        The sum over the first mode is over I, which is uniform before the anchor is given.
        """
        task = self._task
        tables = [self._joint(i, places, [i, *attended]) / task.length for i in range(task.length)]
        return _divided(np.stack(tables), occurrence_probability(task), axis=1)

    def given_last(self, places: Sequence[int], *, attended: Sequence[int]) -> FloatArray:
        """``(phi psi)(v, x_places = .. | x_L = a)``, (A, V, V, ..)."""
        joint = self._joint(self._task.length - 1, places, attended)
        return _divided(joint, _last_probability(self._task), axis=0)

    def _joint(self, anchor: int, places: Sequence[int], attended: Sequence[int]) -> FloatArray:
        """``E[product of attended; x_anchor = a, y = v, x_places = ..]``, (A, V, V, ..)."""
        task = self._task
        weight_N = task.sample_probabilities * self._attention_NL[:, list(attended)].prod(axis=1)
        columns = [task.samples_NL[:, anchor], task.labels_N]
        columns += [task.samples_NL[:, place] for place in places]
        table = np.zeros((task.vocab_size,) * len(columns))
        np.add.at(table, tuple(columns), weight_N)
        return table


def _last_probability(task: EnumeratedTask) -> FloatArray:
    """``P(x_L = a)``, (V,)."""
    last_N, weights_N = task.samples_NL[:, -1], task.sample_probabilities
    return np.asarray(np.bincount(last_N, weights=weights_N, minlength=task.vocab_size), np.float64)


def _divided(table: FloatArray, probability_A: FloatArray, *, axis: int) -> FloatArray:
    """Divide the mode of the anchor by its probability; tokens that never occur stay zero."""
    safe_A = np.where(probability_A > 0, probability_A, 1.0)
    shape = [1] * table.ndim
    shape[axis] = -1
    return np.asarray(table / safe_A.reshape(shape))
