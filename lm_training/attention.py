"""Core attention on torch's scaled_dot_product_attention: the same code on CPU and GPU.

Megatron's own wants a CUDA mask kernel and a CUDA random state. The local layer
specification takes this class in its place; Transformer Engine layers bring their own.

Shapes: S sequence, B batch, A heads of this process, G key-value groups, D kv_channels.
"""

import math
from typing import Any

import torch
from torch.nn import functional

from lm_training.megatron_core import AttnMaskType, MegatronModule, TransformerConfig


class CausalAttention(MegatronModule):
    """Causal softmax attention over queries, keys and values of one layer."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **unused: Any,
    ) -> None:
        super().__init__(config=config)
        assert config.context_parallel_size == 1
        assert config.attention_dropout == 0
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **unused: Any,
    ) -> torch.Tensor:
        """Attend from (S, B, A, D) queries to (S, B, G, D) keys and values; give (S, B, A*D)."""
        query_BASD, key_BGSD, value_BGSD = (
            tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)
        )
        mixed_BASD = functional.scaled_dot_product_attention(
            query_BASD,
            key_BGSD,
            value_BGSD,
            is_causal=True,
            scale=self.scale,
            enable_gqa=query_BASD.shape[1] != key_BGSD.shape[1],
        )
        mixed_SBAD = mixed_BASD.permute(2, 0, 1, 3)
        return mixed_SBAD.reshape(*mixed_SBAD.shape[:2], -1)
