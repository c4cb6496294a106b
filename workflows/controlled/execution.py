"""Runs experiments: trains what they share once, then analyses each, in parallel processes.

Everything lies in the output folder under names that hash what it was made from, so a second call
takes up where an interrupted one stopped.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from corpus.progress import SILENT, Progress
from corpus.provenance import provenance, versions
from probes.controlled_figures import draw
from probes.figures import save_pictures
from probes.results import ROOT_ATTRIBUTE, ResultFormatError, open_results, save
from signatures.schedule import open_runner, usable_cores
from workflows.controlled.experiments import EXPERIMENTS
from workflows.controlled.page import write_page
from workflows.controlled.registry import Experiment, Inputs, Size
from workflows.controlled.run_store import load_run, run_path, train_stack
from workflows.controlled.runs import RunConfig
from workflows.controlled.tasks import built

ANALYSIS = 1
"""Raised when an analysis changes its meaning, so that results of before are made again."""
_MOST_NUMBERS = 4_000_000
"""Inputs of a stack, at most: beyond it stacking costs memory and saves no calls."""
_MOST_RUNS = 6
"""Runs of a stack: with more, calls are saved no longer and the other processes wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One experiment with one seed at one size, in one folder."""

    id: str
    seed: int
    size: Size
    out: Path

    @property
    def experiment(self) -> Experiment:
        """The experiment itself; jobs travel between processes, functions need not."""
        return EXPERIMENTS[self.id]

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.id}-seed{self.seed}"

    @property
    def result_path(self) -> Path:
        """Where its result lies."""
        return self.out / "results" / f"{self.name}.zarr"

    def runs(self) -> Mapping[str, RunConfig]:
        """Return the runs it needs, by name."""
        return self.experiment.runs(self.seed, self.size)

    def key(self) -> str:
        """Hash of what the result depends on."""
        runs = {name: config.record() for name, config in self.runs().items()}
        known = [self.id, self.seed, self.size, ANALYSIS, runs, versions()]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def kept(self) -> dict[str, Any] | None:
        """Return what it found, when an earlier call has left that behind whole."""
        try:
            record = open_results(self.result_path).attrs[ROOT_ATTRIBUTE]
        except (FileNotFoundError, ResultFormatError):
            return None
        whole = record["key"] == self.key() and (self.out / record["summary"]["figure"]).exists()
        return dict(record["summary"]) if whole else None


def run_experiments(
    ids: Sequence[str],
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    size: Size = "standard",
    workers: int | None = None,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """Run the experiments, and write results, figures and ``index.html`` into ``out``.

    Returns
    -------
    list of dict
        ``id``, ``seed``, ``claims`` (claim, measured, expected, holds) and ``figure`` (relative to
        ``out``) of each experiment and seed.

    Raises
    ------
    ValueError
        An unknown id.
    FileExistsError
        ``out`` holds something else.
    """
    jobs = [Job(id=one, seed=seed, size=size, out=out) for one in known_ids(ids) for seed in seeds]
    _prepare(out)
    summaries = {job: kept for job in jobs if (kept := job.kept()) is not None}
    waiting = [job for job in jobs if job not in summaries]
    with open_runner(min(workers or usable_cores(), max(1, len(waiting)))) as runner:
        _train(waiting, out, runner, progress)
        with progress.stage("experiments", len(waiting), "experiments") as advance:
            for number, summary in runner.run(analyse, [(job,) for job in waiting]):
                summaries[waiting[number]] = summary
                advance(1)
    found = [summaries[job] for job in jobs]
    write_page(out)
    return found


def known_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids, each once, ``all`` spelled out.

    Raises
    ------
    ValueError
        An id that is no experiment's.
    """
    if unknown := [one for one in ids if one not in EXPERIMENTS and one != "all"]:
        raise ValueError(
            f"{', '.join(unknown)}: no such experiment; `staircase controlled list` names them: "
            f"{', '.join(EXPERIMENTS)}, or all"
        )
    chosen = [known for one in ids for known in (EXPERIMENTS if one == "all" else [one])]
    return list(dict.fromkeys(chosen))


def analyse(job: Job) -> dict[str, Any]:
    """Make findings of the job's trained runs, draw them, and save both; return the summary."""
    torch.set_num_threads(1)
    runs = {name: load_run(job.out / "runs", config) for name, config in job.runs().items()}
    findings = job.experiment.analyse(Inputs(seed=job.seed, size=job.size, runs=runs))
    figure = f"figures/{job.name}.png"
    summary = {
        "id": job.id,
        "seed": job.seed,
        "claims": [claim.as_dict() for claim in findings.claims],
        "figure": figure,
    }
    record = {
        "key": job.key(),
        "title": job.experiment.title,
        "size": job.size,
        "summary": summary,
        "runs": {name: run.config.record() for name, run in runs.items()},
        "provenance": provenance(),
    }
    save_pictures(draw(job.id, findings.groups), job.out / "figures", job.name)
    shutil.rmtree(job.result_path, ignore_errors=True)
    save(findings.groups, record, job.result_path)
    return summary


def stacks(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Group runs that stack, each run once, the longest stacks first."""
    alike: dict[str, dict[str, RunConfig]] = {}
    for config in configs:
        alike.setdefault(config.stacks_with(), {})[config.key()] = config
    found = [part for group in alike.values() for part in _parts(list(group.values()))]
    return sorted(found, key=_cost, reverse=True)


def _parts(configs: list[RunConfig]) -> list[list[RunConfig]]:
    """Cut runs that stack into stacks of even size, that keep both limits."""
    task = built(configs[0].task).enumerated
    most = min(_MOST_RUNS, max(1, _MOST_NUMBERS // (len(task.labels_N) * task.vocab_size)))
    number = ceil(len(configs) / most)
    return [configs[place::number] for place in range(number)]


def _cost(configs: Sequence[RunConfig]) -> float:
    """Sample passes times positions, which is what time goes with."""
    task = built(configs[0].task).enumerated
    return float(len(configs) * configs[0].epochs * task.samples_NL.size)


def _train(jobs: Sequence[Job], out: Path, runner: Any, progress: Progress) -> None:
    """Train every run that a job needs and that no earlier call has left behind."""
    needed: dict[str, RunConfig] = {}
    names: dict[str, list[str]] = {}
    for job in jobs:
        for config in job.runs().values():
            needed[config.key()] = config
            names.setdefault(config.key(), []).append(job.id)
    # Stacked before what is there is left out, so that a stack cut short finds its own state again.
    planned = [
        [one for one in stack if not run_path(out / "runs", one).exists()]
        for stack in stacks(needed.values())
    ]
    missing = [stack for stack in planned if stack]
    arguments = [(stack, out / "runs", _title(stack, names)) for stack in missing]
    with progress.stage("training", sum(map(len, missing)), "runs") as advance:
        for number, _ in runner.run(train_stack, arguments):
            advance(len(arguments[number][0]))


def _title(stack: Sequence[RunConfig], names: Mapping[str, Sequence[str]]) -> str:
    ids = dict.fromkeys(one for config in stack for one in names[config.key()])
    return f"{', '.join(ids)}: {len(stack)} run(s)"


def _prepare(out: Path) -> None:
    """Make the folders; refuse a folder that holds something else."""
    if out.exists() and any(out.iterdir()) and not (out / "runs").is_dir():
        raise FileExistsError(
            f"{out}: exists and holds no runs/, so it is no output of this command; choose "
            "another --out"
        )
    for name in ("runs", "results", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)
