"""First-order and projected stores, and what a spec refuses."""

import dataclasses
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pytest
import stores
import zarr
from hypothesis import given, settings
from strategies import documents as documents_of

from signatures import store
from signatures.spec import SignatureFormatError

VOCAB = 6
ANCHORS = (4, 1)
CONTEXT = (5, 0, 1, 2)


def first_order_counts(
    documents: list[list[int]], anchors: tuple[int, ...], context: tuple[int, ...]
) -> tuple[Counter[tuple[int, int, int]], Counter[int], Counter[int]]:
    """Counts of (anchor, label, context token), occurrences and dropped mass, by plain loops."""
    counts: Counter[tuple[int, int, int]] = Counter()
    occurrences: Counter[int] = Counter()
    dropped: Counter[int] = Counter()
    for document in documents:
        for s, (a, v) in enumerate(pairwise(document)):
            if a not in anchors:
                continue
            occurrences[a] += 1
            for b in set(document[:s]):
                if b in context:
                    counts[a, v, b] += 1
                else:
                    dropped[a] += 1
    return counts, occurrences, dropped


def write_first_order(
    out: Path,
    documents: list[list[int]],
    *,
    vocab_size: int = VOCAB,
    anchors: tuple[int, ...] = ANCHORS,
    context: tuple[int, ...] = CONTEXT,
    **options: Any,
) -> Counter[tuple[int, int, int]]:
    counts, occurrences, dropped = first_order_counts(documents, anchors, context)
    whole = _matrix(counts, vocab_size, anchors, context)
    even, even_occurrences, _ = first_order_counts(documents[::2], anchors, context)
    tokens = sum(map(len, documents))
    totals = store.Totals(
        tokens=tokens,
        documents=len(documents),
        empty_documents=sum(not document for document in documents),
        pairs=occurrences.total(),
        entries=whole.nnz,
    )
    spec = store.StoreSpec(
        kind="first-order", vocab_size=vocab_size, vocab_source="tokenizer", totals=totals
    )
    vectors = {
        "anchors": np.array(anchors),
        "context_tokens": np.array(context),
        "anchor_occurrences": np.array([occurrences[a] for a in anchors]),
        "even_anchor_occurrences": np.array([even_occurrences[a] for a in anchors]),
        "dropped": np.array([dropped[a] for a in anchors]),
    }
    matrices = {"counts": whole, "halves/even": _matrix(even, vocab_size, anchors, context)}
    options = {"dropped_fingerprint": 7, **options}
    stores.write_store(out, spec, matrices, vectors, **options)
    return counts


def _matrix(
    counts: Counter[tuple[int, int, int]],
    vocab_size: int,
    anchors: tuple[int, ...],
    context: tuple[int, ...],
) -> Any:
    placed = {
        (anchors.index(a) * vocab_size + v, context.index(b)): count
        for (a, v, b), count in counts.items()
    }
    return stores.matrix_of(placed, (len(anchors) * vocab_size, len(context)))


def test_presence_before_an_anchor_by_hand(tmp_path: Path) -> None:
    """Document [1,2,1,3], anchor 1: (v=3, b=1) and (v=3, b=2), each in one of 2 occurrences."""
    out = tmp_path / "s.zarr"
    write_first_order(out, [[1, 2, 1, 3]], vocab_size=4, anchors=(1,), context=(0, 1, 2, 3))
    signatures = store.open_signatures(out)
    found = signatures.first_order(1)
    assert found.shape == (4, 4)
    assert found.toarray()[3].tolist() == [0, 0.5, 0.5, 0]
    assert found.nnz == 2
    assert signatures.anchor_occurrences.tolist() == [2]
    assert store.verify_store(out) == []


def _added_parts(signatures: store.Signatures, entries: int) -> np.ndarray:
    """Signatures of all anchors from a scan in parts, (A, V, C)."""
    added = np.zeros((len(ANCHORS) * VOCAB, len(CONTEXT)))
    for first_row, part in signatures.first_order_parts(entries):
        added[first_row : first_row + part.shape[0]] += part.toarray()
    return added.reshape(len(ANCHORS), VOCAB, len(CONTEXT))


