"""Counting with ``--order`` counts exactly the pairs a run is fed, corpus by corpus."""

from collections import Counter
from dataclasses import replace

import numpy as np
from lm_processes import VOCAB_SIZE, small_run, write_corpus

from corpus.blend import BlendSource
from lm_training import cpu
from lm_training.config import DataConfig, ParallelConfig
from lm_training.data import Batches, build_dataset, open_source
from lm_training.distributed import process_groups
from lm_training.megatron_core import quiet
from lm_training.order import write_order
from signatures.store import open_signatures
from workflows.cli import run as staircase

DOCUMENTS = {
    "a": [list(range(90)), [], [7] * 30, [5]],
    "b": [list(range(100, 190)), [3, 1, 4, 1, 5]],
}


def pairs_fed(run, cache, steps):
    """(corpus, input, label) of every position: corpora share no sample."""
    fed = Counter()
    with quiet(), cpu.stand_ins(), process_groups(ParallelConfig(), seed=0):
        batches = Batches(build_dataset(run, open_source(run).weights, cache), run)
        for step in steps:
            for inputs_BS, labels_BS in batches.of_step(step):
                fed.update(zip(inputs_BS.ravel().tolist(), labels_BS.ravel().tolist(), strict=True))
    return fed


def pairs_counted(store):
    counts = open_signatures(store).counts.take(np.arange(VOCAB_SIZE)).tocoo()
    return Counter(
        {
            (int(token), int(label)): int(count)
            for token, label, count in zip(*counts.coords, counts.data, strict=True)
        }
    )


def count(corpus, order, store):
    scope = ["--scope", "packed", "--order", str(order)]
    command = ["count", "next-token", str(corpus), "--out", str(store), *scope]
    assert staircase([*command, "--vocab-size", str(VOCAB_SIZE), "--workers", "1"]) == 0


def test_one_corpus_over_several_epochs(tmp_path):
    corpus = write_corpus(tmp_path / "a", DOCUMENTS["a"])
    run = small_run(corpus, tmp_path / "run")
    run = replace(run, data=replace(run.data, seq_length=8))
    write_order(run, tmp_path / "order.npz", steps=(2, 9))
    count(corpus, tmp_path / "order.npz", tmp_path / "store.zarr")
    counted = pairs_counted(tmp_path / "store.zarr")
    assert counted == pairs_fed(run, tmp_path / "cache", range(3, 10))
    assert counted.total() == 7 * 8 * 8


def test_each_source_of_a_blend(tmp_path):
    sources = tuple(
        BlendSource(corpus=write_corpus(tmp_path / name, documents), weight=weight)
        for (name, documents), weight in zip(DOCUMENTS.items(), (2.0, 1.0), strict=True)
    )
    run = small_run(sources[0].corpus, tmp_path / "run")
    run = replace(run, data=DataConfig(blend=sources, seq_length=8))
    written = write_order(run, tmp_path / "order")
    counted = Counter()
    for source, order in zip(sources, written["files"], strict=True):
        store = tmp_path / f"{source.corpus.name}.zarr"
        count(source.corpus, order, store)
        counted += pairs_counted(store)
    assert counted == pairs_fed(run, tmp_path / "cache", range(1, 11))
    assert counted.total() == 10 * 8 * 8
    assert np.load(written["files"][0])["samples"].size in (53, 54)
