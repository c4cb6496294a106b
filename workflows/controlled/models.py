"""Toy models, many at once: every parameter has a leading dimension over runs.

A step of one toy model costs as much in calls as in arithmetic; stacked, runs share the calls.
No biases, no norms, no dropout. Every matrix is N(0, d_in^-2 gamma); for the input embedding d_in
is its width.

    FFN        f(X) = W_U sigma(sum_s w_{x_s})
    attention  f(X) = W_U W_O sum_s a_s W_V e_s,  a = softmax_s(e_s . W_K^T W_Q e_L / sqrt(d)),
               e_s = w_{x_s} + p_s, read out at the last position, which sees all others

Source: arXiv:2608.30315, sections 3 and 5. Shapes: R runs, B samples, L positions, V vocabulary,
H hidden size, K channels of keys and values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from probes.vocabulary import IntArray, RowArray, hash_rows, take_rows
from workflows.controlled.tasks import ControlledTask

Parameters = dict[str, Tensor]
"""Name to (R, ..)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One toy model.

    Raises
    ------
    ValueError
        Fixed embeddings that are asked of the attention model.
    """

    kind: Literal["ffn", "attention"] = "ffn"
    hidden_size: int = 128
    kv_channels: int = 64
    """Of the attention model."""
    coefficients: tuple[float, ...] = ()
    """C_1..C_K of sigma(z) = sum_k C_k z^k; none: ReLU."""
    embedding: Literal["trainable", "fixed_random", "fixed_signature"] = "trainable"
    """Fixed: w_a = lambda times a fixed row, and only the number lambda is trained."""
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.kind == "attention" and self.embedding != "trainable":
            raise ValueError(f"embedding {self.embedding!r}: only the FFN has fixed embeddings")


def monomial(degree: int) -> tuple[float, ...]:
    """Coefficients of sigma(z) = z^degree."""
    return (0.0,) * (degree - 1) + (1.0,)


def initial_parameters(
    model: ModelConfig, task: ControlledTask, generator: torch.Generator
) -> Parameters:
    """Draw the parameters of one run, in float32, each of them (1, ..)."""
    V, H = task.enumerated.vocab_size, model.hidden_size

    def draw(rows: int, d_in: int) -> Tensor:
        normal = torch.randn(1, rows, d_in, generator=generator)
        return normal * float(d_in**-model.gamma)

    drawn = {"embedding": draw(V, H), "unembedding": draw(V, H)}
    if model.kind == "attention":
        K, L = model.kv_channels, task.enumerated.length
        drawn |= {"position": draw(L, H), "query": draw(K, H), "key": draw(K, H),
                  "value": draw(K, H), "output": draw(H, K)}  # fmt: skip
    if model.embedding != "trainable":
        # Unit rows times lambda: Adam moves a number by about lr a step whatever its size, so that
        # lambda starts small, as a trained embedding does, and both kinds start alike.
        if model.embedding == "fixed_signature":
            drawn["embedding"] = _signature_rows(task, H, generator)
        scale = float(drawn["embedding"].square().mean().sqrt())
        drawn["embedding"] /= max(scale, torch.finfo(torch.float32).tiny)
        drawn["scale"] = torch.full((1, 1, 1), H**-model.gamma)
    return drawn


def trainable_names(parameters: Parameters) -> list[str]:
    """Names of what an optimiser changes; with a ``scale`` the embedding is fixed."""
    fixed = {"embedding"} if "scale" in parameters else set()
    return [name for name in parameters if name not in fixed]


def model_inputs(model: ModelConfig, task: ControlledTask, dtype: torch.dtype) -> Tensor:
    """Return what the model reads of every sample.

    The FFN adds its embeddings, so how often each token occurs is all it sees: (N, V). The
    attention model reads token ids, (N, L).
    """
    samples_NL = torch.from_numpy(task.enumerated.samples_NL)
    if model.kind == "attention":
        return samples_NL
    counts_NV = torch.zeros(len(samples_NL), task.enumerated.vocab_size, dtype=dtype)
    return counts_NV.scatter_add_(1, samples_NL, torch.ones(samples_NL.shape, dtype=dtype))


def logits(model: ModelConfig, parameters: Parameters, inputs: Tensor) -> Tensor:
    """Return f(X), (R, B, V), for the inputs (R, B, ..) of each run."""
    if model.kind == "ffn":
        sums_RBH = torch.bmm(inputs, parameters["embedding"])
        if "scale" in parameters:
            sums_RBH = sums_RBH * parameters["scale"]
        hidden_RBH = activation(model.coefficients, sums_RBH)
    else:
        hidden_RBH = _attended(parameters, inputs)
    return torch.bmm(hidden_RBH, parameters["unembedding"].transpose(1, 2))


def activation(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    """Return sigma(z), coordinate by coordinate: ReLU, or the polynomial (by Horner's rule)."""
    if not coefficients:
        return z.relu()
    value = torch.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * z + coefficient
    return value * z


def attention_weights(parameters: Parameters, tokens_RBL: Tensor) -> Tensor:
    """Weight a_s of each position as the last one reads them, (R, B, L)."""
    return _weights(parameters, _placed(parameters, tokens_RBL))


def _placed(parameters: Parameters, tokens_RBL: Tensor) -> Tensor:
    """``e_s = w_{x_s} + p_s``, (R, B, L, H)."""
    R, V, H = parameters["embedding"].shape
    offsets_R11 = (torch.arange(R) * V)[:, None, None]
    rows = parameters["embedding"].reshape(R * V, H)
    placed: Tensor = torch.nn.functional.embedding(tokens_RBL + offsets_R11, rows)
    return placed + parameters["position"][:, None]


def _weights(parameters: Parameters, placed_RBLH: Tensor) -> Tensor:
    queries_RBK = torch.bmm(placed_RBLH[:, :, -1], parameters["query"].transpose(1, 2))
    # W_K^T W_Q e_L first: one product for each sample instead of one for each position.
    asked_RBH = torch.bmm(queries_RBK, parameters["key"])
    scores_RBL = (placed_RBLH * asked_RBH[:, :, None]).sum(dim=3) / placed_RBLH.shape[3] ** 0.5
    weights_RBL: Tensor = scores_RBL.softmax(dim=2)
    return weights_RBL


def _attended(parameters: Parameters, tokens_RBL: Tensor) -> Tensor:
    placed_RBLH = _placed(parameters, tokens_RBL)
    weights_RBL = _weights(parameters, placed_RBLH)
    mixed_RBH = (placed_RBLH * weights_RBL[..., None]).sum(dim=2)
    values_RBK = torch.bmm(mixed_RBH, parameters["value"].transpose(1, 2))
    return torch.bmm(values_RBK, parameters["output"].transpose(1, 2))


def _signature_rows(task: ControlledTask, hidden_size: int, generator: torch.Generator) -> Tensor:
    """``R phi_1(a) v`` of every anchor, R and v standard normal, (1, V, H); other rows are zero."""
    phi_AYC = torch.from_numpy(task.order_one())
    v_C = torch.randn(phi_AYC.shape[2], generator=generator, dtype=torch.float64)
    R_HY = torch.randn(hidden_size, phi_AYC.shape[1], generator=generator, dtype=torch.float64)
    rows_VH = torch.zeros(task.enumerated.vocab_size, hidden_size, dtype=torch.float64)
    rows_VH[torch.from_numpy(task.anchors_A)] = (phi_AYC @ v_C) @ R_HY.T
    return rows_VH[None].float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToyCheckpoint:
    """A toy model at one epoch: satisfies ``probes.checkpoints.Checkpoint``."""

    name: str
    step: int
    parameters: Mapping[str, RowArray]
    config: Mapping[str, Any]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding; none is padding."""
        return len(self.parameters["embedding"])

    @property
    def tokenizer_hash(self) -> None:
        """There is no tokenizer."""
        return None

    @property
    def embedding_hash(self) -> str:
        """SHA-256 of the embedding."""
        return hash_rows(self.input_embedding())

    def input_embedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows w_a, (n, H); lambda times the fixed row where embeddings are fixed."""
        rows = np.asarray(self.parameters["embedding"], np.float32)
        if "scale" in self.parameters:
            rows = rows * np.float32(self.parameters["scale"].item())
        return take_rows(rows, tokens_n, self.name)

    def unembedding(self, tokens_n: IntArray | None = None) -> RowArray:
        """Rows u_v, (n, H)."""
        rows = np.asarray(self.parameters["unembedding"], np.float32)
        return take_rows(rows, tokens_n, self.name)

    def describe(self) -> dict[str, Any]:
        """Return the whole configuration of the run."""
        return {"kind": "controlled", "step": self.step, "config": dict(self.config)}

    def logits(self, model: ModelConfig, task: ControlledTask) -> RowArray:
        """Return f(X) of every sample, (N, V)."""
        tensors = self._tensors()
        inputs = model_inputs(model, task, next(iter(tensors.values())).dtype)
        with torch.inference_mode():
            return np.asarray(logits(model, tensors, inputs[None])[0].numpy())

    def attention(self, task: ControlledTask) -> RowArray:
        """Return the attention weights of every sample, (N, L)."""
        tokens = torch.from_numpy(task.enumerated.samples_NL)[None]
        with torch.inference_mode():
            return np.asarray(attention_weights(self._tensors(), tokens)[0].numpy())

    def _tensors(self) -> Parameters:
        return {name: torch.from_numpy(array)[None] for name, array in self.parameters.items()}
