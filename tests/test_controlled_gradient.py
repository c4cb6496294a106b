"""The theorems against autograd and loops over tuples, the propositions and the staircase."""

from itertools import combinations, permutations, product
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signatures.exact import EnumeratedTask, cooccurrence_signature, label_signature
from workflows.controlled import ffn_flow
from workflows.controlled.attention_flow import attention_label_driven
from workflows.controlled.ffn_flow import (
    PolynomialFFN,
    TaskSignatures,
    coefficient_sum,
    combinatorial_factor,
    label_driven_orders,
    order_shares,
    prediction_driven_orders,
    residual_orders,
    stirling_second,
)
from workflows.controlled.gradient_flow import (
    embedding_scale_shares,
    proposition_slopes,
    shares_along_training,
    theorem_errors,
)
from workflows.controlled.gradient_staircase import MODULAR, SUM_OF_THREE, takeover_epochs
from workflows.controlled.theorems import (
    attention_errors,
    ffn_errors,
    random_attention,
    random_ffn,
    random_task,
)


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """(l, n1..nm) with l >= 0 and every n >= 1."""
    ranges = [range(total + 1), *[range(1, total + 1)] * parts]
    return [numbers for numbers in product(*ranges) if sum(numbers) == total]


def naive_order(
    phi: np.ndarray, order: int, length: int, model: PolynomialFFN, label_vectors: np.ndarray
) -> np.ndarray:
    """A_{a,m} . phi^m(a) as the theorem prints it, loop by loop; phi (A = V, labels, V, ..)."""
    w = model.embedding_VH
    term = np.zeros_like(w)
    for place in zip(*np.nonzero(phi), strict=True):
        a, v, *context = place
        for k in range(order + 1, len(model.coefficients_K) + 1):
            for of_anchor, *n in compositions(k - 1, order):
                ways = factorial(k - 1) // np.prod([factorial(i) for i in (of_anchor, *n)])
                powers = np.prod([w[b] ** i for b, i in zip(context, n, strict=True)], axis=0)
                scale = k * model.coefficients_K[k - 1] * comb(length - 1, order) * ways
                term[a] += phi[place] * scale * w[a] ** of_anchor * label_vectors[v] * powers
    return term


@pytest.mark.parametrize(("length", "degree"), [(1, 3), (2, 3), (3, 4), (4, 4), (4, 2)])
def test_orders_equal_loops_over_tuples(length: int, degree: int) -> None:
    generator = np.random.default_rng(length)
    task, model = random_task(generator, length), random_ffn(generator, degree)
    assert len(np.unique(task.samples_NL)) == task.vocab_size  # so that phi has a row per token
    signatures = TaskSignatures.of(task, degree)
    label = label_driven_orders(signatures, model)
    prediction = prediction_driven_orders(signatures, model)
    assert len(label) == len(prediction) == min(length, degree)
    occurrences = np.bincount(task.samples_NL.ravel(), np.repeat(task.weights_N, length))
    scale = (occurrences / task.weights_N.sum())[:, None]  # L r_a
    mean = model.unembedding_VH.mean(axis=0, keepdims=True)
    for order, (of_label, of_prediction) in enumerate(zip(label, prediction, strict=True)):
        phi = label_signature(task, order).dense()
        wanted = scale * naive_order(phi, order, length, model, model.unembedding_VH)
        np.testing.assert_allclose(of_label, wanted, rtol=1e-10, atol=1e-10 * abs(wanted).max())
        together = cooccurrence_signature(task, order).dense()[:, None]
        wanted = scale * naive_order(together, order, length, model, mean)
        np.testing.assert_allclose(
            of_prediction, wanted, rtol=1e-10, atol=1e-10 * abs(wanted).max()
        )


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=40)
def test_orders_are_differences_of_the_activations_slope(
    seed: int, length: int, degree: int
) -> None:
    """Order m is the m-th mixed difference of sigma' over the context, by inclusion-exclusion."""
    generator = np.random.default_rng(seed)
    task, model = random_task(generator, length), random_ffn(generator, degree)

    def slope(z: np.ndarray) -> np.ndarray:
        return sum(k * c * z ** (k - 1) for k, c in enumerate(model.coefficients_K, start=1))

    w = model.embedding_VH
    wanted = np.zeros((length, *w.shape))
    for sample, label, p in zip(
        task.samples_NL, task.labels_N, task.sample_probabilities, strict=True
    ):
        for place, order in product(range(length), range(length)):
            others = [other for other in range(length) if other != place]
            for chosen in combinations(others, order):
                for size in range(order + 1):
                    for part in combinations(chosen, size):
                        z = w[sample[place]] + w[sample[list(part)]].sum(axis=0)
                        sign = (-1) ** (order - size)
                        wanted[order, sample[place]] += (
                            p * sign * slope(z) * model.unembedding_VH[label]
                        )
    found = label_driven_orders(TaskSignatures.of(task, degree), model)
    scale = abs(wanted).max()
    np.testing.assert_allclose(found, wanted[: len(found)], atol=1e-11 * scale)
    np.testing.assert_allclose(wanted[len(found) :], 0, atol=1e-11 * scale)


