"""The first-order probe: one vector over context tokens that explains the embeddings, or none.

``w^_a = phi_1(a) v``; v is trained to minimise the mean squared difference between the cosines of
the w^ and those of the embeddings over pairs of TRAINING anchors, and scored on pairs of held-out
anchors alone. Fitting runs on a sketch of the labels; scoring is exact.

Shapes: A anchors, V labels, C context tokens, R rows of the sketch, N vectors v.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from probes.similarity import FloatArray, compare, cosine_matrix, off_diagonal
from probes.vocabulary import IntArray

SketchArray = npt.NDArray[np.float32]
FirstOrder = Callable[[int], csr_array[Any]]
"""The first-order signature of an anchor, (V, C)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionOptions:
    """How v is found."""

    sketch_rows: int = 256
    steps: int = 150
    learning_rate: float = 0.01
    anchors_a_step: int = 48
    held_out: float = 0.2
    """Share of the anchors that only the score sees."""
    random_starts: int = 3
    trial_steps: int = 30
    """Of each start before the best goes on."""
    splits: int = 5
    seed: int = 0


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
    if min(held_out, num_anchors - held_out) < 3:
        raise ValueError(
            f"{num_anchors} anchors leave {held_out} held out; three are needed on either side"
        )
    generator = np.random.default_rng(options.seed)
    orders = [generator.permutation(num_anchors) for _ in range(options.splits)]
    return [Split(training=order[held_out:], held_out=order[:held_out]) for order in orders]


def label_sketch(
    first_order: FirstOrder, anchors: Iterable[int], *, num_labels: int, options: ProjectionOptions
) -> SketchArray:
    """``Q phi_1(a)`` for each anchor, (A, R, C): each label goes to one row of R, with a sign.

    Inner products of sketched columns are those of the columns on average, and one pass over
    the entries makes it.
    """
    generator = np.random.default_rng(options.seed)
    rows_V = generator.integers(options.sketch_rows, size=num_labels)
    signs_V = generator.choice(np.array([-1.0, 1.0]), size=num_labels)
    q = csr_array(
        (signs_V, (rows_V, np.arange(num_labels))), shape=(options.sketch_rows, num_labels)
    )
    return np.stack([(q @ first_order(anchor)).toarray().astype(np.float32) for anchor in anchors])


def fit(
    sketch_ARC: SketchArray,
    similarity_AA: FloatArray,
    training: IntArray,
    *,
    options: ProjectionOptions,
) -> npt.NDArray[np.float32]:
    """Find v, (C), by Adam on pairs of some training anchors a step.

    The loss has many valleys, so several starts run for a while (the aligned one of
    ``aligned_vector`` and random ones) and the one with the least training loss goes on. Columns
    are brought to one scale first, since frequent context tokens would rule otherwise.
    """
    scale_C = np.sqrt(np.einsum("arc,arc->c", sketch_ARC, sketch_ARC))
    scale = torch.from_numpy(np.where(scale_C > 0, scale_C, 1.0).astype(np.float32))
    planes = [torch.from_numpy(plane) for plane in sketch_ARC]
    wanted = torch.from_numpy(similarity_AA.astype(np.float32))
    search = _Search(planes, wanted, scale, training, options)
    num_context = sketch_ARC.shape[2]
    starts = [aligned_vector(sketch_ARC, similarity_AA, training, scale=scale.numpy())]
    starts += [
        random_vector(num_context, options.seed + number) for number in range(options.random_starts)
    ]
    tried = [search.descend(torch.from_numpy(start), options.trial_steps) for start in starts]
    best = min(tried, key=search.loss)
    found: npt.NDArray[np.float32] = (search.descend(best, options.steps) / scale).numpy()
    return found


