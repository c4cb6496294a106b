"""Recipes of sources and weights, drawn as Megatron draws them."""

import warnings

import numpy as np
import pytest

from corpus.blend import Blend, BlendSource, load_blend, open_blend
from corpus.config import ConfigError
from corpus.store import CorpusFormatError
from tests.strategies import write_corpus

RECIPE = """
[[source]]
corpus = "web"
weight = 13.5
[[source]]
corpus = "encyclopedia"
weight = 9
[[source]]
corpus = "code"
weight = 4.5
[[source]]
corpus = "mathematics"
weight = 9
"""


def test_a_recipe_is_relative_to_its_folder(tmp_path):
    path = tmp_path / "blend.toml"
    path.write_text(RECIPE)
    blend = load_blend(path)
    assert blend.corpora[0] == tmp_path / "web"
    assert blend.weights == (13.5, 9, 4.5, 9)
    assert blend.shares == (0.375, 0.25, 0.125, 0.25)
    for name in ("web", "encyclopedia", "code", "mathematics"):
        write_corpus(tmp_path, [[1, 2]], name=name)
    assert [corpus.num_tokens for corpus in open_blend(blend)] == [2, 2, 2, 2]


def test_megatron_draws_it_in_these_shares(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers_cpp
        from megatron.core.datasets.utils import get_blend_from_list, normalize
    path = tmp_path / "blend.toml"
    path.write_text(RECIPE)
    prefixes, weights = load_blend(path).megatron()
    listed = [str(item) for pair in zip(weights, prefixes, strict=True) for item in pair]
    assert get_blend_from_list(listed) == (prefixes, weights)
    size = 1600
    drawn, sample = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers_cpp.build_blending_indices(drawn, sample, normalize(weights), 4, size, False)
    assert np.bincount(drawn).tolist() == [600, 400, 200, 400]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "source"),
        ("source = []", r"no \[\[source\]\]"),
        ('[[source]]\ncorpus = "a"\nweight = 0', "weight 0.*positive"),
        ('[[source]]\ncorpus = "a"\nweight = inf', "weight inf"),
        ('[[source]]\ncorpus = "a"\nweight = 1\nshare = 2', "unknown key.*share"),
        ('[[source]]\ncorpus = "a"', "weight"),
        ('[[source]]\ncorpus = "a"\nweight = 1\n' * 2, "twice"),
        ("[[source", "not valid TOML"),
    ],
)
def test_refusals_name_the_recipe(tmp_path, text, message):
    path = tmp_path / "blend.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"blend.toml.*{message}"):
        load_blend(path)


def test_sources_of_two_tokenizers_are_refused(tmp_path):
    one = write_corpus(tmp_path, [[1]], sidecar={"vocab_size": 9, "tokenizer_hash": "ab"})
    two = write_corpus(tmp_path, [[1]], sidecar={"vocab_size": 9, "tokenizer_hash": "cd"})
    blend = Blend(source=tuple(BlendSource(corpus=path, weight=1) for path in (one, two)))
    with pytest.raises(CorpusFormatError, match="tokenizer cd, but ab"):
        open_blend(blend)
