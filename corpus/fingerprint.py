"""Identity of a corpus: a hash of its tokens and borders, not of its names or its format."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from corpus.parts import CorpusFile

BLOCK = 1 << 22
"""Tokens that are hashed together; a file's hash is over its blocks' hashes."""


def num_blocks(file: CorpusFile) -> int:
    """How many blocks ``block_digest`` knows."""
    return -(-file.num_tokens // BLOCK)


def block_digest(file: CorpusFile, block: int) -> bytes:
    """SHA-256 of a block: the width in bytes, then the ids as little-endian integers of it.

    The width is 2 when every id of the block fits, else 4 (low 32 bits of the id), whatever the
    file uses. Blocks are independent of each other, so that many processes may share the work.
    """
    tokens = file.read(block * BLOCK, min((block + 1) * BLOCK, file.num_tokens))
    is_narrow = tokens.dtype.itemsize <= 2 or (int(tokens.max()) < 2**16 and int(tokens.min()) >= 0)
    width = 2 if is_narrow else 4
    digest = hashlib.sha256(bytes([width]))
    digest.update(np.ascontiguousarray(tokens.astype(f"<u{width}", copy=False)).data)
    return digest.digest()


def file_fingerprint(file: CorpusFile, digests: Iterable[bytes]) -> dict[str, Any]:
    """Name, tokens, documents and sha256 of one file, from the digests of its blocks.

    The sha256 is over the digests, then the exclusive document ends as little-endian int64, then
    the numbers of tokens and documents as int64. It is the same for a copy, under another name,
    and for the same documents and ids in any format.
    """
    whole = hashlib.sha256(b"".join(digests))
    whole.update(np.ascontiguousarray(file.doc_ends_D, "<i8").data)
    whole.update(np.array([file.num_tokens, file.doc_ends_D.size], "<i8").tobytes())
    return {
        "name": file.path.name,
        "tokens": file.num_tokens,
        "documents": int(file.doc_ends_D.size),
        "sha256": whole.hexdigest(),
    }


def combined_fingerprint(fingerprints: Sequence[dict[str, Any]]) -> str:
    """SHA-256 over the files' hashes in order."""
    return hashlib.sha256("".join(one["sha256"] for one in fingerprints).encode()).hexdigest()
