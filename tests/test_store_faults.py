"""Damage is named, never read as zeros; a store is there complete or not at all."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import stores
from hypothesis import given, settings
from hypothesis import strategies as st

from signatures import layout, placement, store
from signatures.spec import SignatureFormatError

VOCAB = 60
DOCUMENTS = np.random.default_rng(5).integers(0, VOCAB, (40, 12)).tolist()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many small shards, with halves."""
    out = tmp_path_factory.mktemp("sound") / "s.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_CHUNK_BYTES", 64)
        patch.setattr(layout, "_SHARD_BYTES", 128)
        stores.write_next_token(out, DOCUMENTS, VOCAB, halves=True)
    assert store.verify_store(out) == []
    return out


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    copy = tmp_path / "broken.zarr"
    shutil.copytree(sound, copy)
    return copy


def read_everything(path: Path) -> None:
    signatures = store.open_signatures(path)
    for signed in (signatures, signatures.half("even")):
        signed.counts.take(np.arange(VOCAB))
    assert signatures.token_counts.sum() == sum(map(len, DOCUMENTS))


ARRAYS = [
    f"{matrix}/{array}"
    for matrix in ("counts", "halves/even")
    for array in ("data", "indices", "indptr")
]


@pytest.mark.parametrize("array", [*ARRAYS, "token_counts"])
def test_a_deleted_shard_is_refused_at_open(broken: Path, array: str) -> None:
    (broken / array / "c/0").unlink()
    with pytest.raises(SignatureFormatError, match=f"array {array}, shard 0 is missing"):
        store.open_signatures(broken)
    assert f"array {array}, shard 0 is missing" in store.verify_store(broken)[0]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("left", [0, 1, 10, -1])
def test_a_cut_shard_is_refused_at_open(broken: Path, array: str, left: int) -> None:
    file = broken / array / "c/1"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(SignatureFormatError, match=f"array {array}, shard 1 has"):
        store.open_signatures(broken)
    assert f"array {array}, shard 1 has" in store.verify_store(broken)[0]


@pytest.mark.parametrize("array", ARRAYS)
def test_a_shard_lost_after_opening_is_an_error_and_not_zeros(broken: Path, array: str) -> None:
    signatures = store.open_signatures(broken)
    half = signatures.half("even")
    (broken / array / "c/0").unlink()
    wanted = signatures if array.startswith("counts") else half
    with pytest.raises(SignatureFormatError, match=f"array {array}, shard 0 is missing"):
        wanted.counts.take(np.arange(VOCAB))
    with pytest.raises(SignatureFormatError, match=f"array {array}, shard 0 is missing"):
        wanted.next_token_matrix([0, 1])


@pytest.mark.parametrize("array", ARRAYS)
def test_a_shard_cut_after_opening_is_named(broken: Path, array: str) -> None:
    signatures = store.open_signatures(broken)
    file = broken / array / "c/1"
    file.write_bytes(file.read_bytes()[:-7])
    wanted = signatures if array.startswith("counts") else signatures.half("even")
    with pytest.raises(SignatureFormatError, match=f"array {array}, shard 1 cannot be read"):
        wanted.counts.take(np.arange(VOCAB))


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_any_flipped_byte_is_found_by_verify_and_by_reading(
    sound: Path, data: st.DataObject
) -> None:
    file = data.draw(st.sampled_from(stores.shard_files(sound)))
    content = file.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    altered = bytearray(content)
    altered[place] ^= flip
    file.write_bytes(altered)
    try:
        array, _, shard = file.relative_to(sound).as_posix().rpartition("/c/")
        assert f"array {array}, shard {shard} was altered" in store.verify_store(sound)[0]
        with pytest.raises(SignatureFormatError, match=f"array {array}, shard {shard} cannot be"):
            read_everything(sound)
    finally:
        file.write_bytes(content)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_flipped_byte_of_metadata_is_found_by_verify(sound: Path, data: st.DataObject) -> None:
    """Except where JSON does not change its meaning: white space, and one case below."""
    file = data.draw(st.sampled_from(sorted(sound.rglob("zarr.json"))))
    content = file.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    altered = bytearray(content)
    altered[place] ^= 1
    file.write_bytes(altered)
    try:
        try:
            same = json.loads(altered)["attributes"] == json.loads(content)["attributes"]
        except (ValueError, KeyError):
            same = False
        assert store.verify_store(sound) != [] or same
    finally:
        file.write_bytes(content)


def test_a_shard_of_another_store_is_found(broken: Path, sound: Path) -> None:
    """Right size and sound in itself, but not the one that was written."""
    shutil.copy(sound / "counts/data/c/1", broken / "counts/data/c/2")
    problems = store.verify_store(broken)
    assert problems
    assert "array counts/data, shard 2" in problems[0]


def test_a_missing_array_is_refused(broken: Path) -> None:
    shutil.rmtree(broken / "halves/even/indices")
    with pytest.raises(SignatureFormatError, match=r"halves/even/indices/zarr\.json is missing"):
        store.open_signatures(broken)


@pytest.mark.parametrize("file", ["zarr.json", "integrity/zarr.json", "counts/data/zarr.json"])
@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_cut_metadata_is_refused(broken: Path, file: str, keep: int) -> None:
    content = (broken / file).read_bytes()
    (broken / file).write_bytes(content[:keep])
    with pytest.raises(SignatureFormatError, match=r"broken\.zarr: .*zarr\.json"):
        store.open_signatures(broken)
    assert "zarr.json" in store.verify_store(broken)[0]


