"""Speed of next-token counting, against DuckDB, polars, numpy and scipy in the same process.

Usage: python -m benchmarks.next_token peers PREFIX      ratios, all on the same .bin/.idx
       python -m benchmarks.next_token curve PREFIX...   ours alone, one line a corpus
       python -m benchmarks.next_token copies PREFIX     counts of nine copies are nine times one's
       python -m benchmarks.next_token dry-run          predicted over measured, four corpora

Ours is timed end to end: from the .bin in the page cache to the finished, verified store. The
peers are timed bare: their columns lie in memory, without the pairs over document borders and
packed where they want it, and what they find is not written. The data comes from
`python -m benchmarks.text_like`. Prints JSON lines, then for ``peers`` the table.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix

from benchmarks.unlike_corpora import CORPORA, write_unlike
from corpus.store import CorpusWriter, open_corpus
from signatures.count import CountOptions, count_next_token
from signatures.memory import MemorySampler
from signatures.store import open_signatures

COPIES = 9
TURNS = 3
PEER_MEMORY = "8GB"
MOST_PEER_TOKENS = 130_000_000
Array = npt.NDArray[Any]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def warm_up(folder: Path, dtype: np.dtype[Any]) -> None:
    """Compile every kernel for this dtype, and import what several workers need."""
    with CorpusWriter(folder / "warm", dtype, vocab_size=99) as writer:
        writer.add_document(np.arange(99, dtype=dtype))
    for workers in {1, cores()}:
        out = folder / f"store-{workers}"
        count_next_token(folder / "warm", out=out, options=CountOptions(workers=workers))


def into_page_cache(prefix: Path) -> None:
    with Path(f"{prefix}.bin").open("rb") as file:
        while file.read(1 << 24):
            pass


def written_bytes() -> int:
    """Bytes that this process and the children it has waited for sent to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def ours(prefix: Path | list[Path], out: Path, workers: int, **options: Any) -> dict[str, Any]:
    """Count into a store; what the count says of itself, and bytes."""
    before = written_bytes()
    started = time.perf_counter()
    chosen = CountOptions(workers=workers, **options)
    result = count_next_token(prefix, out=out, options=chosen)
    seconds = time.perf_counter() - started
    stages = {name: round(taken, 3) for name, taken in result["stage_seconds"].items()}
    return {
        "tokens": result["tokens"],
        "vocab_size": result["vocab_size"],
        "pairs": result["pairs"],
        "entries": result["entries"],
        "workers": workers,
        "seconds": round(seconds, 2),
        "tokens_per_second": round(result["tokens"] / seconds),
        "counted_per_second_and_worker": round(result["tokens"] / stages["count"] / workers),
        "stages": stages,
        "peak_gigabytes": round(result["peak_memory_bytes"] / 1e9, 2),
        "store_bytes": size_of(out),
        "written_bytes": written_bytes() - before,
        "load": os.getloadavg()[0],
    }


def columns(prefix: Path) -> tuple[Array, Array, int]:
    """Pairs as two columns, without those over a border, and the vocabulary size."""
    corpus = open_corpus(prefix)
    tokens_N = corpus.tokens(0, corpus.num_tokens)
    is_pair = np.ones(tokens_N.size, bool)
    is_pair[np.maximum(corpus.doc_ends_D - 1, 0)] = False
    if tokens_N.size:
        is_pair[-1] = False
    a_P = tokens_N[is_pair]
    return a_P, tokens_N[1:][is_pair[:-1]], corpus.vocab_size or int(tokens_N.max()) + 1


def packed(a_P: Array, b_P: Array, size: int) -> Array:
    if size <= 2**16:
        return (a_P.astype(np.uint32) << 16) | b_P
    return (a_P.astype(np.uint64) << 32) | b_P.astype(np.uint64)


Result = tuple[float, int, int]
"""Seconds, sum of the counts, distinct pairs."""


