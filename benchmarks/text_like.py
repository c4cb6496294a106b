"""Text-like tokens of any number: chains whose next token is drawn from the bigrams of a corpus.

Usage: python -m benchmarks.text_like OUT_PREFIX --tokens 1e9 [--corpus PREFIX] [--split 5]

The next token of `a` is the one that followed a random occurrence of `a` in the corpus, so bigrams
have the frequencies of the corpus. Without a corpus the bigrams are those of 16 million
independent Zipf tokens. ``--split n`` gives every token n variants, the first in half of its
occurrences, and so on by halves: n times the vocabulary, as int32.
"""

import argparse
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from corpus.store import CorpusWriter, open_corpus

DOCUMENT = 1_000
BATCH = 20_000
ZIPF_TOKENS, ZIPF_VOCABULARY, ZIPF_EXPONENT = 16_000_000, 60_416, 1.05
Array = npt.NDArray[Any]


def zipf_tokens(seed: int) -> Array:
    """Independent tokens, the k-th most frequent as often as 1 / k^1.05."""
    weights = np.arange(1.0, ZIPF_VOCABULARY + 1) ** -ZIPF_EXPONENT
    drawn = np.random.default_rng(seed).random(ZIPF_TOKENS)
    return np.searchsorted(np.cumsum(weights) / weights.sum(), drawn).astype(np.uint16)


@numba.njit(cache=False)
def successors(tokens_N: Array, starts_V: Array, labels_P: Array) -> None:
    """Gather what followed each token, token by token."""
    filled_V = starts_V.copy()
    for position in range(tokens_N.size - 1):
        token = tokens_N[position]
        labels_P[filled_V[token]] = tokens_N[position + 1]
        filled_V[token] += 1


@numba.njit(parallel=True, cache=False)
def walk(starts_V: Array, labels_P: Array, seeds_D: Array, split: int, out_DL: Array) -> None:
    """Fill one chain a document."""
    vocabulary = starts_V.size - 1
    for document in numba.prange(seeds_D.size):
        state = seeds_D[document]
        token = np.int64(labels_P[state % np.uint64(labels_P.size)])
        for place in range(out_DL.shape[1]):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            first, number = starts_V[token], starts_V[token + 1] - starts_V[token]
            if number == 0:
                first, number = np.int64(0), np.int64(labels_P.size)
            token = np.int64(
                labels_P[first + np.int64((state >> np.uint64(24)) % np.uint64(number))]
            )
            variant = 0
            while variant < split - 1 and (state >> np.uint64(variant)) & np.uint64(1):
                variant += 1
            out_DL[document, place] = token + variant * vocabulary


def write_text_like(
    out: Path, tokens: int, *, corpus: Path | None = None, split: int = 1, seed: int = 0
) -> int:
    """Write ``tokens`` tokens in documents of 1,000; return the vocabulary size."""
    given = None if corpus is None else open_corpus(corpus)
    tokens_N = zipf_tokens(seed) if given is None else given.tokens(0, given.num_tokens)
    vocabulary = (given.vocab_size if given else None) or int(tokens_N.max()) + 1
    counts_V = np.bincount(tokens_N[:-1], minlength=vocabulary)
    starts_V = np.concatenate([[0], np.cumsum(counts_V)]).astype(np.int64)
    labels_P = np.empty(tokens_N.size - 1, tokens_N.dtype)
    successors(tokens_N, starts_V, labels_P)
    size = split * vocabulary
    dtype = np.dtype(np.uint16 if size <= 2**16 else np.int32)
    random = np.random.default_rng(seed)
    with CorpusWriter(out, dtype, size, {"vocab_size": size}) as writer:
        for done in range(0, tokens // DOCUMENT, BATCH):
            documents = min(BATCH, tokens // DOCUMENT - done)
            out_DL = np.empty((documents, DOCUMENT), dtype)
            seeds_D = random.integers(1, 2**63, documents).astype(np.uint64)
            walk(starts_V, labels_P, seeds_D, split, out_DL)
            writer.add_documents(out_DL.ravel(), np.full(documents, DOCUMENT))
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=float, required=True)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--split", type=int, default=1)
    given = parser.parse_args()
    print(write_text_like(given.out, int(given.tokens), corpus=given.corpus, split=given.split))


if __name__ == "__main__":
    main()
