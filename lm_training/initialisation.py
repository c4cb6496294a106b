"""Initial weights: standard deviation d_in^-gamma, the same for every parallel layout.

Each matrix is drawn whole from a generator seeded by the run's seed and the matrix's global
name, then cut; so neither the number of processes nor the order of layers on them matters.
The input embedding's d_in is its width, as in the source (arXiv:2608.30315).
"""

import hashlib

import torch

from lm_training.megatron_core import (
    GPTModel,
    get_transformer_layer_offset,
    parallel_state,
)

_EMBEDDING = "embedding.word_embeddings.weight"
_OUTPUT = "output_layer.weight"


@torch.no_grad()
def initialise_(model: GPTModel, *, gamma: float, seed: int) -> None:
    """Overwrite every parameter of this process's part: norms with one, matrices with noise."""
    offset = get_transformer_layer_offset(model.config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        name = _global_name(name, offset)
        if model.share_embeddings_and_output_weights and name == _OUTPUT:
            name = _EMBEDDING  # the last pipeline stage's copy of a tied embedding
        parameter.copy_(_own_part(name, parameter, gamma=gamma, seed=seed))


def _global_name(name: str, layer_offset: int) -> str:
    """Count layers over all pipeline stages: decoder.layers.<n>.rest."""
    head, layers, rest = name.partition("layers.")
    if not layers:
        return name
    number, _, rest = rest.partition(".")
    return f"{head}{layers}{int(number) + layer_offset}.{rest}"


def _own_part(name: str, parameter: torch.nn.Parameter, *, gamma: float, seed: int) -> torch.Tensor:
    """Draw the whole matrix and take the rows or columns of this tensor-parallel rank."""
    ways = parallel_state.get_tensor_model_parallel_world_size()
    cut = ways > 1 and getattr(parameter, "tensor_model_parallel", False)
    shape, dim = list(parameter.shape), getattr(parameter, "partition_dim", 0)
    if cut:
        shape[dim] *= ways
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    whole = torch.randn(shape, generator=generator).mul_(shape[1] ** -gamma)
    if not cut:
        return whole
    # SwiGLU's first matrix is [gate; up], and each rank holds a part of both.
    pieces = 2 if name.endswith("linear_fc1.weight") else 1
    rank = parallel_state.get_tensor_model_parallel_rank()
    return torch.cat(whole.chunk(ways * pieces, dim=dim)[rank::ways], dim=dim)
