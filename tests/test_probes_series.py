import json
from pathlib import Path

import numpy as np
import pytest
import torch

from corpus.store import CorpusWriter, open_corpus
from probes.attention import attention_signature, take_sample
from probes.megatron import MegatronCheckpoint
from probes.probe import probe_series
from probes.results import (
    ResultFormatError,
    dataset,
    open_results,
)
from probes.similarity import compare, cosine_matrix
from probes.statistics import mantel_p
from signatures.store import open_signatures
from tests.probe_series import VOCAB, documents, write_checkpoint, write_series
from tests.stores import write_next_token
from workflows.cli import run

FEW = {"tokens": "top:12", "permutations": 49, "resamples": 40}


def test_every_number_follows_from_its_definition(tmp_path: Path) -> None:
    paths, store_path = write_series(tmp_path)
    result = probe_series(paths, signatures=store_path, out=tmp_path / "p.zarr", **FEW)
    tree = open_results(tmp_path / "p.zarr")
    direct, store = tree["direct"].to_dataset(), open_signatures(store_path)
    tokens = direct["token"].values
    counts = np.bincount(np.concatenate(documents()), minlength=VOCAB)
    assert (np.sort(counts)[::-1][:12] == counts[tokens]).all()
    assert (direct["occurrences"].values == counts[tokens]).all()
    signature = cosine_matrix(store.next_token_matrix(tokens))
    for place, path in enumerate(paths):
        model = cosine_matrix(MegatronCheckpoint(path).input_embedding(tokens))
        expected = compare(model, signature)
        assert direct["rho"].values[place] == pytest.approx(expected.pearson)
        assert direct["spearman"].values[place] == pytest.approx(expected.spearman)
        assert direct["mse"].values[place] == pytest.approx(expected.mse)
        np.testing.assert_allclose(direct["similarity"].values[place], model, atol=1e-6)
    assert [row["step"] for row in result["direct"]] == [0, 4, 16, 64]
    assert result["direct"][-1]["p"] == 1 / 50
    np.testing.assert_allclose(
        tree["unembedding"]["signature_similarity"].values,
        cosine_matrix(store.predecessor_matrix(tokens)),
    )


def test_layers_follow_their_definitions(tmp_path: Path) -> None:
    """One corpus of the store's documents: FFN and attention rows against their signatures."""
    paths, store_path = write_series(tmp_path, steps=(4, 64))
    with CorpusWriter(tmp_path / "corpus", np.dtype(np.uint16), vocab_size=VOCAB) as writer:
        for document in documents():
            writer.add_document(np.array(document, np.uint16))
    result = probe_series(
        paths,
        signatures=store_path,
        corpus=tmp_path / "corpus",
        corpus_tokens=1000,
        out=tmp_path / "p.zarr",
        **FEW,
    )
    tree, store = open_results(tmp_path / "p.zarr"), open_signatures(store_path)
    tokens = tree["ffn"]["token"].values
    checkpoint = MegatronCheckpoint(paths[1])
    rows = torch.from_numpy(checkpoint.input_embedding(tokens))
    decoder = checkpoint.decoder()
    sample = take_sample(open_corpus(tmp_path / "corpus"), num_tokens=1000, seq_length=20)
    attended = attention_signature(decoder, sample, tokens).weights
    for index, layer in enumerate(decoder.layers):
        ffn = compare(
            cosine_matrix(layer.feed_forward(layer.ffn_norm(rows)).numpy()),
            cosine_matrix(store.next_token_matrix(tokens)),
        )
        weight = layer.attention.output.weight @ layer.attention.value.weight
        attention = compare(
            cosine_matrix((rows @ weight.T).numpy()), cosine_matrix(attended[index])
        )
        for path, expected in (("ffn", ffn), ("attention", attention)):
            row = next(r for r in result[path] if (r["step"], r["layer"]) == (64, index))
            assert row["rho"] == pytest.approx(expected.pearson, abs=1e-5)
            p = mantel_p(
                cosine_matrix(
                    attended[index] if path == "attention" else store.next_token_matrix(tokens)
                ),
                tree[path]["similarity"].values[1, index][None].astype(np.float64),
                permutations=49,
            )
            assert row["p"] == pytest.approx(p[0], abs=0.03)
    assert tree["attention"]["signature_similarity"].dims[:2] == ("step", "layer")
    assert np.isfinite(tree["attention"]["rho_gain"].values).all()


