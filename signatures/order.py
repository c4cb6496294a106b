"""The ORDER file: which samples of which stream a training run was fed.

An ``.npz`` with ``sequences`` int64 (numbers of the sequences in the order the data set
concatenates them, all epochs), ``samples`` int64 (numbers of the samples taken) and
``seq_length``. Sample i covers inputs ``[i * seq_length, (i + 1) * seq_length)`` of the stream.

Shapes: Q pieces, each a range of one sequence.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from signatures.kernels import Int64s

_NAMES = ("sequences", "samples", "seq_length")


class OrderFormatError(ValueError):
    """The path holds no ORDER file, or one of another corpus."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the tokens of a gathered block come from (corpus positions) and go to."""

    sources: Int64s
    targets: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class Order:
    """An ORDER file against the corpus it is for."""

    seq_length: int
    samples: Int64s
    """Ascending; one taken twice stands twice."""
    starts: Int64s
    """Corpus position where each sequence of the stream begins."""
    ends: Int64s
    """Exclusive end of each in the stream."""

    def pieces(self, froms: Int64s, sizes: Int64s, targets: Int64s) -> Pieces:
        """Cut ascending stream ranges at the borders of sequences; empty pieces fall away."""
        first = np.searchsorted(self.ends, froms, side="right")
        last = np.searchsorted(self.ends, froms + sizes, side="left")
        counts = last - first + 1
        which = np.repeat(np.arange(froms.size), counts)
        within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
        sequence = first[which] + within
        ends = np.asarray(self.ends[sequence])
        begins = np.where(sequence > 0, self.ends[np.maximum(sequence - 1, 0)], 0)
        lows = np.maximum(begins, froms[which])
        highs = np.minimum(ends, (froms + sizes)[which])
        filled = highs > lows
        sources = self.starts[sequence] + lows - begins
        goes_to = targets[which] + lows - froms[which]
        return Pieces(sources[filled], goes_to[filled], (highs - lows)[filled])


def read_order(path: Path, doc_ends_D: Int64s, *, seq_length: int | None) -> Order:
    """Read ``path`` for a corpus whose sequences end at ``doc_ends_D``.

    Raises
    ------
    OrderFormatError
        Not an ORDER file, or one that names sequences or samples which are not there.
    """
    sequences, samples, length = _arrays(path)
    if length < 1 or (seq_length is not None and seq_length != length):
        raise OrderFormatError(
            f"{path}: seq_length is {length}, --seq-length {seq_length or 'of at least 1'} is "
            "needed; leave --seq-length out or make the ORDER file again"
        )
    if sequences.size and not 0 <= sequences.min() <= sequences.max() < doc_ends_D.size:
        raise OrderFormatError(
            f"{path}: sequences {sequences.min()} to {sequences.max()}, the corpus has 0 to "
            f"{doc_ends_D.size - 1}; give the corpus the file was made for"
        )
    begins_D = np.concatenate([np.zeros(1, np.int64), doc_ends_D])[:-1]
    starts = begins_D[sequences]
    ends = np.cumsum(doc_ends_D[sequences] - starts, dtype=np.int64)
    samples = np.sort(samples)
    available = max(0, (int(ends[-1]) if ends.size else 0) - 1) // length
    if samples.size and not 0 <= samples[0] <= samples[-1] < available:
        raise OrderFormatError(
            f"{path}: samples {samples[0]} to {samples[-1]} of {length} tokens, the stream of this "
            f"corpus has {available}; give the corpus the file was made for"
        )
    return Order(length, samples, starts, ends)


def order_hash(path: Path) -> str:
    """SHA-256 of what an ORDER file says, however it was compressed."""
    sequences, samples, length = _arrays(path)
    digest = hashlib.sha256(np.array([length, sequences.size, samples.size], "<i8").tobytes())
    for array in (sequences, samples):
        digest.update(array.astype("<i8", copy=False).tobytes())
    return digest.hexdigest()


def _arrays(path: Path) -> tuple[Int64s, Int64s, int]:
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            found = {name: file[name] for name in _NAMES}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise OrderFormatError(
            f"{path}: not an ORDER file ({error}); an .npz with {', '.join(_NAMES)} is needed, "
            "`staircase corpus order` makes it"
        ) from error
    for name, array in found.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise OrderFormatError(f"{path}: {name} is {array.dtype}, int64 is needed")
    sequences, samples = (found[name].astype(np.int64).ravel() for name in _NAMES[:2])
    return sequences, samples, int(found["seq_length"])
