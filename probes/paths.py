"""What each part of the model makes of a token alone: the rows that are compared.

The direct path is the embedding itself; the FFN path goes through a layer's norm and FFN; the
attention path through its value and output maps (arXiv:2608.30315, section 6).

Shapes: n tokens, H hidden size.
"""

import torch

from probes.checkpoints import LayerMaps
from probes.vocabulary import RowArray


def ffn_rows(layer: LayerMaps, rows_nH: RowArray) -> RowArray:
    """``MLP_l(norm_l(w_a))`` for each embedding row, (n, H); biases take part."""
    with torch.inference_mode():
        mapped: RowArray = layer.ffn(torch.from_numpy(rows_nH)).numpy()
    return mapped


def attention_rows(
    layer: LayerMaps, rows_nH: RowArray, *, gain: bool = False, bias: bool = False
) -> RowArray:
    """``W_O W_V w_a`` over all heads for each embedding row, (n, H).

    As in the paper neither the norm nor a bias takes part; ``gain`` multiplies w_a by the gain of
    the attention norm, ``bias`` adds the biases of both maps.
    """
    with torch.inference_mode():
        mapped: RowArray = layer.value_output(
            torch.from_numpy(rows_nH), gain=gain, bias=bias
        ).numpy()
    return mapped
