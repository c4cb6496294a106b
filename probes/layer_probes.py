"""The paths through a layer: FFN against next-token, attention against its own signature.

Shapes: L layers, n tokens, H hidden size.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from corpus.progress import Progress
from probes.assemble import Draws, TokenAxis, layered_group
from probes.attention import Sample, attention_signature
from probes.checkpoints import LayeredCheckpoint
from probes.measure import Measured, Reference, measure_rows
from probes.paths import attention_rows, ffn_rows
from probes.similarity import cosine_matrix
from probes.vocabulary import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnProbe:
    """``MLP_l(norm_l(w_a))`` of every layer against the next-token signature."""

    axis: TokenAxis
    reference: Reference

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""
        return "ffn " + self.reference.fingerprint()

    def measure(self, checkpoint: LayeredCheckpoint) -> dict[str, Measured]:
        """Measure every layer of one checkpoint; arrays lead with the layer."""
        rows = checkpoint.input_embedding(self.axis.tokens)
        layers = (checkpoint.layer(index) for index in range(checkpoint.num_layers))
        return {
            "ffn": _stacked([measure_rows(ffn_rows(one, rows), self.reference) for one in layers])
        }

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return the group ``ffn``."""
        group = layered_group(
            [step["ffn"] for step in measured],
            steps=steps,
            signature=self.reference.similarity,
            axis=self.axis,
            draws=draws,
            progress=progress,
        )
        return {"ffn": group}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProbe:
    """``W_O W_V w_a`` of every layer against the attention-path signature of that layer."""

    axis: TokenAxis
    sample: Sample

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""
        digest = hashlib.sha256(self.axis.tokens.tobytes())
        for piece in self.sample.pieces:
            digest.update(len(piece).to_bytes(8, "little") + piece.tobytes())
        return "attention " + digest.hexdigest()

    def measure(self, checkpoint: LayeredCheckpoint) -> dict[str, Measured]:
        """Run the model over the sample, then measure every layer."""
        rows = checkpoint.input_embedding(self.axis.tokens)
        decoder = checkpoint.decoder()
        found = attention_signature(decoder, self.sample, self.axis.tokens)
        layers = []
        for index, weights in enumerate(found.weights):
            layer = decoder.layer(index)
            reference = Reference.of(weights)
            gained = measure_rows(attention_rows(layer, rows, gain=True), reference)
            measured = measure_rows(attention_rows(layer, rows), reference)
            measured["rho_gain"] = gained["rho"]
            measured["signature_similarity"] = cosine_matrix(weights)
            layers.append(measured)
        return {"attention": _stacked(layers)}

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return the group ``attention``."""
        series = [step["attention"] for step in measured]
        group = layered_group(
            series,
            steps=steps,
            signature=np.stack([step["signature_similarity"] for step in series]),
            axis=self.axis,
            draws=draws,
            progress=progress,
        )
        return {"attention": group}

    def describe(self) -> dict[str, Any]:
        """Facts of the sample for the provenance."""
        return {"pieces": len(self.sample.pieces), "positions": self.sample.num_positions}


def _stacked(layers: Sequence[Measured]) -> Measured:
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
