"""Speed of the probes, and peers where they do the same thing.

Usage: python -m benchmarks.probes peers           against scipy, and rsatoolbox where installed
       python -m benchmarks.probes direct          one checkpoint of 60,416 x 1,536
       python -m benchmarks.probes series          154 checkpoints, 200 tokens, 999 permutations
       python -m benchmarks.probes first-order     all fits of a checkpoint, 200 x 4,096
       python -m benchmarks.probes exact --store STORE    the exact pass over a first-order store
       [--scratch DIR] [--steps N]

Everything is synthetic and seeded. ``series`` writes 2.5 GB of checkpoints to the scratch folder,
runs `staircase probe` and `staircase report` on them, and deletes them. Prints JSON lines with wall
and CPU seconds and the load of the machine: read CPU seconds where it is busy. rsatoolbox is no
dependency; `pip install rsatoolbox` in an environment of its own gives its ratios too.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr

from corpus.store import CorpusWriter
from probes.fitting import Fit, fit_together
from probes.measure import Reference, measure_rows
from probes.megatron import MegatronCheckpoint
from probes.projection import ProjectionOptions, label_sketch, make_splits, project_exactly, score
from probes.similarity import cosine_matrix, off_diagonal, pearson, spearman
from probes.statistics import mantel_p
from signatures.count import count_next_token
from signatures.memory import keep_freed_memory
from signatures.store import open_signatures
from tests.probe_series import write_checkpoint
from workflows.cli import run

TOKENS, STEPS, PERMUTATIONS = 200, 154, 999
TURNS = 3
Array = npt.NDArray[Any]


@contextmanager
def timed(name: str, **facts: Any) -> Iterator[dict[str, Any]]:
    """Print wall and CPU seconds of what runs inside, with whatever it adds."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield facts
    seconds = {
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }
    print(json.dumps({"name": name} | seconds | facts | {"load": os.getloadavg()[0]}), flush=True)


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Median CPU seconds of a few calls, and what the last one gives."""
    taken, found = [], None
    for _ in range(TURNS):
        began = time.process_time()
        found = function()
        taken.append(time.process_time() - began)
    return statistics.median(taken), found


def ratio(name: str, ours: Callable[[], Any], peer: Callable[[], Any], tolerance: float) -> None:
    """Print how many times the peer's CPU seconds are ours; the results must agree."""
    own_seconds, own = seconds_of(ours)
    peer_seconds, other = seconds_of(peer)
    if not np.allclose(own, other, atol=tolerance):
        raise AssertionError(f"{name}: {own} and {other}")
    own_ms, peer_ms = (round(1000 * taken, 2) for taken in (own_seconds, peer_seconds))
    times = round(peer_seconds / max(own_seconds, 1e-6), 1)
    print(json.dumps({"name": name, "ours_ms": own_ms, "peer_ms": peer_ms, "ratio": times}))


def mantel_loop(signature_nn: Array, series_Tnn: Array, permutations: int) -> Array:
    """Return the same p, a permutation at a time with numpy.corrcoef."""
    random = np.random.default_rng(0)
    orders = [random.permutation(len(signature_nn)) for _ in range(permutations)]
    wanted_P = off_diagonal(signature_nn)
    p_T = []
    for step_nn in series_Tnn:
        step_P = off_diagonal(step_nn)
        observed = np.corrcoef(wanted_P, step_P)[0, 1]
        hits = sum(
            np.corrcoef(off_diagonal(signature_nn[np.ix_(o, o)]), step_P)[0, 1] >= observed - 1e-12
            for o in orders
        )
        p_T.append((1 + hits) / (1 + permutations))
    return np.array(p_T)


