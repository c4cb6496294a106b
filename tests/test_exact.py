"""Exact signatures: hand-worked answers, laws, and a twin that enumerates every tuple."""

from itertools import combinations_with_replacement, permutations, product
from math import factorial, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signatures import exact
from signatures.exact import (
    EnumeratedTask,
    cooccurrence_signature,
    label_signature,
    occurrence_probability,
)


@st.composite
def tasks(draw: st.DrawFn, min_length: int = 1, max_length: int = 4) -> EnumeratedTask:
    """A random task; few tokens, so that they repeat within a sample."""
    vocab_size = draw(st.integers(1, 4))
    length = draw(st.integers(min_length, max_length))
    ids = st.integers(0, vocab_size - 1)
    row = st.tuples(st.lists(ids, min_size=length, max_size=length), ids, st.integers(1, 9))
    rows = draw(st.lists(row, min_size=1, max_size=8))
    samples, labels, weights = zip(*rows, strict=True)
    return EnumeratedTask(
        samples_NL=np.array(samples),
        labels_N=np.array(labels),
        weights_N=np.array(weights),
        vocab_size=vocab_size,
    )


@st.composite
def tasks_with_order(draw: st.DrawFn, lowest: int = 0) -> tuple[EnumeratedTask, int]:
    task = draw(tasks(min_length=lowest + 1))
    return task, draw(st.integers(lowest, task.length - 1))


def naive_label_signature(task: EnumeratedTask, order: int, anchors: Any) -> np.ndarray:
    """Add every (sample, position, ordered tuple of other positions)."""
    shape = (len(anchors),) + (task.vocab_size,) * (order + 1)
    counts = np.zeros(shape, np.int64)
    for sample, label, weight in zip(task.samples_NL, task.labels_N, task.weights_N, strict=True):
        for place in range(task.length):
            others = [other for other in range(task.length) if other != place]
            for chosen in permutations(others, order):
                for row in np.flatnonzero(anchors == sample[place]):
                    counts[(row, label, *sample[list(chosen)])] += weight
    flat = counts.reshape(len(anchors), -1)
    return (flat / flat.sum(axis=1, keepdims=True)).reshape(shape)


def addition(num_tokens: int) -> EnumeratedTask:
    pairs = np.array(list(product(range(1, num_tokens + 1), repeat=2)))
    return EnumeratedTask(
        samples_NL=pairs, labels_N=pairs.sum(axis=1), vocab_size=2 * num_tokens + 1
    )


def test_addition_of_two_tokens_by_hand() -> None:
    task = addition(2)
    zero, one = label_signature(task, 0).dense(), label_signature(task, 1).dense()
    np.testing.assert_array_equal(zero[0], [0, 0, 0.5, 0.5, 0])
    assert {(2, 1): one[0, 2, 1], (3, 2): one[0, 3, 2]} == {(2, 1): 0.5, (3, 2): 0.5}
    assert one[0].sum() == 1
    np.testing.assert_array_equal(occurrence_probability(task), [0, 0.5, 0.5, 0, 0])


def test_a_sample_that_holds_the_anchor_twice_counts_twice() -> None:
    task = EnumeratedTask(
        samples_NL=np.array([[1, 1, 2], [1, 2, 2]]), labels_N=np.array([0, 1]), vocab_size=3
    )
    np.testing.assert_array_equal(label_signature(task, 0, [1]), [[2 / 3, 1 / 3, 0]])
    # label 0: the other two hold {1, 2}, each arrangement half of 2/3; label 1: {2, 2}
    two = label_signature(task, 2, [1]).dense()[0]
    assert (two[0, 1, 2], two[0, 2, 1], two[1, 2, 2]) == (1 / 3, 1 / 3, 1 / 3)
    np.testing.assert_array_equal(occurrence_probability(task), [0, 1 / 2, 1 / 2])


def test_min_and_max_by_hand() -> None:
    n = 5
    pairs = np.array([(c, x, y) for c in (0, n + 1) for x, y in product(range(1, n + 1), repeat=2)])
    larger = pairs[:, 0] == 0
    labels = np.where(larger, pairs[:, 1:].max(axis=1), pairs[:, 1:].min(axis=1))
    task = EnumeratedTask(samples_NL=pairs, labels_N=labels, vocab_size=n + 2)
    phi = label_signature(task, 0).dense()[:, 1 : n + 1]  # rows: max, 1..n, min
    y = np.arange(1, n + 1)
    np.testing.assert_allclose(phi[0], (2 * y - 1) / n**2)
    np.testing.assert_allclose(phi[-1], (2 * (n - y) + 1) / n**2)
    np.testing.assert_allclose(phi[1:-1], np.eye(n) / 2 + 1 / (2 * n))


