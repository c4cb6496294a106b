"""The direct-path probe of a model that is still training: rho_next in the training log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probes.similarity import compare, cosine_matrix
from signatures.ranking import top_tokens
from signatures.store import open_signatures


def live_probe(
    store: Path, tokens: str = "top:200"
) -> Callable[[npt.NDArray[np.float32]], dict[str, float]]:
    """Return a function from the input embedding (vocab_size, hidden_size) to ``rho_next``.

    The signatures' side is computed once. ``rho_next`` is the Pearson correlation of the
    cosines of embeddings with those of next-token signatures, over pairs of ``tokens``.

    Raises
    ------
    ValueError
        ``store`` is no next-token store, or (when called) knows tokens the model has no row for.
    """
    signatures = open_signatures(store)
    chosen = top_tokens(signatures, tokens)
    wanted_nn = cosine_matrix(signatures.next_token_matrix(chosen))
    vocab_size = signatures.spec.vocab_size

    def probe(embedding_VH: npt.NDArray[Any]) -> dict[str, float]:
        if len(embedding_VH) < vocab_size:
            raise ValueError(
                f"{store}: signatures of {vocab_size} tokens, the model embeds "
                f"{len(embedding_VH)}; count the corpus that it is trained on"
            )
        found = compare(cosine_matrix(embedding_VH[chosen].astype(np.float64)), wanted_nn)
        return {"rho_next": found.pearson}

    return probe
