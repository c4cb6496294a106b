"""One plain PyTorch decoder that runs every family this project reads, and shows its attention.

Llama, Qwen2, Qwen3, GPT-NeoX, GPT-2 and Megatron-core models differ in the fields of
``DecoderSpec`` and in nothing else here. Clarity over speed: attention weights are formed in
full. It has no dropout and holds float32 unless converted.

Shapes: B sequences, S positions, H hidden size, A heads, K channels a head, n rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Everything that tells one decoder-only transformer from another.

    Raises
    ------
    ValueError
        Heads that do not divide into the groups, or an odd number of rotated channels.
    """

    vocab_size: int
    """Rows of the embedding, padding included."""
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_query_groups: int
    """Heads of keys and values, each shared by as many query heads."""
    kv_channels: int
    ffn_hidden_size: int
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    gated: bool = True
    """SwiGLU: down(activation(gate x) * up x)."""
    rotary_base: float = 10_000.0
    rotary_channels: int = 0
    """Channels of each head that RoPE turns, the first ones; 0 for none."""
    num_positions: int = 0
    """Rows of a learned position embedding; 0 for none."""
    parallel: bool = False
    """Attention and FFN both read the layer's input, and are added together."""
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"{self.num_attention_heads} heads do not divide into "
                f"{self.num_query_groups} groups"
            )
        if self.rotary_channels % 2 or self.rotary_channels > self.kv_channels:
            raise ValueError(
                f"{self.rotary_channels} rotated channels of {self.kv_channels}; an even number "
                "up to all of them is needed"
            )


class Norm(nn.Module):
    """RMSNorm or LayerNorm, in float32."""

    def __init__(self, spec: DecoderSpec, size: int) -> None:
        super().__init__()
        self.size, self.eps = size, spec.norm_eps
        self.centred = spec.normalization == "LayerNorm"
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if self.centred else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        if self.centred:
            return functional.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with grouped heads."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        heads, groups = (
            number * spec.kv_channels
            for number in (spec.num_attention_heads, spec.num_query_groups)
        )
        self.query = nn.Linear(spec.hidden_size, heads, bias=spec.qkv_bias)
        self.key = nn.Linear(spec.hidden_size, groups, bias=spec.qkv_bias)
        self.value = nn.Linear(spec.hidden_size, groups, bias=spec.qkv_bias)
        self.output = nn.Linear(heads, spec.hidden_size, bias=spec.output_bias)
        self.query_norm = Norm(spec, spec.kv_channels) if spec.qk_norm else nn.Identity()
        self.key_norm = Norm(spec, spec.kv_channels) if spec.qk_norm else nn.Identity()

    def forward(self, x_BSH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, S, H) and the attention weights (B, A, S, S), rows summing to 1."""
        query, key, value = (
            self._heads(layer(x_BSH)) for layer in (self.query, self.key, self.value)
        )
        query, key = (self._rotate(norm(x)) for norm, x in
                      ((self.query_norm, query), (self.key_norm, key)))  # fmt: skip
        key, value = self._share(key), self._share(value)
        scores = query @ key.transpose(-1, -2) * self.spec.kv_channels**-0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1, dtype=torch.float32)
        mixed = (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        return self.output(mixed), weights

    def value_output(self, rows_nH: Tensor, *, bias: bool = False) -> Tensor:
        """``W_O W_V w`` over all heads, (n, H); biases of both maps when asked for."""
        value = functional.linear(rows_nH, self.value.weight, self.value.bias if bias else None)
        heads = value.unflatten(-1, (self.spec.num_query_groups, 1, self.spec.kv_channels))
        repeats = self.spec.num_attention_heads // self.spec.num_query_groups
        shared = heads.expand(*heads.shape[:-2], repeats, heads.shape[-1]).flatten(-3)
        mapped: Tensor = functional.linear(
            shared, self.output.weight, self.output.bias if bias else None
        )
        return mapped

    def _heads(self, x_BSH: Tensor) -> Tensor:
        heads: Tensor = x_BSH.unflatten(-1, (-1, self.spec.kv_channels))
        return heads.transpose(1, 2)

    def _share(self, x: Tensor) -> Tensor:
        repeats = self.spec.num_attention_heads // self.spec.num_query_groups
        return x.repeat_interleave(repeats, dim=1)

    def _rotate(self, x_BASK: Tensor) -> Tensor:
        """RoPE: turn channel i with channel i + half of the rotated channels."""
        channels = self.spec.rotary_channels
        if not channels:
            return x_BASK
        turned, kept = x_BASK[..., :channels], x_BASK[..., channels:]
        places = torch.arange(0, channels, 2, device=x_BASK.device, dtype=torch.float32)
        frequency = self.spec.rotary_base ** -(places / channels)
        angle = torch.arange(x_BASK.shape[-2], device=x_BASK.device)[:, None] * frequency
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x_BASK.dtype) for f in (torch.cos, torch.sin))
        first, second = turned.chunk(2, -1)
        return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


class FeedForward(nn.Module):
    """Two linear maps around an activation, gated or not."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        wide, narrow, bias = spec.ffn_hidden_size, spec.hidden_size, spec.ffn_bias
        self.gate = nn.Linear(narrow, wide, bias=bias) if spec.gated else None
        self.up = nn.Linear(narrow, wide, bias=bias)
        self.down = nn.Linear(wide, narrow, bias=bias)
        self._activate = _ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., H) to (..., H)."""
        if self.gate is None:
            return self.down(self._activate(self.up(x)))  # type: ignore[no-any-return]
        return self.down(self._activate(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and FFN, each after a norm, each added to the stream."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.parallel = spec.parallel
        self.attention_norm = Norm(spec, spec.hidden_size)
        self.attention = Attention(spec)
        self.ffn_norm = Norm(spec, spec.hidden_size)
        self.feed_forward = FeedForward(spec)

    def forward(self, x_BSH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stream after this layer and its attention weights."""
        attended, weights = self.attention(self.attention_norm(x_BSH))
        if self.parallel:
            return x_BSH + attended + self.ffn(x_BSH), weights
        x_BSH = x_BSH + attended
        return x_BSH + self.ffn(x_BSH), weights

    def ffn(self, rows_nH: Tensor) -> Tensor:
        """``MLP(norm(w))``, (n, H): what the FFN adds for a row of the stream."""
        return self.feed_forward(self.ffn_norm(rows_nH))  # type: ignore[no-any-return]

    def value_output(self, rows_nH: Tensor, *, gain: bool = False, bias: bool = False) -> Tensor:
        """``W_O W_V w``, (n, H); ``gain`` first multiplies w by the gain of the attention norm."""
        if gain:
            rows_nH = rows_nH * self.attention_norm.weight
        return self.attention.value_output(rows_nH, bias=bias)