@given(tasks_with_order())
def test_equals_enumeration(drawn: tuple[EnumeratedTask, int]) -> None:
    task, order = drawn
    phi = label_signature(task, order)
    np.testing.assert_array_equal(phi, naive_label_signature(task, order, phi.anchors_A))
    together = cooccurrence_signature(task, order).dense()
    np.testing.assert_allclose(together, phi.dense().sum(axis=1), rtol=1e-14)


@given(tasks_with_order())
def test_each_multiset_of_context_is_one_cell(drawn: tuple[EnumeratedTask, int]) -> None:
    phi = label_signature(*drawn)
    assert (np.diff(phi.context_EM, axis=1) >= 0).all()
    cells = np.column_stack([phi.anchor_E, phi.label_E, phi.context_EM])
    assert len(np.unique(cells, axis=0)) == len(cells)
    per_anchor = np.bincount(phi.anchor_E, phi.multiset_probabilities)
    np.testing.assert_allclose(per_anchor, 1, rtol=1e-14)


@given(tasks_with_order())
def test_entries_sum_to_one(drawn: tuple[EnumeratedTask, int]) -> None:
    task, order = drawn
    for signature in (label_signature(task, order), cooccurrence_signature(task, order)):
        phi = signature.dense().reshape(len(signature.anchors_A), -1)
        np.testing.assert_allclose(phi.sum(axis=1), 1, rtol=1e-14)
        assert (phi >= 0).all()
    assert occurrence_probability(task).sum() == pytest.approx(1, rel=1e-14)


@given(tasks_with_order(lowest=1), st.data())
def test_summing_out_a_mode_gives_the_order_below(
    drawn: tuple[EnumeratedTask, int], data: st.DataObject
) -> None:
    task, order = drawn
    mode = data.draw(st.integers(1, order))
    for signature in (label_signature, cooccurrence_signature):
        phi = signature(task, order).dense()
        below = signature(task, order - 1).dense()
        first = phi.ndim - order - 1
        np.testing.assert_allclose(phi.sum(axis=first + mode), below, rtol=1e-13, atol=1e-16)


@given(tasks_with_order(lowest=1))
def test_symmetric_in_the_context(drawn: tuple[EnumeratedTask, int]) -> None:
    task, order = drawn
    phi = label_signature(task, order).dense()
    for modes in permutations(range(2, order + 2)):
        np.testing.assert_array_equal(phi, phi.transpose(0, 1, *modes))


@given(tasks_with_order(lowest=1))
def test_the_norm_does_not_grow_with_the_order(drawn: tuple[EnumeratedTask, int]) -> None:
    task, order = drawn
    below, above = (
        np.sqrt((label_signature(task, m).dense().reshape(-1, task.vocab_size**m) ** 2).sum())
        for m in (order - 1, order)
    )
    assert above <= below * (1 + 1e-12)


@given(tasks_with_order(), st.randoms(use_true_random=False))
def test_permuting_tokens_permutes_the_result(
    drawn: tuple[EnumeratedTask, int], random: Any
) -> None:
    task, order = drawn
    to = np.array(random.sample(range(task.vocab_size), task.vocab_size))
    renamed = EnumeratedTask(
        samples_NL=to[task.samples_NL],
        labels_N=to[task.labels_N],
        weights_N=task.weights_N,
        vocab_size=task.vocab_size,
    )
    phi = label_signature(task, order)
    moved = label_signature(renamed, order, to[phi.anchors_A]).dense()
    modes = np.ix_(range(len(moved)), *[to] * (order + 1))
    np.testing.assert_array_equal(moved[modes], phi)


@given(tasks_with_order())
def test_sparse_equals_dense(drawn: tuple[EnumeratedTask, int]) -> None:
    task, order = drawn
    phi = label_signature(task, order)
    assert (phi.sparse().toarray().reshape(phi.shape) == phi.dense()).all()
    together = cooccurrence_signature(task, order)
    assert (together.sparse().toarray().reshape(together.shape) == together.dense()).all()
    assert phi.sparse().has_canonical_format
    assert (phi.sparse().data > 0).all()