@pytest.mark.filterwarnings("ignore:Port 8787 is already in use")  # of another run of the suite
def test_dask_workers_change_nothing(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path)
    here = probe_series(paths, signatures=store, out=tmp_path / "a.zarr", **FEW)
    there = probe_series(paths, signatures=store, out=tmp_path / "b.zarr", workers=2, **FEW)
    assert here["direct"] == there["direct"]
    assert here["ffn"] == there["ffn"]


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path, steps=(4,))
    with CorpusWriter(
        tmp_path / "c", np.dtype(np.uint16), sidecar={"vocab_size": VOCAB + 3}
    ) as writer:
        writer.add_document(np.array([1, 2, 3], np.uint16))
    with pytest.raises(ValueError, match="vocabulary of 27"):
        probe_series(paths, signatures=store, corpus=tmp_path / "c", out=tmp_path / "p.zarr", **FEW)


def test_every_variable_has_units_and_a_name(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path)
    probe_series(paths, signatures=store, out=tmp_path / "p.zarr", **FEW)
    tree = open_results(tmp_path / "p.zarr")
    for group in tree.children.values():
        for name, variable in group.to_dataset().variables.items():
            assert variable.attrs["long_name"], name
            assert variable.attrs["units"], name
    record = tree.attrs["staircase"]
    assert record["provenance"]["versions"]["numpy"] == np.__version__
    assert record["draws"] == {"permutations": 49, "resamples": 40, "seed": 0}
    assert [row["step"] for row in record["checkpoints"]] == [0, 4, 16, 64]


def test_a_variable_nobody_described_cannot_be_written() -> None:
    with pytest.raises(KeyError, match="mystery"):
        dataset({"mystery": (("step",), [1.0])}, {"step": ("step", [0])})


def test_neighbors_are_the_largest_cosines(tmp_path: Path) -> None:
    paths, store_path = write_series(tmp_path)
    probe_series(paths, signatures=store_path, out=tmp_path / "p.zarr", **FEW)
    group = open_results(tmp_path / "p.zarr")["neighbors"].to_dataset()
    everything = cosine_matrix(open_signatures(store_path).next_token_matrix(np.arange(VOCAB)))
    np.fill_diagonal(everything, -1)
    for place, token in enumerate(group["token"].values):
        assert group["nearest"].values[place, 0] == np.nanargmax(everything[token])
        assert group["nearest_similarity"].values[place, 0] == np.nanmax(everything[token])


def test_same_seed_same_numbers(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path)
    results = [
        probe_series(paths, signatures=store, out=tmp_path / f"{n}.zarr", **FEW) for n in "ab"
    ]
    first, second = (open_results(tmp_path / f"{n}.zarr") for n in "ab")
    assert results[0]["direct"] == results[1]["direct"]
    assert first["direct"].to_dataset().equals(second["direct"].to_dataset())


def test_resume_measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, store = write_series(tmp_path)
    out = tmp_path / "p.zarr"
    whole = probe_series(paths, signatures=store, out=tmp_path / "whole.zarr", **FEW)
    honest = MegatronCheckpoint.unembedding

    def fails_at_16(self: MegatronCheckpoint, tokens: np.ndarray | None = None) -> np.ndarray:
        if self.step == 16:
            raise KeyboardInterrupt
        return honest(self, tokens)

    monkeypatch.setattr(MegatronCheckpoint, "unembedding", fails_at_16)
    with pytest.raises(KeyboardInterrupt):
        probe_series(paths, signatures=store, out=out, **FEW)
    assert not out.exists()
    monkeypatch.setattr(MegatronCheckpoint, "unembedding", honest)
    resumed = probe_series(paths, signatures=store, out=out, resume=True, **FEW)
    assert resumed["reused_steps"] == 2
    assert resumed["direct"] == whole["direct"]
    assert not out.with_name("p.zarr.partial").exists()
    again = probe_series(paths, signatures=store, out=out, resume=True, **FEW)
    assert again["finished_before"]