@pytest.mark.parametrize("seed", range(2))
def test_theorems_hold_to_rounding_and_the_printed_query_term_does_not(seed: int) -> None:
    errors = theorem_errors(seed)
    printed = errors.pop("theorem_3_as_printed")
    assert set(errors) == {
        "theorem_1_label",
        "theorem_2_prediction",
        "whole_flow",
        "theorem_3",
        "theorem_3_positions",
    }
    assert max(errors.values()) < 1e-10
    assert printed > 1e-2


def test_each_order_counts() -> None:
    """No term is so small that the comparison with autograd would miss it."""
    generator = np.random.default_rng(0)
    task, model = random_task(generator, 3), random_ffn(generator, 3)
    orders = label_driven_orders(TaskSignatures.of(task, 3), model)
    assert ffn_errors(task, model)["theorem_1_label"] < 1e-10
    for order in range(3):
        assert abs(orders[order]).max() > 1e-3 * abs(orders.sum(axis=0)).max()


@pytest.mark.parametrize("with_positions", [False, True])
def test_each_attention_part_counts(with_positions: bool) -> None:
    generator = np.random.default_rng(1)
    task = random_task(generator, 3)
    model = random_attention(generator, 3, with_positions=with_positions)
    parts = attention_label_driven(task, model)
    assert attention_errors(task, model)["theorem_3"] < 1e-10
    for part in (parts.value, parts.key, parts.query):
        assert abs(part).max() > 1e-2 * abs(parts.total).max()


def test_tokens_that_never_occur_get_no_gradient() -> None:
    generator = np.random.default_rng(2)
    task = EnumeratedTask(
        samples_NL=np.array([[0, 1], [1, 3]]), labels_N=np.array([2, 2]), vocab_size=5
    )
    terms = label_driven_orders(TaskSignatures.of(task, 2), random_ffn(generator, 2))
    assert (terms[:, [2, 4]] == 0).all()
    assert (terms[:, [0, 1, 3]] != 0).all()
    attention = random_attention(generator, 2, with_positions=True)
    assert (attention_label_driven(task, attention).total[[2, 4]] == 0).all()


def test_cells_in_pieces_are_the_cells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    task, model = random_task(generator, 4), random_ffn(generator, 5)
    signatures = TaskSignatures.of(task, 5)
    whole = residual_orders(signatures, model)
    monkeypatch.setattr(ffn_flow, "_CHUNK_NUMBERS", 40)
    np.testing.assert_allclose(residual_orders(signatures, model), whole, rtol=1e-12, atol=1e-14)


def test_permuting_positions_of_a_sample_changes_nothing() -> None:
    generator = np.random.default_rng(4)
    task, model = random_task(generator, 3), random_ffn(generator, 4)
    wanted = label_driven_orders(TaskSignatures.of(task, 4), model)
    for places in permutations(range(3)):
        moved = EnumeratedTask(
            samples_NL=task.samples_NL[:, places],
            labels_N=task.labels_N,
            weights_N=task.weights_N,
            vocab_size=task.vocab_size,
        )
        found = label_driven_orders(TaskSignatures.of(moved, 4), model)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_stirling_numbers_by_recurrence() -> None:
    assert [stirling_second(5, k) for k in range(1, 6)] == [1, 15, 25, 10, 1]
    for n, k in product(range(1, 12), range(1, 12)):
        wanted = k * stirling_second(n, k) + stirling_second(n, k - 1)
        assert stirling_second(n + 1, k) == wanted


