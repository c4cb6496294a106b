"""Theorems 1, 2 and 3 of arXiv:2608.30315 against automatic differentiation, on random tasks.

Shapes: V vocabulary, H hidden size, D width of the head, L positions, N samples, K degree.
"""

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from signatures.exact import EnumeratedTask
from workflows.controlled.attention_flow import AttentionOnly, attention_label_driven
from workflows.controlled.ffn_flow import (
    PolynomialFFN,
    TaskSignatures,
    label_driven_orders,
    prediction_driven_orders,
    residual_orders,
)

FloatArray = npt.NDArray[np.float64]
Logits = Callable[[Tensor], Tensor]
"""Embedding (V, H) to logits (N, V)."""

LENGTHS, DEGREES = range(1, 5), range(1, 7)
_VOCAB_SIZE, _HIDDEN_SIZE, _HEAD_SIZE, _NUM_SAMPLES = 5, 6, 3, 12


def theorem_errors(seed: int) -> dict[str, float]:
    """Largest relative error of each theorem over random tasks, float64.

    Every L in 1..4 with every degree K in 1..6 for the FFN; every L for attention. The error is
    the largest difference over the largest entry of the gradient by automatic differentiation.

    Returns
    -------
    ``theorem_1_label``, ``theorem_2_prediction`` (p = 1 / V), ``whole_flow`` (the model's own p),
    ``theorem_3`` and ``theorem_3_positions``: largest errors, which should be rounding. For
    ``theorem_3_as_printed`` (W_QK not transposed in the query part) the SMALLEST error over the
    tasks with L > 1, which should be far from rounding.
    """
    generator = np.random.default_rng(seed)
    ffn = [
        ffn_errors(random_task(generator, length), random_ffn(generator, degree))
        for length, degree in product(LENGTHS, DEGREES)
    ]
    largest = {name: max(errors[name] for errors in ffn) for name in ffn[0]}
    plain, placed = (
        [
            attention_errors(
                random_task(generator, length),
                random_attention(generator, length, with_positions=with_positions),
            )
            for length in LENGTHS
        ]
        for with_positions in (False, True)
    )
    printed = [errors["theorem_3_as_printed"] for errors in (*plain[1:], *placed[1:])]
    return {
        **largest,
        "theorem_3": max(errors["theorem_3"] for errors in plain),
        "theorem_3_positions": max(errors["theorem_3"] for errors in placed),
        "theorem_3_as_printed": min(printed),
    }


def ffn_errors(task: EnumeratedTask, model: PolynomialFFN) -> dict[str, float]:
    """Relative errors of Theorems 1 and 2, and of the terms of the whole flow."""
    signatures = TaskSignatures.of(task, len(model.coefficients_K))
    label, prediction, whole = autograd_parts(task, model.embedding_VH, ffn_logits(task, model))
    return {
        "theorem_1_label": _error(label_driven_orders(signatures, model).sum(axis=0), label),
        "theorem_2_prediction": _error(
            prediction_driven_orders(signatures, model).sum(axis=0), prediction
        ),
        "whole_flow": _error(residual_orders(signatures, model).sum(axis=0), whole),
    }


def attention_errors(task: EnumeratedTask, model: AttentionOnly) -> dict[str, float]:
    """Relative errors of Theorem 3, right and as printed."""
    parts = attention_label_driven(task, model)
    label, _, _ = autograd_parts(task, model.embedding_VH, attention_logits(task, model))
    printed = parts.value + parts.key + parts.query_as_printed
    return {
        "theorem_3": _error(parts.total, label),
        "theorem_3_as_printed": _error(printed, label),
    }


