"""Four corpora as unlike as they come: text, code, independent Zipf tokens, one document repeated.

What a sample says of the whole differs most between them: distinct pairs grow almost with the
tokens in one and not at all in another. Made from a seed, except code, which is this machine's.
"""

import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.store import CorpusWriter

Documents = Iterator[npt.NDArray[np.int64]]
_SENTENCES = 400
_TOPICS, _TOPIC_STEP = 40, 50
_ZIPF_DOCUMENT, _REPEATED_DOCUMENT = 2_000, 100_000


def text_like(tokens: int) -> Documents:
    """Sentences of a grammar with a long-tailed lexicon, in documents on topics."""
    random = np.random.default_rng(0)
    for _ in range(-(-tokens // (4 * _SENTENCES))):
        topic = int(random.integers(_TOPICS)) * _TOPIC_STEP
        nouns = (random.zipf(1.3, _SENTENCES) * 17 + topic) % 8_000 + 100
        verbs = random.zipf(1.4, _SENTENCES) % 3_000 + 9_000
        links = random.zipf(1.6, _SENTENCES) % 90
        yield np.stack([links, nouns, verbs, links[::-1] + 10], 1).ravel()


def code(tokens: int) -> Documents:
    """Python files of this machine, a token a word or sign; fewer tokens when there are no more."""
    numbers: dict[str, int] = {}
    for file in _source_files():
        pieces = re.findall(r"\w+|[^\w]", file.read_text(encoding="utf-8", errors="replace"))
        yield np.array([numbers.setdefault(piece, len(numbers)) for piece in pieces], np.int64)
        tokens -= len(pieces)
        if tokens <= 0:
            return


def zipf(tokens: int) -> Documents:
    """Independent tokens of Zipf frequency."""
    random = np.random.default_rng(0)
    for _ in range(-(-tokens // _ZIPF_DOCUMENT)):
        yield random.zipf(1.2, _ZIPF_DOCUMENT) % 30_000


def repeated(tokens: int) -> Documents:
    """One document, over and over."""
    document = np.random.default_rng(0).integers(0, 20_000, _REPEATED_DOCUMENT)
    for _ in range(-(-tokens // _REPEATED_DOCUMENT)):
        yield document


CORPORA: dict[str, Callable[[int], Documents]] = {
    "text-like": text_like,
    "code": code,
    "independent Zipf": zipf,
    "one document repeated": repeated,
}


def write_unlike(folder: Path, name: str, tokens: int, dtype: Any = np.int32) -> Path:
    """Write about so many tokens of the corpus called ``name``; return its prefix."""
    prefix = folder / name.replace(" ", "_")
    with CorpusWriter(prefix, np.dtype(dtype), None) as writer:
        for document in CORPORA[name](tokens):
            writer.add_document(document)
    return prefix


def _source_files() -> Iterator[Path]:
    """Files of the standard library, then of installed packages, each sorted by path."""
    stdlib, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    yield from (path for path in sorted(stdlib.rglob("*.py")) if "site-packages" not in path.parts)
    yield from sorted(packages.rglob("*.py"))
