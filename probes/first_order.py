"""The first-order probe over a series: fit, controls and exact scores at every checkpoint.

Shapes: A anchors, C context tokens, R rows of the sketch, N splits.
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
from probes.assemble import Draws
from probes.checkpoints import LayeredCheckpoint
from probes.fitting import Vectors
from probes.heldout import heldout_scores
from probes.measure import Measured
from probes.projection import (
    Parts,
    ProjectionOptions,
    control_vectors,
    label_sketch,
    make_splits,
    project_exactly,
)
from probes.results import dataset
from probes.similarity import cosine_matrix
from probes.vocabulary import IntArray
from signatures.store import Signatures, open_signatures


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOrderProbe:
    """A first-order store and its sketch, both read by each task from disk."""

    store: Path
    sketch: Path
    anchors: IntArray
    options: ProjectionOptions

    @classmethod
    def prepare(
        cls, store: Path, folder: Path, options: ProjectionOptions, progress: Progress
    ) -> "FirstOrderProbe":
        """Sketch the store into ``folder``, unless the same sketch lies there already."""
        opened = open_signatures(store)
        if opened.spec.kind != "first-order":
            raise ValueError(
                f"{store}: {opened.spec.kind} counts found, first-order counts are needed"
            )
        probe = cls(
            store=store, sketch=folder / "sketch.npy", anchors=opened.anchors, options=options
        )
        probe = cls(
            store=store,
            sketch=folder / f"sketch_{probe.digest()[:16]}.npy",
            anchors=opened.anchors,
            options=options,
        )
        make_splits(len(probe.anchors), options)
        if not probe.sketch.exists():
            probe._write_sketch(opened, progress)
        return probe

    def digest(self) -> str:
        """Hash of the store's description, the anchors and the options."""
        spec = open_signatures(self.store).spec.to_attribute()
        text = repr((sorted(spec.items(), key=str), sorted(asdict(self.options).items())))
        return hashlib.sha256(text.encode() + self.anchors.tobytes()).hexdigest()

    def key(self) -> str:
        """Hash of all that a measurement depends on besides the checkpoint."""
        return "first-order " + self.digest()

    def measure(
        self, checkpoint: LayeredCheckpoint, before: Mapping[str, Measured] | None = None
    ) -> dict[str, Measured]:
        """Fit v on every split, and score it and the controls exactly on held-out anchors."""
        similarity_AA = cosine_matrix(checkpoint.input_embedding(self.anchors))
        scores = heldout_scores(
            np.load(self.sketch, mmap_mode="c"),
            similarity_AA,
            exact=self._exact,
            controls=self._controls(),
            options=self.options,
            before=before["first_order"] if before else None,
        )
        return {"first_order": scores}

    def groups(
        self,
        measured: Sequence[Mapping[str, Measured]],
        steps: IntArray,
        draws: Draws,
        progress: Progress,
    ) -> dict[str, xr.Dataset]:
        """Return the group ``first_order``."""
        series = [step["first_order"] for step in measured]
        group = dataset(
            {
                name: (("step", "split"), np.stack([step[name] for step in series]))
                for name, values in series[0].items()
                if values.ndim == 1
            },
            {"step": ("step", steps), "split": ("split", np.arange(self.options.splits))},
        )
        return {"first_order": group}

    def describe(self) -> dict[str, Any]:
        """Facts for the provenance."""
        spec = open_signatures(self.store).spec.to_attribute()
        return {"options": asdict(self.options), "store": spec, "anchors": self.anchors.tolist()}

    def _controls(self) -> Mapping[str, Vectors]:
        """Vectors that no fitting chose; the unigram one from how often a context was present."""
        present_C = np.load(self.sketch.with_suffix(".present.npy"))
        return control_vectors(present_C, seed=self.options.seed)

    def _exact(self, vectors_NC: Vectors) -> list[csr_array[Any]]:
        store = open_signatures(self.store)
        return project_exactly(
            store.first_order_parts(),
            vectors_NC,
            num_anchors=len(self.anchors),
            num_labels=store.spec.vocab_size,
        )

    def _write_sketch(self, store: Signatures, progress: Progress) -> None:
        shape = (len(self.anchors), store.spec.vocab_size, len(store.context_tokens))
        present_C = np.zeros(len(store.context_tokens))
        with progress.stage(
            "sketch of the labels", store.spec.totals.entries, "entries"
        ) as advance:

            def parts() -> Parts:
                for first_row, part in store.first_order_parts():
                    present_C[:] += np.asarray(part.sum(axis=0)).ravel()
                    yield first_row, part
                    advance(part.nnz)

            sketch = label_sketch(parts(), shape=shape, options=self.options)
        self.sketch.parent.mkdir(parents=True, exist_ok=True)
        np.save(self.sketch.with_suffix(".present.npy"), present_C)
        partial = self.sketch.with_suffix(".writing.npy")
        np.save(partial, sketch)
        partial.rename(self.sketch)