class _Search:
    """Descends the training loss in v times the scale of its columns."""

    def __init__(
        self,
        planes: Sequence[Tensor],
        wanted_AA: Tensor,
        scale_C: Tensor,
        training: IntArray,
        options: ProjectionOptions,
    ) -> None:
        self._planes, self._wanted, self._scale = planes, wanted_AA, scale_C
        self._training, self._options = training, options

    def descend(self, start_C: Tensor, steps: int) -> Tensor:
        """Take so many steps of Adam, each on the pairs of some training anchors."""
        generator = torch.Generator().manual_seed(self._options.seed)
        scaled_v = start_C.clone().requires_grad_()
        adam = torch.optim.Adam([scaled_v], lr=self._options.learning_rate)
        for _ in range(steps):
            drawn = torch.randperm(len(self._training), generator=generator)
            adam.zero_grad()
            loss = self._loss_of(scaled_v, self._training[drawn[: self._options.anchors_a_step]])
            loss.backward()
            adam.step()
        return scaled_v.detach()

    def loss(self, scaled_v: Tensor) -> float:
        """Loss over all training pairs."""
        return float(self._loss_of(scaled_v, self._training))

    def _loss_of(self, scaled_v: Tensor, places: IntArray) -> Tensor:
        planes = [self._planes[place] for place in places]
        projected: Tensor = _Project.apply(scaled_v / self._scale, planes)  # type: ignore[no-untyped-call]
        return _pair_loss(projected, self._wanted[places][:, places])


def aligned_vector(
    sketch_ARC: SketchArray,
    similarity_AA: FloatArray,
    training: IntArray,
    *,
    scale: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Return the v whose unnormalised inner products covary most with the similarities, (C).

    ``sum_ab S_ab <phi_a v, phi_b v>``, S centred, is a quadratic form in v; this is its leading
    eigenvector, by Lanczos' method with two passes over the sketch an iteration.
    """
    square = np.nan_to_num(similarity_AA[np.ix_(training, training)])
    np.fill_diagonal(square, 0.0)
    centred = square - square.sum() / max(square.size - len(square), 1)
    np.fill_diagonal(centred, 0.0)
    num_context = sketch_ARC.shape[2]

    def form(v_C: FloatArray) -> FloatArray:
        scaled = (v_C.ravel() / scale).astype(np.float32)
        projected = np.stack([sketch_ARC[place] @ scaled for place in training])
        mixed = (centred @ projected).astype(np.float32)
        back = np.zeros(num_context, np.float32)
        for place, row in zip(training, mixed, strict=True):
            back += sketch_ARC[place].T @ row
        return np.asarray(back / scale, np.float64)

    lanczos: Any = eigsh
    operator = LinearOperator((num_context, num_context), matvec=form, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=num_context)
    found: Any = None
    try:  # a rough eigenvector will do, each product costs two passes
        found = lanczos(operator, k=1, which="LA", v0=start, ncv=8, maxiter=2, tol=0.1)[1]
    except ArpackNoConvergence as error:
        found = error.eigenvectors
    vector = found[:, 0] if found.size else start
    leading = vector * 0.1 * np.sqrt(num_context) / np.linalg.norm(vector)
    return np.asarray(leading, np.float32)


def random_vector(num_context: int, seed: int) -> npt.NDArray[np.float32]:
    """Draw the v that fitting starts from and the random control uses."""
    generator = np.random.default_rng(seed)
    return generator.normal(scale=0.1, size=num_context).astype(np.float32)


def project_exactly(
    first_order: FirstOrder, anchors: Iterable[int], vectors_NC: npt.NDArray[Any]
) -> list[FloatArray]:
    """``phi_1(a) v`` for every v in one pass over the store: N arrays (A, V)."""
    per_anchor = [
        np.asarray(first_order(anchor) @ vectors_NC.T.astype(np.float64)) for anchor in anchors
    ]
    stacked_AVN = np.stack(per_anchor)
    return [stacked_AVN[:, :, number] for number in range(len(vectors_NC))]


def score(
    projected_AV: FloatArray, similarity_AA: FloatArray, held_out: IntArray
) -> tuple[float, float]:
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


class _Project(torch.autograd.Function):
    """``plane @ v`` for a list of planes (R, C), without copying them into one array."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, planes: Sequence[Tensor]) -> Tensor:
        """Return (number of planes, R)."""
        ctx.planes = planes
        return torch.stack([plane @ v for plane in planes])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        """Return the gradient of v."""
        gradient = torch.zeros(ctx.planes[0].shape[1])
        for plane, row in zip(ctx.planes, gradients[0], strict=True):
            gradient.addmv_(plane.T, row)
        return gradient, None


def _pair_loss(projected_nR: Tensor, wanted_nn: Tensor) -> Tensor:
    """Mean squared difference of cosines over pairs a < b that both sides define."""
    unit_nR = torch.nn.functional.normalize(projected_nR, dim=1)
    n = len(wanted_nn)
    first, second = torch.triu_indices(n, n, offset=1)
    difference = (unit_nR @ unit_nR.T - wanted_nn)[first, second]
    return difference[torch.isfinite(difference)].square().mean()