def peers() -> None:
    random = np.random.default_rng(0)
    rows, others = random.normal(size=(2, TOKENS, 512))
    one, other = cosine_matrix(rows), cosine_matrix(rows + 2 * others)
    one_P, other_P = off_diagonal(one), off_diagonal(other)
    ratio(
        "cosines of 200 x 512: scipy pdist, squareform",
        lambda: cosine_matrix(rows),
        lambda: 1 - squareform(pdist(rows, "cosine")),
        1e-12,
    )
    ratio(
        "Spearman of 19,900 pairs: scipy spearmanr",
        lambda: spearman(one_P, other_P),
        lambda: spearmanr(one_P, other_P).statistic,
        1e-9,
    )
    series = np.stack([cosine_matrix(random.normal(size=(TOKENS, 64))) for _ in range(20)])
    ratio(
        "Mantel p, 20 steps, 99 permutations: loop over numpy.corrcoef",
        lambda: mantel_p(one, series, permutations=99),
        lambda: mantel_loop(one, series, 99),
        1e-12,
    )
    against_rsatoolbox(rows, one, series)


def against_rsatoolbox(rows_nH: Array, one_nn: Array, series_Tnn: Array) -> None:
    """Compare its dissimilarities and its comparison of them; it has no Mantel p of this kind."""
    try:
        from rsatoolbox.data import Dataset  # type: ignore[import-not-found]
        from rsatoolbox.rdm import RDMs, calc_rdm  # type: ignore[import-not-found]
        from rsatoolbox.rdm import compare as compare_rdms
    except ImportError as error:
        print(json.dumps({"name": "rsatoolbox", "skipped": str(error)}))
        return
    centred_nH = rows_nH - rows_nH.mean(axis=1, keepdims=True)
    ratio(
        "correlation distance of 200 x 512: rsatoolbox calc_rdm",
        lambda: 1 - off_diagonal(cosine_matrix(centred_nH)),
        lambda: calc_rdm(Dataset(rows_nH), method="correlation").dissimilarities[0],
        1e-9,
    )
    model = RDMs(1 - off_diagonal(one_nn)[None])
    steps = RDMs(1 - off_diagonal(series_Tnn))
    one_P, series_TP = off_diagonal(one_nn), off_diagonal(series_Tnn)
    for method, own in (("corr", pearson), ("spearman", spearman)):
        ratio(
            f"{own.__name__} of 20 steps: rsatoolbox compare",
            lambda own=own: [own(one_P, step_P) for step_P in series_TP],
            lambda method=method: compare_rdms(model, steps, method=method)[0],
            1e-9,
        )


