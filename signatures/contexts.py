"""What is counted of contexts: anchors, context tokens, and a matrix that projects them.

Shapes: V vocabulary, A anchors, C context tokens, Q columns of a projection.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from signatures.kernels import Int64s
from signatures.keys import Keys
from signatures.ranking import top_tokens
from signatures.signs import Signs, sign_matrix

ContextKind = Literal["first-order", "projected"]

_NAMES = ("anchors", "context_tokens", "matrix")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """What a first-order or projected count asks for.

    Raises
    ------
    ValueError
        Settings that contradict each other.
    """

    kind: ContextKind
    anchors: str
    """``top:N``, ``rank:A-B``, ``all``, or a file of ids."""
    context_tokens: str = "all"
    min_count: int = 1
    """Entries of a smaller count are left out of a finished store."""
    columns: int | None = None
    seed: int | None = None
    matrix: Path | None = None

    def __post_init__(self) -> None:
        if self.min_count < 1:
            raise ValueError(f"--min-count {self.min_count}: at least 1 is needed")
        if self.kind == "first-order":
            return
        if (self.matrix is None) == (self.columns is None):
            raise ValueError("the projection is --matrix FILE.npy, or --columns R with --seed S")
        if self.matrix is None and self.seed is None:
            raise ValueError("--columns draws random signs; --seed S is needed to draw them again")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"--seed {self.seed}: at least 0 is needed")
        if self.columns is not None and self.columns < 1:
            raise ValueError(f"--columns {self.columns}: at least 1 is needed")

    def parameters(self, vocab_size: int) -> dict[str, Any]:
        """Return the settings that decide the counts, files by what they hold."""
        named = {
            name: which if is_ranked(which) else f"sha256:{_hash_ids(which, vocab_size)}"
            for name, which in (("anchors", self.anchors), ("context_tokens", self.context_tokens))
        }
        if self.kind == "first-order":
            return {**named, "min_count": self.min_count}
        if self.matrix is None:
            return {**named, "columns": self.columns}
        return {**named, "matrix": hashlib.sha256(self.matrix.read_bytes()).hexdigest()}

    @property
    def needs_counts(self) -> bool:
        """Whether the tokens meant depend on how often they occur."""
        return any(which.startswith(("top:", "rank:")) for which in self._named)

    @property
    def _named(self) -> tuple[str, str]:
        return self.anchors, self.context_tokens

    def resolve(self, token_counts_V: Int64s, special: tuple[int, ...]) -> "Contexts":
        """Settle the token ids and the projection, given occurrences of all tokens (V,).

        Raises
        ------
        ValueError, FileNotFoundError
            As `top_tokens` and `read_matrix`.
        """
        anchors_A, context_tokens_C = (
            top_tokens(token_counts_V, which, special=special) for which in self._named
        )
        if not anchors_A.size or not context_tokens_C.size:
            raise ValueError(
                f"--anchors {self.anchors} --context-tokens {self.context_tokens}: no eligible "
                "token occurs in this corpus"
            )
        matrix_CQ = None
        if self.matrix is not None:
            matrix_CQ = read_matrix(self.matrix, context_tokens_C.size)
        elif self.columns is not None and self.seed is not None:
            matrix_CQ = sign_matrix(context_tokens_C, self.columns, self.seed)
        return Contexts(token_counts_V.size, anchors_A, context_tokens_C, matrix_CQ)


@dataclass(frozen=True, eq=False)
class Contexts:
    """The token ids that were meant, and the projection."""

    vocab_size: int
    anchors_A: Int64s
    context_tokens_C: Int64s
    matrix_CQ: Signs | None = None

    @cached_property
    def keys(self) -> Keys:
        """Of the matrix of counts."""
        return Keys(self.vocab_size, self.anchors_A, self.context_tokens_C)

    @cached_property
    def anchor_V(self) -> npt.NDArray[np.int32]:
        """Number of each token among the anchors, or -1."""
        return _numbers(self.vocab_size, self.anchors_A)

    @cached_property
    def context_V(self) -> npt.NDArray[np.int32]:
        """Number of each token among the context tokens, or -1."""
        return _numbers(self.vocab_size, self.context_tokens_C)

    @cached_property
    def hashes_V(self) -> npt.NDArray[np.uint64]:
        """h(2, token) of every token."""
        return Keys(self.vocab_size).hashes_C

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """Narrowest unsigned integer that numbers the context tokens."""
        return np.dtype(np.uint16 if self.context_tokens_C.size <= 2**16 else np.uint32)

    def save(self, scratch: Path) -> None:
        """Lay the arrays out on scratch, where every process loads them."""
        arrays = (self.anchors_A, self.context_tokens_C, self.matrix_CQ)
        for name, array in zip(_NAMES, arrays, strict=True):
            if array is not None:
                np.save(scratch / f"{name}.npy", array)


@lru_cache(maxsize=1)
def load_contexts(run: str, scratch: Path, vocab_size: int) -> Contexts:
    """Load what `Contexts.save` laid out, once a process and run."""
    anchors_A, context_tokens_C = (np.load(scratch / f"{name}.npy") for name in _NAMES[:2])
    path = scratch / "matrix.npy"
    return Contexts(
        vocab_size, anchors_A, context_tokens_C, np.load(path) if path.exists() else None
    )


def read_matrix(path: Path, context_tokens: int) -> Signs:
    """Read the projection: integers that fit int8, one row a context token.

    Raises
    ------
    ValueError
        Not such an array.
    FileNotFoundError
        Nothing at ``path``.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not an .npy file ({error}); np.save makes one") from error
    if found.ndim != 2 or found.shape[0] != context_tokens or found.shape[1] < 1:
        raise ValueError(
            f"{path}: shape {found.shape}, ({context_tokens}, R) is needed: a row for each context "
            "token, in their order (all ids below V unless --context-tokens names others)"
        )
    if not np.issubdtype(found.dtype, np.integer) and found.dtype != np.bool_:
        raise ValueError(f"{path}: {found.dtype}, integers from -128 to 127 are needed")
    if found.size and not (int(found.min()) >= -128 and int(found.max()) <= 127):
        raise ValueError(
            f"{path}: values from {found.min()} to {found.max()}, -128 to 127 are needed (int8)"
        )
    matrix_CQ: Signs = found.astype(np.int8)
    return matrix_CQ


def is_ranked(which: str) -> bool:
    """Whether ``which`` is no file."""
    return which == "all" or which.startswith(("top:", "rank:"))


def _hash_ids(which: str, vocab_size: int) -> str:
    ids = top_tokens(np.empty(vocab_size, np.int64), which)
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()


def _numbers(vocab_size: int, tokens: Int64s) -> npt.NDArray[np.int32]:
    numbers_V = np.full(vocab_size, -1, np.int32)
    numbers_V[tokens] = np.arange(tokens.size)
    return numbers_V
