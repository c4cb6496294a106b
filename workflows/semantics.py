"""Number, weekday and category words in a corpus: scores, pictures and a table, in one folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from corpus.tokenize import tokenizer_hash
from probes.checkpoints import open_series
from probes.figures import save_pictures
from probes.plot import semantic_panels
from probes.probe import check_belonging
from probes.results import save
from probes.semantics import semantics_groups
from probes.tokens import TokenTexts
from signatures.store import open_signatures
from workflows.output import refuse_existing, written_aside

RESULT = "semantics.zarr"


def write_semantics(
    store: Path,
    *,
    tokenizer: Path,
    out: Path,
    checkpoints: Sequence[Path] = (),
    permutations: int = 999,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Find the word sets, score them, and write ``semantics.zarr`` and a figure for each set.

    Returns
    -------
    dict
        ``out`` and ``sets``: name, kind, number of words, and for the signature and each
        checkpoint the score and its p.

    Raises
    ------
    FileExistsError
        ``out`` exists without ``overwrite``, or holds no ``semantics.zarr``.
    ValueError
        No set is found, or store, tokenizer and checkpoints do not belong together.
    """
    refuse_existing(out, overwrite=overwrite, holds=RESULT)
    signatures, texts = open_signatures(store), TokenTexts(tokenizer)
    if signatures.spec.tokenizer not in (None, tokenizer_hash(tokenizer)):
        raise ValueError(
            f"{tokenizer}: not the tokenizer of {store}; give the one it was made with"
        )
    series = open_series(checkpoints, vocab_size=texts.vocab_size) if checkpoints else []
    if series:
        check_belonging(series, signatures, tokenizer)
    with progress.stage("word sets", 1, "rounds") as advance:
        groups = semantics_groups(signatures, texts, series, permutations=permutations, seed=seed)
        advance(1)
    record = {
        "signatures": signatures.spec.to_attribute(),
        "checkpoints": [{"step": c.step, "embedding_hash": c.embedding_hash} for c in series],
        "permutations": permutations,
        "seed": seed,
        "provenance": provenance(),
    }
    with written_aside(out) as work:
        save(groups, json.loads(json.dumps(record, default=str)), work / RESULT)
        for name, group in groups.items():
            save_pictures(semantic_panels(group, name), work, name.replace(", ", "_").lower())
    return {"out": str(out), "sets": [_scores(name, group) for name, group in groups.items()]}


def _scores(name: str, group: xr.Dataset) -> dict[str, Any]:
    rows = zip(group["source"].values, group["score"].values, group["p"].values, strict=True)
    return {
        "set": name,
        "kind": group.attrs["kind"],
        "words": int(group.sizes["token"]),
        "scores": [{"of": str(s), "score": float(v), "p": float(p)} for s, v, p in rows],
    }
