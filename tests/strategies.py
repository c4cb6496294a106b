"""hypothesis strategies shared by the suite: documents of token ids, and corpora on disk."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from corpus.store import CorpusWriter

Documents = list[list[int]]
_numbers = itertools.count()


def documents(
    *,
    vocab_size: int = 50,
    max_documents: int = 12,
    max_length: int = 30,
    min_documents: int = 0,
) -> st.SearchStrategy[Documents]:
    """Lists of documents, empty ones among them."""
    ids = st.integers(0, vocab_size - 1)
    document = st.lists(ids, max_size=max_length)
    return st.lists(document, min_size=min_documents, max_size=max_documents)


def flatten(documents: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """All tokens, end to end (N)."""
    return np.array([token for document in documents for token in document], np.int64)


def ends(documents: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Exclusive end of each document (D)."""
    return np.cumsum([len(document) for document in documents], dtype=np.int64)


def write_corpus(
    folder: Path,
    documents: Sequence[Sequence[int]],
    dtype: npt.DTypeLike = np.uint16,
    *,
    name: str | None = None,
    vocab_size: int | None = None,
    sidecar: dict[str, Any] | None = None,
) -> Path:
    """Write ``documents`` as a Megatron pair in ``folder``; return its prefix, new each time."""
    prefix = folder / (name or f"corpus{next(_numbers)}")
    with CorpusWriter(prefix, dtype, vocab_size, sidecar, overwrite=True) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.int64))
    return prefix


@st.composite
def corpora(draw: st.DrawFn, folder: Path, **options: Any) -> tuple[Path, Documents]:
    """A Megatron corpus on disk, and the documents in it."""
    drawn = draw(documents(**options))
    dtype = draw(st.sampled_from([np.uint16, np.int32]))
    return write_corpus(folder, drawn, dtype), drawn
