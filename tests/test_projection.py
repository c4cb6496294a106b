import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, vstack

from probes.first_order import FirstOrderProbe
from probes.fitting import Fit, aligned_vectors, fit_together
from probes.probe import probe_series
from probes.projection import (
    ProjectionOptions,
    constant_mse,
    label_sketch,
    make_splits,
    project_exactly,
    score,
)
from probes.results import open_results
from probes.similarity import cosine_matrix
from signatures.store import StoreSpec, Totals
from tests.probe_series import VOCAB, documents, write_series
from tests.stores import matrix_of, write_store
from workflows.cli import run

LABELS, CONTEXTS, ANCHORS = 60, 12, 40
OPTIONS = ProjectionOptions(sketch_rows=256, steps=400, anchors_a_step=20, splits=2)


def planted(seed: int = 0) -> tuple[list[csr_array], np.ndarray, np.ndarray]:
    """First-order signatures, and the similarities that one hidden v gives them."""
    generator = np.random.default_rng(seed)
    dense = generator.random((ANCHORS, LABELS, CONTEXTS)) ** 4
    v = generator.normal(size=CONTEXTS)
    return [csr_array(plane) for plane in dense], cosine_matrix(dense @ v), v


def parts_of(planes: list[csr_array]) -> list[tuple[int, csr_array]]:
    return [(place * LABELS, plane) for place, plane in enumerate(planes)]


def sketch_of(planes: list[csr_array], options: ProjectionOptions = OPTIONS) -> np.ndarray:
    return label_sketch(parts_of(planes), shape=(len(planes), LABELS, CONTEXTS), options=options)


def projected(planes: list[csr_array], vectors: np.ndarray) -> list[csr_array]:
    return project_exactly(parts_of(planes), vectors, num_anchors=len(planes), num_labels=LABELS)


def test_a_planted_vector_is_found_and_beats_every_control() -> None:
    planes, similarity, _ = planted()
    sketch = sketch_of(planes)
    for split in make_splits(ANCHORS, OPTIONS):
        (v,) = fit_together(
            sketch, [Fit(similarity=similarity, training=split.training)], options=OPTIONS
        )
        exact = projected(planes, np.stack([v, np.ones(CONTEXTS)]))
        held_out, rho = score(exact[0], similarity, split.held_out)
        assert rho > 0.9
        assert held_out < 0.2 * constant_mse(similarity, split)
        assert held_out < 0.2 * score(exact[1], similarity, split.held_out)[0]


def test_splits_do_not_overlap_and_repeat() -> None:
    for split, again in zip(make_splits(20, OPTIONS), make_splits(20, OPTIONS), strict=True):
        assert sorted([*split.training, *split.held_out]) == list(range(20))
        assert len(split.held_out) == 4
        assert (split.training == again.training).all()
    with pytest.raises(ValueError, match="three are needed"):
        make_splits(5, OPTIONS)


def test_sketch_keeps_inner_products_on_average() -> None:
    planes, _, _ = planted()
    exact = planes[0].toarray().T @ planes[1].toarray()
    options = [ProjectionOptions(sketch_rows=16, seed=seed) for seed in range(300)]
    found = np.mean([a.T @ b for a, b in (sketch_of(planes[:2], one) for one in options)], axis=0)
    np.testing.assert_allclose(found, exact, rtol=0.3)


