"""Identity of a corpus: a hash of its tokens and borders, not of its names or its format."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from corpus.parts import CorpusFile
from corpus.progress import Advance

_BLOCK = 1 << 22


def file_fingerprint(file: CorpusFile, advance: Advance) -> dict[str, Any]:
    """Name, tokens, documents and sha256 of one file, in blocks.

    The sha256 is over the tokens as little-endian uint32 (low 32 bits of the id), then the
    exclusive document ends as little-endian int64, then the numbers of tokens and documents as
    int64. It is the same for a copy, under another name, and for the same documents and ids in
    any format.
    """
    digest = hashlib.sha256()
    for start in range(0, file.num_tokens, _BLOCK):
        tokens = file.read(start, min(start + _BLOCK, file.num_tokens))
        digest.update(np.ascontiguousarray(tokens.astype("<u4", copy=False)).data)
        advance(tokens.size)
    digest.update(np.ascontiguousarray(file.doc_ends_D, "<i8").tobytes())
    digest.update(np.array([file.num_tokens, file.doc_ends_D.size], "<i8").tobytes())
    return {
        "name": file.path.name,
        "tokens": file.num_tokens,
        "documents": int(file.doc_ends_D.size),
        "sha256": digest.hexdigest(),
    }


def combined_fingerprint(fingerprints: Sequence[dict[str, Any]]) -> str:
    """SHA-256 over the files' hashes in order."""
    return hashlib.sha256("".join(one["sha256"] for one in fingerprints).encode()).hexdigest()