class Decoder(nn.Module):
    """Token ids to logits; ``states`` shows what happens between."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.positions = (
            nn.Embedding(spec.num_positions, spec.hidden_size) if spec.num_positions else None
        )
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.final_norm = Norm(spec, spec.hidden_size)
        self.unembedding = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied:
            self.unembedding.weight = self.embedding.weight

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return logits (B, S, V) of the token after each position."""
        x_BSH = self.embed(tokens_BS)
        for layer in self.layers:
            x_BSH, _ = layer(x_BSH)
        return self.unembedding(self.final_norm(x_BSH))  # type: ignore[no-any-return]

    def layer(self, index: int) -> Layer:
        """Return one layer, counted from 0."""
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def embed(self, tokens_BS: Tensor) -> Tensor:
        """Return the stream before the first layer, (B, S, H)."""
        x_BSH: Tensor = self.embedding(tokens_BS)
        if self.positions is not None:
            x_BSH = x_BSH + self.positions.weight[: tokens_BS.shape[1]]
        return x_BSH

    def states(self, tokens_BS: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each layer the stream after it (B, S, H) and its attention (B, A, S, S)."""
        x_BSH = self.embed(tokens_BS)
        for layer in self.layers:
            x_BSH, weights = layer(x_BSH)
            yield x_BSH, weights


def layer_from(spec: DecoderSpec, weights: Mapping[str, Tensor]) -> Layer:
    """Make a layer of these weights, named as in ``Layer.state_dict()``; no gradients."""
    with torch.device("meta"):
        layer = Layer(spec)
    layer.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    return layer.requires_grad_(False).eval()


def decoder_from(spec: DecoderSpec, weights: Mapping[str, Tensor]) -> Decoder:
    """Make a decoder of these weights, named as in ``Decoder.state_dict()``; no gradients."""
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    if spec.tied:
        decoder.unembedding.weight = decoder.embedding.weight
    return decoder.requires_grad_(False).eval()
