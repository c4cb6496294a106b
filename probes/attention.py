"""The attention-path signature: which next tokens a token is attended to before.

``phi_attn(a)[v] = E[Abar_{s,I_s} 1{x_{s+1} = v} | x_{I_s} = a]`` (arXiv:2608.30315, eq. 22), Abar
the attention averaged over heads, I_s uniform in 1..s: each (s, j) with x_j = a adds
``Abar_{s,j} / s`` to label x_{s+1}, s counted from 1. The weight 1/s comes from I_s.

Shapes: B sequences, S positions, A heads, L layers, n anchors, C labels that occur.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corpus.store import Corpus
from probes.decoder import Decoder
from probes.similarity import FloatArray

IntArray = npt.NDArray[np.int64]

_BATCH_BYTES = 256_000_000
_NO_LABEL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Pieces of documents, each with the label of every position."""

    pieces: tuple[IntArray, ...]
    """Tokens of each piece and one more, the label of its last position."""
    labels: IntArray
    """Token ids that occur as a label, ascending, (C)."""

    @property
    def num_positions(self) -> int:
        """Positions that have a label."""
        return sum(piece.size - 1 for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSignature:
    """Attention-weighted label counts; the normaliser of eq. 22 cancels in the cosine."""

    weights: FloatArray
    """(L, n, C), or (L, A, n, C) when heads are kept apart."""
    labels: IntArray
    """Token id of each column."""


def take_sample(corpus: Corpus, *, num_tokens: int, seq_length: int) -> Sample:
    """Whole documents from the start of the corpus, up to ``num_tokens`` tokens.

    They are cut at document borders and after ``seq_length`` inputs; a piece keeps the token
    after it as its last label when that belongs to the same document. The first document is
    itself cut when it is longer than ``num_tokens``.

    Raises
    ------
    ValueError
        No document with two tokens among those.
    """
    pieces, start, taken = [], 0, 0
    for end in corpus.doc_ends_D.tolist():
        length = end - start
        if taken and taken + length > num_tokens:
            break
        document = corpus.tokens(start, min(end, start + num_tokens)).astype(np.int64)
        pieces += [
            document[cut : cut + seq_length + 1] for cut in range(0, len(document) - 1, seq_length)
        ]
        start, taken = end, taken + length
    if not pieces:
        raise ValueError("the corpus starts with no document of two tokens; take more tokens")
    labels = np.unique(np.concatenate([piece[1:] for piece in pieces]))
    return Sample(pieces=tuple(pieces), labels=labels)


def attention_signature(
    decoder: Decoder,
    sample: Sample,
    anchors_n: IntArray,
    *,
    per_head: bool = False,
    device: str | torch.device = "cpu",
) -> AttentionSignature:
    """Run the decoder over the sample and gather eq. 22 for each layer and anchor.

    Raises
    ------
    ValueError
        A token of the sample that the decoder has no row for.
    """
    spec = decoder.spec
    largest = max(int(piece.max()) for piece in sample.pieces)
    if largest >= spec.vocab_size:
        raise ValueError(
            f"the corpus holds token {largest}, the checkpoint has {spec.vocab_size} rows; "
            "take the corpus this model was trained on"
        )
    decoder = decoder.to(device)
    heads = (spec.num_attention_heads,) if per_head else ()
    shape = (spec.num_layers, *heads, len(sample.labels), len(anchors_n))
    gathered = torch.zeros(shape, dtype=torch.float64, device=device)
    anchors = torch.from_numpy(anchors_n).to(device)
    with torch.inference_mode():
        for tokens_BS, labels_BS in _batches(sample, spec.num_attention_heads):
            inputs, columns = tokens_BS.to(device), labels_BS.to(device)
            is_anchor = (inputs[:, :, None] == anchors).float()
            for layer, (_, weights_BASS) in enumerate(decoder.states(inputs)):
                attention = weights_BASS if per_head else weights_BASS.mean(1, keepdim=True)
                _gather(gathered[layer], attention, is_anchor, columns, per_head=per_head)
    weights = gathered.transpose(-1, -2).cpu().numpy()
    return AttentionSignature(weights=weights, labels=sample.labels)


def _gather(
    into: Tensor, attention: Tensor, is_anchor_BSn: Tensor, columns_BS: Tensor, *, per_head: bool
) -> None:
    """Add ``Abar_{s,j} / s`` for each labelled position s and anchor position j."""
    places = torch.arange(1, attention.shape[-1] + 1, device=attention.device)
    mass_BASn = attention / places[:, None] @ is_anchor_BSn[:, None]
    kept = columns_BS != _NO_LABEL
    for head in range(mass_BASn.shape[1]):
        target = into[head] if per_head else into
        target.index_add_(0, columns_BS[kept], mass_BASn[:, head][kept].double())


def _batches(sample: Sample, num_heads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield padded inputs and the column of each label, long pieces together.

    Padding stands at the end, where causal attention cannot see it, and has no label.
    """
    column_of = np.full(int(sample.labels[-1]) + 1, _NO_LABEL, np.int64)
    column_of[sample.labels] = np.arange(len(sample.labels))
    pieces = sorted(sample.pieces, key=len, reverse=True)
    while pieces:
        length = len(pieces[0]) - 1
        size = max(1, _BATCH_BYTES // (4 * num_heads * length * length))
        batch, pieces = pieces[:size], pieces[size:]
        yield _padded(batch, length, column_of)


def _padded(pieces: Sequence[IntArray], length: int, column_of: IntArray) -> tuple[Tensor, Tensor]:
    tokens = torch.zeros(len(pieces), length, dtype=torch.int64)
    columns = torch.full((len(pieces), length), _NO_LABEL, dtype=torch.int64)
    for row, piece in enumerate(pieces):
        tokens[row, : len(piece) - 1] = torch.from_numpy(piece[:-1])
        columns[row, : len(piece) - 1] = torch.from_numpy(column_of[piece[1:]])
    return tokens, columns
