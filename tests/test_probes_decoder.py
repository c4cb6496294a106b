"""Parity with transformers' own eager models, tiny and random, one for each family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes.checkpoints import open_series
from probes.decoder import Decoder, DecoderSpec
from probes.huggingface import HuggingFaceCheckpoint
from probes.torch_dist import CheckpointFormatError

transformers = pytest.importorskip("transformers")

SHAPE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = SHAPE | {"intermediate_size": 40, "num_key_value_heads": 2, "max_position_embeddings": 32}
GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}
FAMILIES: dict[str, Any] = {
    "llama": lambda t: t.LlamaConfig(**GATED),
    "llama, biases": lambda t: t.LlamaConfig(**GATED, attention_bias=True, mlp_bias=True),
    "llama, tied": lambda t: t.LlamaConfig(**GATED, tie_word_embeddings=True),
    "qwen2": lambda t: t.Qwen2Config(**GATED),
    "qwen3": lambda t: t.Qwen3Config(**GATED, head_dim=10),
    "neox, parallel": lambda t: t.GPTNeoXConfig(**SHAPE, intermediate_size=40),
    "neox, in turn": lambda t: t.GPTNeoXConfig(
        **SHAPE, intermediate_size=40, use_parallel_residual=False
    ),
    "gpt2": lambda t: t.GPT2Config(**GPT2),
    "gpt2, untied": lambda t: t.GPT2Config(**GPT2, tie_word_embeddings=False, n_inner=30),
}


@pytest.fixture(params=list(FAMILIES))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A model of that family with no parameter at zero or one, and its folder."""
    config = FAMILIES[request.param](transformers)
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.3 if parameter.dim() == 1 else 0.0, std=0.4)
    model.tie_weights()
    model.save_pretrained(tmp_path / "step64")
    return model, tmp_path / "step64"


def blocks(model: Any) -> Any:
    inner = model.base_model
    return inner.h if hasattr(inner, "h") else inner.layers


def test_states_and_attention_equal_transformers(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    tokens = torch.randint(0, 40, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = model(tokens, output_hidden_states=True, output_attentions=True)
        decoder = HuggingFaceCheckpoint(folder).decoder()
        states = list(decoder.states(tokens))
        logits = decoder(tokens)
    for layer, (stream, weights) in enumerate(states):
        torch.testing.assert_close(weights, theirs.attentions[layer], atol=1e-5, rtol=1e-5)
        if layer + 1 < len(states):  # transformers gives the last state after the final norm
            torch.testing.assert_close(
                stream, theirs.hidden_states[layer + 1], atol=1e-5, rtol=1e-5
            )
    normed = decoder.final_norm(states[-1][0])
    torch.testing.assert_close(normed, theirs.hidden_states[-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, theirs.logits, atol=1e-5, rtol=1e-5)


def test_paths_equal_transformers(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    checkpoint = HuggingFaceCheckpoint(folder)
    tokens = np.array([3, 0, 39])
    rows = torch.from_numpy(checkpoint.input_embedding(tokens))
    torch.testing.assert_close(rows, model.get_input_embeddings().weight.detach()[tokens])
    outputs = torch.from_numpy(checkpoint.unembedding(tokens))
    torch.testing.assert_close(outputs, model.get_output_embeddings().weight.detach()[tokens])
    for index, block in enumerate(blocks(model)):
        layer = checkpoint.layer(index)
        norm = getattr(block, "post_attention_layernorm", None) or block.ln_2
        with torch.no_grad():
            torch.testing.assert_close(layer.ffn(rows), block.mlp(norm(rows)), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                layer.value_output(rows, bias=True), attended_alone(block, rows),
                atol=1e-5, rtol=1e-5,
            )  # fmt: skip


def attended_alone(block: Any, rows: torch.Tensor) -> torch.Tensor:
    """Attention of a sequence of one token attends to that token alone: W_O (W_V w + b) + b."""
    names = ("self_attn", "attention", "attn")
    attention = next(getattr(block, name) for name in names if hasattr(block, name))
    single = rows[:, None]
    if type(attention).__name__ == "GPT2Attention":
        return attention(single)[0][:, 0]
    heads = attention.head_size if hasattr(attention, "head_size") else attention.head_dim
    turn = torch.ones(1, 1, heads), torch.zeros(1, 1, heads)
    if type(attention).__name__ == "GPTNeoXAttention":
        turn = turn[0][..., : heads // 4], turn[1][..., : heads // 4]
    return attention(single, position_embeddings=turn, attention_mask=None)[0][:, 0]


def test_gain_and_bias_are_options() -> None:
    spec = DecoderSpec(vocab_size=9, hidden_size=8, num_layers=1, num_attention_heads=4,
                       num_query_groups=2, kv_channels=3, ffn_hidden_size=5,
                       qkv_bias=True, output_bias=True)  # fmt: skip
    torch.manual_seed(0)
    layer = Decoder(spec).layers[0].requires_grad_(False)
    layer.attention_norm.weight.normal_()
    rows = torch.randn(6, 8)
    bare = layer.value_output(rows)
    torch.testing.assert_close(layer.value_output(2 * rows), 2 * bare)
    gained = layer.value_output(rows, gain=True)
    torch.testing.assert_close(gained, layer.value_output(rows * layer.attention_norm.weight))
    assert not torch.allclose(layer.value_output(rows, bias=True), bare)


def test_a_series_of_revisions(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    next(model.parameters()).data.add_(0.1)
    model.save_pretrained(folder.parent / "step128")
    series = open_series([folder.parent])
    assert [checkpoint.step for checkpoint in series] == [64, 128]
    assert series[0].vocab_size == 40
    (folder.parent / "step256").mkdir()
    for file in folder.iterdir():
        (folder.parent / "step256" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointFormatError, match=r"step256: the same embedding as .*step64"):
        open_series([folder.parent])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' found"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'"),
        ({"use_sliding_window": True}, "use_sliding_window = True found"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    import json

    config = transformers.LlamaConfig(**GATED).to_dict() | change
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    with pytest.raises(CheckpointFormatError, match=message):
        open_series([tmp_path])


def test_a_damaged_file_is_named(saved: tuple[Any, Path]) -> None:
    _, folder = saved
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointFormatError, match=r"model\.safetensors: not readable"):
        open_series([folder])
