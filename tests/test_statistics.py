import itertools

import numpy as np
import pytest
from scipy.stats import kstest

from probes.similarity import cosine_matrix, off_diagonal, pearson
from probes.statistics import bootstrap_rho, interval, mantel_p


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
