"""Numbers of parameters, from the shape alone."""

from dataclasses import dataclass

from lm_training.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Numbers of trained parameters."""

    total: int
    non_embedding: int


def count_parameters(model: ModelConfig) -> ParameterCounts:
    """Count the decoder of this shape; nothing is built."""
    attention = 4 * model.hidden_size * model.num_attention_heads * model.kv_channels
    swiglu = 3 * model.hidden_size * model.ffn_hidden_size
    layer = attention + swiglu + 2 * model.hidden_size  # two norms
    non_embedding = model.num_layers * layer + model.hidden_size  # the final norm
    matrices = 1 if model.tied else 2
    embeddings = matrices * model.vocab_size * model.hidden_size
    return ParameterCounts(total=non_embedding + embeddings, non_embedding=non_embedding)
