import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import kstest

from probes.reliability import Reliability, split_half
from probes.similarity import cosine_matrix, off_diagonal, pearson
from probes.statistics import (
    bootstrap_rho,
    interval,
    mantel_p,
    measured_coverage,
    partial_rho,
)
from probes.transforms import positive_pmi, square_root


def geometry(seed: int, tokens: int = 8, width: int = 5) -> np.ndarray:
    return cosine_matrix(np.random.default_rng(seed).normal(size=(tokens, width)))


def test_p_approaches_the_share_of_all_permutations() -> None:
    signature, model = geometry(1, 6), geometry(2, 6)
    observed = pearson(off_diagonal(model), off_diagonal(signature))
    every = [
        pearson(off_diagonal(model), off_diagonal(signature[np.ix_(order, order)]))
        for order in itertools.permutations(range(6))
    ]
    exact = np.mean(np.array(every) >= observed - 1e-12)
    found = mantel_p(signature, model[None], permutations=4999)[0]
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4999))


def test_p_of_the_signature_itself_is_the_least_possible() -> None:
    signature = geometry(3, 30)
    assert mantel_p(signature, signature[None], permutations=199)[0] == 1 / 200


def test_p_of_each_step_does_not_depend_on_its_company() -> None:
    signature = geometry(4)
    series = np.stack([geometry(seed) for seed in (5, 6, 7)])
    series[1, 2, :] = series[1, :, 2] = np.nan
    together = mantel_p(signature, series, permutations=99, seed=3)
    alone = [mantel_p(signature, step[None], permutations=99, seed=3)[0] for step in series]
    assert together.tolist() == alone


def test_p_is_undefined_with_rho() -> None:
    constant = np.ones((8, 8))
    assert np.isnan(mantel_p(constant, geometry(1)[None])).all()
    assert np.isnan(mantel_p(geometry(1), constant[None])).all()
    assert np.isnan(mantel_p(geometry(1), np.full((1, 8, 8), np.nan))).all()


def test_p_is_uniform_for_random_embeddings() -> None:
    signature = geometry(0, 25)
    series = np.stack([geometry(1000 + seed, 25) for seed in range(300)])
    p = mantel_p(signature, series, permutations=399)
    assert kstest(p, "uniform").pvalue > 0.01


def test_bootstrap_equals_tokens_drawn_one_by_one() -> None:
    signature, model = geometry(1), geometry(2)
    found = bootstrap_rho(signature, model[None], resamples=20, seed=5)[0]
    generator = np.random.default_rng(5)
    draws = generator.multinomial(8, np.full(8, 1 / 8), size=20)
    for rho, counts in zip(found, draws, strict=True):
        tokens = np.repeat(np.arange(8), counts)
        pairs = [(a, b) for a, b in itertools.combinations(tokens, 2) if a != b]
        first, second = np.array(pairs).T
        naive = np.corrcoef(signature[first, second], model[first, second])[0, 1]
        assert rho == pytest.approx(naive, abs=1e-10)


def test_steps_share_their_draws() -> None:
    signature, model = geometry(1), geometry(2)
    samples = bootstrap_rho(signature, np.stack([model, model]), resamples=30)
    assert (samples[0] == samples[1]).all()


def test_interval_covers_the_middle() -> None:
    low, high = interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25, 975))


def test_coverage_at_the_null_is_at_least_nominal() -> None:
    covered = measured_coverage(geometry(0, 40, 10), num_features=16, draws=200, resamples=300)
    print(f"coverage of the 95 % interval at the null: {covered:.3f}")
    assert covered >= 0.95 - 2 * np.sqrt(0.95 * 0.05 / 200)


def test_partial_rho_takes_out_what_frequency_explains() -> None:
    frequency = np.random.default_rng(0).normal(size=40)
    shared = frequency[:, None] + frequency[None, :]
    one, other = shared + geometry(1, 40), shared + geometry(2, 40)
    raw = pearson(off_diagonal(one), off_diagonal(other))
    assert raw > 0.8
    assert abs(partial_rho(one, other, frequency)) < 0.1
    assert partial_rho(geometry(1), geometry(1), np.arange(8.0)) == pytest.approx(1)


def test_partial_rho_equals_correlation_of_residuals() -> None:
    one, other, f = geometry(1, 10), geometry(2, 10), np.arange(10.0) ** 1.5
    a, b = np.triu_indices(10, k=1)
    covariates = np.stack([f[a] + f[b], np.abs(f[a] - f[b])])
    inverse = np.linalg.inv(np.cov(np.vstack([one[a, b], other[a, b], covariates])))
    expected = -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])
    assert partial_rho(one, other, f) == pytest.approx(expected)


def test_reliability_follows_spearman_and_brown() -> None:
    found = Reliability(half_correlation=0.6)
    assert found.whole == pytest.approx(1.2 / 1.6)
    assert found.ceiling == pytest.approx(np.sqrt(0.75))
    assert np.isnan(Reliability(half_correlation=-0.1).ceiling)


def test_ceiling_is_what_a_perfect_model_reaches() -> None:
    """A model with the true geometry correlates with the counted one at about the ceiling."""
    generator = np.random.default_rng(0)
    law = generator.dirichlet(np.full(50, 0.3), size=60)
    halves = [np.stack([generator.multinomial(40, row) for row in law]) for _ in "ab"]
    whole = cosine_matrix(halves[0] + halves[1])
    perfect = pearson(off_diagonal(cosine_matrix(law)), off_diagonal(whole))
    assert split_half(*halves).ceiling == pytest.approx(perfect, abs=0.02)


def test_transforms_are_what_they_say() -> None:
    rows = csr_array(np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    assert square_root(rows).toarray()[0].tolist() == [np.sqrt(0.5), 0.5, 0.5]
    found = positive_pmi(rows, np.array([2, 1, 1])).toarray()
    np.testing.assert_allclose(found, [[0, 0, 0], [0, np.log(4), 0]], atol=1e-15)
    assert rows.toarray().tolist() == [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]


def test_a_resample_of_one_pair_alone_is_undefined_and_raises_no_warning() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 5))
    found = bootstrap_rho(cosine_matrix(rows), cosine_matrix(rows[:, :3])[None], resamples=300)
    assert np.isnan(found).any()
    assert np.abs(found[np.isfinite(found)]).max() <= 1 + 1e-9
    low, high = interval(found)
    assert np.isnan(low[0])
    assert np.isnan(high[0])
