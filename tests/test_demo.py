"""The demo, small: every stage runs for real, and nothing half-done looks whole."""

import json
from pathlib import Path

import pytest

from workflows import demo
from workflows.cli import run

SMALL = demo.DemoSettings(
    max_text_bytes=1_000_000, gammas=(0.8, 0.5), steps=6, tokens="top:40", permutations=19
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("demo") / "output"
    return out, demo.run_demo(out, settings=SMALL)


def test_every_stage_leaves_its_output(finished):
    out, result = finished
    names = {path.name for path in out.iterdir()}
    expected = {"text.jsonl", "tokenizer.json", "corpus.bin", "corpus.idx", "next_token.zarr"}
    assert names >= expected | {"gamma_0.8", "gamma_0.5", "report", "demo.json"}
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert page.count("data:image/") >= 4
    assert 'src="http' not in page
    assert not out.with_name("output.partial").exists()


def test_result_has_the_promised_keys(finished):
    out, result = finished
    assert [entry["gamma"] for entry in result["runs"]] == [0.8, 0.5]
    for entry in result["runs"]:
        steps = [step for step, _ in entry["rho_next"]]
        assert steps == [0, 1, 2, 4, 6]
        assert entry["peak_rho"] == max(rho for _, rho in entry["rho_next"])
        assert entry["final_rho"] == entry["rho_next"][-1][1]
        assert all(-1 <= rho <= 1 for _, rho in entry["rho_next"])
    assert result["seconds"] > 0
    recorded = json.loads((out / "demo.json").read_text())
    assert recorded["runs"] == json.loads(json.dumps(result["runs"]))
    assert recorded["provenance"]["versions"]["torch"]
    assert recorded["settings"]["seed"] == 0


def test_the_two_runs_differ_only_in_gamma(finished):
    out, _ = finished
    configs = [
        json.loads((out / name / "checkpoints" / "step_0000000" / "staircase.json").read_text())
        for name in ("gamma_0.8", "gamma_0.5")
    ]
    first, second = (entry["config"] for entry in configs)
    assert first["model"].pop("gamma") == 0.8
    assert second["model"].pop("gamma") == 0.5
    assert first.pop("out") != second.pop("out")
    assert first == second
    assert configs[0]["embedding_hash"] != configs[1]["embedding_hash"]
    assert configs[0]["order_hash"] == configs[1]["order_hash"]


def test_output_can_be_moved(finished):
    """No result holds the folder it was written in."""
    out, _ = finished
    place = str(out.parent)
    for path in out.rglob("*.json"):
        assert place not in path.read_text(encoding="utf-8"), path


def test_the_summary_names_the_curve_and_the_report(finished):
    _, result = finished
    text = demo.summary(result)
    assert "gamma 0.8" in text
    assert f"peak {result['runs'][0]['peak_rho']:.2f}" in text
    assert result["report"] in text


def test_an_existing_output_stays(finished, capsys):
    out, result = finished
    assert run(["demo", "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert Path(result["report"]).is_file()


def test_overwrite_spares_what_no_demo_wrote(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert run(["demo", "--out", str(tmp_path), "--overwrite"]) == 2
    assert "left alone" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_demo_leaves_nothing(error, tmp_path, monkeypatch, capsys):
    def fail(progress):
        raise error

    monkeypatch.setattr(demo, "_build_corpus", fail)
    code = run(["demo", "--out", str(tmp_path / "output")])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_overwrite_keeps_the_old_output(tmp_path, monkeypatch):
    out = tmp_path / "output"
    out.mkdir()
    (out / demo.RESULT).write_text("{}")

    def fail(progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_build_corpus", fail)
    assert run(["demo", "--out", str(out), "--overwrite"]) == 130
    assert (out / demo.RESULT).read_text() == "{}"


def test_text_is_gathered_in_one_order_up_to_the_cap(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    gathered = demo.gather_text(first, max_bytes=200_000)
    assert gathered == demo.gather_text(second, max_bytes=200_000)
    assert first.read_bytes() == second.read_bytes()
    texts = [json.loads(line)["text"] for line in first.read_text(encoding="utf-8").splitlines()]
    assert len(texts) == gathered.files
    assert sum(len(text.encode()) for text in texts) == gathered.bytes <= 200_000
