"""Finding v for the first-order probe: several fits at once, one pass over the sketch a step.

The loss of one fit is the mean squared difference between the cosines of ``Q phi_1(a) v`` and the
wanted similarities, over pairs of its training anchors. A step reads some anchors' planes of the
sketch, which is what takes time, so all fits of a checkpoint (its splits, its controls) descend
together on the planes that are read once.

Every checkpoint is fitted from its own starts unless a warm start is asked for: the loss has many
valleys, and from the v of the one before training errors fall and held-out errors rise.

Shapes: A anchors, P anchors drawn for a step, R rows of the sketch, C context tokens, N fits, M
vectors in flight.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probes.similarity import FloatArray
from probes.vocabulary import IntArray

SketchArray = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

_START_SCALE = 0.1
_TRIAL_ROWS = 64
_KRYLOV = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingOptions:
    """How v is found."""

    steps: int = 100
    """More of them lower the error on training pairs and raise it on held-out ones (measured on
    the small model of docs/training.md)."""
    learning_rate: float = 0.01
    anchors_a_step: int = 48
    random_starts: int = 3
    trial_steps: int = 30
    """Of each start before the best goes on."""
    warm_start: bool = False
    """Start from the v found at the checkpoint before."""
    warm_steps: int = 30
    """Of such a start."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What one v is to explain."""

    similarity: FloatArray
    """(A, A); pairs that are NaN take no part."""
    training: IntArray
    """Places of the anchors whose pairs are seen."""


def fit_together(
    sketch_ARC: SketchArray,
    fits: Sequence[Fit],
    *,
    options: FittingOptions,
    before: Vectors | None = None,
) -> Vectors:
    """Find the v of every fit, (N, C), by Adam on pairs of some training anchors a step.

    With ``before``, (N, C), the v of each fit at the checkpoint before, a few steps from there
    are all that is done.

    The loss has many valleys, so several starts run for a while on a coarser sketch (the aligned
    one of ``aligned_vectors`` and random ones) and the one with the least training loss goes on.
    Columns are brought to one scale first, since frequent context tokens would rule otherwise.
    One thread does it all, so that the result does not depend on their number; checkpoints are
    what is shared among cores.
    """
    with _one_thread():
        scale_C = np.sqrt(np.einsum("arc,arc->c", sketch_ARC, sketch_ARC))
        scale_C = np.where(scale_C > 0, scale_C, 1.0).astype(np.float32)
        search = _Search(sketch_ARC, fits, scale_C, options)
        if before is None:
            chosen = _best_starts(sketch_ARC, fits, scale_C, options)
            found_NC = search.descend(chosen[:, None], options.steps)[:, 0]
        else:
            starts = torch.from_numpy(before * scale_C)[:, None]
            found_NC = search.descend(starts, options.warm_steps)[:, 0]
    return np.asarray(found_NC.numpy() / scale_C, np.float32)


def _best_starts(
    sketch_ARC: SketchArray, fits: Sequence[Fit], scale_C: Vectors, options: FittingOptions
) -> Tensor:
    """Return for each fit the start that does best on a coarser sketch, after some steps there."""
    num_context = sketch_ARC.shape[2]
    starts_SC = [
        random_vector(num_context, options.seed + start) for start in range(options.random_starts)
    ]
    starts_NSC = np.stack(
        [
            np.stack([aligned, *starts_SC])
            for aligned in aligned_vectors(sketch_ARC, fits, scale_C=scale_C)
        ]
    )
    trial = _Search(_coarser(sketch_ARC), fits, scale_C, options)
    tried_NSC = trial.descend(torch.from_numpy(starts_NSC), options.trial_steps)
    best_N = trial.losses(tried_NSC).argmin(dim=1)
    return tried_NSC[torch.arange(len(fits)), best_N]


def random_vector(num_context: int, seed: int) -> Vectors:
    """Draw a v that fitting starts from, or the random control."""
    generator = np.random.default_rng(seed)
    return generator.normal(scale=_START_SCALE, size=num_context).astype(np.float32)


def aligned_vectors(sketch_ARC: SketchArray, fits: Sequence[Fit], *, scale_C: Vectors) -> Vectors:
    """Return for each fit the v whose inner products covary most with its similarities, (N, C).

    ``sum_ab S_ab <phi_a v, phi_b v>`` over training anchors, S centred, is a quadratic form in v.
    This is its leading vector in a Krylov space of a few products, which is as rough an
    eigenvector as a start needs.
    """
    planes = [torch.from_numpy(plane) for plane in sketch_ARC]
    scale = torch.from_numpy(scale_C)[:, None]
    weights_NAA = torch.from_numpy(np.stack([_centred(one) for one in fits]).astype(np.float32))
    first = np.random.default_rng(0).normal(size=(scale_C.size, 1))
    vectors = torch.from_numpy(first.astype(np.float32)).expand(-1, len(fits))
    basis: list[Tensor] = []
    images: list[Tensor] = []
    for _ in range(_KRYLOV):
        for earlier in (*basis, *basis):  # twice, since once leaves what rounding lost
            vectors = vectors - earlier * (earlier * vectors).sum(dim=0)
        basis.append(torch.nn.functional.normalize(vectors, dim=0))
        projected_ARN = torch.stack([plane @ (basis[-1] / scale) for plane in planes])
        mixed_ARN = torch.einsum("nab,brn->arn", weights_NAA, projected_ARN)
        vectors = _gathered(planes, mixed_ARN) / scale
        images.append(vectors)
    basis_KCN, images_KCN = torch.stack(basis).double(), torch.stack(images).double()
    form_NKK = torch.einsum("kcn,lcn->nkl", basis_KCN, images_KCN)
    leading_NK = torch.linalg.eigh((form_NKK + form_NKK.mT) / 2)[1][:, :, -1]
    found_NC = torch.einsum("nk,kcn->nc", leading_NK, basis_KCN)
    found_NC = torch.nn.functional.normalize(found_NC, dim=1)
    return np.asarray(found_NC * _START_SCALE * np.sqrt(scale_C.size), np.float32)


