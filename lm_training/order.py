"""The ORDER file: which samples of the corpus a run takes, so that they can be counted.

Megatron's GPTDataset joins the sequences of a corpus in an order of its own, epoch after
epoch, cuts the stream into samples, and takes those in another order. ORDER records both.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lm_training import cpu
from lm_training.config import RunConfig
from lm_training.data import build_dataset, open_source
from lm_training.distributed import some_process_group
from lm_training.folder import ASIDE, ORDER
from lm_training.megatron_core import BlendedDataset, quiet

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """What a run takes of one corpus."""

    sequences: Int64s
    """Sequence numbers in the order the data set joins them, all epochs."""
    samples: Int64s
    """Numbers of the samples taken, in the order they are taken."""


def write_order(
    run: RunConfig,
    out: Path,
    *,
    steps: tuple[int, int] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the ORDER file of ``run``; for a blend a folder, one file a source, in order.

    Parameters
    ----------
    steps
        ``(first, last)``: what the run sees between the checkpoints of these steps, so
        ``(0, 128)`` is everything the checkpoint of step 128 has seen; None: the whole run.

    Returns
    -------
    dict
        order (path), files, seq_length, steps, samples (of all sources), tokens.

    Raises
    ------
    FileExistsError
        ``out`` exists and ``overwrite`` is not given.
    ValueError
        The steps are not within the run.
    """
    first, last = steps or (0, run.steps)
    if not 0 <= first < last <= run.steps:
        raise ValueError(f"steps {first}:{last}: a range within 0:{run.steps} is needed")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: exists; pass --overwrite to replace it, or another --out")
    orders = sample_orders(run, first, last)
    files = _file_names(run, out)
    aside = out.with_name(out.name + ASIDE)
    _remove(aside)
    for path, order in zip(files, orders, strict=True):
        target = aside / path.relative_to(out) if path != out else aside
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            np.savez(
                file,
                sequences=order.sequences,
                samples=order.samples,
                seq_length=np.int64(run.data.seq_length),
            )
    _remove(out)
    aside.rename(out)
    samples = sum(order.samples.size for order in orders)
    return {
        "order": str(out),
        "files": [str(path) for path in files],
        "seq_length": run.data.seq_length,
        "steps": [first, last],
        "samples": samples,
        "tokens": samples * run.data.seq_length,
    }


def sample_orders(run: RunConfig, first: int, last: int) -> list[SampleOrder]:
    """Return what updates ``first`` + 1 to ``last`` of ``run`` take of each corpus, in order."""
    batch = run.train.global_batch_size
    taken = slice(first * batch, last * batch)
    with quiet(), cpu.stand_ins(), some_process_group(seed=run.seed), _cache(run) as cache:
        dataset = build_dataset(run, open_source(run).weights, cache)
        if not isinstance(dataset, BlendedDataset):
            return [_of_corpus(dataset, dataset.shuffle_index[taken])]
        which = np.asarray(dataset.dataset_index[taken])
        within = np.asarray(dataset.dataset_sample_index[taken])
        return [
            _of_corpus(part, part.shuffle_index[within[which == number]])
            for number, part in enumerate(dataset.datasets)
        ]


def _of_corpus(dataset: Any, samples: Any) -> SampleOrder:
    return SampleOrder(np.array(dataset.document_index, np.int64), np.array(samples, np.int64))


@contextmanager
def _cache(run: RunConfig) -> Iterator[Path]:
    """Use the indices the run has built, if it has; else build them for this once."""
    if (run.out / ORDER).is_dir():
        yield run.out / ORDER
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _file_names(run: RunConfig, out: Path) -> list[Path]:
    """Return ``out`` itself, or for a blend a numbered file a source inside it."""
    prefixes = run.data.prefixes
    if len(prefixes) == 1 and not run.data.blend:
        return [out]
    return [out / f"{number}_{prefix.name}.npz" for number, prefix in enumerate(prefixes)]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
