"""Projected stores against the embedding: exact geometry, a planted mixture, the command."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from probes.projected import project_labels, projected_signature, untrained_similarity
from probes.results import open_results
from probes.similarity import compare, cosine_matrix
from probes.statistics import mantel_p
from signatures import store
from signatures.store import open_signatures
from tests.probe_series import VOCAB, documents, write_checkpoint
from tests.stores import write_next_token
from workflows.cli import run

COLUMNS = 5


def first_order_counts() -> np.ndarray:
    """Counts (anchor, label, context) of every token, in plain loops."""
    counts: Counter[tuple[int, int, int]] = Counter()
    for document in documents():
        for place, (anchor, label) in enumerate(itertools.pairwise(document)):
            counts.update((anchor, label, context) for context in set(document[:place]))
    dense = np.zeros((VOCAB,) * 3, np.int64)
    for cell, count in counts.items():
        dense[cell] = count
    return dense


def signs() -> np.ndarray:
    return np.random.default_rng(5).choice([-1, 1], size=(VOCAB, COLUMNS)).astype(np.int8)


def write_projected(out: Path, anchors: list[int]) -> np.ndarray:
    """A projected store of these anchors; returns ``phi_1 B``, (A, V, R)."""
    sums = first_order_counts()[anchors] @ signs().astype(np.int64)
    pairs = [pair for document in documents() for pair in itertools.pairwise(document)]
    followed = {(anchors.index(a), v) for a, v in pairs if a in anchors}
    rows = np.array(sorted(anchor * VOCAB + label for anchor, label in followed))
    values = sums.reshape(-1, COLUMNS)[rows]
    occurrences = np.array([sum(a == anchor for a, _ in pairs) for anchor in anchors])
    tokens = sum(map(len, documents()))
    totals = store.Totals(
        tokens=tokens,
        documents=len(documents()),
        empty_documents=0,
        pairs=int(occurrences.sum()),
        entries=len(rows),
    )
    spec = store.StoreSpec(kind="projected", vocab_size=VOCAB, vocab_source="given", totals=totals)
    vectors = {
        "anchors": np.array(anchors),
        "context_tokens": np.arange(VOCAB),
        "anchor_occurrences": occurrences,
        "matrix": signs(),
    }
    partial, arrays = out.with_name(out.name + ".partial"), {"rows": rows, "values": values}
    blocks = {name: store.BlockLayout(shape=array.shape) for name, array in arrays.items()}
    store.create_store(partial, spec, matrices={}, vectors=vectors, blocks=blocks)
    records = [
        store.write_shard(partial, "", name, index, array[start:stop])
        for name, array in arrays.items()
        for index, (start, stop) in enumerate(store.shard_ranges(partial, "", name))
    ]
    store.complete_store(partial, out, spec=spec, records=records, overwrite=False)
    return sums / occurrences[:, None, None]


def test_readings_follow_their_definitions(tmp_path: Path) -> None:
    anchors = [7, 3, 20, 11]
    expected = write_projected(tmp_path / "p.zarr", anchors)
    opened = open_signatures(tmp_path / "p.zarr")
    np.testing.assert_allclose(projected_signature(opened, 20).toarray(), expected[2])
    flat = cosine_matrix(expected.reshape(len(anchors), -1))
    np.testing.assert_allclose(untrained_similarity(opened), flat, atol=1e-12)
    in_passes = untrained_similarity(opened, block_bytes=300)
    np.testing.assert_allclose(in_passes, flat, atol=1e-12)
    vectors = np.random.default_rng(0).normal(size=(2, COLUMNS)).astype(np.float32)
    for found, vector in zip(project_labels(opened, vectors), vectors, strict=True):
        np.testing.assert_allclose(found.toarray(), expected @ vector.astype(float), atol=1e-9)


@pytest.fixture
def series(tmp_path: Path) -> tuple[np.ndarray, list[str]]:
    """Step 1 is noise, at step 2 the rows are one mixture of the columns of ``phi_1 B``."""
    everything = write_projected(tmp_path / "all.zarr", list(range(VOCAB)))
    write_next_token(tmp_path / "s.zarr", documents(), VOCAB)
    generator = np.random.default_rng(3)
    planted = everything @ np.array([2.0, -1.0, 0.0, 0.5, 0.0])
    for step, rows in ((1, generator.normal(size=(VOCAB, VOCAB))), (2, planted)):
        write_checkpoint(tmp_path / "c", step, rows, generator.normal(size=(VOCAB, VOCAB)))
    command = ["probe", str(tmp_path / "c"), "--signatures", str(tmp_path / "s.zarr"), "--json"]
    return planted, [*command, "--permutations", "19", "--out", str(tmp_path / "p.zarr")]


def test_a_planted_mixture_is_found_and_noise_is_not(
    tmp_path: Path, series: tuple[np.ndarray, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    planted, command = series
    assert run([*command, "--projected", str(tmp_path / "all.zarr")]) == 0
    noise, late = json.loads(capsys.readouterr().out)["projected"]
    assert (noise["step"], late["step"]) == (1, 2)
    assert late["heldout_rho"] > 0.95
    for control in ("baseline_mse", "shuffled_mse", "random_mse"):
        assert late["heldout_mse"] < 0.3 * late[control]
    assert noise["heldout_mse"] > 0.7 * noise["baseline_mse"]
    group = open_results(tmp_path / "p.zarr")["projected"].to_dataset()
    assert group["heldout_mse"].dims == ("step", "split")
    assert group["rho"].dims == ("step",)
    opened = open_signatures(tmp_path / "all.zarr")
    untrained = untrained_similarity(opened)
    assert late["rho"] == pytest.approx(compare(cosine_matrix(planted), untrained).pearson)
    p = mantel_p(untrained, cosine_matrix(planted)[None], permutations=19)[0]
    assert late["p"] == pytest.approx(p)


def test_few_anchors_are_compared_untrained(
    tmp_path: Path, series: tuple[np.ndarray, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    planted, command = series
    anchors = [3, 4, 8, 15, 16]
    signature = write_projected(tmp_path / "few.zarr", anchors).reshape(len(anchors), -1)
    assert run([*command, "--projected", str(tmp_path / "few.zarr")]) == 0
    late = json.loads(capsys.readouterr().out)["projected"][-1]
    assert "heldout_mse" not in late
    expected = compare(cosine_matrix(planted[anchors]), cosine_matrix(signature)).pearson
    assert late["rho"] == pytest.approx(expected)
    assert run([*command[:-1], str(tmp_path / "q"), "--projected", str(tmp_path / "s.zarr")]) == 2
    assert "projected counts are needed" in capsys.readouterr().err


def test_the_page_shows_it(tmp_path: Path, series: tuple[np.ndarray, list[str]]) -> None:
    _, command = series
    assert run([*command, "--projected", str(tmp_path / "all.zarr")]) == 0
    assert run(["report", str(tmp_path / "p.zarr"), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "figures" / "projected_0.svg").is_file()
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "First-order probe on projected counts" in page
