"""First-order counts against naive ones: scopes, windows, halves, parts, dropped mass, resume."""

import json

import numpy as np
import pytest
from counting import context_counts, samples_of, stored_contexts, text_like, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import fingerprint
from strategies import documents, flatten, write_corpus

from corpus.store import InputOptions
from signatures import context_count
from signatures.context_count import count_contexts
from signatures.contexts import ContextOptions
from signatures.manifest import read_head
from signatures.merge import merge_stores
from signatures.scope import CountOptions, Scope
from signatures.store import open_signatures, verify_store

few = settings(max_examples=10)
V = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("first_order")


def count(
    corpus, out, scope=None, *, v=V, anchors="all", context_tokens="all", min_count=1, **options
):
    """Count with a vocabulary of ``v``."""
    contexts = ContextOptions(
        kind="first-order", anchors=anchors, context_tokens=context_tokens, min_count=min_count
    )
    options = {"workers": 1, "overwrite": True} | options
    return count_contexts(
        corpus,
        out=out,
        contexts=contexts,
        input=InputOptions(vocab_size=v, special=(0,)),
        scope=scope,
        options=CountOptions(**options),
    )


def ids(folder, name, tokens):
    """A file of token ids."""
    path = folder / name
    path.write_text("".join(f"{token}\n" for token in tokens))
    return str(path)


def check(store, pieces, anchors, contexts, window=None, half=None):
    """Counts, occurrences and dropped mass of a store are the naive ones."""
    counts, occurrences, dropped = context_counts(pieces, anchors, contexts, window)
    assert stored_contexts(store, half) == counts
    signatures = open_signatures(store)
    if half is not None:
        signatures = signatures.half(half)
    found = zip(signatures.anchors, signatures.anchor_occurrences, signatures.dropped, strict=True)
    assert {int(a): (int(n), int(d)) for a, n, d in found} == {
        a: (occurrences[a], dropped[a]) for a in anchors
    }


def test_the_hand_worked_answer(tmp_path):
    corpus = write_corpus(tmp_path, [[1, 2, 1, 3]])
    count(corpus, tmp_path / "s", v=5, anchors=ids(tmp_path, "anchors", [1]))
    assert stored_contexts(tmp_path / "s") == {(1, 3, 1): 1, (1, 3, 2): 1}
    signature = open_signatures(tmp_path / "s").first_order(1).toarray()
    assert signature[3].tolist() == [0, 0.5, 0.5, 0, 0]
    assert signature.sum() == 1.0


@few
@given(
    docs=documents(vocab_size=V, max_documents=8, max_length=60),
    anchors=st.lists(st.integers(0, V - 1), min_size=1, max_size=6, unique=True),
    contexts=st.lists(st.integers(0, V - 1), min_size=1, max_size=20, unique=True),
    window=st.none() | st.integers(1, 20),
    size=st.integers(1, 60),
)
def test_documents_whatever_the_partitions(folder, docs, anchors, contexts, window, size):
    corpus = write_corpus(folder, docs)
    which = {
        "anchors": ids(folder, "anchors", anchors),
        "context_tokens": ids(folder, "contexts", contexts),
    }
    scope = Scope(window=window)
    count(corpus, folder / "whole", scope, halves=True, **which)
    count(corpus, folder / "cut", scope, halves=True, partition_tokens=size, **which)
    assert tree(folder / "cut") == tree(folder / "whole")
    check(folder / "whole", docs, anchors, contexts, window)
    check(folder / "whole", docs[::2], anchors, contexts, window, half="even")
    check(folder / "whole", docs[1::2], anchors, contexts, window, half="odd")


@few
@given(
    docs=documents(vocab_size=9, max_documents=6, max_length=40),
    seq_length=st.integers(1, 30),
    size=st.integers(1, 60),
)
def test_samples_whatever_the_partitions(folder, docs, seq_length, size):
    corpus = write_corpus(folder, docs)
    scope = Scope(kind="packed", seq_length=seq_length)
    count(corpus, folder / "packed", scope, v=9, halves=True)
    count(corpus, folder / "packed-cut", scope, v=9, halves=True, partition_tokens=size)
    assert tree(folder / "packed-cut") == tree(folder / "packed")
    pieces = samples_of(flatten(docs).tolist(), seq_length)
    check(folder / "packed", pieces, range(9), range(9))
    check(folder / "packed", pieces[::2], range(9), range(9), half="even")


