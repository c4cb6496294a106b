"""Speed of the corpus package, measured against the tokenizers library in the same run.

Usage: python benchmarks/corpus.py SOURCE.jsonl [--tokenizer tokenizer.json] [--repeats 3]
       python benchmarks/corpus.py --index [--documents 5000000]

The first: `build_corpus` (read, decode, encode, check, write, index, hash) against a bare loop of
`encode_batch` over the same texts, already in memory, with the library's own threads. The two take
turns, so that a busy machine slows both; the ratio is of the medians. The second: opening and
inspecting an index of many documents.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, this file's folder comes first on the path and hides the package of its name.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent]

BATCH_CHARACTERS = 1 << 20
LENGTH = 100
_PEAK = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"


def bare_loop(tokenizer: Path, texts: list[str]) -> int:
    """Encode in batches, take the ids, drop them: what no builder can go below by much."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer))
    tokens = 0
    for batch in batches(texts):
        encodings = loaded.encode_batch(batch, add_special_tokens=False)
        tokens += sum(len(encoding.ids) for encoding in encodings)
    return tokens


def batches(texts: list[str]) -> Iterator[list[str]]:
    """Batches of about a megabyte: by the thousand, long texts slow the library down by half."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def tokenising(source: Path, tokenizer: Path, repeats: int) -> dict[str, Any]:
    from corpus.tokenize import build_corpus

    texts = [json.loads(line)["text"] for line in source.read_text().splitlines() if line]
    seconds: dict[str, list[float]] = {"bare": [], "build": []}
    tokens = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            taken, tokens["bare"] = timed(lambda: bare_loop(tokenizer, texts))
            seconds["bare"].append(taken)
            taken, result = timed(
                lambda: build_corpus(
                    [source],
                    tokenizer=tokenizer,
                    out=Path(folder) / "c",
                    append_eod=False,
                    overwrite=True,
                )
            )
            tokens["build"] = result["tokens"]
            seconds["build"].append(taken)
    if tokens["bare"] != tokens["build"]:
        raise AssertionError(f"the two encoded different tokens: {tokens}")
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "source_megabytes": source.stat().st_size / 1e6,
        "tokens": tokens["build"],
        "cores": len(os.sched_getaffinity(0)),
        "bare_seconds": seconds["bare"],
        "build_seconds": seconds["build"],
        "bare_tokens_per_second": tokens["bare"] / middle["bare"],
        "build_tokens_per_second": tokens["build"] / middle["build"],
        "ratio": middle["bare"] / middle["build"],
    }


def write_index(prefix: Path, documents: int) -> None:
    """Write a valid pair of ``documents`` documents; the tokens are a sparse file of zeros."""
    from corpus.megatron import HEADER, MAGIC

    with prefix.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * documents * LENGTH)
    with prefix.with_suffix(".idx").open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, 8, documents, documents + 1))
        file.write(np.full(documents, LENGTH, "<i4").tobytes())
        file.write((np.arange(documents, dtype="<i8") * 2 * LENGTH).tobytes())
        file.write(np.arange(documents + 1, dtype="<i8").tobytes())


def opening(documents: int) -> dict[str, Any]:
    """Open, then inspect, in a fresh process each, so that the peak is theirs alone."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "many"
        write_index(prefix, documents)
        found: dict[str, Any] = {"documents": documents, "tokens": documents * LENGTH}
        for name, code in (
            ("open", "from corpus.store import open_corpus; open_corpus(sys.argv[1]).doc_ends_D"),
            (
                "inspect",
                "from corpus.inspection import inspect_corpus; inspect_corpus(sys.argv[1])",
            ),
        ):
            program = f"import sys, resource; {code}; print({_PEAK})"
            taken, done = timed(
                lambda program=program: subprocess.run(
                    [sys.executable, "-c", program, str(prefix)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            )
            found[f"{name}_seconds"] = taken
            found[f"{name}_peak_megabytes"] = int(done.stdout.split()[-1]) / 1e3
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--vocab-size", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--index", action="store_true")
    parser.add_argument("--documents", type=int, default=5_000_000)
    arguments = parser.parse_args()
    if arguments.index:
        print(json.dumps(opening(arguments.documents), indent=1))
        return
    if arguments.source is None:
        parser.error("name a jsonl file, or pass --index")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = arguments.tokenizer
        if tokenizer is None:
            from corpus.tokenize import train_tokenizer

            tokenizer = Path(folder) / "tokenizer.json"
            train_tokenizer(arguments.source, vocab_size=arguments.vocab_size, out=tokenizer)
        print(json.dumps(tokenising(arguments.source, tokenizer, arguments.repeats), indent=1))


if __name__ == "__main__":
    main()