def duckdb_group_by(a_P: Array, b_P: Array, size: int) -> Result:
    import duckdb
    import pyarrow as pa

    table = pa.table({"a": a_P, "b": b_P})
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {cores()}; SET memory_limit = '{PEER_MEMORY}'")
        connection.register("arrow", table)
        connection.execute("CREATE TABLE pairs AS SELECT a, b FROM arrow")
        query = "SELECT sum(n), count(*) FROM (SELECT count(*) n FROM pairs GROUP BY a, b)"
        started = time.perf_counter()
        row = connection.execute(query).fetchone()
        seconds = time.perf_counter() - started
    assert row is not None
    return seconds, int(row[0]), int(row[1])


def polars_group_by(a_P: Array, b_P: Array, size: int) -> Result:
    import polars as pl

    frame = pl.DataFrame({"key": packed(a_P, b_P, size)})
    started = time.perf_counter()
    found = frame.group_by("key").len()
    seconds = time.perf_counter() - started
    return seconds, int(found["len"].sum()), found.height


def numpy_unique(a_P: Array, b_P: Array, size: int) -> Result:
    keys_P = packed(a_P, b_P, size)
    started = time.perf_counter()
    _, counts = np.unique(keys_P, return_counts=True)
    seconds = time.perf_counter() - started
    return seconds, int(counts.sum()), counts.size


def scipy_coo_to_csr(a_P: Array, b_P: Array, size: int) -> Result:
    rows, ones = a_P.astype(np.int32), np.ones(a_P.size, np.int32)
    matrix = coo_matrix((ones, (rows, b_P.astype(np.int32))), shape=(size, size))
    started = time.perf_counter()
    found = matrix.tocsr()
    seconds = time.perf_counter() - started
    return seconds, int(found.data.sum(dtype=np.int64)), found.nnz


PEERS: dict[str, Callable[[Array, Array, int], Result]] = {
    "DuckDB group-by": duckdb_group_by,
    "polars, packed keys": polars_group_by,
    "numpy.unique, packed keys": numpy_unique,
    "scipy COO to CSR": scipy_coo_to_csr,
}


def against_peers(prefix: Path, folder: Path, names: list[str]) -> None:
    """Print ours, each peer, and the ratios; agreement is checked."""
    if open_corpus(prefix).num_tokens > MOST_PEER_TOKENS and names != ["DuckDB group-by"]:
        raise SystemExit(
            f"{prefix}: all peers together take {MOST_PEER_TOKENS:,} tokens at most; "
            "--duckdb-only takes more"
        )
    into_page_cache(prefix)
    found = ours(prefix, folder / "store", cores())
    print(json.dumps({"name": "ours, end to end"} | found), flush=True)
    rates = {"ours, end to end": (found["tokens_per_second"], found["peak_gigabytes"])}
    counted = found["tokens"] / found["stages"]["count"]
    rates["ours, count stage"] = (round(counted), found["peak_gigabytes"])
    a_P, b_P, size = columns(prefix)
    for name in names:
        peer = PEERS[name]
        with MemorySampler() as sampler:
            seconds, pairs, entries = peer(a_P, b_P, size)
        if (pairs, entries) != (found["pairs"], found["entries"]):
            raise AssertionError(f"{name} found {pairs} pairs, {entries} distinct; ours {found}")
        rates[name] = (round(found["tokens"] / seconds), round(sampler.peak / 1e9, 2))
        print(json.dumps({"name": name, "seconds": round(seconds, 2)}), flush=True)
    reference = rates["DuckDB group-by"][0]
    print("| | M tokens/s | of DuckDB | peak GB |\n|---|---|---|---|")
    for name, (rate, peak) in rates.items():
        print(f"| {name} | {rate / 1e6:.1f} | {rate / reference:.2f} | {peak} |")


def curve(prefixes: list[Path], folder: Path, workers: int | None) -> None:
    """Print a line for each corpus, in the order given."""
    for prefix in prefixes:
        into_page_cache(prefix)
        out = folder / "store"
        print(json.dumps({"corpus": prefix.name} | ours(prefix, out, workers or cores())))
        shutil.rmtree(out)


