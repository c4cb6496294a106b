"""The first-order probe of the controlled tasks: v that maximises Pearson's rho, cross-validated.

Small enough for exact signatures and full batches (arXiv:2608.30315, section 5: Adam, learning
rate 0.01, 300 steps, standard deviation |X|^-0.25 at the start, five folds over token pairs).
Pairs of one token lie in several folds, so folds over pairs leak; folds over anchors do not.

A signature of higher order is contracted with v once for each context token, which makes a
symmetric map of rank one of it: order 2 has as many free parameters as order 1.

Shapes: A anchors, V labels, C context tokens (one mode for each order), P pairs.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probes.similarity import FloatArray, pearson
from probes.vocabulary import IntArray

Folds = Literal["pairs", "anchors"]
Pairs = tuple[IntArray, IntArray]


def fit_pearson(
    phi_AVC: npt.NDArray[Any],
    similarity_AA: FloatArray,
    pairs: Pairs | None = None,
    *,
    steps: int = 300,
    learning_rate: float = 0.01,
    seed: int = 0,
) -> FloatArray:
    """Find the v, (C), that maximises rho over the given pairs (all a < b unless given).

    ``phi_AVC`` is the order-1 signature, or one of order m with m modes (A, V, C, .., C).
    """
    contracted = _contraction(phi_AVC)
    first, second = pairs if pairs is not None else all_pairs(len(phi_AVC))
    wanted = torch.from_numpy(similarity_AA[first, second])
    generator = torch.Generator().manual_seed(seed)
    num_context = phi_AVC.shape[2]
    v = torch.randn(num_context, dtype=torch.float64, generator=generator)
    v = (v * num_context**-0.25).requires_grad_()
    adam = torch.optim.Adam([v], lr=learning_rate)
    for _ in range(steps):
        adam.zero_grad()
        loss = -_rho(_cosines(contracted(v))[first, second], wanted)
        loss.backward()
        adam.step()
    return np.asarray(v.detach().numpy(), np.float64)


def cross_validated_rho(
    phi_AVC: npt.NDArray[Any],
    similarity_AA: FloatArray,
    *,
    over: Folds,
    folds: int = 5,
    seed: int = 0,
    **fitting: Any,
) -> FloatArray:
    """Rho on the pairs of each fold, by a v that was fitted without them, (folds).

    Over ``anchors`` a fold is the pairs within its anchors, fitted on the pairs within the others.
    """
    found = []
    for training, held_out in _folds(len(phi_AVC), over, folds, seed):
        v = fit_pearson(phi_AVC, similarity_AA, training, seed=seed, **fitting)
        cosines = _cosines(torch.from_numpy(probed_rows(phi_AVC, v))).numpy()
        found.append(pearson(cosines[held_out], similarity_AA[held_out]))
    return np.array(found)


def probed_rows(phi_AVC: npt.NDArray[Any], v_C: FloatArray) -> FloatArray:
    """``h_a = phi_m(a) v .. v``, one v for each context mode, (A, V)."""
    return np.asarray(_contraction(phi_AVC)(torch.from_numpy(v_C)).numpy())


def all_pairs(num_anchors: int) -> Pairs:
    """Places a < b."""
    first, second = np.triu_indices(num_anchors, k=1)
    return first, second


def _folds(num_anchors: int, over: Folds, folds: int, seed: int) -> Iterator[tuple[Pairs, Pairs]]:
    first, second = all_pairs(num_anchors)
    generator = np.random.default_rng(seed)
    if over == "pairs":
        fold_P = generator.permutation(first.size) % folds
        for fold in range(folds):
            kept, out = fold_P != fold, fold_P == fold
            yield (first[kept], second[kept]), (first[out], second[out])
        return
    fold_A = generator.permutation(num_anchors) % folds
    for fold in range(folds):
        out_A = fold_A == fold
        out, kept = out_A[first] & out_A[second], ~out_A[first] & ~out_A[second]
        yield (first[kept], second[kept]), (first[out], second[out])


def _contraction(phi_AVC: npt.NDArray[Any]) -> Callable[[Tensor], Tensor]:
    """Return ``v -> phi_m(a) v .. v``, (C) to (A, V).

    Signatures of order 2 and more are nearly all zeros: kept sparse, with v's outer powers.
    """
    phi = torch.from_numpy(np.asarray(phi_AVC, np.float64))
    num_anchors, num_labels = phi.shape[:2]
    if phi.dim() == 3:
        return lambda v: phi @ v
    flat = phi.reshape(num_anchors * num_labels, -1).to_sparse()

    def contracted(v: Tensor) -> Tensor:
        power = v
        while power.numel() < flat.shape[1]:
            power = torch.outer(power, v).flatten()
        rows: Tensor = torch.sparse.mm(flat, power[:, None])
        return rows.reshape(num_anchors, num_labels)

    return contracted


def _cosines(rows_AV: Tensor) -> Tensor:
    unit_AV = torch.nn.functional.normalize(rows_AV, dim=1)
    return unit_AV @ unit_AV.T


def _rho(one_P: Tensor, other_P: Tensor) -> Tensor:
    one_P, other_P = one_P - one_P.mean(), other_P - other_P.mean()
    scale = torch.linalg.vector_norm(one_P) * torch.linalg.vector_norm(other_P)
    rho: Tensor = (one_P @ other_P) / scale.clamp_min(1e-30)
    return rho
