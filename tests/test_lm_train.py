"""One process: what a run leaves, what it refuses, and what is left when it is stopped."""

import errno
import hashlib
import json
import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lm_processes import curve, read_log, small_run, start_process, write_corpus

import lm_training.checkpoint
from lm_training.checkpoint import CheckpointWriter
from lm_training.config import CheckpointConfig, LogConfig, ParallelConfig
from lm_training.folder import CheckpointFormatError, whole_checkpoints
from lm_training.torch_dist import TorchDistWriter
from lm_training.train import train
from lm_training.trainer import DivergedError
from probes.torch_dist import TorchDistReader


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Two threads for a model this small only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path):
    return small_run(write_corpus(tmp_path / "corpus"), tmp_path / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    run = small_run(write_corpus(folder / "corpus"), folder / "run")
    seen = []
    result = train(run, on_checkpoint=lambda step, path: seen.append((step, path)))
    return run, result, seen


def steps_of(run):
    return [int(path.name[5:]) for path in whole_checkpoints(run.out / "checkpoints")]


def test_log_and_result(finished):
    run, result, _ = finished
    lines = read_log(run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["tokens"] for line in lines] == [step * 8 * 32 for step in range(1, 11)]
    assert all(line["tokens_per_second"] > 0 and line["memory_bytes"] > 0 for line in lines)
    assert lines[0]["mfu"] is None
    assert lines[0]["loss"] == pytest.approx(np.log(256), abs=0.5)
    assert result["loss"] == lines[-1]["loss"] < lines[0]["loss"]
    assert (result["steps"], result["tokens"], result["resumed_from"]) == (10, 2560, None)


def test_every_step_is_announced_and_described(finished):
    run, _, seen = finished
    assert [step for step, _ in seen] == list(range(11))
    hashes = set()
    for step, path in seen:
        facts = json.loads((path / "staircase.json").read_text())
        embedding = TorchDistReader(path).read("embedding.word_embeddings.weight").float().numpy()
        assert facts["embedding_hash"] == hashlib.sha256(embedding.tobytes()).hexdigest()
        assert (facts["step"], facts["vocab_size"]) == (step, 256)
        assert facts["corpus"][0]["tokens"] == 8000
        assert facts["config"]["train"]["lr"] == run.train.lr
        assert facts.keys() >= {"format_version", "tokenizer_hash", "order_hash", "provenance"}
        hashes.add(facts["embedding_hash"])
    assert len(hashes) == 11  # the first update moves the weights


def test_checkpoints_hold_tensors_alone(finished):
    """No pickled object, so that reading needs no trust; layers are stacked."""
    run, _, _ = finished
    reader = TorchDistReader(whole_checkpoints(run.out / "checkpoints")[-1])
    assert reader.shape("decoder.layers.self_attention.linear_qkv.weight") == (2, 4 * 3 * 24, 64)
    assert reader.shape("decoder.layers.mlp.linear_fc1.weight") == (2, 2 * 128, 64)
    assert not [name for name in reader.names() if "extra_state" in name]


def test_only_the_newest_keep_the_optimizer(finished, tmp_path):
    run, _, _ = finished
    assert [path.parent.name for path in sorted(run.out.glob("checkpoints/*/optimizer"))] == [
        "step_0000010"
    ]
    more = replace(run, out=tmp_path / "more", checkpoint=replace(run.checkpoint, keep_optimizer=3))
    train(more)
    kept = sorted(path.parent.name for path in more.out.glob("checkpoints/*/optimizer"))
    assert kept == ["step_0000008", "step_0000009", "step_0000010"]
    assert not list(more.out.glob("checkpoints/*.partial"))


def test_a_second_run_in_the_process_has_the_same_numbers(finished, tmp_path):
    run, _, _ = finished
    again = replace(run, out=tmp_path / "again")
    train(again)
    assert curve(again) == curve(run)
    train(replace(again, out=tmp_path / "seed", seed=4))
    assert curve(replace(again, out=tmp_path / "seed")) != curve(run)
    assert not dist.is_initialized()


def test_writing_while_training_leaves_the_same_checkpoints(finished, tmp_path, monkeypatch):
    """The weights move on while the thread writes, here slowly, so it must write copies."""
    run, _, _ = finished
    write = TorchDistWriter._write

    def write_late(self, plan, planner):
        time.sleep(0.1)
        return write(self, plan, planner)

    monkeypatch.setattr(TorchDistWriter, "_write", write_late)
    other = replace(
        run, out=tmp_path / "run", checkpoint=replace(run.checkpoint, asynchronous=True)
    )
    train(other)
    assert steps_of(other) == steps_of(run)
    for one, expected in zip(
        whole_checkpoints(other.out / "checkpoints"),
        whole_checkpoints(run.out / "checkpoints"),
        strict=True,
    ):
        facts, wanted = (
            json.loads((path / "staircase.json").read_text()) for path in (one, expected)
        )
        assert facts["embedding_hash"] == wanted["embedding_hash"]
        reader, reference = TorchDistReader(one), TorchDistReader(expected)
        for name in reference.names():
            assert reader.read(name).equal(reference.read(name)), (one, name)


def test_an_existing_run_is_left_alone(finished):
    run, _, _ = finished
    before = curve(run)
    with pytest.raises(FileExistsError, match="--resume"):
        train(run)
    result = train(run, resume=True)
    assert (result["resumed_from"], result["loss"]) == (10, None)
    assert curve(run) == before


def test_resume_with_nothing_there_starts_at_0(run):
    assert train(run, resume=True)["resumed_from"] is None
    assert steps_of(run) == list(range(11))


def test_a_resume_of_another_run_is_refused(finished, tmp_path):
    run, _, _ = finished
    for changed in (
        replace(run, seed=9),
        replace(run, train=replace(run.train, lr=1e-4, steps=20)),
        replace(run, model=replace(run.model, hidden_size=128)),
    ):
        with pytest.raises(CheckpointFormatError, match="belongs to another run"):
            train(changed, resume=True)
    with pytest.raises(CheckpointFormatError, match=r"lr was .*steps was 10, is 20"):
        train(replace(run, train=replace(run.train, lr=1e-4, steps=20)), resume=True)


def stopped_run(run, step):
    """``run`` as a SIGTERM left it one update after checkpoint ``step``."""

    def stop(at, path):
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    result = train(run, on_checkpoint=stop)
    assert result["stopped_at"] == step + 1
    return run


def test_sigterm_saves_what_a_resume_needs_even_without_a_policy(run):
    run = replace(run, checkpoint=CheckpointConfig(early_until=2, every=100, keep_optimizer=0))
    stopped_run(run, 2)
    assert steps_of(run) == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert train(run, resume=True)["resumed_from"] == 3
    assert steps_of(run) == [0, 1, 2, 3, 10]


def test_weights_alone_cannot_be_resumed(run):
    run = replace(run, checkpoint=replace(run.checkpoint, keep_optimizer=0))
    train(run)
    (run.out / "checkpoints/step_0000010/staircase.json").unlink()
    with pytest.raises(CheckpointFormatError, match="none with optimizer state"):
        train(run, resume=True)


def test_resume_on_another_corpus_is_refused(run, tmp_path):
    stopped_run(run, 3)
    write_other = write_corpus(tmp_path / "other", [list(range(256))] * 40)
    with pytest.raises(CheckpointFormatError, match="resume on the corpus it was trained on"):
        train(replace(run, data=replace(run.data, corpus=write_other)), resume=True)


def test_a_corpus_may_move(run, tmp_path):
    stopped_run(run, 3)
    for suffix in (".bin", ".idx", ".json"):
        (tmp_path / f"corpus{suffix}").rename(tmp_path / f"moved{suffix}")
    moved = replace(run, data=replace(run.data, corpus=tmp_path / "moved"))
    assert train(moved, resume=True)["resumed_from"] == 4


def test_missing_unexpected_and_changed_tensors_are_listed(run):
    stopped_run(run, 3)
    path = whole_checkpoints(run.out / "checkpoints")[-1]
    facts = json.loads((path / "staircase.json").read_text())
    facts["config"]["model"] |= {"tied": True, "ffn_hidden_size": 64}
    (path / "staircase.json").write_text(json.dumps(facts))
    changed = replace(run, model=replace(run.model, tied=True, ffn_hidden_size=64))
    with pytest.raises(CheckpointFormatError) as refusal:
        train(changed, resume=True)
    assert "unexpected ['output_layer.weight']" in str(refusal.value)
    assert "linear_fc1.weight is (2, 256, 64), (2, 128, 64) is needed" in str(refusal.value)


def test_another_kind_of_optimizer_state_is_refused(run):
    stopped_run(run, 3)
    sharded = replace(run, parallel=ParallelConfig(distributed_optimizer=True))
    with pytest.raises(CheckpointFormatError, match=r"missing \['optimizer.state.param"):
        train(sharded, resume=True)


class _Harm:
    def __reduce__(self):
        return os.system, ("false",)


def test_a_checkpoint_that_would_run_code_is_refused(run):
    stopped_run(run, 3)
    path = whole_checkpoints(run.out / "checkpoints")[-1]
    (path / ".metadata").write_bytes(pickle.dumps(_Harm()))
    with pytest.raises(CheckpointFormatError, match=r"asks for (posix|nt)\.system"):
        train(run, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run(run):
    """A learning rate of 1e30 makes the weights of step 1 useless; step 2 shows it."""
    wild = replace(run, train=replace(run.train, lr=1e30, clip_grad=0.0))
    with pytest.raises(DivergedError, match=r"step 2: (loss|gradient norm) is (nan|inf)"):
        train(wild)
    assert steps_of(wild) == [0, 1]
    assert [line["step"] for line in read_log(wild)] == [1]
    assert not dist.is_initialized()


def test_a_full_disk_leaves_the_last_whole_checkpoint(run, monkeypatch):
    write_shards = CheckpointWriter._write_shards

    def fill_up(self, aside: Path, **options):
        if aside.name.startswith("step_0000004"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(aside))
        return write_shards(self, aside, **options)

    monkeypatch.setattr(CheckpointWriter, "_write_shards", fill_up)
    with pytest.raises(OSError, match="No space left"):
        train(run)
    assert steps_of(run) == [0, 1, 2, 3]
    monkeypatch.undo()
    assert train(run, resume=True)["resumed_from"] == 3


def _die_while_saving(run, step):
    put_in_place = lm_training.checkpoint.put_in_place

    def die(aside, path):
        if path.name.endswith(str(step)):
            os.kill(os.getpid(), signal.SIGKILL)
        put_in_place(aside, path)

    lm_training.checkpoint.put_in_place = die
    train(run)


def test_kill_during_a_save_leaves_the_last_whole_checkpoint(run, finished):
    process = start_process(_die_while_saving, run, 5)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert steps_of(run) == [0, 1, 2, 3, 4]
    assert (run.out / "checkpoints/step_0000005.partial").is_dir()
    assert train(run, resume=True)["resumed_from"] == 4
    assert curve(run) == curve(finished[0])
    assert not list(run.out.glob("checkpoints/*.partial"))


def test_a_line_of_the_log_cut_short_is_dropped(run):
    stopped_run(run, 3)
    log = run.out / "train.jsonl"
    log.write_text(log.read_text()[:-20])
    train(run, resume=True)
    assert curve(run, "step") == [1, 2, 3, *range(5, 11)]


def test_live_probe_joins_the_log(run, tmp_path):
    log = LogConfig(every=4, probe_every=3, signatures=tmp_path / "unused")
    seen = []

    def probe(embedding):
        seen.append(embedding)
        return {"rho_next": 0.25}

    train(replace(run, log=log), probe=probe)
    assert [embedding.shape for embedding in seen] == [(256, 64)] * 3
    assert not np.array_equal(seen[0], seen[1])
    lines = {line["step"]: line.get("rho_next") for line in read_log(run)}
    assert lines == {3: 0.25, 4: None, 6: 0.25, 8: None, 9: 0.25, 10: None}


def test_tensorboard_has_the_curve(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(run, log=LogConfig(tensorboard=True)))
    events = EventAccumulator(str(run.out / "tensorboard")).Reload()
    scalars = events.Scalars("loss")
    assert [event.step for event in scalars] == list(range(1, 11))
    assert [event.value for event in scalars] == pytest.approx(curve(run))