def nine_copies(prefix: Path, folder: Path) -> None:
    """Count one copy and nine under other names; every count must be nine times as large."""
    copies = [folder / f"copy{number}" for number in range(COPIES)]
    for copy in copies:
        for suffix in (".bin", ".idx", ".json"):
            if Path(f"{prefix}{suffix}").exists():
                shutil.copyfile(f"{prefix}{suffix}", f"{copy}{suffix}")
    print(json.dumps({"copies": 1} | ours(copies[0], folder / "one", cores())), flush=True)
    print(json.dumps({"copies": COPIES} | ours(copies, folder / "nine", cores())), flush=True)
    one, nine = open_signatures(folder / "one"), open_signatures(folder / "nine")
    entries = 0
    for (row, once), (also, many) in zip(one.counts.blocks(), nine.counts.blocks(), strict=True):
        same = row == also and np.array_equal(once.indptr, many.indptr)
        same = same and np.array_equal(once.indices, many.indices)
        if not same or not np.array_equal(once.data.astype(np.int64) * COPIES, many.data):
            raise AssertionError(f"rows from {row} on are not {COPIES} times one copy's")
        entries += once.nnz
    assert entries == one.spec.totals.entries == nine.spec.totals.entries
    print(json.dumps({"entries": entries, "nine_times_one": True}))


def predictions(prefixes: list[Path], folder: Path, workers: int) -> None:
    """Print predicted over measured for each corpus: medians of processes that take turns."""
    print("| corpus | tokens | memory | disk | entries | seconds | seconds measured |")
    print("|---|---|---|---|---|---|---|")
    for prefix in prefixes:
        into_page_cache(prefix)
        command = ["count", "next-token", prefix, "--out", folder / "s", "--workers", workers]
        predicted, measured = [], []
        for _ in range(TURNS):
            predicted.append(staircase(*command, "--dry-run"))
            found = staircase(*command)
            found["memory_bytes"] = found["peak_memory_bytes"]
            found["disk_bytes"] = size_of(folder / "s")
            shutil.rmtree(folder / "s")
            measured.append(found)
        ratios = [
            f"{middle(predicted, name) / middle(measured, name):.2f}"
            for name in ("memory_bytes", "disk_bytes", "entries", "seconds")
        ]
        tokens, seconds = measured[0]["tokens"], middle(measured, "seconds")
        cells = [prefix.name, f"{tokens:,}", *ratios, f"{seconds:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def middle(results: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(result[name]) for result in results)


def staircase(*arguments: object) -> dict[str, Any]:
    """Run the command line in a process of its own; what it prints with --json."""
    command = [sys.executable, "-m", "workflows", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["peers", "curve", "copies", "dry-run"])
    parser.add_argument("prefix", type=Path, nargs="*")
    parser.add_argument("--duckdb-only", action="store_true", help="the one peer for 1e9 tokens")
    parser.add_argument("--workers", type=int, help="of curve and dry-run; default all cores")
    parser.add_argument("--tokens", type=float, default=2e7, help="of each corpus of dry-run")
    parser.add_argument("--scratch", type=Path, help="folder for stores; default the system's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        folder = Path(name)
        if given.what == "dry-run":
            given.prefix += [write_unlike(folder, name, int(given.tokens)) for name in CORPORA]
        elif not given.prefix:
            parser.error("name the corpus to count, a PREFIX")
        for dtype in {open_corpus(prefix).dtype for prefix in given.prefix}:
            (place := folder / f"warm-{dtype}").mkdir()
            warm_up(place, dtype)
        if given.what == "peers":
            names = ["DuckDB group-by"] if given.duckdb_only else list(PEERS)
            against_peers(given.prefix[0], folder, names)
        elif given.what == "curve":
            curve(given.prefix, folder, given.workers)
        elif given.what == "dry-run":
            predictions(given.prefix, folder, given.workers or cores())
        else:
            nine_copies(given.prefix[0], folder)


if __name__ == "__main__":
    main()
