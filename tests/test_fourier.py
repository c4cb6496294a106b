import numpy as np
import pytest

from probes.fourier import best_frequency, fourier_rho, fourier_rows, frequencies
from probes.pearson_probe import cross_validated_rho, fit_pearson, probed_rows
from probes.similarity import cosine_matrix, off_diagonal, pearson


def modular(n: int) -> np.ndarray:
    """First-order signatures of y = (a + x) mod n: P(y = v, x = b | a)."""
    phi = np.zeros((n, n, n))
    for a in range(n):
        for b in range(n):
            phi[a, (a + b) % n, b] = 1 / n
    return phi


def test_frequency_zero_is_the_order_zero_signature() -> None:
    phi = np.random.default_rng(0).random((5, 7, 6))
    np.testing.assert_allclose(fourier_rows(phi)[0], phi.sum(axis=2))


def test_cosines_are_orthogonal() -> None:
    c = frequencies(12)
    gram = c @ c.T
    np.testing.assert_allclose(gram - np.diag(np.diagonal(gram)), 0, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_ring_of_frequency_k_is_recognised(k: int) -> None:
    n = 11
    angle = 2 * np.pi * k * np.arange(n) / n
    ring = cosine_matrix(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    rho = fourier_rho(modular(n), ring)
    assert np.isnan(rho[0])  # all order-0 signatures are the same
    assert best_frequency(rho) == k
    assert rho[k] == pytest.approx(1)
    assert best_frequency(rho, above=k) != k
    assert best_frequency(np.full(4, np.nan)) is None


def test_a_series_is_its_steps() -> None:
    phi, generator = modular(7), np.random.default_rng(1)
    steps = np.stack([cosine_matrix(generator.normal(size=(7, 3))) for _ in range(3)])
    rho = fourier_rho(phi, steps)
    np.testing.assert_array_equal(rho[1], fourier_rho(phi, steps[1]))


def test_the_pearson_probe_finds_a_planted_vector() -> None:
    generator = np.random.default_rng(2)
    phi, v = generator.random((15, 9, 6)), generator.normal(size=6)
    planted = cosine_matrix(phi @ v)
    found = fit_pearson(phi, planted, steps=800)
    assert pearson(off_diagonal(cosine_matrix(phi @ found)), off_diagonal(planted)) > 0.98
    for over in ("pairs", "anchors"):
        assert cross_validated_rho(phi, planted, over=over, steps=800).mean() > 0.9


def test_order_two_is_contracted_twice_and_found() -> None:
    generator = np.random.default_rng(3)
    phi, v = generator.random((15, 9, 4, 4)), generator.normal(size=4)
    rows = probed_rows(phi, v)
    np.testing.assert_allclose(rows, np.einsum("avbc,b,c->av", phi, v, v))
    found = fit_pearson(phi, cosine_matrix(rows), steps=800)
    assert (
        pearson(
            off_diagonal(cosine_matrix(probed_rows(phi, found))), off_diagonal(cosine_matrix(rows))
        )
        > 0.98
    )
