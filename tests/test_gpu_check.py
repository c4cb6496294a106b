"""The check of a GPU walks its whole path with a tiny model on the CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from counting import ROOT
from lm_processes import write_corpus

from benchmarks import gpu_check


def test_the_whole_path_on_the_cpu(tmp_path):
    corpus = write_corpus(tmp_path / "text")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", corpus, "--tiny-cpu"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["checks"]) == 6
    assert all(found["checks"].values())
    assert found["device"] == "cpu"
    assert found["mfu"] is None
    assert found["tokens_per_second"] > 0
    assert [step for step, _ in found["rho_next"]] == [10, 20, 30, 40, 50, 60]
    assert sum(found["shares_of_time"].values()) == pytest.approx(1, abs=0.01)
    assert found["shares_of_time"]["matrix products"] > 0


def log(**changes):
    lines = [{"step": n, "loss": 9 - 0.1 * n, "rho_next": 0.01 * n} for n in range(1, 61)]
    lines[40] |= changes
    return lines


def test_what_goes_wrong_is_said():
    size = gpu_check.TINY
    assert all(gpu_check.checks_of(log(), [130, 0], size).values())
    for lines, codes, text in (
        (log(), [0, 0], "the first process saved and ended with 130"),
        (log(), [130, 1], "the second went on to the end"),
        (log(step=40), [130, 0], "every step is logged once"),
        (log(loss=8.9), [130, 0], "the loss jumps nowhere, the resume included"),
        (log(rho_next=float("nan")), [130, 0], "rho_next is a number at every probe"),
        (log()[::-1], [130, 0], "the loss falls"),
    ):
        assert not gpu_check.checks_of(lines, codes, size)[text]


def test_kernels_are_sorted_by_their_names():
    assert gpu_check._kind("nvjet_tst_128x256_TNT") == "matrix products"
    assert gpu_check._kind("flash_fwd_kernel<96>") == "attention"
    assert gpu_check._kind("multi_tensor_apply_kernel AdamFunctor") == "optimizer"
    assert gpu_check._kind("vectorized_elementwise_kernel") == "element-wise and norms"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check", str(tmp_path / "text")])
    assert gpu_check.main() == 2
    assert "no CUDA device found" in capsys.readouterr().err
