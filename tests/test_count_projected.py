"""Projected counts against first-order ones times the matrix: exact, whatever the partitions."""

import numpy as np
import pytest
from counting import context_counts, samples_of, text_like, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import documents, flatten, write_corpus

from corpus.store import InputOptions
from signatures.context_count import count_contexts
from signatures.contexts import ContextOptions
from signatures.merge import merge_stores
from signatures.scope import CountOptions, Scope
from signatures.signs import sign_matrix
from signatures.store import open_signatures, verify_store

few = settings(max_examples=8)
V = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("projected")


def count(corpus, out, scope=None, *, anchors="all", contexts="all", **options):
    names = ("columns", "seed", "matrix")
    asked = {name: options.pop(name) for name in names if name in options}
    contexts = ContextOptions(kind="projected", anchors=anchors, context_tokens=contexts, **asked)
    options = {"workers": 1, "overwrite": True} | options
    return count_contexts(
        corpus,
        out=out,
        contexts=contexts,
        input=InputOptions(vocab_size=V),
        scope=scope,
        options=CountOptions(**options),
    )


def check(store, pieces, matrix_CQ, window=None):
    """Sums of a store are the naive counts times the matrix."""
    signatures = open_signatures(store)
    contexts = signatures.context_tokens.tolist()
    counts, occurrences, _ = context_counts(pieces, range(V), contexts, window)
    for index, anchor in enumerate(signatures.anchors.tolist()):
        expected = np.zeros((V, matrix_CQ.shape[1]), np.int64)
        for (a, label, token), n in counts.items():
            if a == anchor:
                expected[label] += n * matrix_CQ[contexts.index(token)].astype(np.int64)
        found = np.zeros_like(expected)
        labels, sums = signatures.projected(anchor)
        found[labels] = sums
        assert np.array_equal(found, expected)
        assert signatures.anchor_occurrences[index] == occurrences[anchor]
    assert verify_store(store) == []


@few
@given(
    docs=documents(vocab_size=V, max_documents=6, max_length=50),
    window=st.none() | st.integers(1, 15),
    size=st.integers(1, 60),
    seed=st.integers(0, 2**62),
)
def test_random_signs_whatever_the_partitions(folder, docs, window, size, seed):
    corpus = write_corpus(folder, docs)
    scope = Scope(window=window)
    count(corpus, folder / "whole", scope, columns=70, seed=seed)
    count(corpus, folder / "cut", scope, columns=70, seed=seed, partition_tokens=size)
    assert tree(folder / "cut") == tree(folder / "whole")
    signs_CQ = sign_matrix(np.arange(V), 70, seed)
    assert set(np.unique(signs_CQ)) == {-1, 1}
    check(folder / "whole", docs, signs_CQ, window)
    assert np.array_equal(open_signatures(folder / "whole").projection_matrix, signs_CQ)


def test_signs_depend_on_seed_token_and_column_alone():
    signs_CQ = sign_matrix(np.arange(500), 130, 7)
    assert np.array_equal(sign_matrix(np.array([499, 3]), 130, 7), signs_CQ[[499, 3]])
    assert np.array_equal(sign_matrix(np.arange(500), 60, 7), signs_CQ[:, :60])
    assert (sign_matrix(np.arange(500), 130, 8) != signs_CQ).mean() == pytest.approx(0.5, abs=0.02)
    inner = signs_CQ.astype(float).T @ signs_CQ / 500
    assert np.abs(inner - np.eye(130)).max() < 5 / np.sqrt(500)


@pytest.mark.parametrize("scope", [Scope(), Scope(kind="packed", seq_length=9)])
def test_a_matrix_of_groups_and_parts(tmp_path, scope):
    tokens = text_like(1000, V, seed=5).tolist()
    docs = [tokens[at : at + 100] for at in range(0, 1000, 100)]
    corpus = write_corpus(tmp_path, docs)
    (tmp_path / "contexts").write_text("3\n1\n8\n0\n")
    groups_CQ = np.array([[1, 0], [0, 1], [127, 0], [0, -128]], np.int64)
    np.save(tmp_path / "groups.npy", groups_CQ)
    asked = {"matrix": tmp_path / "groups.npy", "contexts": str(tmp_path / "contexts")}
    asked["anchors"] = "rank:3-9"
    count(corpus, tmp_path / "whole", scope, **asked)
    pieces = samples_of(flatten(docs).tolist(), 9) if scope.seq_length else docs
    check(tmp_path / "whole", pieces, groups_CQ)
    parts = [tmp_path / f"part{number}" for number in range(3)]
    for number, part in enumerate(parts):
        count(corpus, part, scope, part=(number, 3), **asked)
    merge_stores(parts, tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((V, 2)), "integers from -128 to 127"),
        (np.full((V, 2), 200), "values from 200 to 200"),
        (np.ones((V - 1, 2), int), "a row for each context token"),
        (np.ones(V, int), "shape"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(tmp_path, array, message):
    np.save(tmp_path / "m.npy", array)
    corpus = write_corpus(tmp_path, [[1, 2, 3]])
    with pytest.raises(ValueError, match=message):
        count(corpus, tmp_path / "s", matrix=tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "or --columns R with --seed S"),
        ({"columns": 3}, "--seed S is needed"),
        ({"columns": 3, "seed": 1, "halves": True}, "a projected store has none"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, settings, message):
    corpus = write_corpus(tmp_path, [[1, 2, 3]])
    with pytest.raises(ValueError, match=message):
        count(corpus, tmp_path / "s", **settings)
