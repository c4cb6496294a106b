"""Every checkpoint of a series against the signatures of its corpus.

``probe_series`` opens both, refuses what does not belong together, measures each checkpoint
once, and saves one result (see ``probes.results``).
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance
from corpus.tokenize import tokenizer_hash
from probes.assemble import Draws, training_group
from probes.checkpoints import Checkpoint, open_series
from probes.embeddings import EmbeddingProbe
from probes.results import open_results, save
from probes.steps import measure_series
from probes.tokens import TokenTexts
from signatures.store import Signatures, open_signatures


def probe_series(
    checkpoint_paths: Iterable[Path | str],
    *,
    signatures: Path,
    out: Path,
    tokens: str = "top:200",
    tokenizer: Path | None = None,
    permutations: int = 999,
    resamples: int = 1000,
    seed: int = 0,
    train_log: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Compare the embeddings and unembeddings of a series with a next-token store.

    Parameters
    ----------
    checkpoint_paths : iterable of paths
        Checkpoint folders, or folders of ``step_*`` folders.
    signatures : Path
        A next-token store.
    out : Path
        The ``probes.zarr`` to write; whole or not at all.
    tokens : str
        Which tokens are compared: ``top:N``, ``rank:A-B``, ``all``, or a file of ids.
    tokenizer : Path, optional
        Gives tokens their text, and finds the numbers among them.
    permutations, resamples, seed : int
        Of the permutation p and of the intervals.
    train_log : Path, optional
        ``train.jsonl`` of the run; looked for beside ``checkpoints/`` unless given.
    resume : bool
        Take up the steps that an interrupted run has measured.

    Returns
    -------
    dict
        ``direct`` and ``unembedding``: a row (step, rho, spearman, p, ...) for each step;
        ``probes``: the path written.

    Raises
    ------
    FileExistsError
        ``out`` exists and neither ``resume`` nor ``overwrite`` is given.
    ValueError
        Checkpoints, store and tokenizer that do not belong together.
    """
    out = Path(out)
    if out.exists() and resume:
        return summary(open_results(out)) | {"probes": str(out), "finished_before": True}
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: exists; pass --overwrite to replace it, or another --out")
    series = open_series(checkpoint_paths)
    store = open_signatures(signatures)
    check_belonging(series, store, tokenizer)
    probe = EmbeddingProbe.prepare(store, tokens, TokenTexts(tokenizer), progress)
    work = out.with_name(out.name + ".partial")
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    measured, reused = measure_series(
        series, probe.measure, folder=work, key=probe.key(), progress=progress
    )
    draws = Draws(permutations=permutations, resamples=resamples, seed=seed)
    groups = probe.groups(measured, np.array([c.step for c in series]), draws, progress)
    if log := _train_log(train_log, series):
        groups["training"] = training_group(log)
    record = _record(series, store, which=tokens, draws=draws, tokenizer=tokenizer)
    if out.exists():
        shutil.rmtree(out)
    save(groups, record, out)
    shutil.rmtree(work, ignore_errors=True)
    return summary(open_results(out)) | {"probes": str(out), "reused_steps": reused}


def summary(results: xr.DataTree) -> dict[str, Any]:
    """Return what ``staircase probe --json`` prints: a row for each step of each path."""
    columns = ("rho", "spearman", "p", "mse", "rho_centred", "rho_mean_removed")
    rows = {}
    for path in ("direct", "unembedding"):
        if path in results.children:
            group: xr.Dataset = results.children[path].to_dataset()
            steps, series = group["step"].values, {name: group[name].values for name in columns}
            rows[path] = [
                {"step": int(step)} | {name: float(series[name][place]) for name in columns}
                for place, step in enumerate(steps)
            ]
    return rows


def check_belonging(
    series: Sequence[Checkpoint], store: Signatures, tokenizer: Path | None
) -> None:
    """Refuse checkpoints, a store and a tokenizer of different vocabularies, by name.

    A V that the store took from the largest id is a lower bound, not a mismatch.
    """
    model, spec = series[0], store.spec
    if spec.kind != "next-token":
        raise ValueError(f"the store holds {spec.kind} counts, next-token counts are needed")
    lower_bound = spec.vocab_source == "largest-id"
    if spec.vocab_size > model.vocab_size or (
        spec.vocab_size != model.vocab_size and not lower_bound
    ):
        raise ValueError(
            f"{model.name}: vocabulary of {model.vocab_size} found, {spec.vocab_size} needed as in "
            "the signature store; count the corpus this model was trained on"
        )
    known = {model.name: model.tokenizer_hash, "the signature store": spec.tokenizer}
    if tokenizer is not None:
        known[str(tokenizer)] = tokenizer_hash(tokenizer)
    hashes = {name: digest for name, digest in known.items() if digest}
    if len(set(hashes.values())) > 1:
        found = ", ".join(f"{name}: {digest[:12]}" for name, digest in hashes.items())
        raise ValueError(f"tokenizer hashes differ ({found}); they must be of one tokenizer")


def _record(
    series: Sequence[Checkpoint],
    store: Signatures,
    *,
    which: str,
    draws: Draws,
    tokenizer: Path | None,
) -> dict[str, Any]:
    """Provenance of a result: everything it was made from."""
    record = {
        "tokens": {"which": which, "eligible": "every token that occurs, less special tokens"},
        "draws": asdict(draws),
        "tokenizer": tokenizer_hash(tokenizer) if tokenizer else None,
        "signatures": store.spec.to_attribute(),
        "checkpoints": [
            {"step": c.step, "name": Path(c.name).name, "embedding_hash": c.embedding_hash}
            for c in series
        ],
        "model": series[-1].describe(),
        "provenance": provenance(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(record, default=str))
    return plain


def _train_log(path: Path | None, series: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Rows of ``train.jsonl``; none when it was not named and is not beside the checkpoints."""
    if path is None:
        path = Path(series[-1].name).parent.parent / "train.jsonl"
        if not path.is_file():
            return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], "loss": row["loss"], "tokens": row.get("tokens", 0)})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is no log row ({error}); step and loss are needed"
            ) from error
    return rows
