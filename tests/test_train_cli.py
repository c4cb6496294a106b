"""``staircase train`` and ``staircase corpus order`` as a user meets them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lm_processes import write_corpus

from workflows.cli import run

RUNS = Path(__file__).parents[1] / "workflows" / "runs"

RUN_FILE = """
out = "{folder}/run"
[model]
num_layers = 2
hidden_size = 64
num_attention_heads = 4
kv_channels = 24
ffn_hidden_size = 128
vocab_size = 256
[data]
corpus = "{folder}/corpus"
seq_length = 32
[train]
steps = {steps}
global_batch_size = 8
lr = 3e-3
[checkpoint]
early_until = 4
every = {every}
"""


@pytest.fixture
def run_file(tmp_path):
    write_corpus(tmp_path / "corpus")

    def write(steps=6, every=100, more=""):
        path = tmp_path / "run.toml"
        path.write_text(RUN_FILE.format(folder=tmp_path, steps=steps, every=every) + more)
        return str(path)

    return write


def losses(tmp_path):
    lines = (tmp_path / "run" / "train.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def printed_json(capsys):
    return json.loads(capsys.readouterr().out)


def test_dry_run_needs_neither_gpu_nor_corpus_nor_torch():
    script = (
        "import sys\nfrom workflows.cli import run\n"
        f"code = run(['train', {str(RUNS / 'decoder_680m.toml')!r}, '--dry-run', '--json'])\n"
        "sys.exit(code or bool({'torch', 'megatron'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    planned = json.loads(done.stdout)
    assert planned["non_embedding_parameters"] == 679_552_512
    assert planned["parameters"] == 865_150_464
    assert planned["steps"] == 34_333
    assert planned["tokens"] == 34_333 * 256 * 4096
    assert planned["checkpoints"] == 11 + 34_333 // 250 - 2 + 1
    both = 147 * 2 * 865_150_464 + 2 * 12 * 865_150_464
    assert planned["checkpoint_bytes"] == both


def test_dry_run_predicts_the_bytes_on_disk(run_file, tmp_path, capsys):
    path = run_file()
    assert run(["train", path, "--dry-run", "--json"]) == 0
    planned = printed_json(capsys)
    assert run(["train", path]) == 0
    files = [file for file in (tmp_path / "run/checkpoints").rglob("*") if file.is_file()]
    assert planned["checkpoints"] == len({file.relative_to(tmp_path).parts[2] for file in files})
    taken = sum(file.stat().st_size for file in files if file.suffix == ".distcp")
    assert taken == pytest.approx(planned["checkpoint_bytes"], rel=0.15)


def test_train_again_resume_and_refusals(run_file, tmp_path, capsys):
    path = run_file()
    assert run(["train", path, "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["steps"] == 6
    assert "Warning" not in streams.err
    assert run(["train", path]) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(["train", path, "--resume", "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["resumed_from"] == 6
    assert "finished already" in streams.err


def test_resume_with_nothing_there_says_so(run_file, capsys):
    assert run(["train", run_file(), "--resume"]) == 0
    assert "no checkpoint; starting at step 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[model2]\n", "unknown key(s) ['model2']"),
        ("[parallel]\ntensor = 2\n", "--nproc-per-node"),
        ('[log]\nprobe_every = 2\nsignatures = "absent.zarr"\n', "absent.zarr"),
    ],
)
def test_bad_run_files_exit_2_in_one_line(run_file, more, expected, capsys):
    assert run(["train", run_file(more=more)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith("staircase: ")
    assert expected in error[-1]


def test_a_missing_run_file_or_corpus_is_named(run_file, tmp_path, capsys):
    assert run(["train", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
    path = run_file()
    (tmp_path / "corpus.bin").unlink()
    assert run(["train", path]) == 2
    assert "corpus" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_that_diverges_exits_1(run_file, capsys):
    path = run_file()
    Path(path).write_text(Path(path).read_text().replace("lr = 3e-3", "lr = 1e30\nclip_grad = 0"))
    assert run(["train", path]) == 1
    assert "step 2: " in capsys.readouterr().err.splitlines()[-1]


def test_two_processes_train_the_same_run(run_file, tmp_path):
    path = run_file()
    assert run(["train", path]) == 0
    alone = losses(tmp_path)
    (tmp_path / "run").rename(tmp_path / "alone")
    path = run_file(more="[parallel]\ntensor = 2\n")
    with staircase("train", path, "--nproc-per-node", "2", "--json") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["steps"] == 6
    assert "Warning" not in err
    np.testing.assert_allclose(losses(tmp_path), alone, rtol=1e-5)


def test_torchrun_starts_it_too(run_file, tmp_path):
    """What several machines need; here one machine with one process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command = [*torchrun, "--module", "workflows", "train", run_file()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert len(losses(tmp_path)) == 6


def test_an_error_of_several_processes_is_still_one_line(run_file, tmp_path):
    path = run_file()
    (tmp_path / "corpus.bin").unlink()
    with staircase("train", path, "--nproc-per-node", "2") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.count("staircase: ") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("more", [(), ("--nproc-per-node", "2")], ids=["one", "two"])
def test_sigterm_saves_exits_130_and_resumes(more, run_file, tmp_path):
    path = run_file(steps=10_000)
    with staircase("train", path, *more) as process:
        wait_until((tmp_path / "run/checkpoints/step_0000004").exists, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped by SIGTERM after step" in err
    stopped = len(losses(tmp_path))
    newest = tmp_path / f"run/checkpoints/step_{stopped:07d}"
    assert (newest / "optimizer").is_dir()
    with staircase("train", path, "--resume", *more) as process:
        wait_until(lambda: len(losses(tmp_path)) > stopped, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"going on from {newest}" in err


def test_order_writes_what_a_checkpoint_has_seen(run_file, tmp_path, capsys):
    out = tmp_path / "order.npz"
    assert run(["corpus", "order", run_file(), "--steps", "0:4", "--out", str(out), "--json"]) == 0
    assert printed_json(capsys)["samples"] == 32
    assert np.load(out)["samples"].size == 32
    assert run(["corpus", "order", run_file(), "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(["corpus", "order", run_file(), "--steps", "4", "--out", str(out)]) == 2
    assert "0:128" in capsys.readouterr().err


def staircase(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "workflows", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_until(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
