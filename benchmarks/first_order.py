"""Speed of first-order counting, against a straightforward NumPy and SciPy version, one process.

Usage: python -m benchmarks.first_order peer PREFIX      ratio on the same tokens and options
       python -m benchmarks.first_order whole PREFIX     ratio on a corpus too large for the peer
       python -m benchmarks.first_order scaling PREFIX   over tokens, anchors, contexts, seq_length
       python -m benchmarks.first_order store PREFIX     stages of one count, end to end

Ours is timed end to end, from the .bin in the page cache to the finished, verified store, and
apart: ``counting`` is listing and adding up, ``writing`` is the store written, read back and
proven. The peer forms the set of every position's context and adds sparse matrices; it writes
nothing. Both run on ``--tokens`` of the corpus, and their counts are compared. ``whole`` counts the
corpus with every core; the peer, whose pairs of it fit into no memory, makes the matrices of 4 of
64 slices, and 16 times that is less than it would take, since they are not added up. Prints JSON
lines.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from benchmarks.next_token import cores, into_page_cache
from corpus.store import CorpusWriter, open_corpus
from signatures.context_count import count_contexts
from signatures.contexts import ContextOptions
from signatures.layout import CSR_ARRAYS
from signatures.memory import keep_freed_memory
from signatures.scope import CountOptions, Scope
from signatures.store import Signatures, open_signatures

TARGET = {"anchors": "top:200", "context_tokens": "top:4096"}
SEQ_LENGTH = 2048


def cut(prefix: Path, tokens: int, folder: Path) -> Path:
    """Write the first tokens of a corpus, as one of its own."""
    corpus = open_corpus(prefix)
    out = folder / f"first-{tokens}"
    with CorpusWriter(out, corpus.dtype, corpus.vocab_size) as writer:
        start = 0
        for end in corpus.doc_ends_D.tolist():
            writer.add_document(corpus.tokens(start, min(end, tokens)))
            start = end
            if end >= tokens:
                break
    return out


def ours(
    prefix: Path, out: Path, *, seq_length: int = SEQ_LENGTH, workers: int = 1, **asked: str
) -> dict[str, Any]:
    """Count once; what the command prints, with rates."""
    into_page_cache(prefix)
    result = count_contexts(
        prefix,
        out=out,
        contexts=ContextOptions(kind="first-order", **(TARGET | asked)),
        scope=Scope(kind="packed", seq_length=seq_length),
        options=CountOptions(workers=workers, overwrite=True),
    )
    stages = result["stage_seconds"]
    counting, writing = (stages["list"] + stages["add up"], stages["write"] + stages["verify"])
    return {
        "tokens": result["tokens"],
        "workers": workers,
        "entries": result["entries"],
        "increments": result["increments"],
        "seconds": round(result["seconds"], 2),
        "M_tokens_a_second_counting": round(result["tokens"] / counting / 1e6, 2),
        "M_entries_a_second_writing": round(result["entries"] / writing / 1e6, 1),
        "peak_GB": round(result["peak_memory_bytes"] / 1e9, 2),
        "stages": {name: round(seconds, 2) for name, seconds in stages.items()},
    }


def straightforward(tokens_N: np.ndarray[Any, Any], store: Signatures) -> csr_array[Any]:
    """First-order counts with sets, NumPy and SciPy: (A * V, C)."""
    size, anchors, contexts = store.spec.vocab_size, store.anchors, store.context_tokens
    anchor_V, context_V = np.full(size, -1), np.full(size, -1)
    anchor_V[anchors], context_V[contexts] = np.arange(anchors.size), np.arange(contexts.size)
    keys, counts = [], []
    for start in range(0, tokens_N.size - 1, SEQ_LENGTH):
        sample = tokens_N[start : start + SEQ_LENGTH + 1].astype(np.int64)
        inputs, labels = sample[:-1], sample[1:]
        unique, first = np.unique(inputs, return_index=True)
        is_context = context_V[unique] >= 0
        columns, first = context_V[unique][is_context], first[is_context]
        places = np.flatnonzero(anchor_V[inputs] >= 0)
        rows_h = anchor_V[inputs[places]] * size + labels[places]
        hit, column = np.nonzero(first[None, :] < places[:, None])
        found = np.unique(rows_h[hit] * contexts.size + columns[column], return_counts=True)
        keys.append(found[0])
        counts.append(found[1])
    rows, columns = np.divmod(np.concatenate(keys), contexts.size)
    shape = (anchors.size * size, contexts.size)
    return coo_array((np.concatenate(counts), (rows, columns)), shape=shape).tocsr()


def peer(prefix: Path, folder: Path, tokens: int) -> None:
    """Time both on the same tokens; the counts must be equal."""
    part = cut(prefix, tokens, folder)
    ours(part, folder / "warm")
    mine = ours(part, folder / "ours")
    store = open_signatures(folder / "ours")
    corpus = open_corpus(part)
    began = time.perf_counter()
    found = straightforward(corpus.tokens(0, corpus.num_tokens), store)
    seconds = time.perf_counter() - began
    stored = store.counts.take(np.arange(found.shape[0]))
    if not all(np.array_equal(getattr(found, n), getattr(stored, n)) for n in CSR_ARRAYS):
        raise AssertionError("the two do not count the same")
    counting = mine["stages"]["list"] + mine["stages"]["add up"]
    print(json.dumps(mine))
    print(
        json.dumps(
            {
                "peer_seconds": round(seconds, 1),
                "ratio_counting": round(seconds / counting, 1),
                "ratio_end_to_end": round(seconds / mine["seconds"], 1),
            }
        )
    )


def whole(prefix: Path, folder: Path, tokens: int) -> None:
    """Time ours on all of a corpus, and the peer on a sixteenth of it, in slices."""
    ours(cut(prefix, tokens, folder), folder / "warm", workers=cores())
    mine = ours(prefix, folder / "ours", workers=cores())
    print(json.dumps(mine), flush=True)
    store, corpus = open_signatures(folder / "ours"), open_corpus(prefix)
    slices = corpus.num_tokens // 64
    seconds = 0.0
    for start in range(8 * slices, 64 * slices, 16 * slices):
        tokens_N = corpus.tokens(start, start + slices)
        began = time.perf_counter()
        straightforward(tokens_N, store)
        seconds += 16 * (time.perf_counter() - began)
    counting = mine["stages"]["list"] + mine["stages"]["add up"]
    print(
        json.dumps(
            {
                "peer_seconds_at_least": round(seconds),
                "ratio_counting": round(seconds / counting, 1),
                "ratio_end_to_end": round(seconds / mine["seconds"], 1),
            }
        )
    )


def scaling(prefix: Path, folder: Path, tokens: int) -> None:
    """One line a setting: each of tokens, anchors, contexts and seq_length by itself."""
    part = cut(prefix, tokens, folder)
    ours(part, folder / "out")
    settings: list[dict[str, Any]] = [{}]
    settings += [{"anchors": which} for which in ("top:50", "top:800")]
    settings += [{"context_tokens": which} for which in ("top:1024", "top:16384")]
    settings += [{"seq_length": length} for length in (512, 8192)]
    for setting in settings:
        print(json.dumps(setting | ours(part, folder / "out", **setting)), flush=True)
    for share in (16, 4):
        less = cut(prefix, tokens // share, folder)
        print(json.dumps(ours(less, folder / "out")), flush=True)


def store(prefix: Path, folder: Path, tokens: int) -> None:
    """One count of everything with every core."""
    print(json.dumps(ours(prefix, folder / "out", workers=cores())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("peer", "whole", "scaling", "store"))
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--tokens", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    keep_freed_memory()  # as `staircase count` does; the peer gains by it too
    folder = Path(tempfile.mkdtemp(prefix="first-order-", dir=asked.scratch))
    try:
        {"peer": peer, "whole": whole, "scaling": scaling, "store": store}[asked.what](
            asked.prefix, folder, asked.tokens
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