def test_the_samples_of_an_order(tmp_path):
    docs = [[1, 2, 3, 1], [4, 1, 2], [2, 1, 4, 4, 1]]
    corpus = write_corpus(tmp_path, docs)
    sequences, samples = np.array([2, 0, 1, 0]), np.array([2, 0, 0, 3])
    np.savez(tmp_path / "order.npz", sequences=sequences, samples=samples, seq_length=3)
    scope = Scope(kind="packed", order=tmp_path / "order.npz")
    for size in (1, 100):
        count(corpus, tmp_path / "s", scope, v=6, partition_tokens=3 * size)
        stream = [token for number in sequences for token in docs[number]]
        pieces = [stream[3 * sample : 3 * sample + 4] for sample in samples]
        check(tmp_path / "s", pieces, range(6), range(6))


@few
@given(
    docs=documents(vocab_size=12, max_documents=8, max_length=80, min_documents=1),
    min_count=st.integers(2, 5),
)
def test_rare_entries_are_left_out_and_accounted_for(folder, docs, min_count):
    corpus = write_corpus(folder, docs)
    contexts = ids(folder, "some", range(0, 12, 2))
    count(corpus, folder / "min", v=12, context_tokens=contexts, min_count=min_count, halves=True)
    counts, _, outside = context_counts(docs, range(12), range(0, 12, 2))
    kept = {key: n for key, n in counts.items() if n >= min_count}
    assert stored_contexts(folder / "min") == kept
    even, _, even_outside = context_counts(docs[::2], range(12), range(0, 12, 2))
    assert stored_contexts(folder / "min", "even") == {k: n for k, n in even.items() if k in kept}
    signatures = open_signatures(folder / "min")
    rare = {a: sum(n for k, n in counts.items() if k[0] == a and k not in kept) for a in range(12)}
    assert signatures.dropped.tolist() == [outside[a] + rare[a] for a in range(12)]
    even_rare = [sum(n for k, n in even.items() if k[0] == a and k not in kept) for a in range(12)]
    expected = [even_outside[a] + even_rare[a] for a in range(12)]
    assert signatures.half("even").dropped.tolist() == expected
    _, manifest = read_head(folder / "min")
    everything, _, _ = context_counts(docs, range(12), range(12))
    rows = {(a * 12 + v, b): n for (a, v, b), n in everything.items()}
    stored = {(a * 12 + v, b): n for (a, v, b), n in kept.items()}
    assert manifest.fingerprint == fingerprint(stored)
    left = (fingerprint(rows) - fingerprint(stored)) % 2**64
    assert manifest.dropped_fingerprint == left


def test_anchors_by_rank_and_sparse_rows_beside_dense_ones(tmp_path):
    tokens = text_like(20_000, 300, seed=1).tolist()
    docs = [tokens[at : at + 500] for at in range(0, 20_000, 500)]
    corpus = write_corpus(tmp_path, docs)
    result = count(
        corpus, tmp_path / "s", v=300, anchors="top:5", context_tokens="top:64", workers=2,
        partition_tokens=3000, memory=1 << 30,
    )  # fmt: skip
    signatures = open_signatures(tmp_path / "s")
    assert result["anchors"] == 5
    check(tmp_path / "s", docs, signatures.anchors.tolist(), signatures.context_tokens.tolist())
    assert verify_store(tmp_path / "s") == []
    assert json.dumps(result)


@pytest.mark.parametrize("scope", [Scope(), Scope(window=7), Scope(kind="packed", seq_length=11)])
def test_parts_merge_into_one_run(tmp_path, scope):
    tokens = text_like(3000, 12, seed=2).tolist()
    docs = [tokens[at : at + 75] for at in range(0, 3000, 75)]
    corpus = write_corpus(tmp_path, docs)
    asked = {"v": 12, "anchors": "rank:2-6", "context_tokens": "top:8", "halves": True}
    for min_count in (1, 9):
        whole = tmp_path / f"whole{min_count}"
        count(corpus, whole, scope, min_count=min_count, **asked)
        parts = [tmp_path / f"part{number}" for number in range(3)]
        for number, part in enumerate(parts):
            count(corpus, part, scope, min_count=min_count, part=(number, 3), **asked)
        merge_stores(parts[::-1], tmp_path / "merged", overwrite=True)
        assert tree(tmp_path / "merged") == tree(whole)
        assert verify_store(tmp_path / "merged") == []