def autograd_parts(
    task: EnumeratedTask, embedding_VH: FloatArray, logits: Logits
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Label-driven part, prediction-driven part at p = 1 / V and the whole flow, each (V, H).

    They are gradients of E[f_y], of E[mean f] and of minus the cross-entropy.
    """
    embedding = torch.tensor(embedding_VH, requires_grad=True)
    weights_N = torch.tensor(task.sample_probabilities)
    labels_N = torch.tensor(task.labels_N)
    outputs_NV = logits(embedding)
    of_label_N = outputs_NV.gather(1, labels_N[:, None])[:, 0]
    log_likelihood_N = of_label_N - outputs_NV.logsumexp(dim=1)
    first, second, third = (
        torch.autograd.grad((weights_N * values_N).sum(), embedding, retain_graph=True)[0].numpy()
        for values_N in (of_label_N, outputs_NV.mean(dim=1), log_likelihood_N)
    )
    return first, second, third


def ffn_logits(task: EnumeratedTask, model: PolynomialFFN) -> Logits:
    """Forward pass of the polynomial FFN in PyTorch."""
    samples_NL, unembedding = torch.tensor(task.samples_NL), torch.tensor(model.unembedding_VH)

    def logits(embedding: Tensor) -> Tensor:
        z_NH = embedding[samples_NL].sum(dim=1)
        powers = [c * z_NH**k for k, c in enumerate(model.coefficients_K, start=1)]
        return torch.stack(powers).sum(dim=0) @ unembedding.T

    return logits


def attention_logits(task: EnumeratedTask, model: AttentionOnly) -> Logits:
    """Forward pass of the attention-only model in PyTorch, read out at the last position."""
    weights: Mapping[str, Tensor] = {
        name: torch.tensor(getattr(model, name))
        for name in ("unembedding_VH", "query_DH", "key_DH", "value_DH", "output_HD")
    }
    samples_NL, positions_LH = torch.tensor(task.samples_NL), torch.tensor(model.positions_LH)

    def logits(embedding: Tensor) -> Tensor:
        x_NLH = embedding[samples_NL] + positions_LH
        queries_ND = x_NLH[:, -1] @ weights["query_DH"].T
        scores_NL = torch.einsum("nld,nd->nl", x_NLH @ weights["key_DH"].T, queries_ND)
        attention_NL = torch.softmax(scores_NL / x_NLH.shape[2] ** 0.5, dim=1)
        mixed_ND = torch.einsum("nl,nld->nd", attention_NL, x_NLH @ weights["value_DH"].T)
        return mixed_ND @ weights["output_HD"].T @ weights["unembedding_VH"].T

    return logits


def random_task(generator: np.random.Generator, length: int) -> EnumeratedTask:
    """Draw tokens, labels and weights; few tokens, so that they repeat within a sample."""
    return EnumeratedTask(
        samples_NL=generator.integers(_VOCAB_SIZE, size=(_NUM_SAMPLES, length)),
        labels_N=generator.integers(_VOCAB_SIZE, size=_NUM_SAMPLES),
        weights_N=generator.integers(1, 6, size=_NUM_SAMPLES),
        vocab_size=_VOCAB_SIZE,
    )


def random_ffn(generator: np.random.Generator, degree: int) -> PolynomialFFN:
    """Draw parameters of order one and C_1..C_K."""
    embedding_VH, unembedding_VH = generator.normal(size=(2, _VOCAB_SIZE, _HIDDEN_SIZE))
    return PolynomialFFN(
        embedding_VH=embedding_VH,
        unembedding_VH=unembedding_VH,
        coefficients_K=generator.normal(size=degree).tolist(),
    )


def random_attention(
    generator: np.random.Generator, length: int, *, with_positions: bool
) -> AttentionOnly:
    """Draw parameters of order one; queries and keys smaller, lest the softmax be saturated.

    Where one position has all of the attention the query part is next to nothing, and no
    comparison tells it from the printed one.
    """
    shapes = {
        "embedding_VH": (_VOCAB_SIZE, _HIDDEN_SIZE),
        "unembedding_VH": (_VOCAB_SIZE, _HIDDEN_SIZE),
        "query_DH": (_HEAD_SIZE, _HIDDEN_SIZE),
        "key_DH": (_HEAD_SIZE, _HIDDEN_SIZE),
        "value_DH": (_HEAD_SIZE, _HIDDEN_SIZE),
        "output_HD": (_HIDDEN_SIZE, _HEAD_SIZE),
        "positions_LH": (length, _HIDDEN_SIZE),
    }
    drawn = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    drawn["query_DH"] *= _HIDDEN_SIZE**-0.5
    drawn["key_DH"] *= _HIDDEN_SIZE**-0.5
    drawn["positions_LH"] *= with_positions
    return AttentionOnly(**drawn)


def _error(found: FloatArray, wanted: FloatArray) -> float:
    """Largest difference over the largest entry of ``wanted``."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
