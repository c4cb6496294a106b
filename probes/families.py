"""How each Hugging Face family says what ``DecoderSpec`` says, and what it calls its weights.

Shapes: H hidden size, A heads, G query groups, K channels a head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probes.decoder import Activation, DecoderSpec
from probes.torch_dist import CheckpointFormatError

Config = Mapping[str, Any]
Read = Callable[[str], Tensor]
_ACTIVATION_NAMES: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_QKV = ("attention.query", "attention.key", "attention.value")
_FFN = ("feed_forward.gate", "feed_forward.up", "feed_forward.down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Names of one family's tensors, and how its layers are taken apart."""

    spec: Callable[[Config, str], DecoderSpec]
    """From ``config.json``; the second argument names the folder in a message."""
    layer: Callable[[Read, int, DecoderSpec], dict[str, Tensor]]
    """Weights of one layer under the names of ``decoder.Layer``."""
    embedding: str
    unembedding: str
    final_norm: str
    positions: str = ""


def _gated_spec(config: Config, folder: str) -> DecoderSpec:
    """Llama, Qwen2 and Qwen3."""
    _refuse(config, folder, {"use_sliding_window": False, "pretraining_tp": 1})
    heads, kind = int(config["num_attention_heads"]), config["model_type"]
    hidden = int(config["hidden_size"])
    channels = int(config.get("head_dim") or hidden // heads)
    attention_bias = bool(config.get("attention_bias", False))
    return DecoderSpec(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        num_layers=int(config["num_hidden_layers"]),
        num_attention_heads=heads,
        num_query_groups=int(config.get("num_key_value_heads") or heads),
        kv_channels=channels,
        ffn_hidden_size=int(config["intermediate_size"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        activation=_activation(config.get("hidden_act", "silu"), folder),
        rotary_base=_rotary_base(config, folder),
        rotary_channels=int(channels * _rotary_share(config)),
        qk_norm=kind == "qwen3",
        qkv_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias,
        ffn_bias=bool(config.get("mlp_bias", False)),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _gated_layer(read: Read, index: int, spec: DecoderSpec) -> dict[str, Tensor]:
    names = {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    if spec.qk_norm:
        names |= {
            "attention.query_norm": "self_attn.q_norm",
            "attention.key_norm": "self_attn.k_norm",
        }
    with_bias = [
        *_QKV * spec.qkv_bias,
        *("attention.output",) * spec.output_bias,
        *_FFN * spec.ffn_bias,
    ]
    prefix = f"model.layers.{index}."
    weights = {f"{ours}.weight": read(f"{prefix}{theirs}.weight") for ours, theirs in names.items()}
    return weights | {f"{ours}.bias": read(f"{prefix}{names[ours]}.bias") for ours in with_bias}


def _neox_spec(config: Config, folder: str) -> DecoderSpec:
    """GPT-NeoX, which Pythia is."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    channels = hidden // heads
    bias = bool(config.get("attention_bias", True))
    return DecoderSpec(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        num_layers=int(config["num_hidden_layers"]),
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=channels,
        ffn_hidden_size=int(config["intermediate_size"]),
        normalization="LayerNorm",
        norm_eps=float(config.get("layer_norm_eps", 1e-5)),
        activation=_activation(config.get("hidden_act", "gelu"), folder),
        gated=False,
        rotary_base=_rotary_base(config, folder),
        rotary_channels=int(channels * _rotary_share(config, default=0.25)),
        parallel=bool(config.get("use_parallel_residual", True)),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=True,
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _neox_layer(read: Read, index: int, spec: DecoderSpec) -> dict[str, Tensor]:
    """Split the fused matrix: for each head its query, key and value."""
    prefix = f"gpt_neox.layers.{index}."
    names = {
        "attention.output": "attention.dense",
        "feed_forward.up": "mlp.dense_h_to_4h",
        "feed_forward.down": "mlp.dense_4h_to_h",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    weights = {
        f"{ours}.{part}": read(f"{prefix}{theirs}.{part}")
        for ours, theirs in names.items()
        for part in ("weight", "bias")
        if part == "weight" or ours != "attention.output" or spec.output_bias
    }
    for part in ("weight", "bias") if spec.qkv_bias else ("weight",):
        fused = read(f"{prefix}attention.query_key_value.{part}")
        heads = fused.unflatten(0, (spec.num_attention_heads, 3, spec.kv_channels))
        for place, ours in enumerate(("query", "key", "value")):
            weights[f"attention.{ours}.{part}"] = heads[:, place].flatten(0, 1)
    return weights


def _gpt2_spec(config: Config, folder: str) -> DecoderSpec:
    """GPT-2: learned positions, LayerNorm, tied unless said otherwise."""
    _refuse(config, folder, {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
                             "add_cross_attention": False})  # fmt: skip
    heads, hidden = int(config["n_head"]), int(config["n_embd"])
    return DecoderSpec(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        num_layers=int(config["n_layer"]),
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=hidden // heads,
        ffn_hidden_size=int(config.get("n_inner") or 4 * hidden),
        normalization="LayerNorm",
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        activation=_activation(config.get("activation_function", "gelu_new"), folder),
        gated=False,
        num_positions=int(config["n_positions"]),
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def _gpt2_layer(read: Read, index: int, spec: DecoderSpec) -> dict[str, Tensor]:
    """Turn GPT-2's (input, output) matrices round and split the fused one in three."""
    prefix = f"transformer.h.{index}."
    weights = {}
    for ours, theirs in (
        ("attention.output", "attn.c_proj"),
        ("feed_forward.up", "mlp.c_fc"),
        ("feed_forward.down", "mlp.c_proj"),
    ):
        weights[f"{ours}.weight"] = read(f"{prefix}{theirs}.weight").T.contiguous()
        weights[f"{ours}.bias"] = read(f"{prefix}{theirs}.bias")
    for part in ("weight", "bias"):
        weights[f"attention_norm.{part}"] = read(f"{prefix}ln_1.{part}")
        weights[f"ffn_norm.{part}"] = read(f"{prefix}ln_2.{part}")
        pieces = read(f"{prefix}attn.c_attn.{part}").chunk(3, dim=-1)
        for ours, piece in zip(("query", "key", "value"), pieces, strict=True):
            weights[f"attention.{ours}.{part}"] = piece.T.contiguous() if piece.dim() > 1 else piece
    return weights


def _activation(name: str, folder: str) -> Activation:
    if name not in _ACTIVATION_NAMES:
        raise CheckpointFormatError(
            f"{folder}: activation {name!r} found, one of {sorted(_ACTIVATION_NAMES)} needed"
        )
    return _ACTIVATION_NAMES[name]


def _rotary(config: Config) -> Mapping[str, Any]:
    """RoPE settings, where older and newer files keep them."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rotary_base(config: Config, folder: str) -> float:
    settings = _rotary(config)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind != "default":
        raise CheckpointFormatError(
            f"{folder}: RoPE scaling {kind!r} found, only the default kind can be run"
        )
    older = config.get("rope_theta") or config.get("rotary_emb_base") or 10_000.0
    return float(settings.get("rope_theta") or older)


def _rotary_share(config: Config, default: float = 1.0) -> float:
    for value in (
        _rotary(config).get("partial_rotary_factor"),
        config.get("partial_rotary_factor"),
        config.get("rotary_pct"),
    ):
        if value is not None:
            return float(value)
    return default


def _refuse(config: Config, folder: str, needed: Mapping[str, Any]) -> None:
    for key, value in needed.items():
        if config.get(key, value) != value:
            raise CheckpointFormatError(
                f"{folder}: {key} = {config[key]!r} found, {value!r} needed; this model does "
                "something the probes cannot follow"
            )


_GATED = Family(
    spec=_gated_spec,
    layer=_gated_layer,
    embedding="model.embed_tokens.weight",
    unembedding="lm_head.weight",
    final_norm="model.norm",
)
FAMILIES: Mapping[str, Family] = {
    "llama": _GATED,
    "qwen2": _GATED,
    "qwen3": _GATED,
    "gpt_neox": Family(
        spec=_neox_spec,
        layer=_neox_layer,
        embedding="gpt_neox.embed_in.weight",
        unembedding="embed_out.weight",
        final_norm="gpt_neox.final_layer_norm",
    ),
    "gpt2": Family(
        spec=_gpt2_spec,
        layer=_gpt2_layer,
        embedding="transformer.wte.weight",
        unembedding="lm_head.weight",
        final_norm="transformer.ln_f",
        positions="transformer.wpe.weight",
    ),
}
"""By ``model_type``."""