class _Search:
    """Descends training losses in v times the scale of its columns."""

    def __init__(
        self,
        sketch_ARC: SketchArray,
        fits: Sequence[Fit],
        scale_C: Vectors,
        options: FittingOptions,
    ) -> None:
        self._planes = [torch.from_numpy(plane) for plane in sketch_ARC]
        self._scale = torch.from_numpy(scale_C)
        wanted_NAA = np.stack([fit.similarity for fit in fits]).astype(np.float32)
        self._seen_NAA = torch.from_numpy(np.stack([_pairs_seen(fit) for fit in fits]))
        self._wanted_NAA = torch.from_numpy(np.nan_to_num(wanted_NAA))
        self._anchors = np.unique(np.concatenate([fit.training for fit in fits]))
        share = np.mean([len(fit.training) for fit in fits]) / len(self._anchors)
        self._drawn = min(len(self._anchors), round(options.anchors_a_step / share))
        self._options = options

    def descend(self, starts_NSC: Tensor, steps: int) -> Tensor:
        """Take so many steps of Adam from every start of every fit."""
        generator = torch.Generator().manual_seed(self._options.seed)
        vectors = starts_NSC.clone().requires_grad_()
        adam = torch.optim.Adam([vectors], lr=self._options.learning_rate)
        for _ in range(steps):
            drawn = torch.randperm(len(self._anchors), generator=generator)[: self._drawn]
            adam.zero_grad()
            self._losses(vectors, self._anchors[drawn.numpy()]).sum().backward()
            adam.step()
        return vectors.detach()

    @torch.no_grad()
    def losses(self, vectors_NSC: Tensor) -> Tensor:
        """Loss of every start of every fit over all its training pairs, (N, S)."""
        return self._losses(vectors_NSC, self._anchors)

    def _losses(self, vectors_NSC: Tensor, places: IntArray) -> Tensor:
        num_fits, num_starts, num_context = vectors_NSC.shape
        flat_CM = (vectors_NSC / self._scale).reshape(-1, num_context).T.contiguous()
        planes = [self._planes[place] for place in places]
        projected_PRM: Tensor = _Project.apply(flat_CM, planes)  # type: ignore[no-untyped-call]
        unit_MPR = torch.nn.functional.normalize(projected_PRM, dim=1).permute(2, 0, 1)
        cosines = (unit_MPR @ unit_MPR.mT).reshape(num_fits, num_starts, len(places), len(places))
        wanted, seen = (
            whole[:, places][:, :, places][:, None] for whole in (self._wanted_NAA, self._seen_NAA)
        )
        squares = torch.where(seen, (cosines - wanted).square(), 0.0)
        return squares.sum(dim=(2, 3)) / seen.sum(dim=(2, 3)).clamp_min(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: its products here are too thin to share on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Project(torch.autograd.Function):
    """``plane @ vectors`` for a list of planes (R, C), without copying them into one array."""

    @staticmethod
    def forward(ctx: Any, vectors_CM: Tensor, planes: Sequence[Tensor]) -> Tensor:
        """Return (number of planes, R, M)."""
        ctx.planes = planes
        return torch.stack([plane @ vectors_CM for plane in planes])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        """Return the gradient of the vectors."""
        return _gathered(ctx.planes, gradients[0]), None


def _gathered(planes: Sequence[Tensor], rows_PRM: Tensor) -> Tensor:
    """Sum of ``plane^T rows`` over the planes, (C, M); built transposed, which is faster."""
    total_MC = torch.zeros(rows_PRM.shape[2], planes[0].shape[1])
    for plane, rows_RM in zip(planes, rows_PRM, strict=True):
        total_MC.addmm_(rows_RM.T, plane)
    return total_MC.T


def _coarser(sketch_ARC: SketchArray) -> SketchArray:
    """Add rows of the sketch up: the same kind of sketch, with fewer rows."""
    anchors, rows, num_context = sketch_ARC.shape
    if rows <= _TRIAL_ROWS or rows % _TRIAL_ROWS:
        return sketch_ARC
    parts = sketch_ARC.reshape(anchors, rows // _TRIAL_ROWS, _TRIAL_ROWS, num_context)
    return np.ascontiguousarray(parts.sum(axis=1))


def _pairs_seen(fit: Fit) -> npt.NDArray[np.bool_]:
    """Which pairs take part, (A, A): both anchors in training, defined, and each pair once."""
    is_training_A = np.zeros(len(fit.similarity), bool)
    is_training_A[fit.training] = True
    pairs_AA = np.triu(is_training_A[:, None] & is_training_A[None, :], k=1)
    # Anchors are drawn in any order, so a pair may come either way round.
    return np.asarray((pairs_AA | pairs_AA.T) & np.isfinite(fit.similarity))


def _centred(fit: Fit) -> FloatArray:
    """Similarities of training pairs less their mean, zero elsewhere, (A, A)."""
    seen_AA = _pairs_seen(fit)
    mean = fit.similarity[seen_AA].mean() if seen_AA.any() else 0.0
    return np.where(seen_AA, np.nan_to_num(fit.similarity) - mean, 0.0)
