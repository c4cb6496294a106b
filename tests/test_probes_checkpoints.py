import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from probes.checkpoints import open_series
from probes.megatron import MegatronCheckpoint
from probes.torch_dist import CheckpointFormatError, TorchDistReader
from tests.probe_series import HIDDEN, VOCAB, write_checkpoint


def table(seed: int, rows: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, HIDDEN)).astype(np.float32)


def test_rows_come_back_as_they_were_saved(tmp_path: Path) -> None:
    rows, outputs = table(1), table(2)
    checkpoint = MegatronCheckpoint(write_checkpoint(tmp_path, 7, rows, outputs))
    wanted = np.array([5, 0, 5])
    assert checkpoint.step == 7
    assert (checkpoint.input_embedding(wanted) == rows[wanted]).all()
    assert (checkpoint.unembedding() == outputs).all()


def test_padded_rows_are_cut_and_refused(tmp_path: Path) -> None:
    padded = table(1, VOCAB + 8)
    checkpoint = MegatronCheckpoint(write_checkpoint(tmp_path, 1, padded))
    assert checkpoint.input_embedding().shape == (VOCAB, HIDDEN)
    with pytest.raises(ValueError, match=f"token {VOCAB} asked for, {VOCAB} rows found"):
        checkpoint.input_embedding(np.array([VOCAB]))


def test_without_an_output_layer_the_embedding_is_the_unembedding(tmp_path: Path) -> None:
    rows = table(1)
    checkpoint = MegatronCheckpoint(write_checkpoint(tmp_path, 1, rows))
    assert (checkpoint.unembedding() == rows).all()


def test_one_layer_of_a_stack_is_read_alone(tmp_path: Path) -> None:
    reader = TorchDistReader(write_checkpoint(tmp_path, 1, table(1)))
    name = "embedding.word_embeddings.weight"
    assert (reader.read(name, first=3).numpy() == table(1)[3]).all()


def test_reading_needs_no_megatron(tmp_path: Path) -> None:
    import subprocess

    path = write_checkpoint(tmp_path, 1, table(1))
    script = (
        "import sys; from probes.checkpoints import open_series;"
        f"open_series([{str(path)!r}])[0].input_embedding();"
        "sys.exit(any(name.split('.')[0] == 'megatron' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_series_is_sorted_by_step_and_found_in_folders(tmp_path: Path) -> None:
    for step in (512, 0, 64):
        write_checkpoint(tmp_path / "run" / "checkpoints", step, table(step))
    (tmp_path / "run" / "checkpoints" / "step_0000128.partial").mkdir()
    for given in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        assert [checkpoint.step for checkpoint in open_series([given])] == [0, 64, 512]


def test_two_steps_with_one_embedding_are_refused_by_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 0, table(1))
    write_checkpoint(tmp_path, 8, table(2))
    write_checkpoint(tmp_path, 16, table(1))
    with pytest.raises(CheckpointFormatError, match=r"step_0000016: the same .*step_0000000"):
        open_series([tmp_path])


def test_the_final_weights_under_an_early_name_are_refused(tmp_path: Path) -> None:
    final = write_checkpoint(tmp_path, 16, table(2))
    early = write_checkpoint(tmp_path, 0, table(1))
    for file in final.iterdir():
        if file.name != "staircase.json":
            shutil.copy(file, early / file.name)
    series = open_series([tmp_path])
    with pytest.raises(CheckpointFormatError, match="step_0000000: the embedding read is not"):
        series[0].input_embedding()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", VOCAB - 1, "vocabulary size 23 found, 24 needed"),
        ("tokenizer_hash", "other", "tokenizer hash other found, one needed"),
        ("step", 0, "step 0 again"),
    ],
)
def test_steps_of_different_runs_are_refused(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    write_checkpoint(tmp_path, 0, table(1), tokenizer_hash="one")
    other = write_checkpoint(tmp_path, 8, table(2), tokenizer_hash="one")
    record = json.loads((other / "staircase.json").read_text()) | {key: value}
    (other / "staircase.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointFormatError, match=message):
        open_series([tmp_path])


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 0, table(1))
    data = next(path.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(CheckpointFormatError, match=rf"{data.name}: 100 bytes found"):
        open_series([tmp_path])
    data.unlink()
    with pytest.raises(CheckpointFormatError, match=rf"{data.name}: no such file"):
        open_series([tmp_path])


def test_altered_bytes_are_noticed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 0, table(1))
    data = next(path.glob("*.distcp"))
    data.write_bytes(bytes(byte ^ 0xFF for byte in data.read_bytes()))
    with pytest.raises(CheckpointFormatError, match=r"step_0000000: embedding\.word_embeddings"):
        open_series([tmp_path])[0].input_embedding()


def test_metadata_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 0, table(1))

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("run",)

    (path / ".metadata").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(CheckpointFormatError, match=r"it asks for builtins\.print"):
        open_series([tmp_path])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda path: (path / "staircase.json").unlink(), "incomplete"),
        (lambda path: (path / "staircase.json").write_text("{"), "not JSON"),
        (lambda path: (path / "staircase.json").write_text('{"step": 1}'), "vocab_size"),
        (lambda path: (path / ".metadata").unlink(), "no .metadata"),
        (lambda path: (path / ".metadata").write_bytes(b"\x80"), "not readable"),
    ],
)
def test_a_step_that_does_not_load_is_refused_by_name(
    tmp_path: Path, broken: object, message: str
) -> None:
    path = write_checkpoint(tmp_path, 0, table(1))
    broken(path)  # type: ignore[operator]
    with pytest.raises(CheckpointFormatError, match=rf"step_0000000.*{message}"):
        open_series([path.parent])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFormatError, match="no checkpoint found"):
        open_series([tmp_path])
    with pytest.raises(FileNotFoundError, match="no such folder"):
        open_series([tmp_path / "nowhere"])
    with pytest.raises(CheckpointFormatError, match="no checkpoint given"):
        open_series([])
