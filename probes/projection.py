"""The first-order probe: one vector over context tokens that explains the embeddings, or none.

``w^_a = phi_1(a) v``; v is trained to minimise the mean squared difference between the cosines of
the w^ and those of the embeddings over pairs of TRAINING anchors, and scored on pairs of held-out
anchors alone. Fitting runs on a sketch of the labels; scoring is exact.

Shapes: A anchors, V labels, C context tokens, R rows of the sketch, N vectors v, E pairs of an
anchor and a label that followed it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from probes.fitting import FittingOptions, SketchArray, random_vector
from probes.similarity import FloatArray, Rows, compare, cosine_matrix, off_diagonal
from probes.vocabulary import IntArray

Parts = Iterable[tuple[int, csr_array[Any]]]
"""Signatures of all anchors in pieces that add up: (number of the first row, some rows), row
``a * V + v`` being label v of the anchor at place a, C columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionOptions(FittingOptions):
    """How v is found and scored."""

    sketch_rows: int = 256
    held_out: float = 0.2
    """Share of the anchors that only the score sees."""
    splits: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Places of training and of held-out anchors."""

    training: IntArray
    held_out: IntArray


def make_splits(num_anchors: int, options: ProjectionOptions) -> list[Split]:
    """Draw the splits: each holds out its share of the anchors at random.

    Raises
    ------
    ValueError
        Fewer than three anchors on either side.
    """
    held_out = round(num_anchors * options.held_out)
    if not can_split(num_anchors, options):
        raise ValueError(
            f"{num_anchors} anchors leave {held_out} held out; three are needed on either side"
        )
    generator = np.random.default_rng(options.seed)
    orders = [generator.permutation(num_anchors) for _ in range(options.splits)]
    return [Split(training=order[held_out:], held_out=order[:held_out]) for order in orders]


def can_split(num_anchors: int, options: ProjectionOptions) -> bool:
    """Whether three anchors are left on either side."""
    held_out = round(num_anchors * options.held_out)
    return min(held_out, num_anchors - held_out) >= 3


def label_sketch(
    parts: Parts, *, shape: tuple[int, int, int], options: ProjectionOptions
) -> SketchArray:
    """``Q phi_1(a)`` for each anchor, (A, R, C): each label goes to one row of R, with a sign.

    ``shape`` is (A, V, C). Inner products of sketched columns are those of the columns on
    average, and one pass over the entries makes it.
    """
    num_anchors, num_labels, num_context = shape
    generator = np.random.default_rng(options.seed)
    rows_V = generator.integers(options.sketch_rows, size=num_labels)
    signs_V = generator.choice(np.array([-1.0, 1.0]), size=num_labels)
    sketch = np.zeros((num_anchors, options.sketch_rows, num_context), np.float32)
    for first_row, part in parts:
        stop_row = first_row + part.shape[0]
        for anchor in range(first_row // num_labels, -(-stop_row // num_labels)):
            start = max(first_row, anchor * num_labels)
            stop = min(stop_row, (anchor + 1) * num_labels)
            labels = slice(start - anchor * num_labels, stop - anchor * num_labels)
            q = csr_array(
                (signs_V[labels], (rows_V[labels], np.arange(stop - start))),
                shape=(options.sketch_rows, stop - start),
            )
            sketch[anchor] += (q @ part[start - first_row : stop - first_row]).toarray()
    return sketch


def project_exactly(
    parts: Parts, vectors_NC: npt.NDArray[Any], *, num_anchors: int, num_labels: int
) -> list[csr_array[Any]]:
    """``phi_1(a) v`` for every v in one pass over the store: N sparse arrays (A, V), float64."""
    vectors_CN = np.ascontiguousarray(vectors_NC.T, np.float64)
    occupied, values = [np.empty(0, np.int64)], [np.empty((0, len(vectors_NC)))]
    for first_row, part in parts:
        rows = np.flatnonzero(np.diff(part.indptr))
        indptr = np.append(part.indptr[rows], part.nnz)
        full_rows = csr_array((part.data, part.indices, indptr), shape=(len(rows), part.shape[1]))
        occupied.append(first_row + rows)
        values.append(full_rows @ vectors_CN)
    places = np.divmod(np.concatenate(occupied), num_labels)
    shape = (num_anchors, num_labels)
    columns_NE = np.ascontiguousarray(np.concatenate(values).T)
    return [csr_array((column_E, places), shape=shape) for column_E in columns_NE]


def score(projected_AV: Rows, similarity_AA: FloatArray, held_out: IntArray) -> tuple[float, float]:
    """Mean squared difference and Pearson's rho over pairs of held-out anchors."""
    square = np.ix_(held_out, held_out)
    compared = compare(cosine_matrix(projected_AV[held_out]), similarity_AA[square])
    return compared.mse, compared.pearson


def constant_mse(similarity_AA: FloatArray, split: Split) -> float:
    """Held-out error of always saying the mean similarity of the training pairs."""
    known, asked = (
        off_diagonal(similarity_AA[np.ix_(places, places)])
        for places in (split.training, split.held_out)
    )
    return float(np.nanmean((asked - np.nanmean(known)) ** 2))


def control_vectors(
    context_counts_C: npt.NDArray[Any], *, seed: int
) -> Mapping[str, npt.NDArray[np.float32]]:
    """Vectors that were not trained: random, all ones, and the share of each context token."""
    share_C = context_counts_C / max(float(context_counts_C.sum()), 1.0)
    return {
        "random": random_vector(len(context_counts_C), seed + 1),
        "ones": np.ones(len(context_counts_C), np.float32),
        "unigram": share_C.astype(np.float32),
    }
