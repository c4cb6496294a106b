"""The one place that imports Megatron-core, so that its import-time warnings stop here.

Without Transformer Engine and Apex it falls back to torch and says so in a dozen warnings;
its own deprecations and those of torch that it trips over are not the user's to mend.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_NOT_THE_USERS: tuple[tuple[str, type[Warning], str], ...] = (
    (r".*[Ff]alling back to", UserWarning, ""),
    ("", DeprecationWarning, r"megatron\."),
    ("", DeprecationWarning, r"torch\.jit\."),
    ("", DeprecationWarning, r"numpy\.core"),
    ("", FutureWarning, r"megatron\."),
    ("Please use DTensor", FutureWarning, ""),
    (r"`torch\.distributed\.\w+` is deprecated", FutureWarning, ""),
    (r"The \.grad attribute of a Tensor that is not a leaf", UserWarning, ""),
)
"""Message, category and module of warnings that nobody who trains can mend."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Megatron's deprecations, fall-back notices and log below errors from the terminal."""
    logger = logging.getLogger("megatron")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message, category, module in _NOT_THE_USERS:
                warnings.filterwarnings("ignore", message, category, module)
            yield
    finally:
        logger.setLevel(level)


with quiet():
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.datasets.blended_dataset import BlendedDataset
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
    from megatron.core.dist_checkpointing.strategies.torch import (
        MCoreSavePlanner,
        _replace_state_dict_keys_with_sharded_keys,
        mcore_to_pyt_state_dict,
    )
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.module import Float16Module, MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

sharded_state_dict_by_key = _replace_state_dict_keys_with_sharded_keys
HAS_TRANSFORMER_ENGINE = find_spec("transformer_engine") is not None


__all__ = [
    "HAS_TRANSFORMER_ENGINE",
    "AttnMaskType",
    "BlendedDataset",
    "BlendedMegatronDatasetBuilder",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "Float16Module",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTModel",
    "MCoreSavePlanner",
    "MegatronModule",
    "OptimizerConfig",
    "SaveShardedStrategy",
    "ShardedTensor",
    "ShardedTensorFactory",
    "TransformerConfig",
    "dist_checkpointing",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "get_transformer_layer_offset",
    "mcore_to_pyt_state_dict",
    "parallel_state",
    "quiet",
    "sharded_state_dict_by_key",
    "tensor_parallel",
]
