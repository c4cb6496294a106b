"""What the tests of counting share: naive counts, stores as plain numbers, runs as processes."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from signatures.store import open_signatures

_COMMIT = re.compile(rb'"(git_commit|attribute_checksum)": [^,\n]*')
Pairs = dict[tuple[int, int], int]
ROOT = Path(__file__).resolve().parents[1]


def document_pairs(documents: Sequence[Sequence[int]]) -> Pairs:
    """Pairs of neighbours inside documents."""
    return dict(Counter(pair for document in documents for pair in pairwise(document)))


def stream_pairs(tokens: Sequence[int]) -> Pairs:
    """Pairs of neighbours in one stream."""
    return dict(Counter(pairwise(tokens)))


def sample_pairs(tokens: Sequence[int], samples: Sequence[int], seq_length: int) -> Pairs:
    """(input, label) pairs of samples, each as often as it is taken."""
    found: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        start = sample * seq_length
        found.update(pairwise(tokens[start : start + seq_length + 1]))
    return dict(found)


def stored_pairs(store: Path, half: str | None = None) -> Pairs:
    """Counts of a store as they lie there, stored zeros and all."""
    signatures = open_signatures(store)
    if half is not None:
        signatures = signatures.half(half)
    found: Pairs = {}
    for first, matrix in signatures.counts.blocks():
        coordinates = matrix.tocoo()
        rows, columns = coordinates.coords
        for row, column, count in zip(rows, columns, coordinates.data, strict=True):
            found[int(row) + first, int(column)] = int(count)
    return found


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a store, to be compared to the bit; less the git commit, which may change."""
    return {
        file.relative_to(folder).as_posix(): _COMMIT.sub(b"", file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def text_like(num_tokens: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    """Tokens of log-uniform frequency whose successors depend on them."""
    random = np.random.default_rng(seed)
    tokens = (vocab_size ** random.random(num_tokens)).astype(np.int64) - 1
    tokens[1:] = (tokens[1:] + (random.random(num_tokens - 1) < 0.5) * tokens[:-1] * 7) % vocab_size
    return tokens


def start_count(
    *arguments: str | Path, kind: str = "next-token", cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start ``staircase count`` as a process of its own group."""
    # A suite that runs in the background has Ctrl-C ignored, and children inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from workflows.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "count", kind, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Poll until it happened; an end of ``process`` before that is a failure."""
    for _ in range(12_000):
        if happened():
            return
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()}")
        time.sleep(0.005)
    raise AssertionError("it never happened")


def finished_partials(out: Path) -> int:
    """Partials that a running or interrupted count has finished."""
    return len(list((out.with_name(out.name + ".scratch") / "partials").glob("*.npz")))


def context_counts(
    pieces: Sequence[Sequence[int]],
    anchors: Sequence[int],
    contexts: Sequence[int],
    window: int | None = None,
) -> tuple[dict[tuple[int, int, int], int], Counter[int], Counter[int]]:
    """First-order counts of pieces, each a document or a sample with its last label behind it.

    {(anchor, label, context token): count}, occurrences of anchors with a label, and the mass of
    contexts that are no context tokens, by anchor.
    """
    counts: Counter[tuple[int, int, int]] = Counter()
    occurrences: Counter[int] = Counter()
    dropped: Counter[int] = Counter()
    for piece in pieces:
        for place, (anchor, label) in enumerate(pairwise(piece)):
            if anchor not in anchors:
                continue
            occurrences[anchor] += 1
            before = set(piece[max(0, place - window) if window else 0 : place])
            counts.update((anchor, label, token) for token in before & set(contexts))
            dropped[anchor] += len(before - set(contexts))
    return dict(counts), occurrences, dropped


def stored_contexts(store: Path, half: str | None = None) -> dict[tuple[int, int, int], int]:
    """{(anchor, label, context token): count} of a first-order store."""
    signatures = open_signatures(store)
    anchors, contexts = signatures.anchors.tolist(), signatures.context_tokens.tolist()
    size = signatures.spec.vocab_size
    return {
        (anchors[row // size], row % size, contexts[column]): count
        for (row, column), count in stored_pairs(store, half).items()
    }


def samples_of(tokens: Sequence[int], seq_length: int) -> list[list[int]]:
    """Samples of a stream in file order, each with the label behind its last input."""
    starts = range(0, max(0, len(tokens) - 1), seq_length)
    return [list(tokens[start : start + seq_length + 1]) for start in starts]