def test_more_corpus_adds_up_and_a_finished_minimum_is_refused(tmp_path):
    docs = [[1, 2, 1, 3, 2, 1], [2, 1, 1, 2], [3, 3, 1, 2, 1]]
    stores, asked = [], {"v": 5, "anchors": ids(tmp_path, "anchors", [1, 2])}
    for number, document in enumerate(docs):
        corpus = write_corpus(tmp_path, [document])
        stores.append(tmp_path / f"s{number}")
        count(corpus, stores[-1], **asked)
    merge_stores(stores, tmp_path / "all")
    check(tmp_path / "all", docs, [1, 2], range(5))
    count(corpus, tmp_path / "few", min_count=2, **asked)
    with pytest.raises(ValueError, match="min_count 2 are gone"):
        merge_stores([stores[0], tmp_path / "few"], tmp_path / "refused")
    asked["anchors"] = ids(tmp_path, "others", [1, 3])
    count(corpus, tmp_path / "other", **asked)
    with pytest.raises(ValueError, match="other anchors than"):
        merge_stores([stores[0], tmp_path / "other"], tmp_path / "refused")


def test_a_killed_run_goes_on_with_what_is_finished(tmp_path, monkeypatch):
    tokens = text_like(4000, 50, seed=3).tolist()
    corpus = write_corpus(tmp_path, [tokens[at : at + 400] for at in range(0, 4000, 400)])
    asked = {"v": 50, "anchors": "top:9", "halves": True, "partition_tokens": 500}
    count(corpus, tmp_path / "whole", **asked)
    stages = context_count.sum_stage

    def fails(*arguments):
        stages(*arguments)
        raise RuntimeError("killed after adding up")

    monkeypatch.setattr(context_count, "sum_stage", fails)
    with pytest.raises(RuntimeError, match="killed"):
        count(corpus, tmp_path / "s", **asked)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="cannot resume: parameters"):
        count(corpus, tmp_path / "s", overwrite=False, resume=True, **asked | {"anchors": "top:8"})
    partials = sorted((tmp_path / "s.scratch" / "partials").glob("*.lasts.npy"))
    partials[3].write_bytes(partials[3].read_bytes()[:-1])
    result = count(corpus, tmp_path / "s", overwrite=False, resume=True, **asked)
    assert (result["reused_partitions"], result["partitions"]) == (7, 8)
    assert result["reused_ranges"] == 1
    assert tree(tmp_path / "s") == tree(tmp_path / "whole")


def test_altered_scratch_is_noticed(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path, [text_like(500, 20, seed=4).tolist()])
    stages = context_count.sum_stage

    def alters(runner, job, *others):
        items = next(iter((job.count.scratch / "partials").glob("*.items.npy")))
        array = np.load(items)
        array[[0, 1]] = array[[1, 0]]  # the same tokens, in another order
        np.save(items, array)
        return stages(runner, job, *others)

    monkeypatch.setattr(context_count, "sum_stage", alters)
    with pytest.raises(RuntimeError, match="not those of the occurrences"):
        count(corpus, tmp_path / "s", v=20)


@pytest.mark.parametrize(
    ("scope", "changes", "message"),
    [
        (Scope(kind="packed"), {}, "give --seq-length"),
        (Scope(), {"anchors": "top:0"}, "names no token"),
        (Scope(), {"anchors": "rank:1-99"}, "rank 99 is asked for"),
    ],
)
def test_what_cannot_be_counted_is_said(tmp_path, scope, changes, message):
    corpus = write_corpus(tmp_path, [[1, 2, 3]])
    with pytest.raises(ValueError, match=message):
        count(corpus, tmp_path / "s", scope, **changes)
    assert not list(tmp_path.glob("s*"))