@given(tasks())
def test_weights_are_repetition(task: EnumeratedTask) -> None:
    repeated = EnumeratedTask(
        samples_NL=np.repeat(task.samples_NL, task.weights_N, axis=0),
        labels_N=np.repeat(task.labels_N, task.weights_N),
        vocab_size=task.vocab_size,
    )
    order = task.length - 1
    one, other = label_signature(task, order), label_signature(repeated, order)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(occurrence_probability(task), occurrence_probability(repeated))


@pytest.mark.parametrize("order", range(4))
def test_multisets_weighted_by_arrangements_are_all_sequences(order: int) -> None:
    sequences = np.array(list(product(range(3), repeat=4)))
    multisets = np.array(list(combinations_with_replacement(range(3), 4)))
    arrangements = [
        factorial(4) // prod(factorial(n) for n in np.bincount(row)) for row in multisets
    ]
    every = EnumeratedTask(samples_NL=sequences, labels_N=sequences.sum(axis=1) % 3, vocab_size=3)
    few = EnumeratedTask(
        samples_NL=multisets,
        labels_N=multisets.sum(axis=1) % 3,
        weights_N=np.array(arrangements),
        vocab_size=3,
    )
    np.testing.assert_array_equal(label_signature(every, order), label_signature(few, order))


def test_what_fits_is_dense_and_the_rest_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    phi = label_signature(addition(3), 1)
    assert isinstance(phi.fitting(), np.ndarray)
    assert phi.is_small
    monkeypatch.setattr(exact, "DENSE_ENTRIES", prod(phi.shape))
    assert phi.is_small
    monkeypatch.setattr(exact, "DENSE_ENTRIES", prod(phi.shape) - 1)
    assert not phi.is_small
    assert phi.fitting().shape == (3 * 7, 7)


def test_large_counts_stay_integers() -> None:
    big = 2**53 + 1  # a float64 would lose the 1
    task = EnumeratedTask(
        samples_NL=np.array([[0, 1], [0, 1]]),
        labels_N=np.array([0, 1]),
        weights_N=np.array([big, 2]),
        vocab_size=2,
    )
    phi = label_signature(task, 1, [0])
    assert phi.counts_E.tolist() == [big, 2]
    assert phi.totals_A.tolist() == [big + 2]


def test_bad_tasks_say_what_was_found_required_and_the_remedy() -> None:
    samples, labels = np.array([[0, 1], [1, 2]]), np.array([0, 1])
    good: dict[str, Any] = {"samples_NL": samples, "labels_N": labels, "vocab_size": 3}
    EnumeratedTask(**good)
    for change, words in (
        ({"samples_NL": samples[0]}, r"samples_NL: found shape \(2,\), required \(N, L\)"),
        ({"samples_NL": samples / 2}, "samples_NL: found float64, required integers; convert"),
        ({"labels_N": labels[:1]}, r"labels_N: found shape \(1,\), required \(2,\); give one"),
        ({"vocab_size": 2}, "samples_NL: found ids 0 to 2, required 0 to 1; raise vocab_size"),
        ({"labels_N": labels - 1}, "labels_N: found ids -1 to 0, required 0 to 2"),
        ({"weights_N": np.array([1, 0])}, "weights_N: found 0, required 1 or more; leave"),
        ({"weights_N": np.full(2, 2**62)}, "weights_N: up to 1.8e.19 counts, .* divide"),
    ):
        with pytest.raises(ValueError, match=words):
            EnumeratedTask(**(good | change))


def test_bad_questions_say_what_was_found_required_and_the_remedy() -> None:
    task = EnumeratedTask(
        samples_NL=np.array([[0, 1, 1, 1]]), labels_N=np.array([0]), vocab_size=2**16
    )
    for order, anchors, words in (
        (4, None, "order 4: samples of 4 positions have orders 0 to 3"),
        (-1, None, "order -1"),
        (0, [2], r"anchors \[2\] never occur"),
        (0, [0, 0], r"anchors: found \[0, 0\], required one or more tokens; name each once"),
        (0, [-1], "anchors: found ids -1 to -1, required 0 to 65535"),
        (3, None, "order 3 over 65536 tokens: 3.7e.19 cells, .* give the tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            label_signature(task, order, anchors)
