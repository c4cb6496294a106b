import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import pearsonr, spearmanr

from probes.components import align_signs, principal_components
from probes.similarity import (
    centred_cosine_matrix,
    common_mean_removed_matrix,
    compare,
    cosine_matrix,
    cosines_between,
    cosines_of_inner_products,
    debiased_cka,
    off_diagonal,
    pearson,
    spearman,
)


def rows(seed: int, shape: tuple[int, int] = (7, 5)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_constant_rows_have_a_cosine_but_no_centred_one() -> None:
    constant = np.stack([np.full(100, 0.1), np.full(100, 1 / 7), np.zeros(100)])
    raw = cosine_matrix(constant)
    assert raw[0, 1] == pytest.approx(1, abs=1e-15)
    assert np.isnan(raw[2]).all()
    assert np.isnan(raw[:, 2]).all()
    assert np.isnan(centred_cosine_matrix(constant)).all()


@given(st.floats(1e-3, 1e3), st.integers(2, 400))
def test_no_constant_row_is_ever_given_a_centred_cosine(value: float, width: int) -> None:
    ramp = np.arange(width, dtype=float)
    centred = centred_cosine_matrix(np.stack([np.full(width, value), ramp]))
    assert np.isnan(centred[0]).all()
    assert centred[1, 1] == 1


@given(st.floats(-1, 1), st.integers(3, 300))
def test_pearson_and_spearman_of_a_constant_vector_are_undefined(value: float, size: int) -> None:
    noise = np.random.default_rng(0).normal(size=size)
    nearly = value + 1e-16 * noise
    for constant in (np.full(size, value), nearly):
        assert np.isnan(pearson(constant, noise))
        assert np.isnan(spearman(noise, constant))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_cosine_of_tiny_vectors(dtype: type) -> None:
    tiny = np.array([[3e3, 2e3, 1e3], [1e-9, 2e-9, 3e-9]], dtype)
    assert cosine_matrix(tiny)[0, 1] == pytest.approx(10 / 14, rel=1e-7)


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e-300])
def test_cosine_does_not_under_or_overflow(scale: float) -> None:
    assert cosine_matrix(np.array([[3, 2, 1], [scale, 2 * scale, 3 * scale]]))[
        0, 1
    ] == pytest.approx(10 / 14, rel=1e-12)


def test_half_precision_rows_are_compared_in_double() -> None:
    import torch

    halves = torch.tensor(rows(3, (50, 64))).bfloat16().float().numpy()
    matrix = cosine_matrix(halves)
    assert (np.diagonal(matrix) == 1).all()
    assert np.abs(matrix).max() <= 1
    exact = halves.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(matrix, exact @ exact.T, atol=1e-14)


def test_rows_that_are_not_finite_are_undefined_and_counted() -> None:
    broken = rows(0)
    broken[2, 1], broken[4, 0] = np.nan, np.inf
    for matrix in (cosine_matrix(broken), centred_cosine_matrix(broken),
                   common_mean_removed_matrix(broken)):  # fmt: skip
        assert np.flatnonzero(np.isnan(np.diagonal(matrix))).tolist() == [2, 4]
    comparison = compare(cosine_matrix(broken), cosine_matrix(rows(1)))
    assert comparison.num_pairs == 10
    assert comparison.num_undefined == 11


@given(st.integers(0, 1000))
def test_sparse_and_dense_rows_agree(seed: int) -> None:
    generator = np.random.default_rng(seed)
    dense = generator.integers(0, 3, size=(8, 30)) * (generator.random((8, 30)) < 0.3) * 1.0
    dense[5] = 0
    sparse = csr_array(dense)
    np.testing.assert_allclose(cosine_matrix(sparse), cosine_matrix(dense), atol=1e-15)
    np.testing.assert_allclose(
        cosines_between(sparse, sparse[:3]), cosine_matrix(dense)[:, :3], atol=1e-15
    )


def test_equal_sparse_rows_have_cosine_one() -> None:
    sparse = csr_array(np.array([[0, 1 / 3, 0, 2 / 3], [0, 1 / 3, 0, 2 / 3], [1, 0, 0, 0]]))
    matrix = cosine_matrix(sparse)
    assert matrix[0, 1] == pytest.approx(1, abs=1e-15)
    assert matrix[0, 2] == 0


