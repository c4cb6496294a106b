"""The tokens a run is fed: shifted by one, in an order the seed fixes, each pair once."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from lm_processes import small_run, write_corpus

from corpus.blend import BlendSource
from lm_training.config import CheckpointConfig, DataConfig, ParallelConfig
from lm_training.data import Batches, build_dataset, open_source, order_hash
from lm_training.distributed import process_groups
from lm_training.megatron_core import quiet
from lm_training.order import sample_orders, write_order


@pytest.fixture(autouse=True)
def _one_process():
    with quiet(), process_groups(ParallelConfig(), seed=0):
        yield


def run_on(corpus, folder, *, seq_length, steps, batch, **changes):
    run = small_run(corpus, folder / "run", **changes)
    return replace(
        run,
        data=replace(run.data, seq_length=seq_length),
        train=replace(run.train, steps=steps, global_batch_size=batch, micro_batch_size=None),
        checkpoint=CheckpointConfig(),
    )


def batches(run, cache, steps):
    """Inputs and labels of ``steps`` (from 1), each (samples, seq_length)."""
    dataset = build_dataset(run, open_source(run).weights, cache)
    of_run = Batches(dataset, run)
    pairs = [pair for step in steps for pair in of_run.of_step(step)]
    return tuple(np.concatenate([pair[side].numpy() for pair in pairs]) for side in (0, 1))


def pairs_of(inputs, labels):
    return Counter(zip(inputs.ravel().tolist(), labels.ravel().tolist(), strict=True))


def pairs_of_order(order, documents, seq_length):
    """What ``count --scope packed --order`` counts, slowly."""
    stream = np.concatenate([np.array(documents[number], int) for number in order.sequences])
    counted = Counter()
    for sample in order.samples:
        start = sample * seq_length
        counted.update(pairwise(stream[start : start + seq_length + 1].tolist()))
    return counted


def test_every_pair_of_17_tokens_is_trained_once(tmp_path):
    documents = [list(range(5)), list(range(5, 6)), [], list(range(6, 17))]
    corpus = write_corpus(tmp_path / "corpus", documents)
    run = run_on(corpus, tmp_path, seq_length=4, steps=2, batch=2)
    inputs, labels = batches(run, tmp_path / "cache", [1, 2])
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    (order,) = sample_orders(run, 0, 2)
    stream = [token for number in order.sequences for token in documents[number]]
    assert sorted(stream) == list(range(17))
    assert pairs_of(inputs, labels) == Counter(pairwise(stream))


def test_samples_straddle_the_border_of_epochs(tmp_path):
    """17 tokens, 8 samples of 4 wanted: 34 tokens in the stream, the last of one before the
    first of the next."""
    corpus = write_corpus(tmp_path / "corpus", [list(range(17))])
    run = run_on(corpus, tmp_path, seq_length=4, steps=4, batch=2)
    inputs, labels = batches(run, tmp_path / "cache", range(1, 5))
    assert pairs_of(inputs, labels)[16, 0] == 1
    (order,) = sample_orders(run, 0, 4)
    assert pairs_of(inputs, labels) == pairs_of_order(order, [list(range(17))], 4)


@pytest.mark.parametrize("steps", [(0, 3), (2, 5), (0, 10)])
def test_order_is_what_the_run_is_fed(tmp_path, steps):
    generator = np.random.default_rng(1)
    documents = [generator.integers(0, 50, size=size).tolist() for size in (30, 0, 7, 101, 1)]
    corpus = write_corpus(tmp_path / "corpus", documents)
    run = run_on(corpus, tmp_path, seq_length=8, steps=10, batch=4)
    fed = pairs_of(*batches(run, tmp_path / "cache", range(steps[0] + 1, steps[1] + 1)))
    (order,) = sample_orders(run, *steps)
    assert pairs_of_order(order, documents, 8) == fed
    assert fed.total() == (steps[1] - steps[0]) * 4 * 8


def test_a_blend_has_an_order_for_each_source(tmp_path):
    documents = [[list(range(0, 90))], [list(range(100, 180)), [99] * 20]]
    sources = tuple(
        BlendSource(corpus=write_corpus(tmp_path / name, docs), weight=weight)
        for name, docs, weight in zip("ab", documents, (0.75, 0.25), strict=True)
    )
    run = run_on(sources[0].corpus, tmp_path, seq_length=8, steps=5, batch=4)
    run = replace(run, data=DataConfig(blend=sources, seq_length=8))
    fed = pairs_of(*batches(run, tmp_path / "cache", range(1, 6)))
    orders = sample_orders(run, 0, 5)
    counted = sum(
        (pairs_of_order(order, docs, 8) for order, docs in zip(orders, documents, strict=True)),
        Counter(),
    )
    assert counted == fed
    assert [order.samples.size for order in orders] == [15, 5]
    written = write_order(run, tmp_path / "order", steps=(0, 5))
    assert [np.load(path)["samples"].size for path in written["files"]] == [15, 5]


def test_a_list_of_corpora_is_weighted_by_tokens(tmp_path):
    small = write_corpus(tmp_path / "small", [list(range(100))])
    large = write_corpus(tmp_path / "large", [list(range(100))] * 3)
    run = run_on(small, tmp_path, seq_length=8, steps=5, batch=4)
    run = replace(run, data=DataConfig(corpus=(small, large), seq_length=8))
    assert [order.samples.size for order in sample_orders(run, 0, 5)] == [5, 15]


def test_seed_fixes_the_order(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    run = run_on(corpus, tmp_path, seq_length=16, steps=5, batch=4)

    def hash_of(run, name):
        return order_hash(build_dataset(run, None, tmp_path / name), 20)

    assert hash_of(run, "a") == hash_of(run, "b")
    assert hash_of(run, "a") != hash_of(replace(run, seed=4), "a")


def test_order_file_has_the_names_that_counting_reads(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    run = run_on(corpus, tmp_path, seq_length=16, steps=5, batch=4)
    result = write_order(run, tmp_path / "order.npz", steps=(1, 3))
    stored = np.load(tmp_path / "order.npz")
    assert sorted(stored) == ["samples", "seq_length", "sequences"]
    assert {stored[name].dtype for name in stored} == {np.dtype(np.int64)}
    assert (stored["samples"].size, int(stored["seq_length"])) == (8, 16)
    assert result["tokens"] == 128
    with pytest.raises(FileExistsError, match="--overwrite"):
        write_order(run, tmp_path / "order.npz")
    with pytest.raises(ValueError, match="within 0:5"):
        write_order(run, tmp_path / "other.npz", steps=(3, 6))


def test_a_corpus_that_does_not_fit_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    run = run_on(corpus, tmp_path, seq_length=16, steps=5, batch=4)
    with pytest.raises(ValueError, match=r"vocabulary of 256, \[model\] vocab_size is 200"):
        open_source(replace(run, model=replace(run.model, vocab_size=200)))
    lonely = write_corpus(tmp_path / "lonely", [[3]])
    with pytest.raises(ValueError, match="at least 2"):
        open_source(replace(run, data=DataConfig(corpus=lonely, seq_length=16)))
    with pytest.raises(FileNotFoundError):
        open_source(replace(run, data=DataConfig(corpus=tmp_path / "none", seq_length=16)))


def test_an_id_beyond_the_embedding_is_refused(tmp_path):
    """A corpus without a sidecar does not say its vocabulary."""
    corpus = write_corpus(tmp_path / "corpus")
    (tmp_path / "corpus.json").unlink()
    run = run_on(corpus, tmp_path, seq_length=64, steps=2, batch=16)
    run = replace(run, model=replace(run.model, vocab_size=128))
    with pytest.raises(ValueError, match=r"step 1: token id \d+ in the corpus"):
        batches(run, tmp_path / "cache", [1])


def test_a_batch_that_cannot_be_dealt_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    run = run_on(corpus, tmp_path, seq_length=16, steps=2, batch=8)
    run = replace(run, train=replace(run.train, micro_batch_size=3))
    with pytest.raises(ValueError, match="no multiple of micro_batch_size = 3"):
        Batches(None, run)