@pytest.mark.parametrize(("order", "degree"), list(product(range(4), range(1, 8))))
def test_combinatorial_factors_are_sums_of_multinomials(order: int, degree: int) -> None:
    def total(least: int) -> int:
        parts = [numbers for numbers in compositions(degree - 1, order) if numbers[0] >= least]
        return sum(factorial(degree - 1) // np.prod([factorial(i) for i in one]) for one in parts)

    assert combinatorial_factor(order, degree) == (total(1) if degree > 1 else 0)
    assert coefficient_sum(order, degree) == total(0)


def test_shares_of_orders() -> None:
    np.testing.assert_allclose(
        order_shares(np.array([[[3.0, 4.0]], [[0.0, 0.0]], [[15.0, 0.0]]])), [0.25, 0, 0.75]
    )
    assert np.isnan(order_shares(np.zeros((2, 3, 4)))).all()


def test_proposition_1_slopes() -> None:
    measured = proposition_slopes(0, quick=True)
    assert measured.width.min() == 128
    assert measured.width.max() == 4096
    assert float(abs(measured.slope + measured.order * measured.gamma).max()) <= 0.05


def test_a_monomial_has_one_scale_for_all_orders() -> None:
    """Why Proposition 1 wants C_1 and C_{m+1}: for sigma = z^K the ratio does not fall with d."""
    generator = np.random.default_rng(5)
    signatures = TaskSignatures.of(random_task(generator, 3), 4)
    normal = generator.normal(size=(2, 5, 64))
    shares = [
        order_shares(
            label_driven_orders(
                signatures,
                PolynomialFFN(
                    embedding_VH=scale * normal[0],
                    unembedding_VH=scale * normal[1],
                    coefficients_K=[0, 0, 0, 1],
                ),
            )
        )
        for scale in (1.0, 1e-3)
    ]
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-9)


def test_proposition_2_large_embeddings() -> None:
    measured = embedding_scale_shares(0)
    large = measured.share.isel(embedding_scale=-1)
    assert (measured.share.isel(embedding_scale=0).argmax("order") == 0).all()
    assert (large.sel(degree=[12, 16]).argmax("order") == 3).all()  # K >> L = 4
    assert (large.sel(degree=4).argmax("order") < 3).all()  # and not before
    assert float(abs(measured.exponent - (measured.degree - 1)).max()) < 0.01
    top = large.isel(order=-1)
    assert (top.diff("degree") > 0).all()


def test_the_staircase_is_seen_in_the_gradient() -> None:
    """Orders 0, 1 and 2 lead the flow in turn; measured at 0, 95-150 and 250-275, seeds 0-4."""
    measured = shares_along_training(0, quick=True)
    for name, variable in measured.variables.items():
        assert variable.attrs["long_name"], name
        assert variable.attrs["units"], name
    np.testing.assert_allclose(
        measured.flow_share.sum("order", skipna=True), np.ones((2, measured.sizes["epoch"]))
    )
    first, second, third = measured.takeover_epoch.sel(rule=SUM_OF_THREE).values
    assert first == 0 < second < third <= 400
    assert 50 <= second <= 200
    before = measured.sel(rule=SUM_OF_THREE, epoch=50)
    assert before.flow_share.sel(order=0) > 0.6
    assert before.accuracy < 0.2
    assert measured.accuracy.sel(rule=SUM_OF_THREE, epoch=700) >= 0.99
    plateau = measured.sel(rule=MODULAR, epoch=300)
    assert plateau.flow_share.sel(order=0) > 0.7
    assert plateau.accuracy < 0.15
    assert np.isnan(measured.takeover_epoch.sel(rule=MODULAR, order=2))


def test_takeovers_by_hand() -> None:
    shares = np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.5, 0.4, 0.1], [0.1, 0.9, 0.0]])
    np.testing.assert_array_equal(
        takeover_epochs(shares, np.array([0, 10, 20, 30])), [0, 10, np.nan]
    )


def test_bad_parameters_say_what_was_found_required_and_the_remedy() -> None:
    rows = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"embedding \(3, 2\) and unembedding \(2, 2\) .* give"):
        PolynomialFFN(embedding_VH=rows, unembedding_VH=rows[:2], coefficients_K=[1.0])
    with pytest.raises(ValueError, match=r"coefficients_K: found none, required C_1..C_K; give"):
        PolynomialFFN(embedding_VH=rows, unembedding_VH=rows, coefficients_K=[])
