"""A controlled task as a ``.bin/.idx`` corpus, which corpus-scale counts can be checked against.

For each sample and each position I one document [the other tokens, x_I, y + V], V the vocabulary
size of the task: labels have ids of their own, and a label follows x_I. Weights are repetitions.

Shapes: N samples, L positions, D documents.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from corpus.megatron import dtype_for
from corpus.writer import CorpusWriter
from signatures.exact import EnumeratedTask


def task_documents(task: EnumeratedTask) -> npt.NDArray[np.int64]:
    """Return the documents, (D, L + 1) with D = L times the sum of the weights."""
    length = task.samples_NL.shape[1]
    places = np.arange(length)
    parts = []
    for place in places:
        order = np.append(places[places != place], place)
        labels_N1 = (task.labels_N + task.vocab_size)[:, None]
        parts.append(np.hstack([task.samples_NL[:, order], labels_N1]))
    documents = np.concatenate(parts)
    return np.repeat(documents, np.tile(task.weights_N, length), axis=0)


def write_task_corpus(task: EnumeratedTask, prefix: Path) -> None:
    """Write ``prefix.bin`` and ``prefix.idx`` over a vocabulary of 2 V ids.

    Raises
    ------
    FileExistsError
        A corpus of this name stands there.
    """
    documents = task_documents(task)
    vocab_size = 2 * task.vocab_size
    with CorpusWriter(prefix, dtype_for(vocab_size), vocab_size) as writer:
        writer.add_documents(documents.ravel(), np.full(len(documents), documents.shape[1]))
