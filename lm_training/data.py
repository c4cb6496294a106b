"""Batches from the corpus files: Megatron's GPTDataset, in an order the seed fixes.

Shapes: B micro-batch size, S sequence length.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corpus.progress import SILENT, Progress
from corpus.store import Corpus, open_corpus
from lm_training import cpu
from lm_training.config import RunConfig
from lm_training.megatron_core import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    GPTDataset,
    GPTDatasetConfig,
    parallel_state,
)


class _NoTokenizer:
    """What GPTDataset asks of a tokenizer, for a corpus that is tokens already.

    No id stands for padding: GPTDataset would take such tokens out of the loss. No
    vocabulary size either: the index says the width of the ids.
    """

    vocab_size = None
    pad = -1
    eod = -2
    unique_identifiers: dict[str, str] = {}  # noqa: RUF012 - Megatron reads it as an attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is known of the tokens before the first batch."""

    vocab_size: int
    """Of the tokenizer when the corpus tells, else the rows of the embedding."""
    tokenizer_hash: str | None
    weights: list[float] | None
    """Share of each corpus in a blend; None for a single corpus."""


def open_source(run: RunConfig) -> Source:
    """Check the corpora of ``run`` and describe them.

    Raises
    ------
    ValueError
        A corpus is not a .bin/.idx pair, is too short for one sample, or has a larger vocabulary
        than the model.
    """
    corpora = [open_corpus(prefix) for prefix in run.data.prefixes]
    for corpus in corpora:
        _check_corpus(corpus, run)
    together = open_corpus(run.data.prefixes) if len(corpora) > 1 else corpora[0]
    weights: list[float] | None = None
    if run.data.blend:
        assert not isinstance(run.data.blend, Path)
        weights = [source.weight for source in run.data.blend]
    elif len(corpora) > 1:
        weights = [float(corpus.num_tokens) for corpus in corpora]
    return Source(
        vocab_size=together.vocab_size or run.model.vocab_size,
        tokenizer_hash=together.tokenizer_hash,
        weights=weights,
    )


def fingerprints(run: RunConfig, progress: Progress = SILENT) -> list[dict[str, Any]]:
    """Return name, tokens, documents and sha256 of each corpus; costs one pass over the tokens."""
    return open_corpus(run.data.prefixes).compute_fingerprints(progress)


def _check_corpus(corpus: Corpus, run: RunConfig) -> None:
    where = corpus.paths[0]
    if corpus.format != "megatron":
        raise ValueError(
            f"{where}: found a {corpus.format} corpus; training reads Megatron .bin/.idx pairs, "
            "which `staircase corpus build` writes"
        )
    if corpus.num_tokens < 2:
        raise ValueError(f"{where}: {corpus.num_tokens} token(s); a label needs at least 2")
    if (corpus.vocab_size or 0) > run.model.vocab_size:
        raise ValueError(
            f"{where}: vocabulary of {corpus.vocab_size}, [model] vocab_size is "
            f"{run.model.vocab_size}; give the model at least as many rows"
        )


def build_dataset(run: RunConfig, weights: list[float] | None, cache: Path) -> Any:
    """Build the data set of every sample of ``run``; indices are kept in ``cache``.

    ``weights`` (one a corpus) make a blend. All processes must call this together; the first
    one builds the indices and the others read them.
    """
    config = GPTDatasetConfig(
        random_seed=run.seed,
        sequence_length=run.data.seq_length,
        blend=([str(_without_suffix(prefix)) for prefix in run.data.prefixes], weights),
        split="100,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=_NoTokenizer(),
        path_to_cache=str(cache),
        mid_level_dataset_surplus=0.005,
    )
    sizes = [run.steps * run.train.global_batch_size, 0, 0]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


def _without_suffix(path: Path) -> Path:
    """Megatron wants the prefix even when either file of the pair was named."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def order_hash(dataset: Any, samples: int) -> str:
    """Return the SHA-256 of everything that decides which tokens the first ``samples`` hold."""
    digest = hashlib.sha256()
    blended = isinstance(dataset, BlendedDataset)
    if blended:
        for index in (dataset.dataset_index, dataset.dataset_sample_index):
            digest.update(np.asarray(index[:samples], np.int64).tobytes())
    for part in dataset.datasets if blended else [dataset]:
        taken = part.shuffle_index if blended else part.shuffle_index[:samples]
        for index in (part.document_index, taken):
            digest.update(np.asarray(index, np.int64).tobytes())
    return digest.hexdigest()


class Batches:
    """Micro-batches of each step for this process.

    Step n (from 1) takes samples ``(n - 1) * global_batch_size`` onwards; within it,
    micro-batches are dealt to the data-parallel processes in turn, so that the samples of a
    step do not depend on the number of processes.
    """

    def __init__(self, dataset: Any, run: RunConfig) -> None:
        self._dataset = dataset
        self._vocab_size = run.model.vocab_size
        self._global = run.train.global_batch_size
        self._ways = parallel_state.get_data_parallel_world_size()
        self._rank = parallel_state.get_data_parallel_rank()
        self.micro_batch_size = _micro_batch_size(run, self._ways)
        self.num_microbatches = self._global // (self.micro_batch_size * self._ways)

    def of_step(self, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield inputs and labels, each (B, S) on this process's device."""
        size = self.micro_batch_size
        first = (step - 1) * self._global + self._rank * size
        for start in range(first, step * self._global, size * self._ways):
            samples = [self._dataset[index] for index in range(start, start + size)]
            inputs_BS, labels_BS = (
                torch.stack([sample[name] for sample in samples]) for name in ("tokens", "labels")
            )
            self._check_ids(inputs_BS, labels_BS, step)
            yield inputs_BS.to(cpu.device()), labels_BS.to(cpu.device())

    def _check_ids(self, inputs_BS: torch.Tensor, labels_BS: torch.Tensor, step: int) -> None:
        largest = max(int(inputs_BS.max()), int(labels_BS.max()))
        if largest >= self._vocab_size:
            raise ValueError(
                f"step {step}: token id {largest} in the corpus, [model] vocab_size is "
                f"{self._vocab_size}; give the model at least {largest + 1} rows"
            )


def _micro_batch_size(run: RunConfig, ways: int) -> int:
    whole = run.train.global_batch_size
    size = run.train.micro_batch_size or max(1, whole // ways)
    if whole % (size * ways):
        raise ValueError(
            f"global_batch_size = {whole} is no multiple of micro_batch_size = {size} times "
            f"{ways} data-parallel process(es); change one of them"
        )
    return size
