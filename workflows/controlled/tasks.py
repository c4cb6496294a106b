"""The controlled tasks, enumerated: every sample, its label, its weight.

Each task is a small frozen configuration whose ``build()`` lists the samples. Tokens and labels
share one vocabulary, larger than what occurs: unused labels are what lets all embeddings collapse
early (the direction they share is W_U^T (p_label - 1/V), zero when all labels are alike likely).

Source: arXiv:2608.30315, section 5. Shapes: N samples, L positions, A anchors, C context tokens.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product
from math import factorial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from signatures.exact import EnumeratedTask, label_signature

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

VOCAB_SIZE = 101
"""Ids 0..100, of every task unless its labels need more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControlledTask:
    """A finite data set, and which of its tokens are compared with which context."""

    enumerated: EnumeratedTask
    anchors_A: IntArray
    """Tokens whose embeddings are compared."""
    contexts_C: IntArray
    """Context tokens, in the order in which frequencies run over them."""

    @property
    def labels(self) -> IntArray:
        """Labels that occur, rising, (Y)."""
        return np.unique(self.enumerated.labels_N)

    def order_zero(self) -> FloatArray:
        """``P(y | x_I = a)`` of the anchors, (A, V)."""
        return label_signature(self.enumerated, 0, self.anchors_A).dense()

    def order_one(self) -> FloatArray:
        """``P(y = v, x_J = b | x_I = a)`` over labels that occur and context tokens, (A, Y, C)."""
        phi_AVV = label_signature(self.enumerated, 1, self.anchors_A).dense()
        return phi_AVV[:, self.labels][:, :, self.contexts_C]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTask:
    """All pairs of 1..size: ``add``, ``sub`` (the absolute difference), ``mul`` or ``mod``.

    ``mod`` is ``1 + (x1 + x2) mod modulus`` (of ``size`` unless given).
    """

    rule: Literal["add", "sub", "mul", "mod"]
    size: int
    modulus: int | None = None
    vocab_size: int = VOCAB_SIZE

    def build(self) -> ControlledTask:
        """List the size^2 pairs."""
        pairs_N2 = _sequences(range(1, self.size + 1), length=2)
        one_N, other_N = pairs_N2.T
        labels_N = {
            "add": one_N + other_N,
            "sub": np.abs(one_N - other_N),
            "mul": one_N * other_N,
            "mod": 1 + (one_N + other_N) % (self.modulus or self.size),
        }[self.rule]
        tokens = np.arange(1, self.size + 1)
        return _task(pairs_N2, labels_N, self.vocab_size, anchors=tokens, contexts=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTask:
    """``1 + sum mod modulus`` (of ``size`` unless given) of L tokens of 1..size, all sequences.

    A modulus above every sum makes it plain addition. They are listed as multisets, each with the
    number of its arrangements as weight: a model that only adds its embeddings cannot tell the
    arrangements apart.
    """

    length: int
    size: int = 50
    modulus: int | None = None
    vocab_size: int = VOCAB_SIZE

    def build(self) -> ControlledTask:
        """List the multisets: (size + length - 1 choose length) of them."""
        tokens = range(1, self.size + 1)
        multisets_NL = np.array(list(combinations_with_replacement(tokens, self.length)), np.int64)
        weights_N = _arrangements(multisets_NL)
        return _task(
            multisets_NL,
            1 + multisets_NL.sum(axis=1) % (self.modulus or self.size),
            self.vocab_size,
            anchors=np.array(tokens),
            contexts=np.array(tokens),
            weights_N=weights_N,
        )


Law = Literal["uniform", "normal", "Poisson", "exponential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTask:
    """All triples (100, x1, x2) over 0..50, each with one label drawn from a law on 0..50."""

    law: Law
    seed: int = 0
    num_labels: int = 51
    anchor: int = 100
    vocab_size: int = VOCAB_SIZE

    def build(self) -> ControlledTask:
        """Draw the labels, once."""
        pairs_N2 = _sequences(range(self.num_labels), length=2)
        samples_N3 = np.column_stack([np.full(len(pairs_N2), self.anchor), pairs_N2])
        generator = np.random.default_rng([self.seed, get_args(Law).index(self.law)])
        labels_N = generator.choice(self.num_labels, size=len(samples_N3), p=self.probabilities())
        contexts = np.arange(self.num_labels)
        return _task(samples_N3, labels_N, self.vocab_size, np.array([self.anchor]), contexts)

    def probabilities(self) -> FloatArray:
        """Return the law on 0..50: density or mass at each label, scaled to add up to 1."""
        y = np.arange(self.num_labels)
        factorials = np.array([float(factorial(int(label))) for label in y])
        mass = {
            "uniform": np.ones(self.num_labels),
            "normal": np.exp(-((y - 25.0) ** 2) / 2),
            "Poisson": 10.0**y / factorials,
            "exponential": np.exp(-5.0 * y),
        }[self.law]
        return np.asarray(mass / mass.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class MinMaxTask:
    """``(c, x1, x2)``: the larger of the two where c is ``max_token``, the smaller where the other.

    Order-0 signatures by hand (arXiv:2608.30315, Figure 10): (2y - 1) / N^2 of the first token,
    (2 (N - y) + 1) / N^2 of the second, 1/2 [y = x] + 1 / (2N) of x.
    """

    size: int = 20
    vocab_size: int = VOCAB_SIZE

    @property
    def max_token(self) -> int:
        """The token that asks for the larger."""
        return self.size + 1

    @property
    def min_token(self) -> int:
        """The token that asks for the smaller."""
        return self.size + 2

    def build(self) -> ControlledTask:
        """List 2 size^2 samples."""
        pairs_N2 = _sequences(range(1, self.size + 1), length=2)
        asked = np.repeat([self.max_token, self.min_token], len(pairs_N2))
        samples_N3 = np.column_stack([asked, np.tile(pairs_N2, (2, 1))])
        labels_N = np.concatenate([pairs_N2.max(axis=1), pairs_N2.min(axis=1)])
        tokens = np.arange(1, self.size + 1)
        anchors = np.append(tokens, [self.max_token, self.min_token])
        return _task(samples_N3, labels_N, self.vocab_size, anchors, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TripleTask:
    """``(a1, a2, x)``, three disjoint ranges, y = 1 + (a1 + a2 + x) mod num_contexts.

    a1 and a2 have ``num_anchors`` values each, x has ``num_contexts``. With fewer anchors than
    context tokens order 0 is the same for every a1 while order 1 is not; with as many both are.
    """

    num_anchors: int = 20
    num_contexts: int = 40
    vocab_size: int = VOCAB_SIZE

    def build(self) -> ControlledTask:
        """List num_anchors^2 num_contexts samples; the anchors are the values of a1."""
        first = range(1, self.num_anchors + 1)
        second = range(first.stop, first.stop + self.num_anchors)
        last = range(second.stop, second.stop + self.num_contexts)
        samples_N3 = np.array(list(product(first, second, last)), np.int64)
        labels_N = 1 + samples_N3.sum(axis=1) % self.num_contexts
        contexts = np.array([*second, *last])
        return _task(samples_N3, labels_N, self.vocab_size, np.array(first), contexts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityTask:
    """One anchor of 11..20 among seven noise tokens of 21..60, y = anchor mod 2; drawn once."""

    seed: int = 0
    num_samples: int = 10_000
    length: int = 8
    anchors: tuple[int, int] = (11, 20)
    noise: tuple[int, int] = (21, 60)
    vocab_size: int = VOCAB_SIZE

    def build(self) -> ControlledTask:
        """Draw the samples: anchor, its place and the noise, all uniform."""
        generator = np.random.default_rng([self.seed, self.num_samples])
        shape = (self.num_samples, self.length)
        samples_NL = generator.integers(*self.noise, size=shape, endpoint=True)
        anchor_N = generator.integers(*self.anchors, size=self.num_samples, endpoint=True)
        place_N = generator.integers(self.length, size=self.num_samples)
        samples_NL[np.arange(self.num_samples), place_N] = anchor_N
        noise = np.arange(self.noise[0], self.noise[1] + 1)
        anchors = np.arange(self.anchors[0], self.anchors[1] + 1)
        return _task(samples_NL, anchor_N % 2, self.vocab_size, anchors, noise)


TaskConfig = PairTask | SumTask | LawTask | MinMaxTask | TripleTask | ParityTask


@cache
def built(task: TaskConfig) -> ControlledTask:
    """Return the task, listed once in this process."""
    return task.build()


def _task(
    samples_NL: IntArray,
    labels_N: IntArray,
    vocab_size: int,
    anchors: IntArray,
    contexts: IntArray,
    weights_N: IntArray | None = None,
) -> ControlledTask:
    enumerated = EnumeratedTask(
        samples_NL=samples_NL,
        labels_N=labels_N,
        weights_N=np.ones(len(labels_N), np.int64) if weights_N is None else weights_N,
        vocab_size=vocab_size,
    )
    return ControlledTask(enumerated=enumerated, anchors_A=anchors, contexts_C=contexts)


def _sequences(tokens: range, length: int) -> IntArray:
    """Every sequence of the tokens, (N, L)."""
    return np.array(list(product(tokens, repeat=length)), np.int64)


def _arrangements(multisets_NL: IntArray) -> IntArray:
    """Sequences that each sorted row stands for: L! over the product of n! of its tokens."""
    length = multisets_NL.shape[1]
    arrangements_N = np.full(len(multisets_NL), factorial(length), np.int64)
    run_N = np.ones(len(multisets_NL), np.int64)
    for place in range(1, length):
        run_N = np.where(multisets_NL[:, place] == multisets_NL[:, place - 1], run_N + 1, 1)
        arrangements_N //= run_N
    return arrangements_N
