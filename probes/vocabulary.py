"""Rows of an embedding by token: how they are taken, and how a whole embedding is told apart.

Shapes: n tokens asked for, V vocabulary, H hidden size.
"""

import hashlib

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]


def hash_rows(rows: RowArray) -> str:
    """SHA-256 of the float32 bytes of an embedding, row by row."""
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).data).hexdigest()


def take_rows(rows_VH: RowArray, tokens_n: IntArray | None, name: str) -> RowArray:
    """Return the rows of ``tokens_n``, all rows when None; ``name`` is for the message.

    Raises
    ------
    ValueError
        A token that has no row.
    """
    if tokens_n is None:
        return rows_VH
    if tokens_n.size and (tokens_n.min() < 0 or tokens_n.max() >= len(rows_VH)):
        raise ValueError(
            f"{name}: token {int(tokens_n.max())} asked for, {len(rows_VH)} rows found; "
            "the signatures belong to another vocabulary"
        )
    return np.ascontiguousarray(rows_VH[tokens_n])
