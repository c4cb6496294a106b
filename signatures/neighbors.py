"""Which tokens are followed by the same tokens: cosine of next-token signatures.

Shapes: V vocabulary size.
"""

import numpy as np
import numpy.typing as npt

from corpus.progress import SILENT, Progress
from signatures.reading import Signatures

_TIE_DECIMALS = 12
"""Cosines that agree to so many places tie; their order falls to the ids."""


def nearest_tokens(
    signatures: Signatures, token: int, *, top: int = 10, progress: Progress = SILENT
) -> list[tuple[int, float]]:
    """Return the ``top`` tokens whose next-token signatures have the largest cosine with ``token``.

    Exact, by one scan over all counts in bounded blocks. Tokens that nothing follows have no
    direction and are left out, as is ``token`` itself; ties go to the lower id.

    Returns
    -------
    list of (id, cosine)
        Cosines in float64, within [0, 1]; shorter than ``top`` when fewer tokens have one.

    Raises
    ------
    ValueError
        No next-token store, no such token, or one that nothing follows.
    """
    if top < 1:
        raise ValueError(f"top is {top}, at least 1 is needed")
    row_V = signatures.next_token(token)
    if not row_V.any():
        raise ValueError(
            f"{signatures.where}: token {token} is never followed by another, so it has no "
            "signature to compare; choose a token that occurs before the end of a document"
        )
    cosines_V = _cosines(signatures, row_V / np.linalg.norm(row_V), progress)
    cosines_V[token] = np.nan
    ids = np.flatnonzero(~np.isnan(cosines_V))
    falling = np.lexsort((ids, -np.round(cosines_V[ids], _TIE_DECIMALS)))[:top]
    return [(int(i), float(cosines_V[i])) for i in ids[falling]]


def _cosines(
    signatures: Signatures, unit_V: npt.NDArray[np.float64], progress: Progress
) -> npt.NDArray[np.float64]:
    """Cosine of every row with ``unit_V``; NaN for rows without entries."""
    vocab_size = signatures.spec.vocab_size
    cosines_V = np.full(vocab_size, np.nan)
    with progress.stage("comparing signatures", vocab_size, "tokens") as advance:
        for first, block in signatures.counts.blocks():
            values = block.astype(np.float64)
            lengths = np.sqrt(np.asarray(values.multiply(values).sum(axis=1)))
            rows = np.flatnonzero(lengths)
            cosines_V[first + rows] = np.minimum((values @ unit_V)[rows] / lengths[rows], 1.0)
            advance(block.shape[0])
    return cosines_V