def test_centred_cosine_is_the_correlation_of_rows() -> None:
    table = rows(5)
    np.testing.assert_allclose(centred_cosine_matrix(table), np.corrcoef(table), atol=1e-13)


def test_removing_the_common_mean_undoes_a_shared_offset() -> None:
    table = rows(6)
    shifted = common_mean_removed_matrix(table + 7.0)
    np.testing.assert_allclose(shifted, common_mean_removed_matrix(table), atol=1e-12)


@given(st.integers(0, 1000))
def test_comparison_agrees_with_scipy(seed: int) -> None:
    one, other = cosine_matrix(rows(seed)), cosine_matrix(rows(seed + 5000))
    found = compare(one, other)
    a, b = off_diagonal(one), off_diagonal(other)
    assert found.pearson == pytest.approx(pearsonr(a, b).statistic, abs=1e-12)
    assert found.spearman == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert found.mse == pytest.approx(float(np.mean((a - b) ** 2)))
    assert found.one_minus_mse == 1 - found.mse


def test_cosines_equal_but_for_rounding_share_a_rank() -> None:
    exact = np.array([0.1, 0.5, 0.5, 0.9])
    rounded = exact + np.array([0, 1e-15, -1e-15, 0])
    assert spearman(rounded, np.array([1.0, 2.0, 2.0, 3.0])) == pytest.approx(1)


@given(st.permutations(range(7)))
def test_permuting_tokens_permutes_the_matrix(order: list[int]) -> None:
    table = rows(9)
    np.testing.assert_allclose(
        cosine_matrix(table[order]), cosine_matrix(table)[np.ix_(order, order)], atol=1e-15
    )


def test_off_diagonal_is_row_by_row() -> None:
    assert off_diagonal(np.arange(9).reshape(3, 3)).tolist() == [1, 2, 5]


def test_components_reconstruct_the_distances() -> None:
    table = rows(2, (6, 4))
    found = principal_components(table, 4)
    between = np.linalg.norm(table[:, None] - table[None], axis=-1)
    coordinates = found.coordinates
    np.testing.assert_allclose(
        np.linalg.norm(coordinates[:, None] - coordinates[None], axis=-1), between, atol=1e-6
    )
    assert found.explained.sum() == pytest.approx(1)
    assert (np.diff(found.explained) <= 0).all()


def test_components_of_equal_rows_explain_nothing() -> None:
    found = principal_components(np.full((5, 3), 1 / 7), 2)
    assert np.isnan(found.explained).all()


def test_a_series_of_components_keeps_its_signs() -> None:
    last = rows(4, (6, 2))
    flipped = np.stack([last * [1, -1], last * [-1, 1], last])
    np.testing.assert_allclose(align_signs(flipped), np.stack([last] * 3))


def test_cka_agrees_with_a_sum_over_quadruples() -> None:
    """HSIC without bias is a mean over quadruples of different rows (Song et al. 2012)."""
    one, other = rows(1, (6, 3)), rows(2, (6, 4))

    def hsic(left: np.ndarray, right: np.ndarray) -> float:
        k, m = left @ left.T, right @ right.T
        terms = [
            k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])
            for i, j, q, r in itertools.permutations(range(6), 4)
        ]
        return float(np.mean(terms))

    expected = hsic(one, other) / np.sqrt(hsic(one, one) * hsic(other, other))
    assert debiased_cka(one, other) == pytest.approx(expected)
    assert debiased_cka(one, csr_array(other)) == pytest.approx(expected)
    assert debiased_cka(one, 3 * one + 0.0) == pytest.approx(1)


def test_cka_of_equal_rows_is_undefined() -> None:
    assert np.isnan(debiased_cka(np.full((6, 3), 0.1), rows(1, (6, 2))))


def test_cka_of_unrelated_rows_is_zero_on_average() -> None:
    found = [debiased_cka(rows(s, (12, 50)), rows(s + 900, (12, 50))) for s in range(200)]
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(200)


def test_inner_products_are_enough_for_cosines() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4)) * [[1e-9], [1e9], [1], [1], [0], [1]]
    np.testing.assert_allclose(
        cosines_of_inner_products(rows @ rows.T), cosine_matrix(rows), atol=1e-12
    )
