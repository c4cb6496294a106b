"""--dry-run of counts of contexts against what they then took, from a small sample."""

import pytest

from benchmarks.unlike_corpora import CORPORA, write_unlike
from signatures.context_count import count_contexts
from signatures.context_estimate import estimate_contexts
from signatures.contexts import ContextOptions
from signatures.scope import CountOptions, Scope

SAMPLE, TOKENS = 1 << 18, 1_500_000
PACKED = Scope(kind="packed", seq_length=256)


@pytest.fixture(scope="module", params=CORPORA)
def corpus(request, tmp_path_factory):
    return write_unlike(tmp_path_factory.mktemp("unlike"), request.param, TOKENS)


def predicted_and_found(folder, corpus, **asked):
    contexts = ContextOptions(anchors="top:30", **asked)
    options = CountOptions(workers=1, partition_tokens=256_000)
    same = {"out": folder / "s", "contexts": contexts, "scope": PACKED, "options": options}
    predicted = estimate_contexts(corpus, sample_tokens=SAMPLE, **same)
    assert list(folder.iterdir()) == []
    result = count_contexts(corpus, **same)
    result["disk_bytes"] = sum(f.stat().st_size for f in same["out"].rglob("*") if f.is_file())
    return predicted, result


def assert_near(predicted, result, names):
    for name in names:
        assert 0.5 <= predicted[name] / result[name] <= 2, name


@pytest.mark.parametrize("min_count", [1, 3])
def test_first_order_within_a_factor_of_two(tmp_path, corpus, min_count):
    predicted, result = predicted_and_found(
        tmp_path, corpus, kind="first-order", context_tokens="top:500", min_count=min_count
    )
    assert predicted["tokens"] == result["tokens"] > 4 * SAMPLE
    assert predicted["partitions"] == result["partitions"]
    assert_near(predicted, result, ("entries", "disk_bytes"))


def test_projected_within_a_factor_of_two(tmp_path, corpus):
    predicted, result = predicted_and_found(tmp_path, corpus, kind="projected", columns=8, seed=1)
    assert_near(predicted, result, ("entries", "disk_bytes"))