@settings(deadline=None, max_examples=15)
@given(documents=documents_of(vocab_size=VOCAB, max_documents=5, max_length=9))
def test_first_order_round_trip(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]
) -> None:
    out = tmp_path_factory.mktemp("first-order") / "s.zarr"
    counts = write_first_order(out, documents)
    signatures = store.open_signatures(out)
    even, even_occurrences, _ = first_order_counts(documents[::2], ANCHORS, CONTEXT)
    odd, odd_occurrences, _ = first_order_counts(documents[1::2], ANCHORS, CONTEXT)
    _, occurrences, _ = first_order_counts(documents, ANCHORS, CONTEXT)
    doubled = store.open_signatures([out, out])
    weighted = store.open_signatures([out, out], weights=[1, 3])
    for a in ANCHORS:
        expected = _probabilities(counts, occurrences, a)
        for same in (signatures, doubled, weighted):
            assert np.allclose(same.first_order(a).toarray(), expected, rtol=1e-12)
            for entries in (3, 1 << 22):
                assert np.allclose(_added_parts(same, entries)[ANCHORS.index(a)], expected)
        for which, of_half, times in (
            ("even", even, even_occurrences),
            ("odd", odd, odd_occurrences),
        ):
            found = signatures.half(which).first_order(a).toarray()
            assert np.array_equal(found, _probabilities(of_half, times, a))
            parts = _added_parts(signatures.half(which), entries=3)
            assert np.array_equal(parts[ANCHORS.index(a)], found)
    assert store.verify_store(out) == []
    recorded = zarr.open_group(out, mode="r")["integrity"].attrs
    keyed = {(a * VOCAB + v, b): count for (a, v, b), count in counts.items()}
    assert recorded["fingerprint"] == stores.fingerprint(keyed)
    assert recorded["dropped_fingerprint"] == 7
    read = anndata.io.read_elem(zarr.open_group(out, mode="r")["counts"])
    assert read.shape == (len(ANCHORS) * VOCAB, len(CONTEXT))
    assert read.sum() == counts.total()


def _probabilities(
    counts: Counter[tuple[int, int, int]], occurrences: Counter[int], anchor: int
) -> np.ndarray:
    phi = np.zeros((VOCAB, len(CONTEXT)))
    for (a, v, b), count in counts.items():
        if a == anchor:
            phi[v, CONTEXT.index(b)] = count / occurrences[a]
    return phi


