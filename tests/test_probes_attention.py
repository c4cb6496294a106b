from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.store import CorpusWriter, open_corpus
from probes.attention import Sample, attention_signature, take_sample
from probes.decoder import Decoder, DecoderSpec

VOCAB = 13


def decoder(seed: int = 0) -> Decoder:
    spec = DecoderSpec(vocab_size=VOCAB, hidden_size=16, num_layers=2, num_attention_heads=4,
                       num_query_groups=2, kv_channels=6, ffn_hidden_size=20,
                       rotary_channels=6)  # fmt: skip
    torch.manual_seed(seed)
    return Decoder(spec).requires_grad_(False).eval()


def sample_of(pieces: list[list[int]]) -> Sample:
    arrays = tuple(np.array(piece, np.int64) for piece in pieces)
    return Sample(pieces=arrays, labels=np.unique(np.concatenate([a[1:] for a in arrays])))


def by_the_formula(model: Decoder, sample: Sample, anchor: int, layer: int) -> dict[int, float]:
    """Equation 22, one position and one attended position at a time."""
    found: dict[int, float] = {}
    for piece in sample.pieces:
        inputs, labels = piece[:-1], piece[1:]
        weights = list(model.states(torch.from_numpy(inputs)[None]))[layer][1][0]
        mean = weights.mean(0)
        for s in range(1, len(inputs) + 1):
            for j in range(1, s + 1):
                if inputs[j - 1] == anchor:
                    label = int(labels[s - 1])
                    found[label] = found.get(label, 0.0) + float(mean[s - 1, j - 1]) / s
    return found


pieces = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=9), min_size=1,
                  max_size=6)  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(pieces)
def test_equals_a_loop_from_the_formula(given_pieces: list[list[int]]) -> None:
    model, sample = decoder(), sample_of(given_pieces)
    anchors = np.array([3, 0, 7])
    found = attention_signature(model, sample, anchors)
    for layer in range(2):
        for place, anchor in enumerate(anchors):
            expected = by_the_formula(model, sample, int(anchor), layer)
            row = dict(zip(found.labels.tolist(), found.weights[layer, place], strict=True))
            for label in found.labels.tolist():
                assert row[label] == pytest.approx(expected.get(label, 0.0), abs=1e-6)


def test_heads_average_to_the_whole() -> None:
    model, sample = decoder(), sample_of([[1, 2, 3, 1, 2, 4], [5, 1, 1]])
    anchors = np.array([1, 2])
    apart = attention_signature(model, sample, anchors, per_head=True).weights
    together = attention_signature(model, sample, anchors).weights
    assert apart.shape == (2, 4, 2, len(sample.labels))
    np.testing.assert_allclose(apart.mean(axis=1), together, atol=1e-7)


def test_all_anchors_together_share_out_one_over_s() -> None:
    """Attention sums to 1, so all tokens as anchors give each position the weight 1 / s."""
    model, sample = decoder(), sample_of([[1, 2, 3, 4], [5, 6]])
    found = attention_signature(model, sample, np.arange(VOCAB))
    np.testing.assert_allclose(found.weights.sum(axis=(1, 2)), 1 + 1 / 2 + 1 / 3 + 1, atol=1e-6)


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, anchors = decoder(), np.array([1, 2, 3])
    sample = sample_of([[1, 2, 3, 1, 2, 4], [5, 1, 1], [2, 3], [3, 3, 3, 1]])
    whole = attention_signature(model, sample, anchors).weights
    monkeypatch.setattr("probes.attention._BATCH_BYTES", 1)
    np.testing.assert_allclose(
        attention_signature(model, sample, anchors).weights, whole, atol=1e-6
    )


def test_a_sample_is_whole_documents_cut_at_borders(tmp_path: Path) -> None:
    documents = [[1, 2, 3, 4, 5, 6, 7], [], [8], [9, 10, 11], [1] * 20]
    with CorpusWriter(tmp_path / "c", np.dtype(np.uint16), vocab_size=VOCAB) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.uint16))
    sample = take_sample(open_corpus(tmp_path / "c"), num_tokens=12, seq_length=3)
    pieces = [piece.tolist() for piece in sample.pieces]
    assert pieces == [[1, 2, 3, 4], [4, 5, 6, 7], [9, 10, 11]]
    seen = [pair for piece in pieces for pair in pairwise(piece)]
    assert seen == [pair for document in documents[:4] for pair in pairwise(document)]
    assert sample.num_positions == 8
    first = take_sample(open_corpus(tmp_path / "c"), num_tokens=4, seq_length=9)
    assert [piece.tolist() for piece in first.pieces] == [[1, 2, 3, 4]]


def test_a_token_beyond_the_embedding_is_refused() -> None:
    with pytest.raises(ValueError, match="holds token 13, the checkpoint has 13 rows"):
        attention_signature(decoder(), sample_of([[1, VOCAB]]), np.array([1]))
