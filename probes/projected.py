"""Projected first-order signatures against the input embedding, for any number of anchors.

A projected store holds ``phi_1(a) B`` for a fixed matrix B of R columns: small enough for
thousands of anchors, so that rank bands of the rarer vocabulary can be asked about. Two readings:

- untrained: ``vec(phi_1(a) B)``. For random signs B its inner products are R times those of
  ``phi_1(a)`` on average, so the cosines estimate those of the whole signatures.
- trained: the first-order probe with ``v = B c``, c found as v is (``probes.fitting``) and scored
  on held-out anchors.

Shapes: A anchors, L labels that followed an anchor, V labels, R columns of B, N vectors c.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.sparse import csr_array

from corpus.progress import Progress
from probes.assemble import Draws, TokenAxis, chance_of
from probes.checkpoints import LayeredCheckpoint
from probes.fitting import Vectors, random_vector
from probes.heldout import heldout_scores
from probes.measure import Measured
from probes.projection import ProjectionOptions, can_split, label_sketch
from probes.results import dataset
from probes.similarity import FloatArray, compare, cosine_matrix, cosines_of_inner_products
from probes.tokens import TokenTexts
from probes.vocabulary import IntArray
from signatures.store import Signatures, open_signatures

_BLOCK_BYTES = 1 << 30
_SCALARS = ("rho", "spearman", "mse", "one_minus_mse", "num_pairs", "num_undefined")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedProbe:
    """A projected store, its untrained geometry, and its sketch on disk for the trained reading."""

    store: Path
    sketch: Path
    axis: TokenAxis
    similarity: FloatArray
    """Of the untrained reading, (A, A)."""
    options: ProjectionOptions

    @classmethod
    def prepare(
        cls,
        store: Path,
        folder: Path,
        texts: TokenTexts,
        options: ProjectionOptions,
        progress: Progress,
    ) -> "ProjectedProbe":
        """Read the store once for the geometry, and once for the sketch unless it lies there."""
        opened = open_signatures(store)
        anchors = opened.anchors
        with progress.stage("projected signatures", len(anchors), "anchors") as advance:
            similarity_AA = untrained_similarity(opened)
            advance(len(anchors))
        axis = TokenAxis(
            tokens=anchors,
            texts=texts.texts(anchors),
            occurrences=opened.anchor_occurrences,
        )
        digest = _digest(opened, options)
        probe = cls(
            store=store,
            sketch=folder / f"projected_{digest[:16]}.npy",
            axis=axis,
            similarity=similarity_AA,
            options=options,
        )
        if probe.is_trained and not probe.sketch.exists():
            probe._write_sketch(opened)
        return probe

    @property
    def is_trained(self) -> bool:
        """Whether there are anchors enough to hold some out."""
        return can_split(len(self.axis.tokens), self.options)

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""
        return "projected " + _digest(open_signatures(self.store), self.options)

    def measure(
        self, checkpoint: LayeredCheckpoint, before: Mapping[str, Measured] | None = None
    ) -> dict[str, Measured]:
        """Compare both readings with the anchors' embeddings."""
        similarity_AA = cosine_matrix(checkpoint.input_embedding(self.axis.tokens))
        found = compare(similarity_AA, self.similarity)
        measured = {
            "rho": np.asarray(found.pearson),
            **{name: np.asarray(getattr(found, name)) for name in _SCALARS[1:]},
            "similarity": similarity_AA.astype(np.float32),
        }
        if self.is_trained:
            num_columns = np.load(self.sketch, mmap_mode="r").shape[2]
            measured |= heldout_scores(
                np.load(self.sketch, mmap_mode="c"),
                similarity_AA,
                exact=self._exact,
                controls={"random": random_vector(num_columns, self.options.seed + 1)},
                options=self.options,
                before=before["projected"] if before else None,
            )
        return {"projected": measured}

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return the group ``projected``: untrained metrics over steps, trained over splits too."""
        series = [step["projected"] for step in measured]
        similarity_TAA = np.stack([step["similarity"] for step in series]).astype(np.float64)
        p_T, bounds_T2 = chance_of(self.similarity, similarity_TAA, draws)
        trained = [name for name, values in series[0].items() if values.ndim == 1]
        group = dataset(
            {
                **{n: (("step",), np.stack([step[n] for step in series])) for n in _SCALARS},
                **{n: (("step", "split"), np.stack([step[n] for step in series])) for n in trained},
                "p": (("step",), p_T),
                "rho_interval": (("step", "bound"), bounds_T2),
                "signature_similarity": (("token", "token_2"), self.similarity),
            },
            {
                "step": ("step", steps),
                "split": ("split", np.arange(self.options.splits)),
                **self.axis.coordinates(),
                "token_2": ("token_2", self.axis.tokens),
                "bound": ("bound", ["low", "high"]),
            },
        )
        return {"projected": group}

    def describe(self) -> dict[str, Any]:
        """Facts for the provenance."""
        spec = open_signatures(self.store).spec.to_attribute()
        return {"options": asdict(self.options), "store": spec}

    def _exact(self, vectors_NR: Vectors) -> list[csr_array[Any]]:
        return project_labels(open_signatures(self.store), vectors_NR)

    def _write_sketch(self, store: Signatures) -> None:
        size = store.spec.vocab_size
        anchors = self.axis.tokens.tolist()
        shape = (len(anchors), size, store.projected(anchors[0])[1].shape[1])
        parts = (
            (place * size, projected_signature(store, anchor))
            for place, anchor in enumerate(anchors)
        )
        sketch = label_sketch(parts, shape=shape, options=self.options)
        self.sketch.parent.mkdir(parents=True, exist_ok=True)
        partial = self.sketch.with_suffix(".writing.npy")
        np.save(partial, sketch)
        partial.rename(self.sketch)


def projected_signature(store: Signatures, anchor: int) -> csr_array[Any]:
    """``phi_1(a) B`` as float64 (V, R): sums over occurrences of the anchor with a label."""
    labels_L, sums_LR = _probabilities(store, anchor)
    num_columns = sums_LR.shape[1]
    lengths_V = np.zeros(store.spec.vocab_size + 1, np.int64)
    lengths_V[labels_L + 1] = num_columns
    columns = np.tile(np.arange(num_columns), len(labels_L))
    shape = (store.spec.vocab_size, num_columns)
    return csr_array((sums_LR.ravel(), columns, np.cumsum(lengths_V)), shape=shape)


def project_labels(store: Signatures, vectors_NR: Vectors) -> list[csr_array[Any]]:
    """``phi_1(a) B c`` of every anchor for every c in one pass: N sparse arrays (A, V)."""
    labels, values = [], []
    for anchor in store.anchors.tolist():
        labels_L, sums_LR = _probabilities(store, anchor)
        labels.append(labels_L)
        values.append(sums_LR @ vectors_NR.T.astype(np.float64))
    indptr = np.cumsum([0, *map(len, labels)])
    indices, values_EN = np.concatenate(labels), np.concatenate(values)
    shape = (len(labels), store.spec.vocab_size)
    return [csr_array((column_E, indices, indptr), shape=shape) for column_E in values_EN.T.copy()]


def untrained_similarity(store: Signatures, *, block_bytes: int = _BLOCK_BYTES) -> FloatArray:
    """Cosine of ``vec(phi_1(a) B)`` for every pair of anchors, exact, (A, A).

    Labels are taken some at a time, so that no more than about ``block_bytes`` of the store are
    in memory; a label adds the inner products of the anchors that it followed.
    """
    anchors = store.anchors.tolist()
    gram_AA = np.zeros((len(anchors), len(anchors)))
    num_columns = store.projected(anchors[0])[1].shape[1] if anchors else 0
    passes = max(1, -(-8 * store.spec.totals.entries * num_columns // block_bytes))
    for number in range(passes):
        taken = [_every(passes, number, *_probabilities(store, anchor)) for anchor in anchors]
        owners = np.repeat(np.arange(len(anchors)), [len(labels) for labels, _ in taken])
        labels_E = np.concatenate([labels for labels, _ in taken])
        order_E = np.argsort(labels_E, kind="stable")
        values_ER = np.concatenate([values for _, values in taken])[order_E]
        owners = owners[order_E]
        borders = np.flatnonzero(np.diff(labels_E[order_E])) + 1
        for start, stop in zip([0, *borders], [*borders, len(owners)], strict=True):
            who, rows = owners[start:stop], values_ER[start:stop]
            gram_AA[np.ix_(who, who)] += rows @ rows.T
    return cosines_of_inner_products(gram_AA)


def _probabilities(store: Signatures, anchor: int) -> tuple[IntArray, FloatArray]:
    """Labels (L,) and ``(phi_1(a) B)`` of those labels, (L, R)."""
    labels_L, sums_LR = store.projected(anchor)
    (place,) = np.flatnonzero(store.anchors == anchor)
    return labels_L, sums_LR / max(int(store.anchor_occurrences[place]), 1)


def _every(
    passes: int, number: int, labels_L: IntArray, values_LR: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Return the labels whose turn it is."""
    is_taken = labels_L % passes == number
    return labels_L[is_taken], values_LR[is_taken]


def _digest(store: Signatures, options: ProjectionOptions) -> str:
    """Hash of the store's description, the anchors and the options."""
    text = repr((sorted(store.spec.to_attribute().items()), sorted(asdict(options).items())))
    return hashlib.sha256(text.encode() + store.anchors.tobytes()).hexdigest()