def test_first_order_refusals(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    with pytest.raises(ValueError, match="needs the dropped_fingerprint"):
        write_first_order(out, [[1, 2, 1, 3]], dropped_fingerprint=None)
    (tmp_path / "s.zarr.partial").rename(tmp_path / "abandoned")
    write_first_order(out, [[1, 2, 1, 3]])
    signatures = store.open_signatures(out)
    with pytest.raises(ValueError, match="token 2 is not among the 2 anchors"):
        signatures.first_order(2)
    with pytest.raises(ValueError, match="a next-token store is needed"):
        signatures.next_token(1)
    with pytest.raises(ValueError, match="no even_dropped in this first-order store"):
        _ = signatures.half("even").dropped
    other = tmp_path / "t.zarr"
    write_first_order(other, [[1, 2, 1, 3]], context=(0, 1, 2, 3))
    with pytest.raises(ValueError, match="other context_tokens than"):
        store.open_signatures([out, other])


def write_projected(out: Path, *, with_matrix: bool = True, **changes: Any) -> np.ndarray:
    """Anchors 1 and 4 of V = 6; three (anchor, label) rows of R = 2 sums; C = 3."""
    rows, values = np.array([2, 5, 6]), np.array([[1, -2], [2**40, 0], [-3, 3]])
    parameters = {} if with_matrix else {"columns": 2}
    totals = store.Totals(tokens=20, documents=1, empty_documents=0, pairs=9, entries=3)
    fields: dict[str, Any] = {
        "kind": "projected",
        "vocab_size": 6,
        "vocab_source": "sidecar",
        "totals": totals,
        "parameters": parameters,
        "seed": None if with_matrix else 3,
    }
    spec = store.StoreSpec(**fields)
    vectors = {
        "anchors": np.array([1, 4]),
        "context_tokens": np.array([0, 2, 3]),
        "anchor_occurrences": np.array([5, 4]),
    }
    if with_matrix:
        vectors["matrix"] = np.array([[1, -1], [1, 1], [-1, -1]], np.int8)
    arrays = {"rows": rows, "values": values, **changes}
    partial = out.with_name("p.partial")
    blocks = {name: store.BlockLayout(shape=array.shape) for name, array in arrays.items()}
    store.create_store(partial, spec, matrices={}, vectors=vectors, blocks=blocks)
    records = [
        store.write_shard(partial, "", name, index, array[start:stop])
        for name, array in arrays.items()
        for index, (start, stop) in enumerate(store.shard_ranges(partial, "", name))
    ]
    store.complete_store(partial, out, spec=spec, records=records, overwrite=False)
    return values


@pytest.mark.parametrize("with_matrix", [True, False])
def test_projected_round_trip(tmp_path: Path, with_matrix: bool) -> None:
    out = tmp_path / "p.zarr"
    values = write_projected(out, with_matrix=with_matrix)
    assert store.verify_store(out) == []
    signatures = store.open_signatures(out)
    labels, sums = signatures.projected(1)
    assert labels.tolist() == [2, 5]
    assert (sums == values[:2]).all()
    labels, sums = signatures.projected(4)
    assert labels.tolist() == [0]
    assert (sums == values[2:]).all()
    with pytest.raises(ValueError, match="no matrix of counts"):
        _ = signatures.counts
    recorded = zarr.open_group(out, mode="r")["integrity"].attrs
    assert recorded["fingerprint"] is None
    assert recorded["dropped_fingerprint"] is None


def test_a_damaged_projected_store_is_found(tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    write_projected(out)
    for name in ("rows/c/0", "values/c/0/0", "matrix/c/0/0", "anchors/c/0"):
        content = (out / name).read_bytes()
        altered = bytearray(content)
        altered[len(content) // 2] ^= 4
        (out / name).write_bytes(altered)
        assert name.split("/")[0] in store.verify_store(out)[0]
        (out / name).unlink()
        with pytest.raises(SignatureFormatError, match=f"array {name.split('/')[0]}, shard 0 is"):
            store.open_signatures(out)
        (out / name).write_bytes(content)
    assert store.verify_store(out) == []


@pytest.mark.parametrize("rows", [[5, 2, 6], [2, 2, 6], [2, 5, 12], [-1, 5, 6]])
def test_unsound_rows_are_not_completed(tmp_path: Path, rows: list[int]) -> None:
    with pytest.raises(RuntimeError, match="rows must ascend strictly within 0 to 11"):
        write_projected(tmp_path / "p.zarr", rows=np.array(rows))


def test_projected_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has the dense arrays"):
        write_projected(tmp_path / "p.zarr", values=np.zeros((3, 3), np.int64))
    with pytest.raises(ValueError, match="has the dense arrays"):
        write_projected(tmp_path / "p.zarr", rows=np.zeros(4, np.int64))


TOTALS = store.Totals(tokens=4, documents=2, empty_documents=0, pairs=2, entries=2)
SPEC = store.StoreSpec(kind="next-token", vocab_size=10, vocab_source="given", totals=TOTALS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "third-order"}, "kind is 'third-order', one of"),
        ({"scope": "sentence"}, "scope is 'sentence'"),
        ({"vocab_source": "guess"}, "vocab_source is 'guess'"),
        ({"borders": None}, "borders is None"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 10.0}, "vocab_size is 10.0"),
        ({"seq_length": 8}, "scope document has no seq_length"),
        ({"order": "file"}, "scope document has no seq_length and no order"),
        ({"window": 3}, "window is for first-order"),
        ({"scope": "packed"}, "order is None"),
        ({"scope": "packed", "order": "file"}, "totals.pairs is 2.* make 3"),
        ({"scope": "packed", "order": "sha256:1"}, "needs a seq_length"),
        ({"kind": "first-order", "window": 0}, "window is 0"),
        ({"eod": 3}, "eod 3 is missing from special"),
        ({"eod": 10, "special": (10,)}, "special token 10 is no id below vocab_size 10"),
        ({"special": (3, 1)}, "special is .* ascending"),
        ({"special": (3, 3)}, "special is .* ascending"),
        ({"seed": -1}, "seed is -1"),
        ({"parameters": None}, "parameters is None"),
        ({"totals": dataclasses.replace(TOTALS, pairs=3)}, "totals.pairs is 3.* make 2"),
    ],
)
def test_a_spec_refuses_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SPEC, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": -1}, "totals.tokens is -1"),
        ({"pairs": 5}, "5 pairs from 4 tokens"),
        ({"empty_documents": 3}, "3 empty documents among 2"),
        ({"entries": 1.5}, "totals.entries is 1.5"),
    ],
)
def test_totals_refuse_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TOTALS, **changes)


