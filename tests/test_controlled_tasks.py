"""Controlled tasks: what they list, and that corpus-scale counts of them are their signatures."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from corpus.store import InputOptions
from signatures.context_count import count_contexts
from signatures.contexts import ContextOptions
from signatures.count import count_next_token
from signatures.exact import EnumeratedTask, label_signature
from signatures.scope import CountOptions, Scope
from signatures.store import open_signatures
from workflows.controlled.task_corpus import task_documents, write_task_corpus
from workflows.controlled.tasks import (
    ControlledTask,
    LawTask,
    MinMaxTask,
    PairTask,
    ParityTask,
    SumTask,
    TaskConfig,
    TripleTask,
)

SMALL: dict[str, TaskConfig] = {
    "add": PairTask(rule="add", size=6, vocab_size=20),
    "sub": PairTask(rule="sub", size=6, vocab_size=20),
    "mul": PairTask(rule="mul", size=6, vocab_size=40),
    "mod": PairTask(rule="mod", size=6, modulus=4, vocab_size=20),
    "sum": SumTask(length=3, size=4, vocab_size=10),
    "law": LawTask(law="Poisson", seed=1),
    "min-max": MinMaxTask(size=5, vocab_size=12),
    "triple": TripleTask(num_anchors=3, num_contexts=5, vocab_size=20),
    "parity": ParityTask(seed=1, num_samples=300),
}


def listed(task: ControlledTask) -> dict[tuple[int, ...], int]:
    return {
        tuple(sample): int(label)
        for sample, label in zip(
            task.enumerated.samples_NL.tolist(), task.enumerated.labels_N, strict=True
        )
    }


def test_addition_of_two_by_hand() -> None:
    task = PairTask(rule="add", size=2, vocab_size=5).build()
    np.testing.assert_array_equal(task.order_zero()[0], [0, 0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(task.labels, [2, 3, 4])
    np.testing.assert_array_equal(task.order_one()[0], [[0.5, 0], [0, 0.5], [0, 0]])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: abs(a - b)),
        ("mul", lambda a, b: a * b),
        ("mod", lambda a, b: 1 + (a + b) % 7),
    ],
)
def test_every_pair_stands_once_under_its_rule(rule: str, expected: object) -> None:
    task = PairTask(rule=rule, size=7, vocab_size=60).build()
    pairs = listed(task)
    assert len(task.enumerated.samples_NL) == len(pairs) == 49
    assert pairs == {(a, b): expected(a, b) for a, b in product(range(1, 8), repeat=2)}


def test_the_tasks_of_the_paper_have_their_sizes() -> None:
    fig5 = SumTask(length=4).build().enumerated
    assert (len(fig5.samples_NL), fig5.weights_N.sum()) == (292_825, 50**4)
    assert len(LawTask(law="uniform").build().enumerated.samples_NL) == 51**2
    assert len(TripleTask().build().enumerated.samples_NL) == 20 * 20 * 40
    parity = ParityTask().build()
    on_anchor = np.isin(parity.enumerated.samples_NL, np.arange(11, 21))
    assert parity.enumerated.samples_NL.shape == (10_000, 8)
    assert (on_anchor.sum(axis=1) == 1).all()
    anchors = parity.enumerated.samples_NL[on_anchor]
    np.testing.assert_array_equal(parity.enumerated.labels_N, anchors % 2)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_weights_of_multisets_count_their_sequences(length: int) -> None:
    task = SumTask(length=length, size=4, vocab_size=10).build().enumerated
    sequences = [tuple(sorted(one)) for one in product(range(1, 5), repeat=length)]
    expected = {one: sequences.count(one) for one in set(sequences)}
    found = dict(zip(map(tuple, task.samples_NL.tolist()), task.weights_N.tolist(), strict=True))
    assert found == expected


@pytest.mark.parametrize("order", [0, 1, 2])
def test_multisets_have_the_signatures_of_all_sequences(order: int) -> None:
    multisets = SumTask(length=3, size=4, vocab_size=8).build().enumerated
    sequences = np.array(list(product(range(1, 5), repeat=3)))
    whole = EnumeratedTask(
        samples_NL=sequences, labels_N=1 + sequences.sum(axis=1) % 4, vocab_size=8
    )
    np.testing.assert_array_equal(
        label_signature(multisets, order).dense(), label_signature(whole, order).dense()
    )


def test_laws_add_up_and_labels_follow_them() -> None:
    for law, most_likely in (("normal", 25), ("Poisson", 9), ("exponential", 0)):
        task = LawTask(law=law)
        assert task.probabilities().sum() == pytest.approx(1)
        assert task.probabilities().max() == pytest.approx(task.probabilities()[most_likely])
        labels = task.build().enumerated.labels_N
        shares = np.bincount(labels, minlength=51) / len(labels)
        np.testing.assert_allclose(shares, task.probabilities(), atol=0.03)
    assert (LawTask(law="uniform").probabilities() == 1 / 51).all()
    assert LawTask(law="exponential").probabilities()[0] == pytest.approx(0.993, abs=1e-3)


def test_a_drawn_task_is_that_of_its_seed() -> None:
    one, same, other = (ParityTask(seed=seed).build().enumerated for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.samples_NL, same.samples_NL)
    assert (one.samples_NL != other.samples_NL).any()


def test_order_zero_of_modular_addition_is_the_same_for_all_and_that_of_triples_too() -> None:
    for task in (PairTask(rule="mod", size=8), TripleTask(num_anchors=3, num_contexts=6)):
        zero = task.build().order_zero()
        assert (zero == zero[0]).all()
        one = task.build().order_one()
        assert (one != one[0]).any()


def test_documents_end_with_an_anchor_and_its_label() -> None:
    task = EnumeratedTask(
        samples_NL=np.array([[1, 2, 3]]),
        labels_N=np.array([4]),
        weights_N=np.array([2]),
        vocab_size=5,
    )
    documents = sorted(map(tuple, task_documents(task).tolist()))
    assert documents == sorted([(2, 3, 1, 9), (1, 3, 2, 9), (1, 2, 3, 9)] * 2)


@pytest.mark.parametrize("name", SMALL)
def test_next_token_counts_of_the_corpus_are_order_zero(name: str, tmp_path: Path) -> None:
    """Restricted to labels and divided by the anchor's occurrences before one: exactly equal."""
    task = SMALL[name].build().enumerated
    V = task.vocab_size
    write_task_corpus(task, tmp_path / "corpus")
    count_next_token(
        [tmp_path / "corpus"],
        out=tmp_path / "s.zarr",
        input=InputOptions(vocab_size=2 * V),
        scope=Scope(kind="document"),
        options=CountOptions(workers=1),
    )
    signature = label_signature(task, 0)
    counts = open_signatures(tmp_path / "s.zarr").counts.take(signature.anchors_A)
    to_labels = counts.toarray()[:, V:].astype(np.int64)
    before_a_label = to_labels.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(to_labels / before_a_label, signature.dense())


