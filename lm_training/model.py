"""The decoder in Megatron-core's terms: configuration, layers, data-parallel wrapping."""

from dataclasses import dataclass

import torch

from lm_training import cpu
from lm_training.attention import CausalAttention
from lm_training.config import RunConfig
from lm_training.initialisation import initialise_
from lm_training.megatron_core import (
    HAS_TRANSFORMER_ENGINE,
    DistributedDataParallel,
    DistributedDataParallelConfig,
    Float16Module,
    GPTModel,
    TransformerConfig,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    parallel_state,
)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Own part of the model, as initialised and as wrapped for training."""

    inner: GPTModel
    wrapped: DistributedDataParallel


def build_decoder(run: RunConfig) -> Decoder:
    """Build, initialise and wrap this process's part of the model of ``run``."""
    config = transformer_config(run)
    with cpu.cuda_means_cpu():
        inner = build_model(config, run)
    initialise_(inner, gamma=run.model.gamma, seed=run.seed)
    inner.to(cpu.device())
    with cpu.cuda_means_cpu():
        wrapped = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                use_distributed_optimizer=run.parallel.distributed_optimizer,
                check_for_nan_in_grad=False,  # the loss and the gradient norm are checked each step
            ),
            Float16Module(config, inner) if run.train.bf16 else inner,
        )
    return Decoder(inner, wrapped)


def build_model(config: TransformerConfig, run: RunConfig) -> GPTModel:
    """Build this pipeline stage's layers, with Transformer Engine where it is installed."""
    return GPTModel(
        config,
        layer_spec(),
        vocab_size=run.model.vocab_size,
        max_sequence_length=run.data.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=run.model.tied,
        position_embedding_type="rope",
        parallel_output=True,
    )


def layer_spec():  # type: ignore[no-untyped-def]  # Megatron ships no types
    """Choose Transformer Engine layers on CUDA when installed, else Megatron's own with SDPA."""
    if uses_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec()
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return spec


def uses_transformer_engine() -> bool:
    """Whether the layers come from Transformer Engine."""
    return HAS_TRANSFORMER_ENGINE and cpu.has_cuda()


def transformer_config(run: RunConfig) -> TransformerConfig:
    """Say ``run`` in Megatron's words; kernels that need CUDA are off without it."""
    model, dtype = run.model, torch.bfloat16 if run.train.bf16 else torch.float32
    fused = uses_transformer_engine()
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        kv_channels=model.kv_channels,
        ffn_hidden_size=model.ffn_hidden_size,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        # initialise_ fills the matrices, whatever the layout; Megatron only marks how it cut them.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        tensor_model_parallel_size=run.parallel.tensor,
        pipeline_model_parallel_size=run.parallel.pipeline,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=run.train.bf16,
        bias_activation_fusion=fused,
        apply_rope_fusion=fused,
        persist_layer_norm=fused,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        cuda_graph_scope=[],  # the default is deprecated and warns
    )


def _leave(matrix: torch.Tensor) -> torch.Tensor:
    return matrix