def zipf_store(folder: Path, vocab_size: int) -> Path:
    """Count a next-token store of a chain over a Zipf vocabulary."""
    random = np.random.default_rng(0)
    tokens = (vocab_size ** random.random(3_000_000)).astype(np.int64) - 1
    tokens[1::2] = (tokens[::2] * 7 + tokens[1::2] // 9) % vocab_size
    with CorpusWriter(folder / "corpus", np.dtype(np.int32), vocab_size, {}) as writer:
        for document in np.array_split(tokens, 300):
            writer.add_document(document)
    count_next_token(folder / "corpus", out=folder / "next_token.zarr")
    return folder / "next_token.zarr"


def direct(folder: Path) -> None:
    """Time reading an embedding of the 0.7B model's shape, and measuring 200 rows of it."""
    random = np.random.default_rng(0)
    shape = (60_416, 1536)
    rows = random.standard_normal(shape, dtype=np.float32)
    path = write_checkpoint(folder, 1, rows, None, vocab_size=shape[0])
    tokens = np.arange(0, 10 * TOKENS, 10)
    reference = Reference.of(random.random((TOKENS, 5000)) ** 8)
    with timed("read it plainly", megabytes=round(rows.nbytes / 1e6)):
        _ = sum(len(file.read_bytes()) for file in path.rglob("*.distcp"))
    with timed("open, hash, take 200 rows"):
        taken = MegatronCheckpoint(path).input_embedding(tokens)
    with timed("measure 200 rows of 1,536"):
        measure_rows(taken, reference)
    with timed("999 permutations, one step"):
        similarity = cosine_matrix(taken)[None]
        mantel_p(reference.similarity, similarity, permutations=PERMUTATIONS)


def series(folder: Path, steps: int) -> None:
    """Run `staircase probe` and `staircase report` over a whole series."""
    vocab_size, hidden = 16_384, 128
    store = zipf_store(folder, vocab_size)
    random = np.random.default_rng(0)
    rows, drift = random.standard_normal((2, vocab_size, hidden), dtype=np.float32)
    for step in range(steps):
        outputs = drift + step * rows / steps
        write_checkpoint(folder / "run", step, rows + step * drift, outputs, vocab_size=vocab_size)
    out, report = folder / "probes.zarr", folder / "report"
    command = ["probe", str(folder / "run"), "--signatures", str(store), "--out", str(out)]
    command += ["--permutations", str(PERMUTATIONS), "--tokens", f"top:{TOKENS}"]
    with timed("staircase probe: direct, unembedding, ffn", steps=steps, tokens=TOKENS) as facts:
        facts["exit_code"] = run(command)
    with timed("staircase report") as facts:
        facts["exit_code"] = run(["report", str(out), "--out", str(report)])
        facts["page_megabytes"] = round((report / "index.html").stat().st_size / 1e6, 2)
    facts = {"name": "result", "megabytes": round(sum(size_of(out)) / 1e6, 1)}
    print(json.dumps(facts))


def size_of(folder: Path) -> Iterator[int]:
    yield from (file.stat().st_size for file in folder.rglob("*") if file.is_file())


def first_order() -> None:
    """Fit every split and its control, on signatures of low rank and a similarity they explain."""
    anchors, rows, context, rank = TOKENS, 256, 4096, 16
    random = np.random.default_rng(0)
    planes = random.standard_normal((rank, rows * context), dtype=np.float32)
    share = (1 / np.arange(1, context + 1)).astype(np.float32)
    sketch = np.empty((anchors, rows, context), np.float32)
    for plane in sketch:
        mixed = random.standard_normal(rank).astype(np.float32) @ planes
        plane[:] = mixed.reshape(rows, context) * share
        plane += random.standard_normal((rows, context), dtype=np.float32) * share
    v = random.standard_normal(context).astype(np.float32)
    similarity = cosine_matrix(np.stack([plane @ v for plane in sketch]))
    options = ProjectionOptions()
    splits = make_splits(anchors, options)
    order = random.permutation(anchors)
    shuffled = similarity[np.ix_(order, order)]
    fits = [Fit(similarity=s, training=split.training)
            for s in (similarity, shuffled) for split in splits]  # fmt: skip
    with timed("all fits of a checkpoint", fits=len(fits)) as facts:
        found = fit_together(sketch, fits, options=options)
        projected = np.einsum("arc,c->ar", sketch, found[0]).astype(np.float64)
        facts["heldout_rho"] = round(score(projected, similarity, splits[0].held_out)[1], 3)
    with timed("all fits of the next checkpoint, warm start", fits=len(fits)):
        fit_together(sketch, fits, options=options, before=found)


def exact(path: Path) -> None:
    """Time the pass that scores ten fits and three controls of one checkpoint."""
    keep_freed_memory()  # as `staircase probe` does
    store = open_signatures(path)
    vectors = np.random.default_rng(0).standard_normal((13, len(store.context_tokens)))
    entries = store.spec.totals.entries
    with timed("exact pass", anchors=len(store.anchors), entries=entries):
        sizes = {"num_anchors": len(store.anchors), "num_labels": store.spec.vocab_size}
        project_exactly(store.first_order_parts(), vectors, **sizes)
    with timed("sketch of the labels"):
        shape = (*sizes.values(), vectors.shape[1])
        label_sketch(store.first_order_parts(), shape=shape, options=ProjectionOptions())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["peers", "direct", "series", "first-order", "exact"])
    parser.add_argument("--scratch", type=Path, help="folder for checkpoints")
    parser.add_argument("--store", type=Path, help="first-order store of the exact pass")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the series")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        if given.what == "peers":
            peers()
        elif given.what == "direct":
            direct(Path(folder))
        elif given.what == "series":
            series(Path(folder), given.steps)
        elif given.what == "exact":
            if given.store is None:
                parser.error("exact needs --store")
            exact(given.store)
        else:
            first_order()


if __name__ == "__main__":
    main()
