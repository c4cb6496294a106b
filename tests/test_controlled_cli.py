"""``staircase controlled``: what it prints, keeps, refuses and takes up again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus.progress import SILENT
from probes.controlled_figures import PAINTERS
from probes.results import open_results
from signatures.schedule import InProcess
from workflows import cli
from workflows.controlled import execution
from workflows.controlled.claims import at_least
from workflows.controlled.experiments import EXPERIMENTS
from workflows.controlled.registry import Findings, Inputs, inner_seeds
from workflows.controlled.run_store import load_run, run_path
from workflows.controlled.settings import DEVIATIONS

ARCHITECTURE = {"id", "seed", "claims", "figure"}
CLAIM = {"claim", "measured", "expected", "holds"}


def run_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    code = cli.run(["controlled", *arguments, "--json"])
    streams = capsys.readouterr()
    assert code == 0, streams.err
    return json.loads(streams.out)


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(["list"], capsys)
    assert [one["id"] for one in listed] == list(EXPERIMENTS)
    assert all(one.keys() == {"id", "title"} and one["title"] for one in listed)
    expected = {"fig2a", "fig2b", "fig3", "fig4", "fig5", "fig6a", "fig6i", "fig8a", "fig8d",
                "fig9", "fig10", "fig12", "fig14", "robustness", "theorems", "propositions",
                "shares"}  # fmt: skip
    assert expected == EXPERIMENTS.keys() == PAINTERS.keys()
    assert {one for deviation in DEVIATIONS for one in deviation.experiments} <= expected
    assert cli.run(["controlled", "list"]) == 0
    assert "fig14" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fig99"], "controlled list"),
        (["fig10", "--seeds", "0,x"], "0,1,2"),
        (["fig10", "--quick", "--full"], "give one"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["controlled", "run", *arguments, "--out", str(tmp_path / "out")]) == 2
    streams = capsys.readouterr()
    assert told in streams.err
    assert streams.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert cli.run(["controlled", "run", "fig10", "--out", str(tmp_path)]) == 2
    assert "another --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def failing(inputs: Inputs) -> Findings:
    """Minimum and maximum, with a claim that fails and one that is not tested."""
    found = EXPERIMENTS["fig10"].analyse(inputs)
    more = (at_least("the moon is <big>", 0.25, 1.0), at_least("later", 0.0, 1.0, tested=False))
    return Findings(groups=found.groups, claims=[*found.claims, *more])


@pytest.fixture
def with_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = {"fig10": replace(EXPERIMENTS["fig10"], analyse=failing)}
    monkeypatch.setattr(execution, "EXPERIMENTS", patched)


def test_a_run_leaves_results_figures_and_a_page(
    tmp_path: Path, with_failing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["run", "fig10", "fig10", "--seeds", "0,3", "--workers", "1", "--out", str(out)]
    found = run_json(arguments, capsys)  # exits 0, whatever the claims' outcome
    assert [(one["id"], one["seed"]) for one in found] == [("fig10", 0), ("fig10", 3)]
    for one in found:
        assert one.keys() >= ARCHITECTURE
        assert all(claim.keys() >= CLAIM for claim in one["claims"])
        assert {claim["holds"] for claim in one["claims"]} == {True, False, None}
        assert (out / one["figure"]).read_bytes().startswith(b"\x89PNG")
        tree = open_results(out / "results" / f"fig10-seed{one['seed']}.zarr")
        assert tree["tokens"]["similarity"].attrs["long_name"]
        assert tree.attrs["staircase"]["runs"]["min-max"]["run"]["lr"] == 2e-3
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "the moon is &lt;big&gt;" in page
    assert "fails" in page
    assert "not tested" in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((out / "claims.json").read_text()) == found


def test_what_is_there_is_not_made_again(
    tmp_path: Path, with_failing: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ["run", "fig10", "--workers", "1", "--out", str(tmp_path / "out")]

    def interrupted(job: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(execution, "analyse", interrupted)
        assert cli.run(["controlled", *arguments]) == 130
    capsys.readouterr()
    (run,) = (tmp_path / "out" / "runs").glob("*.npz")
    written = run.stat().st_mtime_ns
    first = run_json(arguments, capsys)
    assert run.stat().st_mtime_ns == written, "trained before the interruption"
    with monkeypatch.context() as patched:
        patched.setattr(execution, "analyse", interrupted)
        assert run_json(arguments, capsys) == first, "finished before: nothing is analysed"
    (tmp_path / "out" / first[0]["figure"]).unlink()
    assert run_json(arguments, capsys) == first
    assert (tmp_path / "out" / first[0]["figure"]).exists()


def test_a_size_is_not_taken_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "fig5", "--workers", "1", "--out", str(tmp_path / "out")]
    job = execution.Job(id="fig5", seed=0, size="quick", out=tmp_path)
    assert job.key() != replace(job, size="standard").key() != replace(job, seed=1).key()
    (found,) = run_json([*arguments, "--quick"], capsys)
    held = {claim["claim"]: claim["holds"] for claim in found["claims"]}
    assert len(held) == 6
    assert {held[text] for text in held if text.startswith("L = 2")} == {True}
    assert {held[text] for text in held if not text.startswith("L = 2")} == {None}


def test_a_stack_cut_short_is_planned_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state on disk is named by its runs, whatever other stacks have finished meanwhile."""
    job = execution.Job(id="fig9", seed=0, size="standard", out=tmp_path)
    planned = execution.stacks(job.runs().values())
    for config in planned[0]:
        run_path(tmp_path / "runs", config).parent.mkdir(exist_ok=True)
        run_path(tmp_path / "runs", config).touch()
    trained: list[list[str]] = []
    monkeypatch.setattr(
        execution, "train_stack", lambda stack, *rest: trained.append([c.key() for c in stack])
    )
    execution._train([job], tmp_path, InProcess(), SILENT)
    assert trained == [[config.key() for config in stack] for stack in planned[1:]]


def test_stacks_hold_every_run_once_and_keep_together_what_may() -> None:
    runs = [config for one in EXPERIMENTS.values() for config in one.runs(0, "quick").values()]
    stacks = execution.stacks(runs)
    assert sorted(c.key() for stack in stacks for c in stack) == sorted({c.key() for c in runs})
    for stack in stacks:
        assert len({config.stacks_with() for config in stack}) == 1
    assert len(stacks) < len({config.key() for config in runs}) / 1.5


def test_experiments_share_their_runs() -> None:
    def keys(id_: str) -> set[str]:
        return {config.key() for config in EXPERIMENTS[id_].runs(0, "standard").values()}

    assert keys("fig3") == keys("fig4") <= keys("fig14")
    assert keys("fig8a") & keys("fig3")
    assert len(keys("fig8d") & keys("fig14")) == 5
    assert not set(inner_seeds(0, 10)) & set(inner_seeds(1, 10))


def test_a_run_that_is_kept_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    job = execution.Job(id="fig10", seed=0, size="quick", out=tmp_path)
    (config,) = job.runs().values()
    execution.run_experiments(["fig10"], tmp_path, size="quick", workers=1)
    assert load_run(tmp_path / "runs", config).config == config
