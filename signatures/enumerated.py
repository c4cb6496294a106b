"""A finite task, enumerated: every sample with its label and its weight.

Shapes: N samples, L positions, V vocabulary.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MOST = 2.0**63


def _one() -> IntArray:
    return np.ones((), np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class EnumeratedTask:
    """Every sample of a finite task with its label and weight.

    Raises
    ------
    ValueError
        Shapes that disagree, ids outside the vocabulary, or weights that are not positive.
    """

    samples_NL: IntArray
    """Token ids."""
    labels_N: IntArray
    vocab_size: int
    """Tokens and labels are ids below it."""
    weights_N: IntArray = field(default_factory=_one)
    """How often each sample counts; 1 unless given."""

    def __post_init__(self) -> None:
        samples_NL = require_integers("samples_NL", self.samples_NL)
        labels_N = require_integers("labels_N", self.labels_N)
        weights_N = require_integers("weights_N", self.weights_N)
        if samples_NL.ndim != 2 or not samples_NL.size:
            raise ValueError(
                f"samples_NL: found shape {samples_NL.shape}, required (N, L) with N and L at "
                f"least 1; give one row per sample"
            )
        if weights_N.ndim == 0:
            weights_N = np.full(len(samples_NL), weights_N)
        for name, array in (("labels_N", labels_N), ("weights_N", weights_N)):
            _require_length(name, array, len(samples_NL))
        require_ids("samples_NL", samples_NL, self.vocab_size)
        require_ids("labels_N", labels_N, self.vocab_size)
        _require_weights(weights_N, samples_NL.shape[1])
        object.__setattr__(self, "samples_NL", samples_NL)
        object.__setattr__(self, "labels_N", labels_N)
        object.__setattr__(self, "weights_N", weights_N)

    @property
    def length(self) -> int:
        """Number of positions L of every sample."""
        return int(self.samples_NL.shape[1])

    @property
    def sample_probabilities(self) -> FloatArray:
        """Probability of each sample, (N,)."""
        return np.asarray(self.weights_N / self.weights_N.sum())


def occurrence_probability(task: EnumeratedTask) -> FloatArray:
    """Return ``r_a = E[N_a(X)] / L`` for every token, (V,)."""
    return np.asarray(occurrences(task) / (task.length * task.weights_N.sum()))


def occurrences(task: EnumeratedTask) -> IntArray:
    """Weighted number of positions that hold each token, (V,)."""
    occurrences_V = np.zeros(task.vocab_size, np.int64)
    for tokens_N in task.samples_NL.T:
        np.add.at(occurrences_V, tokens_N, task.weights_N)
    return occurrences_V


def require_integers(name: str, values: npt.ArrayLike) -> IntArray:
    """Return ``values`` as int64, or say that they are no integers."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: found {array.dtype}, required integers; convert them first")
    return array.astype(np.int64)


def require_countable(counts: float) -> None:
    """Refuse sums that 64-bit integers may not hold."""
    if counts >= _MOST:
        raise ValueError(
            f"weights_N: up to {counts:.1e} counts, 64-bit integers hold {_MOST:.1e}; divide the "
            f"weights by their greatest common divisor, or ask for a lower order"
        )


def _require_length(name: str, array: IntArray, length: int) -> None:
    if array.shape != (length,):
        raise ValueError(
            f"{name}: found shape {array.shape}, required ({length},); give one per sample"
        )


def require_ids(name: str, ids: IntArray, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(
            f"{name}: found ids {ids.min()} to {ids.max()}, required 0 to {vocab_size - 1}; "
            f"raise vocab_size or correct the ids"
        )


def _require_weights(weights_N: IntArray, length: int) -> None:
    if weights_N.min() < 1:
        raise ValueError(
            f"weights_N: found {weights_N.min()}, required 1 or more; leave such samples out"
        )
    require_countable(weights_N.sum(dtype=np.float64) * length)
