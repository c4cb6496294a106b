"""Both embeddings of a checkpoint against the pair counts of its corpus.

Input rows go with the rows of the counts (what follows a token), output rows with their
columns (what precedes it).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr

from corpus.progress import Progress
from probes.assemble import Draws, TokenAxis, neighbor_group, number_group, path_group
from probes.checkpoints import Checkpoint
from probes.components import Components, principal_components
from probes.measure import NUM_COMPONENTS, Measured, Reference, measure_rows
from probes.reliability import Reliability, split_half
from probes.similarity import cosines_between, unit_rows
from probes.tokens import TokenTexts
from signatures.store import Signatures, top_tokens

IntArray = npt.NDArray[np.int64]

NUM_NEIGHBORS = 8
_NEIGHBOR_CANDIDATES = "top:2000"
_FEWEST_NUMBERS = 3
_FEWEST_OCCURRENCES = 50
"""Of a number token: a signature from fewer is mostly noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingProbe:
    """What stays the same from one checkpoint to the next."""

    axis: TokenAxis
    references: Mapping[str, Reference]
    number_axis: TokenAxis
    number_components: Components
    reliabilities: Mapping[str, Reliability]
    """Of the signatures; empty when the store holds no halves."""

    @classmethod
    def prepare(
        cls, store: Signatures, which: str, texts: TokenTexts, progress: Progress
    ) -> "EmbeddingProbe":
        """Read the signatures of the tokens ``which`` names, and of the number tokens."""
        counts_V = store.token_counts

        def axis(tokens: IntArray) -> TokenAxis:
            return TokenAxis(tokens=tokens, texts=texts.texts(tokens), occurrences=counts_V[tokens])

        tokens = top_tokens(store, which)
        numbers = _frequent_numbers(texts, counts_V)
        with progress.stage("signatures of the probed tokens", 3, "reads") as advance:
            next_rows = store.next_token_matrix(tokens)
            before_rows = store.predecessor_matrix(tokens)
            advance(1)
            references = {
                "direct": Reference.of_counts(next_rows, tokens, counts_V),
                "unembedding": Reference.of_counts(before_rows, tokens, counts_V),
            }
            advance(1)
            components = principal_components(
                unit_rows(store.next_token_matrix(numbers)), NUM_COMPONENTS
            )
            advance(1)

        return cls(
            axis=axis(tokens),
            references=references,
            number_axis=axis(numbers),
            number_components=components,
            reliabilities=_reliabilities(store, tokens),
        )

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""
        digest = hashlib.sha256(self.axis.tokens.tobytes() + self.number_axis.tokens.tobytes())
        for reference in self.references.values():
            digest.update(reference.fingerprint().encode())
        return digest.hexdigest()

    def measure(self, checkpoint: Checkpoint) -> dict[str, Measured]:
        """Return all paths of one checkpoint."""
        tokens, numbers = self.axis.tokens, self.number_axis.tokens
        rows = checkpoint.input_embedding(np.concatenate([tokens, numbers]))
        components = principal_components(unit_rows(rows[len(tokens) :]), NUM_COMPONENTS)
        outputs = checkpoint.unembedding(tokens)
        return {
            "direct": measure_rows(rows[: len(tokens)], self.references["direct"]),
            "unembedding": measure_rows(outputs, self.references["unembedding"]),
            "numbers": {
                "pca": components.coordinates,
                "explained_variance": components.explained,
            },
        }

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return every group of the result."""
        groups = {}
        with progress.stage("permutation and bootstrap", len(self.references), "paths") as advance:
            for path, reference in self.references.items():
                groups[path] = path_group(
                    [step[path] for step in measured],
                    steps=steps,
                    reference=reference,
                    axis=self.axis,
                    draws=draws,
                    reliability=self.reliabilities.get(path),
                )
                advance(1)
        if len(self.number_axis.tokens) >= _FEWEST_NUMBERS:
            groups["numbers"] = number_group(
                [step["numbers"] for step in measured],
                steps=steps,
                signature=self.number_components,
                axis=self.number_axis,
            )
        return groups


def _reliabilities(store: Signatures, tokens: IntArray) -> dict[str, Reliability]:
    if not store.spec.parameters.get("halves"):
        return {}
    even, odd = store.half("even"), store.half("odd")
    return {
        "direct": split_half(even.next_token_matrix(tokens), odd.next_token_matrix(tokens)),
        "unembedding": split_half(even.predecessor_matrix(tokens), odd.predecessor_matrix(tokens)),
    }


def nearest_tokens(store: Signatures, axis: TokenAxis, texts: TokenTexts) -> xr.Dataset:
    """Return the group ``neighbors``: the nearest frequent tokens by next-token signature."""
    others = np.union1d(top_tokens(store, _NEIGHBOR_CANDIDATES), axis.tokens)
    cosines = cosines_between(store.next_token_matrix(axis.tokens), store.next_token_matrix(others))
    names = texts.texts(others)
    return neighbor_group(cosines, axis=axis, others=others, texts=names, num=NUM_NEIGHBORS)


def _frequent_numbers(texts: TokenTexts, counts_V: IntArray) -> IntArray:
    """Ids of number tokens that occur often enough, in the order of their numbers."""
    numbers = texts.numbers()
    occurring = [t for t in numbers if t < len(counts_V) and counts_V[t] >= _FEWEST_OCCURRENCES]
    return np.array(sorted(occurring, key=lambda token: (numbers[token], token)), np.int64)