def test_resume_does_not_take_measurements_of_other_tokens(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path)
    out, work = tmp_path / "p.zarr", tmp_path / "p.zarr.partial"
    probe_series(paths, signatures=store, out=tmp_path / "other.zarr", **FEW)
    work.mkdir()
    (work / "step_0000000.npz").write_bytes(b"cut short")
    found = probe_series(paths, signatures=store, out=out, resume=True, **FEW)
    assert found["reused_steps"] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokenizer": "other"}, "tokenizer hashes differ"),
        ({"vocab_size": VOCAB + 1}, "vocabulary of 24 found, 25 needed"),
        ({"vocab_size": VOCAB + 1, "vocab_source": "largest-id"}, "vocabulary of 24 found"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, fields: dict, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).normal(size=(VOCAB, 4))
    path = write_checkpoint(tmp_path, 0, rows, tokenizer_hash="one")
    fields = dict(fields)
    write_next_token(tmp_path / "s.zarr", documents(), fields.pop("vocab_size", VOCAB), **fields)
    code = run(
        ["probe", str(path), "--signatures", str(tmp_path / "s.zarr"), "--out", str(tmp_path / "p")]
    )
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_vocabulary_known_only_from_the_largest_id_is_no_mismatch(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(VOCAB, 4))
    path = write_checkpoint(tmp_path, 0, rows)
    smaller = [[token for token in document if token < 20] for document in documents()]
    write_next_token(tmp_path / "s.zarr", smaller, 20, vocab_source="largest-id")
    probed = probe_series([path], signatures=tmp_path / "s.zarr", out=tmp_path / "p.zarr", **FEW)
    assert probed["direct"][0]["step"] == 0


def test_constant_signature_is_undefined_not_one(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(VOCAB, 4))
    path = write_checkpoint(tmp_path, 0, rows)
    alike = [[token, 0] for token in range(VOCAB)]
    write_next_token(tmp_path / "s.zarr", alike, VOCAB)
    row = probe_series([path], signatures=tmp_path / "s.zarr", out=tmp_path / "p.zarr", **FEW)
    assert np.isnan(row["direct"][0]["rho"])
    assert np.isnan(row["direct"][0]["p"])
    assert np.isfinite(row["direct"][0]["mse"])


def test_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, store = write_series(tmp_path)
    command = ["probe", str(paths[0].parent), "--signatures", str(store), "--tokens", "top:8"]
    out = tmp_path / "p.zarr"
    assert run([*command, "--permutations", "9", "--out", str(out), "--json", "--resume"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["direct"]
    assert [row["step"] for row in rows] == [0, 4, 16, 64]
    assert {"rho", "spearman", "p"} <= rows[0].keys()
    assert "nothing to resume" in printed.err
    assert run([*command, "--out", str(out), "--resume"]) == 0
    assert "finished before" in capsys.readouterr().err
    assert run([*command, "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_a_rank_band_is_probed_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks 9 to 20 by count, ties to the lower id: other tokens, and so another rho."""
    paths, store = write_series(tmp_path)
    command = ["probe", str(paths[0].parent), "--signatures", str(store), "--permutations", "9"]
    found = {}
    for which in ("rank:9-20", "rank:1-12", "top:12"):
        out = tmp_path / f"{which.replace(':', '_')}.zarr"
        assert run([*command, "--tokens", which, "--out", str(out), "--json"]) == 0
        rho = [row["rho"] for row in json.loads(capsys.readouterr().out)["direct"]]
        found[which] = (rho, open_results(out)["direct"]["token"].values.tolist())
    counts = np.bincount(np.concatenate(documents()), minlength=VOCAB)
    ranked = np.lexsort((np.arange(VOCAB), -counts))
    assert found["rank:9-20"][1] == ranked[8:20].tolist()
    assert found["rank:1-12"] == found["top:12"]
    model = MegatronCheckpoint(paths[-1]).input_embedding(ranked[8:20])
    signature = open_signatures(store).next_token_matrix(ranked[8:20])
    expected = compare(cosine_matrix(model), cosine_matrix(signature)).pearson
    assert found["rank:9-20"][0][-1] == pytest.approx(expected)
    assert run([*command, "--tokens", "rank:20-99", "--out", str(tmp_path / "no.zarr")]) == 2
    assert "rank 99 is asked for" in capsys.readouterr().err


def test_something_else_is_no_result(tmp_path: Path) -> None:
    _, store = write_series(tmp_path, steps=(0,))
    with pytest.raises(ResultFormatError, match="not a probe result"):
        open_results(store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultFormatError, match="not a probe result"):
        open_results(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        open_results(tmp_path / "nowhere")