def edit_root(path: Path, **changes: object) -> None:
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["staircase"] |= changes
    (path / "zarr.json").write_text(json.dumps(metadata))


def test_another_version_is_refused(broken: Path) -> None:
    edit_root(broken, format_version=2)
    with pytest.raises(SignatureFormatError, match="format_version is 2, this version reads 1"):
        store.open_signatures(broken)


def test_an_incomplete_store_is_refused(broken: Path) -> None:
    edit_root(broken, complete=False)
    with pytest.raises(SignatureFormatError, match="not complete; its count was interrupted"):
        store.open_signatures(broken)


def test_an_unknown_key_is_refused(broken: Path) -> None:
    edit_root(broken, colour="red")
    with pytest.raises(SignatureFormatError, match=r"unknown \['colour'\]"):
        store.open_signatures(broken)


def test_an_altered_root_attribute_is_found_by_verify(broken: Path) -> None:
    edit_root(broken, tokenizer="another")
    assert store.verify_store(broken) == [
        "root attribute 'staircase' was altered: its checksum differs"
    ]


def test_other_things_than_a_store_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.zarr"
    file.write_text("not a folder")
    empty = tmp_path / "empty.zarr"
    empty.mkdir()
    with pytest.raises(SignatureFormatError, match="a file; a signature store is a folder"):
        store.open_signatures(file)
    with pytest.raises(SignatureFormatError, match=r"no zarr\.json here"):
        store.open_signatures(empty)
    with pytest.raises(FileNotFoundError, match="no such store"):
        store.open_signatures(tmp_path / "nothing.zarr")


def test_a_store_is_replaced_only_when_told(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[0, 1]], 5)
    with pytest.raises(FileExistsError, match="pass --overwrite"):
        stores.write_next_token(out, [[1, 2]], 5)
    shutil.rmtree(tmp_path / "s.zarr.partial")
    stores.write_next_token(out, [[1, 2]], 5, overwrite=True)
    assert store.open_signatures(out).next_token(1)[2] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.parametrize("content", ["folder", "file", "group"])
def test_what_is_no_store_is_never_replaced(tmp_path: Path, content: str) -> None:
    out = tmp_path / "thesis"
    if content == "file":
        out.write_text("years of work")
    else:
        out.mkdir()
        (out / "chapter.txt").write_text("years of work")
    if content == "group":
        (out / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(FileExistsError, match="is no signature store; it is not replaced"):
        store.require_free(out, overwrite=True)


def test_an_incomplete_store_is_not_written_over(tmp_path: Path) -> None:
    partial = tmp_path / "s.zarr.partial"
    partial.mkdir()
    with pytest.raises(FileExistsError, match="another count writes there or was interrupted"):
        stores.write_next_token(tmp_path / "s.zarr", [[0, 1]], 5)


def test_a_shard_that_was_never_written_stops_completion(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    counts = stores.pair_counts([[0, 1]], 2)
    spec = stores.next_token_spec([[0, 1]], 2, 1)
    partial, records = stores.begin_store(
        out, spec, {"counts": counts}, {"token_counts": np.array([1, 1])}
    )
    with pytest.raises(RuntimeError, match="no record of array counts/indptr, shard 0"):
        store.complete_store(partial, out, spec=spec, records=records[:-1], overwrite=False)
    (partial / "counts/data/c/0").unlink()
    with pytest.raises(RuntimeError, match="array counts/data, shard 0 is missing"):
        store.complete_store(partial, out, spec=spec, records=records, overwrite=False)
    assert not out.exists()


def test_a_failed_rename_puts_the_previous_store_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[0, 1]], 5)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        stores.write_next_token(out, [[1, 2]], 5, overwrite=True)
    assert store.open_signatures(out).next_token(0)[1] == 1


def test_an_interrupted_replacement_says_where_the_previous_store_is(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[0, 1]], 5)
    out.rename(placement._previous(out))
    with pytest.raises(FileNotFoundError, match=r"left the previous one at .*\.s\.zarr\.previous"):
        store.open_signatures(out)


WRITER = """
import sys
from pathlib import Path
import stores
print("started", flush=True)
stores.write_next_token(Path(sys.argv[1]), [[i % 60, (7 * i) % 60] for i in range(3000)], 60,
                        halves=True, overwrite=True)
print("finished", flush=True)
"""


def test_killed_at_any_moment_the_store_is_whole_or_not_there(tmp_path: Path) -> None:
    """SIGKILL while a store is completed over another: readers find the old or the new one."""
    out = tmp_path / "s.zarr"
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}."}
    command = [sys.executable, "-c", WRITER, str(out)]
    stores.write_next_token(out, [[0, 1]], VOCAB)
    seen = set()
    for delay in np.linspace(0.0, 0.5, 10):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[1]
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not out.exists():
            placement._previous(out).rename(out)
        assert store.verify_store(out) == []
        seen.add(store.open_signatures(out).spec.totals.documents)
        shutil.rmtree(tmp_path / "s.zarr.partial", ignore_errors=True)
    assert seen <= {1, 3000}
    assert 1 in seen


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_the_users_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        stores.write_next_token(tmp_path / "s.zarr", [[0, 1]], 5)


def test_a_store_without_write_permission_is_read(broken: Path) -> None:
    for path in broken.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    read_everything(broken)
    assert store.verify_store(broken) == []
