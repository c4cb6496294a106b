"""`staircase count first-order` and `projected` as a user runs them: output, refusals, kill -9."""

import json
import os
import signal

import pytest
from counting import finished_partials, start_count, text_like, tree, wait_until
from strategies import write_corpus

from workflows.cli import run


@pytest.fixture
def corpus(tmp_path):
    tokens = text_like(2000, 60, seed=6).tolist()
    return write_corpus(tmp_path, [tokens[at : at + 200] for at in range(0, 2000, 200)])


def test_first_order_prints_what_was_counted(tmp_path, corpus, capsys):
    out = tmp_path / "s.zarr"
    command = ["count", "first-order", str(corpus), "--out", str(out), "--anchors", "top:5"]
    command += ["--context-tokens", "top:20", "--min-count", "2", "--halves", "--workers", "1"]
    assert run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    promised = "store tokens documents pairs entries seconds tokens_per_second peak_memory_bytes"
    assert result.keys() >= {*promised.split(), "partitions", "reused_partitions"}
    assert run(["signatures", "inspect", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["parameters"]["min_count"]) == ("first-order", 2)
    assert found["dropped"] == sum(found["dropped_by_anchor"].values()) > 0
    assert run(["signatures", "verify", str(out), "--json"]) == 0
    capsys.readouterr()
    assert run([*command, "--dry-run", "--overwrite", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    promised = "tokens memory_bytes disk_bytes entries seconds fits"
    assert predicted.keys() >= set(promised.split())


def test_projected_prints_what_was_counted(tmp_path, corpus, capsys):
    out = tmp_path / "p.zarr"
    command = ["count", "projected", str(corpus), "--out", str(out), "--anchors", "rank:2-9"]
    assert run([*command, "--columns", "4", "--seed", "0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["anchors"] == 8
    assert run(["signatures", "verify", str(out)]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--anchors", "nothing"], "no such file"),
        (["--anchors", "top:5", "--window", "3", "--scope", "packed"], "--window"),
        (["--anchors", "top:5", "--scope", "packed"], "--seq-length"),
        (["--anchors", "top:5", "--min-count", "0"], "--min-count"),
        ([], "--anchors"),
    ],
)
def test_what_cannot_be_counted_exits_2_in_one_line(tmp_path, corpus, capsys, options, message):
    command = ["count", "first-order", str(corpus), "--out", str(tmp_path / "s"), *options]
    assert run(command) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert message in line
    assert line.startswith("staircase: ")
    assert not (tmp_path / "s").exists()


def test_kill_and_resume_give_the_store_of_one_run(tmp_path, corpus):
    asked = ["--anchors", "top:9", "--partition-tokens", "20", "--workers", "1", "--halves"]
    whole, out = tmp_path / "whole", tmp_path / "s"
    for number in range(2):
        more = ["--resume"] if number else []
        process = start_count(corpus, "--out", out, *asked, *more, kind="first-order")
        wait_until(lambda: finished_partials(out) > 60 * (number + 1), process)  # noqa: B023
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    process = start_count(corpus, "--out", out, *asked, "--resume", "--json", kind="first-order")
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(output)["reused_partitions"] >= 50
    process = start_count(corpus, "--out", whole, *asked, kind="first-order")
    process.communicate()
    assert process.returncode == 0
    assert tree(out) == tree(whole)