def presence(task: EnumeratedTask, anchor: int) -> np.ndarray:
    """``P(y = v, b present among the other positions | x_I = anchor)``, (V, V), by plain loops."""
    counts, total = np.zeros((task.vocab_size,) * 2, np.int64), 0
    for sample, label, weight in zip(
        task.samples_NL.tolist(), task.labels_N, task.weights_N, strict=True
    ):
        for place in (place for place, token in enumerate(sample) if token == anchor):
            total += weight
            for other in {token for at, token in enumerate(sample) if at != place}:
                counts[label, other] += weight
    return counts / total


@pytest.mark.parametrize("name", SMALL)
def test_first_order_counts_of_the_corpus_are_what_is_present(name: str, tmp_path: Path) -> None:
    """For two tokens that is order 1; for more, presence among the others, enumerated."""
    task = SMALL[name].build().enumerated
    V = task.vocab_size
    write_task_corpus(task, tmp_path / "corpus")
    anchors = np.unique(task.samples_NL)[::5]
    which = tmp_path / "anchors.txt"
    which.write_text("".join(f"{anchor}\n" for anchor in anchors))
    count_contexts(
        [tmp_path / "corpus"],
        out=tmp_path / "first.zarr",
        contexts=ContextOptions(kind="first-order", anchors=str(which)),
        input=InputOptions(vocab_size=2 * V),
        scope=Scope(kind="document"),
        options=CountOptions(workers=1),
    )
    store = open_signatures(tmp_path / "first.zarr")
    np.testing.assert_array_equal(store.context_tokens, np.arange(2 * V))
    once = label_signature(task, 0, anchors)
    for place, anchor in enumerate(anchors):
        counts = store.anchor_counts(int(anchor)).toarray().astype(np.int64)[V:, :V]
        before_a_label = int(once.totals_A[place])
        np.testing.assert_array_equal(counts / before_a_label, presence(task, int(anchor)))
        if task.length == 2:
            order_one = label_signature(task, 1, [int(anchor)]).dense()[0]
            np.testing.assert_array_equal(counts / before_a_label, order_one)
