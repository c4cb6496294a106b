"""A store returns what was written, exactly, to us and to strangers."""

import pickle
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pytest
import stores
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import documents as documents_of

from signatures import layout, placement, store
from signatures.spec import SignatureFormatError

VOCAB = 12
corpora = documents_of(vocab_size=VOCAB, max_documents=6, max_length=12)
SLOW_DISK = settings(deadline=None, max_examples=15)


def dense(matrix: Any) -> np.ndarray:
    return matrix.toarray()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8 uint32 and shards of at most 32, so that a few entries make many shards."""
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 32)
    monkeypatch.setattr(layout, "_SHARD_BYTES", 128)


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Laws need many small stores; that files reach the disk is for test_store_faults.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_sync", lambda path: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def fresh(folder: Path) -> Path:
    return folder / f"{time.monotonic_ns()}.zarr"


def test_two_documents_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[5, 6], [7, 8]], 10)
    signatures = store.open_signatures(out)
    assert signatures.next_token(5).tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert signatures.counts.take([6]).nnz == 0
    assert signatures.next_token(6).tolist() == [0] * 10
    assert signatures.predecessor_matrix([8, 7]).toarray()[:, 7].tolist() == [1, 0]
    assert signatures.token_counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 0]
    assert store.verify_store(out) == []


@SLOW_DISK
@given(corpora)
def test_round_trip(folder: Path, documents: list[list[int]]) -> None:
    out = fresh(folder)
    counts = stores.write_next_token(out, documents, VOCAB, halves=True)
    signatures = store.open_signatures(out)
    whole = signatures.counts.take(np.arange(VOCAB))
    assert (dense(whole) == dense(counts)).all()
    assert (dense(whole) == sum(dense(b) for _, b in signatures.counts.blocks())).all()
    assert store.verify_store(out) == []
    even, odd = (dense(signatures.half(h).counts.take(np.arange(VOCAB))) for h in ("even", "odd"))
    assert (even == dense(stores.pair_counts(documents[::2], VOCAB))).all()
    assert (odd == dense(stores.pair_counts(documents[1::2], VOCAB))).all()
    assert (even + odd == dense(counts)).all()
    assert signatures.half("odd").counts.take(np.arange(VOCAB)).data.all()


@SLOW_DISK
@given(corpora, st.lists(st.integers(0, VOCAB - 1), max_size=20))
def test_chosen_rows_equal_the_full_matrix(
    folder: Path, documents: list[list[int]], rows: list[int]
) -> None:
    out = fresh(folder)
    counts = dense(stores.write_next_token(out, documents, VOCAB))
    signatures = store.open_signatures(out)
    assert (dense(signatures.counts.take(rows)) == counts[rows]).all()
    phi = dense(signatures.next_token_matrix(rows))
    totals = counts[rows].sum(axis=1, keepdims=True)
    assert np.array_equal(phi, np.where(totals, counts[rows] / np.maximum(totals, 1), 0))
    for row, expected in zip(rows[:3], phi, strict=False):
        assert np.array_equal(store.open_signatures(out).next_token(row), expected)


@SLOW_DISK
@given(corpora, st.lists(st.integers(0, VOCAB - 1), max_size=20))
def test_predecessors_are_columns(
    folder: Path, documents: list[list[int]], tokens: list[int]
) -> None:
    out = fresh(folder)
    counts = dense(stores.write_next_token(out, documents, VOCAB))
    found = dense(store.open_signatures(out).predecessor_matrix(tokens))
    columns = counts[:, tokens].T
    totals = columns.sum(axis=1, keepdims=True)
    assert found.shape == (len(tokens), VOCAB)
    assert np.array_equal(found, np.where(totals, columns / np.maximum(totals, 1), 0))


@SLOW_DISK
@given(corpora, corpora, st.floats(0.01, 100), st.floats(0.01, 100))
def test_mixing_is_linear(
    folder: Path, left: list[list[int]], right: list[list[int]], u: float, w: float
) -> None:
    paths = [fresh(folder), fresh(folder)]
    counts = [
        dense(stores.write_next_token(path, documents, VOCAB)).astype(float)
        for path, documents in zip(paths, (left, right), strict=True)
    ]
    totals = [sum(map(len, documents)) for documents in (left, right)]
    plain = store.open_signatures(paths)
    assert (dense(plain.counts.take(np.arange(VOCAB))) == counts[0] + counts[1]).all()
    summed = sum(dense(block) for _, block in plain.counts.blocks())
    assert (summed == counts[0] + counts[1]).all()
    mixed = sum(
        weight * matrix / max(total, 1)
        for weight, matrix, total in zip((u, w), counts, totals, strict=True)
    )
    expected = mixed / np.where(mixed.sum(axis=1), mixed.sum(axis=1), 1)[:, None]
    weighted = store.open_signatures(paths, weights=[u, w])
    assert np.allclose(dense(weighted.next_token_matrix(np.arange(VOCAB))), expected, rtol=1e-12)
    by_totals = store.open_signatures(paths, weights=[max(1, total) for total in totals])
    for method in ("next_token_matrix", "predecessor_matrix"):
        default = dense(getattr(plain, method)(np.arange(VOCAB)))
        assert np.allclose(dense(getattr(by_totals, method)(np.arange(VOCAB))), default, rtol=1e-12)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("repeats", [1, 40])
def test_strangers_open_the_store(tmp_path: Path, repeats: int) -> None:
    rng = np.random.default_rng(repeats)
    documents = rng.integers(0, 40, (repeats, 9)).tolist()
    out = tmp_path / "s.zarr"
    counts = stores.write_next_token(out, documents, 40, halves=True)
    group = zarr.open_group(out, mode="r")
    if repeats > 1:
        assert len(list((out / "counts/data/c").iterdir())) > 5
    read = anndata.io.read_elem(group["counts"])
    assert (dense(read) == dense(counts)).all()
    assert (dense(read.tocoo()) == dense(counts)).all()
    lazy = anndata.io.sparse_dataset(group["counts"])
    assert (dense(lazy[3:9]) == dense(counts)[3:9]).all()
    assert (dense(lazy.to_memory()) == dense(counts)).all()
    even = anndata.io.read_elem(group["halves/even"])
    assert (dense(even) == dense(stores.pair_counts(documents[::2], 40))).all()
    assert group.attrs["staircase"]["complete"] is True


@pytest.mark.parametrize("documents", [[], [[]], [[3]], [[], [], []]])
def test_a_corpus_without_pairs_makes_a_store(tmp_path: Path, documents: list[list[int]]) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, documents, 5, halves=True)
    signatures = store.open_signatures(out)
    assert store.verify_store(out) == []
    assert signatures.next_token_matrix([0, 1]).nnz == 0
    assert signatures.predecessor_matrix([4]).shape == (1, 5)
    assert anndata.io.read_elem(zarr.open_group(out, mode="r")["counts"]).nnz == 0


@pytest.mark.parametrize(
    ("count", "dtype"), [(2**32 - 1, np.uint32), (2**32, np.uint64), (2**53 + 1, np.uint64)]
)
def test_counts_past_32_bits_are_promoted_and_exact(tmp_path: Path, count: int, dtype: Any) -> None:
    few = 16_777_217
    counts = stores.matrix_of({(0, 1): count, (1, 0): few}, (2, 2))
    totals = store.Totals(
        tokens=2 * count + few, documents=count, empty_documents=0, pairs=count + few, entries=2
    )
    spec = store.StoreSpec(kind="next-token", vocab_size=2, vocab_source="given", totals=totals)
    path = tmp_path / "s.zarr"
    vectors = {"token_counts": np.array([count, count + few])}
    stores.write_store(path, spec, {"counts": counts}, vectors)
    found = store.open_signatures([path, path]).counts.take([0, 1])
    assert [int(value) for value in found.data] == [2 * count, 2 * few]
    found = store.open_signatures(path).counts.take([0, 1])
    assert found.dtype == dtype
    assert [int(value) for value in found.data] == [count, few]
    assert [int(value) for value in anndata.io.read_elem(zarr.open_group(path)["counts"]).data] == [
        count,
        few,
    ]
    assert store.verify_store(path) == []


def test_a_count_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    counts = stores.matrix_of({(0, 1): 2**32}, (2, 2))
    spec = stores.next_token_spec([[0, 1]], 2, 1)
    partial = tmp_path / "s.partial"
    narrow = store.MatrixLayout(shape=(2, 2), entries=1, max_count=1)
    store.create_store(
        partial, spec, matrices={"counts": narrow}, vectors={"token_counts": np.array([1, 1])}
    )
    with pytest.raises(ValueError, match="do not fit into uint32"):
        store.write_shard(partial, "counts", "data", 0, counts.data)
    with pytest.raises(ValueError, match="integers are needed"):
        store.write_shard(partial, "counts", "data", 0, np.array([1.0]))
    with pytest.raises(ValueError, match=r"\(2,\) values given, \(1,\) needed"):
        store.write_shard(partial, "counts", "data", 0, np.array([1, 2]))


@pytest.mark.usefixtures("small_shards")
def test_fingerprint_is_the_sum_over_entries(tmp_path: Path) -> None:
    documents = np.random.default_rng(1).integers(0, 30, (20, 12)).tolist()
    out = tmp_path / "s.zarr"
    counts = stores.write_next_token(out, documents, 30).tocoo()
    entries = {
        (int(a), int(v)): int(n)
        for a, v, n in zip(counts.row, counts.col, counts.data, strict=True)
    }
    recorded = zarr.open_group(out, mode="r")["integrity"].attrs
    assert recorded["fingerprint"] == stores.fingerprint(entries)
    assert recorded["dropped_fingerprint"] == 0


def test_a_wrong_fingerprint_stops_completion(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    counts = stores.pair_counts([[0, 1]], 2)
    spec = stores.next_token_spec([[0, 1]], 2, 1)
    vectors = {"token_counts": np.array([1, 1])}
    expected = stores.fingerprint({(0, 1): 1})
    with pytest.raises(RuntimeError, match="fingerprint is"):
        stores.write_store(out, spec, {"counts": counts}, vectors, fingerprint=expected + 1)
    assert not out.exists()
    partial = out.with_name("s.zarr.partial")
    shutil.rmtree(partial)
    stores.write_store(out, spec, {"counts": counts}, vectors, fingerprint=expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": [1, 0]}, "columns are not ascending"),
        ({"indices": [1, 1]}, "columns are not ascending"),
        ({"indices": [1, 9]}, "a column outside 0 to 2"),
        ({"data": [1, 0]}, "a count of 0 is stored"),
        ({"data": [1, 2]}, "counts add up to 3, totals.pairs says 2"),
        ({"indptr": [0, 2, 1, 2]}, "indptr runs from 0 to 2 and must grow"),
        ({"indptr": [0, 2, 2, 3]}, "indptr runs from 0 to 3"),
        ({"token_counts": [2, 1, 2]}, "token_counts add up to 5, totals.tokens says 4"),
        ({"token_counts": [1, 2, 1]}, "rows: token 0 is counted in 2 pairs but occurs 1"),
        ({"token_counts": [4, 0, 0]}, "columns: token 1 is counted in 1 pairs but occurs 0"),
    ],
)
def test_unsound_counts_are_not_completed(
    tmp_path: Path, changes: dict[str, list[int]], message: str
) -> None:
    """Documents [0,1] and [0,2]: row 0 holds columns 1 and 2."""
    spec = stores.next_token_spec([[0, 1], [0, 2]], 3, 2)
    arrays: dict[str, list[int]] = {
        "data": [1, 1],
        "indices": [1, 2],
        "indptr": [0, 2, 2, 2],
        "token_counts": [2, 1, 1],
        **changes,
    }
    partial = tmp_path / "s.partial"
    store.create_store(
        partial,
        spec,
        matrices={"counts": store.MatrixLayout(shape=(3, 3), entries=2, max_count=2)},
        vectors={"token_counts": np.array(arrays["token_counts"])},
    )
    records = [
        store.write_shard(partial, "counts", name, 0, np.array(arrays[name]))
        for name in ("data", "indices", "indptr")
    ]
    out = tmp_path / "s.zarr"
    with pytest.raises(RuntimeError, match=message):
        store.complete_store(partial, out, spec=spec, records=records, overwrite=False)
    assert not out.exists()


def test_an_even_half_larger_than_the_whole_is_not_completed(tmp_path: Path) -> None:
    spec = stores.next_token_spec([[0, 1]], 2, 1)
    matrices = {"counts": stores.pair_counts([[0, 1]], 2)}
    matrices["halves/even"] = stores.pair_counts([[1, 0]], 2)
    with pytest.raises(RuntimeError, match="more than the whole in rows 0 to 1"):
        stores.write_store(tmp_path / "s.zarr", spec, matrices, {"token_counts": np.array([1, 1])})


@pytest.mark.usefixtures("small_shards")
def test_many_threads_write_what_one_writes(tmp_path: Path) -> None:
    """Parts that do not align with shards cannot meet in one: a task writes a shard whole."""
    documents = np.random.default_rng(2).integers(0, 60, (40, 12)).tolist()
    counts = stores.write_next_token(tmp_path / "one.zarr", documents, 60)
    expected = (tmp_path / "one.zarr", store.open_signatures(tmp_path / "one.zarr"))
    spec = stores.next_token_spec(documents, 60, counts.nnz)
    vectors = {"token_counts": expected[1].token_counts}
    for repeat in range(20):
        partial, out = tmp_path / f"{repeat}.partial", tmp_path / f"{repeat}.zarr"
        layouts = {"counts": stores.layout_of(counts)}
        store.create_store(partial, spec, matrices=layouts, vectors=vectors)
        tasks = [
            (partial, "counts", name, index, getattr(counts, name)[start:stop])
            for name in ("data", "indices", "indptr")
            for index, (start, stop) in enumerate(store.shard_ranges(partial, "counts", name))
        ]
        assert len(tasks) > 25
        twice = tasks + tasks[:: repeat + 2]
        order = np.random.default_rng(repeat).permutation(len(twice))
        with ThreadPoolExecutor(16) as pool:
            records = list(
                pool.map(store.write_shard, *zip(*(twice[i] for i in order), strict=True))
            )
        store.complete_store(partial, out, spec=spec, records=records, overwrite=False)
        for file in stores.shard_files(expected[0]):
            assert (out / file.relative_to(expected[0])).read_bytes() == file.read_bytes()
        shutil.rmtree(out)


def test_shards_are_between_64_and_256_megabytes() -> None:
    for entries in (1, 1000, 2**18, 2**24, 2**25, 2**25 + 1, 2**27 + 12345, 2**31):
        for itemsize in (4, 8):
            (chunk,), (shard,) = layout.grid((entries,), itemsize)
            assert shard % chunk == 0
            assert chunk * itemsize <= 2**20
            assert shard * itemsize <= 256e6
            if shard < entries:
                assert shard * itemsize >= 64e6
            else:
                assert shard < entries + chunk
    chunks, shards = layout.grid((5_000_000, 512), 8)
    assert chunks == (256, 512)
    assert 64e6 <= shards[0] * 512 * 8 <= 256e6


def test_a_record_is_small_and_travels(tmp_path: Path) -> None:
    spec = stores.next_token_spec([[0, 1]], 2, 1)
    matrices = {"counts": stores.pair_counts([[0, 1]], 2)}
    _, records = stores.begin_store(
        tmp_path / "s.zarr", spec, matrices, {"token_counts": np.array([1, 1])}
    )
    assert pickle.loads(pickle.dumps(records)) == records
    assert len(pickle.dumps(records[0])) < 400
    assert [record.entries for record in records] == [1, 1, 3]
    assert [record.sum for record in records] == [1, 1, 2]


def test_wrong_ids_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    stores.write_next_token(out, [[0, 1]], 5)
    signatures = store.open_signatures(out)
    for ask in (signatures.next_token_matrix, signatures.predecessor_matrix):
        with pytest.raises(ValueError, match="5 is asked for, ids 0 to 4 are stored"):
            ask([0, 5])
        with pytest.raises(ValueError, match="-1 is asked for"):
            ask([-1])
    with pytest.raises(ValueError, match="integers are needed"):
        signatures.next_token_matrix([0.5])
    with pytest.raises(ValueError, match="no halves in this store; count with --halves"):
        signatures.half("even")
    with pytest.raises(ValueError, match="first-order store is needed"):
        signatures.first_order(1)


def test_stores_counted_otherwise_are_not_mixed(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.zarr", "b.zarr", "c.zarr")]
    stores.write_next_token(paths[0], [[0, 1]], 5)
    stores.write_next_token(paths[1], [[0, 1]], 6)
    stores.write_next_token(paths[2], [[0, 1]], 5, tokenizer="abc")
    with pytest.raises(ValueError, match=r"b.zarr: vocab_size is 6, but 5 in .*a.zarr"):
        store.open_signatures(paths[:2])
    with pytest.raises(ValueError, match="tokenizer is 'abc', but None"):
        store.open_signatures([paths[0], paths[2]])
    with pytest.raises(ValueError, match="3 weights for 1 stores"):
        store.open_signatures(paths[:1], weights=[1, 2, 3])
    with pytest.raises(ValueError, match="must be a positive number"):
        store.open_signatures(paths[:1], weights=[-1])
    with pytest.raises(ValueError, match="no integer counts"):
        _ = store.open_signatures(paths[:1], weights=[2]).counts
    assert issubclass(SignatureFormatError, ValueError)
