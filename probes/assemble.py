"""From measured steps to the groups of a result: stacked, with the statistics of whole series.

Shapes: T steps, n tokens, K components, M numbers, N neighbors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from corpus.progress import SILENT, Progress
from probes.components import Components, align_signs
from probes.measure import Measured, Reference
from probes.reliability import Reliability
from probes.results import dataset
from probes.similarity import FloatArray
from probes.statistics import bootstrap_rho, interval, mantel_p, measured_coverage

IntArray = npt.NDArray[np.int64]
_LARGEST_ORDERED = 500
_NULL_FEATURES = 128
_SMOOTH = 0.05
_LAYERED = ("step", "layer", "token", "token_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAxis:
    """The probed tokens: what a token coordinate holds."""

    tokens: IntArray
    texts: Sequence[str]
    occurrences: IntArray

    def coordinates(self, dim: str = "token") -> dict[str, tuple[str, Any]]:
        """Coordinates along ``dim``."""
        return {
            "token": (dim, self.tokens),
            "token_text": (dim, list(self.texts)),
            "occurrences": (dim, self.occurrences),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How many random draws the statistics take, and from which seed."""

    permutations: int = 999
    resamples: int = 1000
    seed: int = 0


def path_group(
    measured: Sequence[Measured],
    *,
    steps: IntArray,
    reference: Reference,
    axis: TokenAxis,
    draws: Draws,
    reliability: Reliability | None = None,
) -> xr.Dataset:
    """Return the group of one path: metrics over steps, similarities, principal coordinates."""
    series_Tnn = np.stack([step["similarity"] for step in measured])
    names = [name for name, values in measured[0].items() if values.ndim == 0]
    scalars = {name: (("step",), [step[name] for step in measured]) for name in names}
    components = Components(
        coordinates=align_signs(np.stack([step["pca"] for step in measured])),
        explained=np.stack([step["explained_variance"] for step in measured]),
    )
    return dataset(
        {
            **scalars,
            **_chance(reference.similarity, series_Tnn, scalars["rho"][1], draws),
            **_of_signature(reference.similarity, reliability, draws),
            "similarity": (("step", "token", "token_2"), series_Tnn.astype(np.float32)),
            **_component_variables(components, reference.components, "token"),
            "signature_similarity": (("token", "token_2"), reference.similarity),
            "cluster_order": (("token",), cluster_order(reference.similarity)),
        },
        {
            "step": ("step", steps),
            **axis.coordinates(),
            "token_2": ("token_2", axis.tokens),
            "component": ("component", 1 + np.arange(components.explained.shape[-1])),
            "bound": ("bound", ["low", "high"]),
        },
    )


def layered_group(
    measured: Sequence[Measured],
    *,
    steps: IntArray,
    signature: FloatArray,
    axis: TokenAxis,
    draws: Draws,
    progress: Progress = SILENT,
) -> xr.Dataset:
    """Return the group of a path that every layer has; ``signature`` is (n, n) or (T, L, n, n).

    Similarities are kept in half precision: they are for pictures, the metrics are done.
    """
    series_TLnn = np.stack([step["similarity"] for step in measured])
    own = signature.ndim == series_TLnn.ndim
    num_layers = series_TLnn.shape[1]
    p_TL = np.full((len(steps), num_layers), np.nan)
    bounds_TL2 = np.full((len(steps), num_layers, 2), np.nan)
    title = "permutation and bootstrap of layers"
    with progress.stage(title, p_TL.size, "layers") as advance:
        for layer in range(num_layers):
            for block in ([t] for t in range(len(steps))) if own else (list(range(len(steps))),):
                against = signature[block[0], layer] if own else signature
                p_TL[block, layer], bounds_TL2[block, layer] = chance_of(
                    against, series_TLnn[block, layer], draws
                )
                advance(len(block))
    scalars = [name for name, values in measured[0].items() if values.ndim == 1]
    shared = {"signature_similarity": (("token", "token_2"), signature)}
    layered = {"signature_similarity": (_LAYERED, signature.astype(np.float16))}
    return dataset(
        {
            **{n: (("step", "layer"), np.stack([step[n] for step in measured])) for n in scalars},
            "p": (("step", "layer"), p_TL),
            "rho_interval": (("step", "layer", "bound"), bounds_TL2),
            "similarity": (_LAYERED, series_TLnn.astype(np.float16)),
            "pca": (
                ("step", "layer", "token", "component"),
                np.stack([step["pca"] for step in measured]).astype(np.float32),
            ),
            "explained_variance": (
                ("step", "layer", "component"),
                np.stack([step["explained_variance"] for step in measured]),
            ),
            **(layered if own else shared),
        },
        {
            "step": ("step", steps),
            "layer": ("layer", np.arange(num_layers)),
            **axis.coordinates(),
            "token_2": ("token_2", axis.tokens),
            "component": ("component", 1 + np.arange(measured[0]["pca"].shape[-1])),
            "bound": ("bound", ["low", "high"]),
        },
    )


def number_group(
    measured: Sequence[Measured], *, steps: IntArray, signature: Components, axis: TokenAxis
) -> xr.Dataset:
    """Tokens that read as numbers, by signature and by embedding."""
    components = Components(
        coordinates=align_signs(np.stack([step["pca"] for step in measured])),
        explained=np.stack([step["explained_variance"] for step in measured]),
    )
    return dataset(
        {
            **_component_variables(components, signature, "token"),
            "value": (("token",), [int(text) for text in axis.texts]),
        },
        {
            "step": ("step", steps),
            **axis.coordinates(),
            "component": ("component", 1 + np.arange(components.explained.shape[-1])),
        },
    )


