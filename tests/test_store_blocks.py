"""Scans and chosen rows do not depend on how the reads are divided."""

from pathlib import Path

import numpy as np
import pytest
import stores
import zarr
from test_store_kinds import ANCHORS, VOCAB, write_first_order

from signatures import matrix, store
from signatures.matrix import StoredCounts

DOCUMENTS = np.random.default_rng(3).integers(0, 40, (30, 14)).tolist()


def divide(monkeypatch: pytest.MonkeyPatch, entries: int, gap: int) -> None:
    """Make every scan read blocks of about ``entries``, and join rows no farther than ``gap``."""
    ranges = StoredCounts.row_ranges
    monkeypatch.setattr(StoredCounts, "row_ranges", lambda self, size=0: ranges(self, entries))
    monkeypatch.setattr(matrix, "BLOCK_ENTRIES", entries)
    monkeypatch.setattr(matrix, "_GAP", gap)


@pytest.mark.parametrize(("entries", "gap"), [(1, -1), (3, 0), (7, 5), (50, 20), (10**6, 10**6)])
def test_next_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int, gap: int
) -> None:
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    counts = [
        stores.write_next_token(path, documents, 50, halves=True).toarray()
        for path, documents in zip(paths, (DOCUMENTS, DOCUMENTS[:11]), strict=True)
    ]
    undivided = zarr.open_group(paths[0])["integrity"].attrs["fingerprint"]
    divide(monkeypatch, entries, gap)
    one, both = store.open_signatures(paths[0]), store.open_signatures(paths)
    assert store.verify_store(paths[0]) == []
    stored = one.counts
    assert isinstance(stored, StoredCounts)
    assert [row for first, last in stored.row_ranges() for row in range(first, last)] == [
        *range(50)
    ]
    for signatures, expected in ((one, counts[0]), (both, counts[0] + counts[1])):
        blocks = [block.toarray() for _, block in signatures.counts.blocks()]
        assert (np.vstack(blocks) == expected).all()
        rows = np.random.default_rng(entries).integers(0, 50, 30)
        assert (signatures.counts.take(rows).toarray() == expected[rows]).all()
        columns = expected[:, rows].T
        found = signatures.predecessor_matrix(rows).toarray()
        totals = np.maximum(columns.sum(axis=1, keepdims=True), 1)
        assert np.array_equal(found, columns / totals)
    odd = np.vstack([block.toarray() for _, block in one.half("odd").counts.blocks()])
    assert (odd == stores.pair_counts(DOCUMENTS[1::2], 50).toarray()).all()
    stores.write_next_token(tmp_path / "again.zarr", DOCUMENTS, 50, halves=True)
    again = zarr.open_group(tmp_path / "again.zarr")["integrity"].attrs["fingerprint"]
    assert again == undivided


@pytest.mark.parametrize("entries", [1, 3, 7, 20])
def test_first_order_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """Blocks that straddle anchors get the keys of both."""
    divide(monkeypatch, entries, 0)
    documents = np.random.default_rng(4).integers(0, VOCAB, (8, 9)).tolist()
    out = tmp_path / "f.zarr"
    counts = write_first_order(out, documents)
    assert len({a for a, _, _ in counts}) == len(ANCHORS)
    keyed = {(a * VOCAB + v, b): count for (a, v, b), count in counts.items()}
    recorded = zarr.open_group(out)["integrity"].attrs["fingerprint"]
    assert recorded == stores.fingerprint(keyed)
    assert store.verify_store(out) == []