def test_a_spec_survives_its_attribute() -> None:
    spec = dataclasses.replace(
        SPEC,
        eod=0,
        special=(0, 3),
        corpus=({"name": "a.bin", "tokens": 4, "documents": 2, "sha256": "ab"},),
        tokenizer="abc",
        parameters={"part": "1/2", "workers": None},
        versions={"python": "3.11"},
        provenance={"git_commit": None},
    )
    assert store.StoreSpec.from_attribute(spec.to_attribute(), where="here") == spec
    packed = dataclasses.replace(
        SPEC,
        scope="packed",
        order="sha256:1",
        seq_length=2,
        totals=dataclasses.replace(TOTALS, pairs=4),
    )
    assert store.StoreSpec.from_attribute(packed.to_attribute(), where="here") == packed


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ({}, r"lacks \['token_counts'\]"),
        ({"token_counts": np.zeros(9, np.int64)}, r"is int64 \(9,\), int64 \(10,\) is needed"),
        ({"token_counts": np.zeros(10)}, "is float64"),
        ({"token_counts": np.full(10, -1)}, "holds -1"),
        ({"token_counts": np.zeros(10, np.int64), "colour": np.zeros(1)}, "no vector 'colour'"),
    ],
)
def test_vectors_are_those_of_the_kind(
    tmp_path: Path, vectors: dict[str, np.ndarray], message: str
) -> None:
    layouts = {"counts": store.MatrixLayout(shape=(10, 10), entries=2, max_count=1)}
    with pytest.raises(ValueError, match=message):
        store.create_store(tmp_path / "s", SPEC, matrices=layouts, vectors=vectors)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ({}, "needs the matrix 'counts'"),
        ({"counts": ((10, 9), 2)}, r"has shape \(10, 9\), \(10, 10\) is needed"),
        ({"counts": ((10, 10), 3)}, "has 3 entries, totals says 2"),
        ({"counts": ((10, 10), 2), "halves/odd": ((10, 10), 2)}, "no matrix 'halves/odd'"),
    ],
)
def test_matrices_are_those_of_the_kind(
    tmp_path: Path, matrices: dict[str, Any], message: str
) -> None:
    layouts = {
        name: store.MatrixLayout(shape=shape, entries=entries, max_count=1)
        for name, (shape, entries) in matrices.items()
    }
    vectors = {"token_counts": np.zeros(10, np.int64)}
    with pytest.raises(ValueError, match=message):
        store.create_store(tmp_path / "s", SPEC, matrices=layouts, vectors=vectors)


def test_integer_widths_follow_the_sizes() -> None:
    def widths(entries: int, max_count: int) -> tuple[str, str]:
        layout = store.MatrixLayout(shape=(2, 2), entries=entries, max_count=max_count)
        return str(layout.data_dtype), str(layout.index_dtype)

    assert widths(2**31 - 1, 2**32 - 1) == ("uint32", "int32")
    assert widths(2**31, 2**32) == ("uint64", "int64")
