"""rho_next in the training log is what the probe later finds in the checkpoints."""

import json

import pytest
from lm_processes import write_corpus

from workflows.cli import run

RUN_FILE = """
out = "run"
[model]
num_layers = 2
hidden_size = 64
num_attention_heads = 4
kv_channels = 24
ffn_hidden_size = 128
vocab_size = 256
[data]
corpus = "corpus"
seq_length = 32
[train]
steps = 8
global_batch_size = 8
lr = 3e-3
[checkpoint]
early_until = 8
[log]
probe_every = 4
signatures = "next_token.zarr"
"""


def test_log_and_probe_agree(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus")
    (tmp_path / "run.toml").write_text(RUN_FILE)
    assert run(["count", "next-token", "corpus", "--out", "next_token.zarr", "--workers", "1"]) == 0
    assert run(["train", "run.toml"]) == 0
    logged = {}
    for line in (tmp_path / "run/train.jsonl").read_text().splitlines():
        logged |= {json.loads(line)["step"]: json.loads(line).get("rho_next")}
    capsys.readouterr()
    probe = ["probe", "run/checkpoints", "--signatures", "next_token.zarr", "--out", "probes.zarr"]
    assert run([*probe, "--permutations", "9", "--json"]) == 0
    rows = {row["step"]: row["rho"] for row in json.loads(capsys.readouterr().out)["direct"]}
    assert {step for step, rho in logged.items() if rho is not None} == {4, 8}
    assert logged[4] == pytest.approx(rows[4], abs=1e-9)
    assert logged[8] == pytest.approx(rows[8], abs=1e-9)