@given(
    borders=st.lists(st.integers(0, ANCHORS * LABELS), max_size=8),
    twice=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_parts_may_be_cut_anywhere_and_add_up(borders: list[int], twice: bool) -> None:
    """Of rows of several anchors, of none, or the halves of two stores: sketch and product hold."""
    planes, _, _ = planted()
    rows = csr_array(vstack(planes))
    edges = [0, *sorted(borders), ANCHORS * LABELS]
    parts = [(start, rows[start:stop]) for start, stop in itertools.pairwise(edges)]
    if twice:
        parts = [(start, part / 2) for start, part in parts * 2]
    vectors = np.random.default_rng(0).normal(size=(2, CONTEXTS))
    found = project_exactly(parts, vectors, num_anchors=ANCHORS, num_labels=LABELS)
    dense = np.stack([plane.toarray() for plane in planes])
    for one, vector in zip(found, vectors, strict=True):
        np.testing.assert_allclose(one.toarray(), dense @ vector, atol=1e-12)
    sketch = label_sketch(parts, shape=(ANCHORS, LABELS, CONTEXTS), options=OPTIONS)
    np.testing.assert_allclose(sketch, sketch_of(planes), atol=1e-5)


def test_the_gradient_is_that_of_the_formula() -> None:
    import torch

    from probes.fitting import _Project

    planes = [torch.randn(5, 4, dtype=torch.float32) for _ in range(3)]
    vectors = torch.randn(4, 2, requires_grad=True)
    (_Project.apply(vectors, planes) ** 2).sum().backward()
    expected = sum(2 * plane.T @ (plane @ vectors.detach()) for plane in planes)
    torch.testing.assert_close(vectors.grad, expected)


def test_fits_made_together_do_not_touch_each_other() -> None:
    """The first of two fits is the same whatever similarities the second has."""
    planes, similarity, _ = planted()
    sketch = sketch_of(planes)
    splits = make_splits(ANCHORS, OPTIONS)
    found = []
    for other in (similarity, similarity[::-1, ::-1]):
        pair = zip((similarity, other), splits, strict=True)
        fits = [Fit(similarity=s, training=split.training) for s, split in pair]
        found.append(fit_together(sketch, fits, options=OPTIONS))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    assert np.abs(found[0][1] - found[1][1]).max() > 0.01


def test_the_aligned_start_is_the_leading_vector_of_its_form() -> None:
    planes, similarity, _ = planted()
    dense = np.stack([plane.toarray() for plane in planes]).astype(np.float32)
    training = make_splits(ANCHORS, OPTIONS)[0].training
    fit = Fit(similarity=similarity, training=training)
    (found,) = aligned_vectors(dense, [fit], scale_C=np.ones(CONTEXTS, np.float32))
    weights = similarity[np.ix_(training, training)].copy()
    np.fill_diagonal(weights, np.nan)
    weights = np.nan_to_num(weights - np.nanmean(weights))
    form = np.einsum("avc,ab,bvd->cd", dense[training], weights, dense[training])
    leading = np.linalg.eigh((form + form.T) / 2)[1][:, -1]
    assert abs(leading @ found) / np.linalg.norm(found) > 0.99


def test_training_never_sees_the_held_out_anchors() -> None:
    planes, similarity, _ = planted()
    sketch = sketch_of(planes)
    split = make_splits(ANCHORS, OPTIONS)[0]
    changed = similarity.copy()
    changed[split.held_out, :] = changed[:, split.held_out] = 0.123
    one, other = (
        fit_together(sketch, [Fit(similarity=s, training=split.training)], options=OPTIONS)
        for s in (similarity, changed)
    )
    assert (one == other).all()


def test_a_warm_start_needs_few_steps() -> None:
    """From a v close by, 30 steps do what they do not do from the starts of a first step."""
    planes, similarity, v = planted()
    sketch = sketch_of(planes)
    split = make_splits(ANCHORS, OPTIONS)[0]
    fits = [Fit(similarity=similarity, training=split.training)]
    short = replace(OPTIONS, steps=1, trial_steps=1)
    moved = v + np.random.default_rng(1).normal(scale=0.3, size=CONTEXTS)
    near = moved.astype(np.float32)[None]
    cold, warm = (
        fit_together(sketch, fits, options=short, before=before)[0] for before in (None, near)
    )
    exact = projected(planes, np.stack([near[0], cold, warm]))
    untouched, cold_mse, warm_mse = (score(one, similarity, split.held_out)[0] for one in exact)
    assert warm_mse < 0.7 * untouched
    assert warm_mse < 0.3 * cold_mse


@pytest.fixture
def first_order_series(tmp_path: Path) -> tuple[list[Path], dict]:
    """Four checkpoints and what `probe_series` is given with them."""
    paths, store = write_series(tmp_path)
    write_first_order(tmp_path / "first.zarr", list(range(20)))
    few = {"tokens": "top:12", "permutations": 9, "resamples": 9}
    return paths, few | {"signatures": store, "first_order": tmp_path / "first.zarr"}


@pytest.mark.filterwarnings("ignore:Port 8787 is already in use")  # of another run of the suite
def test_a_warm_series_is_the_same_however_it_is_run(
    tmp_path: Path, first_order_series: tuple[list[Path], dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, with two workers, or taken up half-way; and only its first step is as without it."""
    paths, given = first_order_series
    own = probe_series(paths, out=tmp_path / "own.zarr", **given)["first_order"]
    given["warm_start"] = True
    warm = probe_series(paths, out=tmp_path / "warm.zarr", **given)["first_order"]
    assert warm[0] == own[0]
    for one, other in zip(warm[1:], own[1:], strict=True):
        assert one["heldout_mse"] != other["heldout_mse"]
    shared = probe_series(paths, out=tmp_path / "shared.zarr", workers=2, **given)
    assert shared["first_order"] == warm

    honest = FirstOrderProbe.measure

    def fails_at_16(self: FirstOrderProbe, checkpoint, before=None):
        if checkpoint.step == 16:
            raise KeyboardInterrupt
        return honest(self, checkpoint, before)

    monkeypatch.setattr(FirstOrderProbe, "measure", fails_at_16)
    out = tmp_path / "resumed.zarr"
    with pytest.raises(KeyboardInterrupt):
        probe_series(paths, out=out, **given)
    monkeypatch.setattr(FirstOrderProbe, "measure", honest)
    resumed = probe_series(paths, out=out, resume=True, **given)
    assert resumed["reused_steps"] == 2
    assert resumed["first_order"] == warm
    record = open_results(out).attrs["staircase"]["FirstOrderProbe"]
    assert record["options"]["warm_start"]


def test_a_warm_measurement_holds_only_after_the_same_steps(
    tmp_path: Path, first_order_series: tuple[list[Path], dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed with one checkpoint fewer, what came after it is measured again."""
    paths, given = first_order_series
    given["warm_start"] = True

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probes.probe.save", fails)
    out = tmp_path / "p.zarr"
    with pytest.raises(KeyboardInterrupt):
        probe_series(paths, out=out, **given)
    monkeypatch.undo()
    fewer = [paths[0], *paths[2:]]
    resumed = probe_series(fewer, out=out, resume=True, **given)
    assert resumed["reused_steps"] == 1
    afresh = probe_series(fewer, out=tmp_path / "fresh.zarr", **given)
    assert resumed["first_order"] == afresh["first_order"]


def test_a_warm_start_of_nothing_is_refused(
    tmp_path: Path, first_order_series: tuple[list[Path], dict], capsys: pytest.CaptureFixture[str]
) -> None:
    paths, given = first_order_series
    command = ["probe", *map(str, paths), "--signatures", str(given["signatures"])]
    assert run([*command, "--warm-start", "--out", str(tmp_path / "p.zarr")]) == 2
    assert "--first-order or --projected" in capsys.readouterr().err


def write_first_order(out: Path, anchors: list[int]) -> None:
    """A first-order store of the chain's documents, counted with plain loops."""
    counts: dict[tuple[int, int], int] = {}
    occurrences = dict.fromkeys(anchors, 0)
    pairs = 0
    for document in documents():
        seen: set[int] = set()
        for token, label in itertools.pairwise(document):
            if token in occurrences:
                pairs += 1
                occurrences[token] += 1
                row = anchors.index(token) * VOCAB + label
                for context in seen:
                    counts[row, context] = counts.get((row, context), 0) + 1
            seen.add(token)
    matrix = matrix_of(counts, (len(anchors) * VOCAB, VOCAB))
    tokens = sum(map(len, documents()))
    totals = Totals(tokens=tokens, documents=len(documents()), empty_documents=0, pairs=pairs,
                    entries=matrix.nnz)  # fmt: skip
    spec = StoreSpec(kind="first-order", vocab_size=VOCAB, vocab_source="given", totals=totals)
    vectors = {
        "anchors": np.array(anchors, np.int64),
        "context_tokens": np.arange(VOCAB, dtype=np.int64),
        "anchor_occurrences": np.array([occurrences[a] for a in anchors], np.int64),
        "dropped": np.zeros(len(anchors), np.int64),
    }
    write_store(out, spec, {"counts": matrix}, vectors, dropped_fingerprint=0)


def test_a_series_with_its_first_order_store(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path, steps=(4, 64))
    write_first_order(tmp_path / "first.zarr", list(range(20)))
    result = probe_series(
        paths,
        signatures=store,
        first_order=tmp_path / "first.zarr",
        tokens="top:12",
        permutations=9,
        resamples=9,
        out=tmp_path / "p.zarr",
    )
    group = open_results(tmp_path / "p.zarr")["first_order"].to_dataset()
    assert group["heldout_mse"].dims == ("step", "split")
    assert {"shuffled_mse", "random_mse", "ones_mse", "unigram_mse"} <= set(group)
    for row, mse in zip(result["first_order"], group["heldout_mse"].values, strict=True):
        assert row["heldout_mse"] == pytest.approx(mse.mean())
    with pytest.raises(ValueError, match="next-token counts found, first-order counts are needed"):
        probe_series(paths, signatures=store, first_order=store, out=tmp_path / "q.zarr")
