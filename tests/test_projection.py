import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

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

LABELS, CONTEXTS, ANCHORS = 60, 12, 40
OPTIONS = ProjectionOptions(sketch_rows=256, steps=400, anchors_a_step=20, splits=2)


def planted(seed: int = 0) -> tuple[list[csr_array], np.ndarray, np.ndarray]:
    """First-order signatures, and the similarities that one hidden v gives them."""
    generator = np.random.default_rng(seed)
    dense = generator.random((ANCHORS, LABELS, CONTEXTS)) ** 4
    v = generator.normal(size=CONTEXTS)
    return [csr_array(plane) for plane in dense], cosine_matrix(dense @ v), v


def test_a_planted_vector_is_found_and_beats_every_control() -> None:
    planes, similarity, _ = planted()
    anchors = range(ANCHORS)
    sketch = label_sketch(planes.__getitem__, anchors, num_labels=LABELS, options=OPTIONS)
    for split in make_splits(ANCHORS, OPTIONS):
        (v,) = fit_together(
            sketch, [Fit(similarity=similarity, training=split.training)], options=OPTIONS
        )
        exact = project_exactly(planes.__getitem__, anchors, np.stack([v, np.ones(CONTEXTS)]))
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
    found = np.mean(
        [
            a.T @ b
            for seed in range(300)
            for a, b in [
                label_sketch(planes.__getitem__, (0, 1), num_labels=LABELS,
                             options=ProjectionOptions(sketch_rows=16, seed=seed))
            ]
        ],
        axis=0,
    )  # fmt: skip
    np.testing.assert_allclose(found, exact, rtol=0.3)


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
    sketch = label_sketch(planes.__getitem__, range(ANCHORS), num_labels=LABELS, options=OPTIONS)
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
    sketch = label_sketch(planes.__getitem__, range(ANCHORS), num_labels=LABELS, options=OPTIONS)
    split = make_splits(ANCHORS, OPTIONS)[0]
    changed = similarity.copy()
    changed[split.held_out, :] = changed[:, split.held_out] = 0.123
    one, other = (
        fit_together(sketch, [Fit(similarity=s, training=split.training)], options=OPTIONS)
        for s in (similarity, changed)
    )
    assert (one == other).all()


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