def neighbor_group(
    cosines_nm: FloatArray, *, axis: TokenAxis, others: IntArray, texts: Sequence[str], num: int
) -> xr.Dataset:
    """Return the ``num`` nearest of ``others`` for each token, itself left out."""
    closeness_nm = np.where(axis.tokens[:, None] == others[None, :], -np.inf, cosines_nm)
    closeness_nm = np.where(np.isnan(closeness_nm), -np.inf, closeness_nm)
    num = min(num, len(others) - 1)
    order_nN = np.argsort(-closeness_nm, axis=1, kind="stable")[:, :num]
    found_nN = np.take_along_axis(closeness_nm, order_nN, axis=1)
    names = np.array(texts, dtype=object)
    return dataset(
        {
            "nearest": (("token", "neighbor"), others[order_nN]),
            "nearest_text": (("token", "neighbor"), names[order_nN]),
            "nearest_similarity": (
                ("token", "neighbor"),
                np.where(np.isinf(found_nN), np.nan, found_nN),
            ),
        },
        {**axis.coordinates(), "neighbor": ("neighbor", 1 + np.arange(num))},
    )


def training_group(log: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Return the loss of every logged step of a run, and its course without the noise."""
    rows = sorted(log, key=lambda row: int(row["step"]))
    steps = np.array([int(row["step"]) for row in rows])
    losses = np.array([float(row["loss"]) for row in rows])
    return dataset(
        {
            "loss": (("train_step",), losses),
            "loss_smoothed": (("train_step",), _smoothed(losses, steps)),
            "tokens_seen": (("train_step",), [int(row.get("tokens", 0)) for row in rows]),
        },
        {"train_step": ("train_step", steps)},
    )


def _smoothed(losses_S: FloatArray, steps_S: IntArray) -> FloatArray:
    """Mean over the steps within `_SMOOTH` of each: none beside early ones, many beside late."""
    low_S = np.searchsorted(steps_S, steps_S * (1 - _SMOOTH))
    high_S = np.searchsorted(steps_S, steps_S * (1 + _SMOOTH), side="right")
    finite_S = np.isfinite(losses_S)
    sums, counts = (
        np.concatenate([[0.0], np.cumsum(values)])
        for values in (np.where(finite_S, losses_S, 0.0), finite_S)
    )
    with np.errstate(invalid="ignore"):
        return np.asarray((sums[high_S] - sums[low_S]) / (counts[high_S] - counts[low_S]))


def cluster_order(similarity_nn: FloatArray) -> IntArray:
    """Token places in the order of average-linkage clustering; undefined tokens come last."""
    defined = np.flatnonzero(np.isfinite(np.diagonal(similarity_nn)))
    undefined = np.setdiff1d(np.arange(len(similarity_nn)), defined)
    if len(defined) < 3:
        return np.concatenate([defined, undefined]).astype(np.int64)
    distance = np.clip(1.0 - similarity_nn[np.ix_(defined, defined)], 0.0, 2.0)
    tree = linkage(
        squareform(distance, checks=False),
        method="average",
        optimal_ordering=len(defined) <= _LARGEST_ORDERED,
    )
    return np.concatenate([defined[leaves_list(tree)], undefined]).astype(np.int64)


def _chance(
    signature_nn: FloatArray, series_Tnn: FloatArray, rho: Sequence[Any], draws: Draws
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return p and intervals of rho, and of how far it fell from its peak to the last step."""
    p_T = mantel_p(signature_nn, series_Tnn, permutations=draws.permutations, seed=draws.seed)
    rho_TB = bootstrap_rho(signature_nn, series_Tnn, resamples=draws.resamples, seed=draws.seed)
    rho_T = np.array(rho, np.float64)
    fall, fall_B = np.nan, np.full(draws.resamples, np.nan)
    if np.isfinite(rho_T).any():
        peak = int(np.nanargmax(rho_T))
        fall, fall_B = rho_T[peak] - rho_T[-1], rho_TB[peak] - rho_TB[-1]
    return {
        "p": (("step",), p_T),
        "rho_interval": (("step", "bound"), np.stack(interval(rho_TB), axis=-1)),
        "fall": ((), fall),
        "fall_interval": (("bound",), np.stack(interval(fall_B), axis=-1)),
    }


def _of_signature(
    signature_nn: FloatArray, reliability: Reliability | None, draws: Draws
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return what holds for every step: coverage of the interval, and the ceiling of rho."""
    coverage = measured_coverage(signature_nn, num_features=_NULL_FEATURES, seed=draws.seed)
    found: dict[str, tuple[tuple[str, ...], Any]] = {"null_coverage": ((), coverage)}
    if reliability is not None:
        found |= {
            "half_correlation": ((), reliability.half_correlation),
            "reliability": ((), reliability.whole),
            "ceiling": ((), reliability.ceiling),
        }
    return found


def chance_of(
    signature_nn: FloatArray, series_Tnn: FloatArray, draws: Draws
) -> tuple[FloatArray, FloatArray]:
    """Return the permutation p of each step (T) and the 95 % interval of its rho (T, 2)."""
    p_T = mantel_p(signature_nn, series_Tnn, permutations=draws.permutations, seed=draws.seed)
    rho_TB = bootstrap_rho(signature_nn, series_Tnn, resamples=draws.resamples, seed=draws.seed)
    return p_T, np.stack(interval(rho_TB), axis=-1)


def _component_variables(
    model: Components, signature: Components, dim: str
) -> dict[str, tuple[tuple[str, ...], Any]]:
    return {
        "pca": (("step", dim, "component"), model.coordinates.astype(np.float32)),
        "explained_variance": (("step", "component"), model.explained),
        "signature_pca": ((dim, "component"), signature.coordinates),
        "signature_explained_variance": (("component",), signature.explained),
    }
