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
from corpus.store import open_corpus
from corpus.tokenize import tokenizer_hash
from probes.assemble import Draws, training_group
from probes.attention import Sample, take_sample
from probes.checkpoints import Checkpoint, LayeredCheckpoint, open_series
from probes.embeddings import EmbeddingProbe, nearest_tokens
from probes.first_order import FirstOrderProbe
from probes.layer_probes import AttentionProbe, FfnProbe
from probes.projected import ProjectedProbe
from probes.projection import ProjectionOptions
from probes.results import open_results, save
from probes.steps import ChainedProbe, PathProbe, measure_series
from probes.tokens import TokenTexts
from signatures.schedule import open_runner
from signatures.store import Signatures, open_signatures

PATHS = ("direct", "unembedding", "ffn", "attention")
_COLUMNS = (
    "rho",
    "spearman",
    "p",
    "mse",
    "rho_centred",
    "rho_mean_removed",
    "rho_partial",
    "rho_square_root",
    "rho_ppmi",
    "cka",
    "rho_gain",
)
_TRAINED = (
    "heldout_mse",
    "baseline_mse",
    "heldout_rho",
    "shuffled_mse",
    "random_mse",
    "rho",
    "spearman",
    "mse",
    "p",
)
"""Of the paths with held-out anchors; rho to p are of what is compared untrained."""
_SEQ_LENGTH = 1024


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
    first_order: Path | None = None,
    projected: Path | None = None,
    corpus: Path | None = None,
    corpus_tokens: int = 200_000,
    seq_length: int | None = None,
    warm_start: bool = False,
    workers: int = 1,
    scheduler: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Compare every path of a series with the signatures it should follow.

    Embedding and FFN go against next-token, the unembedding against predecessor signatures, and
    with a ``corpus`` the attention path against the attention-path signature of each layer.

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
    first_order : Path, optional
        A first-order store of the same corpus, for the first-order probe.
    projected : Path, optional
        A projected store of the same corpus; its anchors are compared, whatever ``tokens`` says.
    corpus : Path, optional
        Corpus whose first ``corpus_tokens`` tokens, in pieces of ``seq_length`` (that of the run,
        else 1,024), the model reads for the attention path.
    warm_start : bool
        Start the fits of the first-order probe from those of the checkpoint before: cheaper, one
        after the other, and with other numbers (docs/probes.md).
    workers, scheduler : int, str
        Processes of this machine, or a Dask scheduler, that checkpoints are shared among.
    resume : bool
        Take up the steps that an interrupted run has measured.

    Returns
    -------
    dict
        ``direct``, ``unembedding``, ``ffn``, ``attention``, ``projected``: a row (step, rho, p,
        ...) for each step and layer; ``first_order``: held-out errors; ``probes``: the path.

    Raises
    ------
    FileExistsError
        ``out`` exists and neither ``resume`` nor ``overwrite`` is given.
    ValueError
        Checkpoints, store and tokenizer that do not belong together.
    """
    if warm_start and first_order is None and projected is None:
        raise ValueError("--warm-start is for trained probes; give --first-order or --projected")
    out = Path(out)
    if out.exists() and resume:
        return summary(open_results(out)) | {"probes": str(out), "finished_before": True}
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: exists; pass --overwrite to replace it, or another --out")
    texts = TokenTexts(tokenizer)
    series = open_series(checkpoint_paths, vocab_size=texts.vocab_size)
    store = open_signatures(signatures)
    check_belonging(series, store, tokenizer)
    work = out.with_name(out.name + ".partial")
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    probes: list[PathProbe] = [embedding := EmbeddingProbe.prepare(store, tokens, texts, progress)]
    if series[0].num_layers:
        probes.append(FfnProbe(axis=embedding.axis, reference=embedding.references["direct"]))
    if corpus is not None:
        sample = _sample(corpus, series[-1], num_tokens=corpus_tokens, seq_length=seq_length)
        probes.append(AttentionProbe(axis=embedding.axis, sample=sample))
    options = ProjectionOptions(seed=seed, warm_start=warm_start)
    trained: list[ChainedProbe] = []
    if first_order is not None:
        check_belonging(series, open_signatures(first_order), tokenizer, kind="first-order")
        trained.append(FirstOrderProbe.prepare(first_order, work, options, progress))
    if projected is not None:
        check_belonging(series, open_signatures(projected), tokenizer, kind="projected")
        trained.append(ProjectedProbe.prepare(projected, work, texts, options, progress))
    with open_runner(workers, scheduler) as runner:
        measured, reused = measure_series(
            series,
            probes if warm_start else [*probes, *trained],
            chained=trained if warm_start else (),
            folder=work,
            runner=runner,
            progress=progress,
        )
    probes += trained
    draws = Draws(permutations=permutations, resamples=resamples, seed=seed)
    steps = np.array([checkpoint.step for checkpoint in series])
    groups = {"neighbors": nearest_tokens(store, embedding.axis, texts)}
    for probe in probes:
        groups |= probe.groups(measured, steps, draws, progress)
    if log := _train_log(train_log, series):
        groups["training"] = training_group(log)
    record = _record(series, store, which=tokens, draws=draws, tokenizer=tokenizer)
    for probe in probes:
        if isinstance(probe, AttentionProbe | FirstOrderProbe | ProjectedProbe):
            record[type(probe).__name__] = probe.describe()
    if out.exists():
        shutil.rmtree(out)
    save(groups, record, out)
    shutil.rmtree(work, ignore_errors=True)
    return summary(open_results(out)) | {"probes": str(out), "reused_steps": reused}


def summary(results: xr.DataTree) -> dict[str, Any]:
    """Return what ``staircase probe --json`` prints: a row for each step (and layer) of a path."""
    rows = {
        path: _rows(results.children[path].to_dataset())
        for path in PATHS
        if path in results.children
    }
    for path in ("first_order", "projected"):
        if path in results.children:
            rows[path] = _over_splits(results.children[path].to_dataset())
    return rows


def _over_splits(group: xr.Dataset) -> list[dict[str, Any]]:
    """Make a row for each step, with the mean over splits of what was trained."""
    means: xr.Dataset = group.mean("split")
    loaded = {name: means[name].values for name in _TRAINED if name in means}
    return [
        {"step": int(step)} | {name: float(values[place]) for name, values in loaded.items()}
        for place, step in enumerate(group["step"].values)
    ]


def _rows(group: xr.Dataset) -> list[dict[str, Any]]:
    index = [dim for dim in ("step", "layer") if dim in group.dims]
    columns = [name for name in _COLUMNS if name in group]
    loaded = {name: group[name].values for name in columns}
    places = np.ndindex(*(group.sizes[dim] for dim in index))
    return [
        {dim: int(group[dim].values[at]) for dim, at in zip(index, place, strict=True)}
        | {name: float(values[place]) for name, values in loaded.items()}
        for place in places
    ]


def check_belonging(
    series: Sequence[Checkpoint],
    store: Signatures,
    tokenizer: Path | None,
    *,
    kind: str = "next-token",
) -> None:
    """Refuse checkpoints, a store and a tokenizer of different vocabularies, by name.

    A V that the store took from the largest id is a lower bound, not a mismatch.
    """
    model, spec = series[0], store.spec
    if spec.kind != kind:
        raise ValueError(f"{store.where}: {spec.kind} counts found, {kind} counts are needed")
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


def _sample(
    corpus: Path, model: LayeredCheckpoint, *, num_tokens: int, seq_length: int | None
) -> Sample:
    """Open the corpus and take the sample, in pieces as long as the run's unless told."""
    opened = open_corpus(corpus)
    hashes = {opened.tokenizer_hash, model.tokenizer_hash} - {None}
    if len(hashes) > 1 or opened.vocab_size not in (None, model.vocab_size):
        raise ValueError(
            f"{corpus}: vocabulary of {opened.vocab_size} or its tokenizer differs from that of "
            f"{model.name} ({model.vocab_size}); take the corpus this model was trained on"
        )
    if seq_length is None:
        run = model.describe().get("config", {})
        seq_length = int(run.get("data", {}).get("seq_length", _SEQ_LENGTH))
    return take_sample(opened, num_tokens=num_tokens, seq_length=seq_length)


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
