"""Training of toy models: repeats, stacks, resumes; the optimiser and the models by slow twins."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes.checkpoints import Checkpoint, check_series
from workflows.controlled.models import (
    ModelConfig,
    activation,
    attention_weights,
    initial_parameters,
    logits,
    model_inputs,
    monomial,
)
from workflows.controlled.run_store import load_run, run_path, save_run, train_stack
from workflows.controlled.runs import RunConfig, TrainedRun
from workflows.controlled.tasks import MinMaxTask, PairTask, SumTask, built
from workflows.controlled.training import Training, train


def config(**changes: Any) -> RunConfig:
    """Modular addition of 1..10: two batches an epoch."""
    shared: dict[str, Any] = {
        "task": PairTask(rule="mod", size=10, vocab_size=30),
        "model": ModelConfig(hidden_size=16, kv_channels=8),
        "epochs": 6,
        "batch_size": 50,
        "checkpoints": (0, 2),
    }
    return RunConfig(**shared | changes)


def ending(seed: int) -> RunConfig:
    """A run that is accurate enough before its epochs are over, after 47 to 58 of them."""
    return config(
        task=PairTask(rule="mod", size=10, modulus=7, vocab_size=30),
        model=ModelConfig(hidden_size=32, gamma=0.5),
        epochs=150, lr=0.01, stop_accuracy=0.9, seed=seed,
    )  # fmt: skip


def assert_same(one: TrainedRun, other: TrainedRun) -> None:
    np.testing.assert_array_equal(one.loss_E, other.loss_E)
    np.testing.assert_array_equal(one.hits_E, other.hits_E)
    np.testing.assert_array_equal(one.kept_T, other.kept_T)
    for name, rows in one.parameters.items():
        np.testing.assert_array_equal(rows, other.parameters[name])


MODELS = [
    ModelConfig(hidden_size=16),
    ModelConfig(hidden_size=16, kv_channels=8, kind="attention"),
    ModelConfig(hidden_size=16, embedding="fixed_signature"),
    ModelConfig(hidden_size=16, embedding="fixed_random"),
    ModelConfig(hidden_size=16, coefficients=(1.0, 0.5, 0.25)),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.kind} {m.embedding} {m.coefficients}")
def test_a_run_repeats_and_another_seed_differs(model: ModelConfig) -> None:
    one, again, other = (train([config(model=model, seed=seed)])[0] for seed in (1, 1, 2))
    assert_same(one, again)
    assert (one.loss_E != other.loss_E).all()
    assert (one.parameters["unembedding"] != other.parameters["unembedding"]).any()


@pytest.mark.parametrize("model", MODELS[:3], ids=lambda m: f"{m.kind} {m.embedding}")
def test_a_run_is_the_same_whatever_is_stacked_beside_it(model: ModelConfig) -> None:
    """To the bit: each product of a batch of matrices is made by itself."""
    alone = config(model=model, seed=1)
    others = [
        replace(alone, seed=seed, lr=1e-3, weight_decay=0.0, model=replace(model, gamma=0.7))
        for seed in (2, 3, 4)
    ]
    others.append(replace(alone, task=PairTask(rule="add", size=10, vocab_size=30)))
    assert len({one.stacks_with() for one in (alone, *others)}) == 1
    assert_same(train([*others[:2], alone, *others[2:]])[2], train([alone])[0])


def test_runs_of_other_shape_do_not_stack() -> None:
    nine = PairTask(rule="mod", size=9, vocab_size=30)
    shapes = [config(), config(batch_size=25), config(epochs=7), config(model=MODELS[1]),
              config(task=nine), config(dtype="float64")]  # fmt: skip
    assert len({one.stacks_with() for one in shapes}) == len(shapes)


def test_every_hyperparameter_is_in_the_record_and_in_the_key() -> None:
    record = config().record()["run"]
    assert record.keys() == {field.name for field in fields(RunConfig)}
    assert record["model"].keys() == {field.name for field in fields(ModelConfig)}
    assert record["task"].keys() == {field.name for field in fields(PairTask)}
    changed = [
        config(seed=1), config(lr=1e-3), config(weight_decay=0.0), config(beta1=0.8),
        config(beta2=0.9), config(eps=1e-7), config(epochs=7), config(batch_size=None),
        config(dtype="float64"), config(checkpoints=(1,)), config(evaluate_every=2),
        config(stop_accuracy=0.5), config(model=ModelConfig(gamma=0.5)),
        config(task=PairTask(rule="add", size=10, vocab_size=30)),
        config(task=SumTask(length=2, size=10, vocab_size=30)),
    ]  # fmt: skip
    assert len({one.key() for one in (config(), *changed)}) == len(changed) + 1


def test_accuracy_is_counted_in_integers_of_all_pairs() -> None:
    run = train([config(epochs=60, seed=1)])[0]
    assert run.hits_E.dtype == np.int64
    assert (
        run.total == 10**2 == len(np.unique(built(run.config.task).enumerated.samples_NL, axis=0))
    )
    checkpoint = run.checkpoint(60)
    task = built(run.config.task)
    right = checkpoint.logits(run.config.model, task).argmax(axis=1) == task.enumerated.labels_N
    assert run.hits_E[-1] == right.sum()
    assert run.accuracy[-1] == right.sum() / 100


def test_each_epoch_takes_every_sample_once() -> None:
    training = Training([config(batch_size=30, seed=seed) for seed in (1, 2)])
    seen = torch.cat(training._batches(), dim=1)
    assert [one.shape[1] for one in training._batches()] == [30, 30, 30, 10]
    assert (seen.sort(dim=1).values == torch.arange(100)).all()
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize("kind", ["ffn", "attention"])
def test_the_optimiser_is_adamw(kind: str) -> None:
    run = config(
        model=ModelConfig(hidden_size=16, kv_channels=8, kind=kind), dtype="float64",
        batch_size=None, epochs=12, weight_decay=0.3, lr=0.02, checkpoints=(0,),
    )  # fmt: skip
    ours = train([run])[0]
    task = built(run.task)
    twin = {name: torch.from_numpy(rows[0])[None].clone().requires_grad_()
            for name, rows in ours.parameters.items()}  # fmt: skip
    adamw = torch.optim.AdamW(twin.values(), lr=run.lr, weight_decay=run.weight_decay)
    inputs = model_inputs(run.model, task, torch.float64)[None]
    labels = torch.from_numpy(task.enumerated.labels_N)
    for _ in range(run.epochs):
        adamw.zero_grad()
        outputs = logits(run.model, twin, inputs)[0]
        torch.nn.functional.cross_entropy(outputs, labels).backward()
        adamw.step()
    for name, rows in ours.parameters.items():
        np.testing.assert_allclose(rows[-1], twin[name][0].detach().numpy(), rtol=1e-7, atol=1e-7)


def test_the_attention_model_by_plain_loops() -> None:
    task = built(MinMaxTask(size=3, vocab_size=8))
    model = ModelConfig(kind="attention", hidden_size=6, kv_channels=4, gamma=0.2)
    drawn = initial_parameters(model, task, torch.Generator().manual_seed(0))
    drawn = {name: rows.double() for name, rows in drawn.items()}
    tokens = model_inputs(model, task, torch.float64)
    found = logits(model, drawn, tokens[None])[0].numpy()
    weights = attention_weights(drawn, tokens[None])[0].numpy()
    one = {name: rows[0].numpy() for name, rows in drawn.items()}
    for sample, (row, attention) in enumerate(zip(found, weights, strict=True)):
        e = one["embedding"][tokens[sample].numpy()] + one["position"]
        query = one["query"] @ e[-1]
        scores = np.array([(one["key"] @ e_s) @ query for e_s in e]) / 6**0.5
        expected = np.exp(scores) / np.exp(scores).sum()
        mixed = sum(a * (one["value"] @ e_s) for a, e_s in zip(expected, e, strict=True))
        np.testing.assert_allclose(attention, expected, rtol=1e-12)
        np.testing.assert_allclose(row, one["unembedding"] @ (one["output"] @ mixed), rtol=1e-12)


def test_the_ffn_sees_the_sum_of_its_embeddings() -> None:
    task = built(PairTask(rule="add", size=4, vocab_size=10))
    for model in (ModelConfig(hidden_size=5), ModelConfig(hidden_size=5, coefficients=(0.5, 0, 2))):
        drawn = initial_parameters(model, task, torch.Generator().manual_seed(0))
        found = logits(model, drawn, model_inputs(model, task, torch.float32)[None])[0]
        sums = drawn["embedding"][0][torch.from_numpy(task.enumerated.samples_NL)].sum(dim=1)
        hidden = sums.relu() if not model.coefficients else 0.5 * sums + 2 * sums**3
        torch.testing.assert_close(found, hidden @ drawn["unembedding"][0].T)


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_monomials_are_powers(degree: int) -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(activation(monomial(degree), z), z**degree)


@pytest.mark.parametrize(("gamma", "d_in"), [(0.5, 128), (1.0, 128)])
def test_initial_deviation_is_d_in_to_minus_gamma(gamma: float, d_in: int) -> None:
    task = built(PairTask(rule="add", size=4))
    drawn = initial_parameters(
        ModelConfig(kind="attention", gamma=gamma), task, torch.Generator().manual_seed(0)
    )
    assert drawn["embedding"].std().item() == pytest.approx(d_in**-gamma, rel=0.05)
    assert drawn["value"].std().item() == pytest.approx(d_in**-gamma, rel=0.05)
    assert drawn["output"].std().item() == pytest.approx(64**-gamma, rel=0.05)


def test_fixed_embeddings_only_learn_their_scale() -> None:
    for kind in ("fixed_signature", "fixed_random"):
        run = train([config(model=ModelConfig(hidden_size=16, embedding=kind))])[0]
        first, last = (run.checkpoint(epoch).input_embedding()[1:11] for epoch in (0, 6))
        np.testing.assert_array_equal(
            run.parameters["embedding"][0], run.parameters["embedding"][-1]
        )
        ratio = last / first
        np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
        assert ratio[0, 0] != pytest.approx(1, rel=1e-3)


def test_multisets_train_like_all_sequences_in_full_batches() -> None:
    shared: dict[str, Any] = {"batch_size": None, "dtype": "float64", "epochs": 30, "lr": 0.01}
    multisets = config(task=SumTask(length=2, size=10, vocab_size=30), **shared)
    sequences = config(task=PairTask(rule="mod", size=10, vocab_size=30), **shared)
    one, other = train([multisets])[0], train([sequences])[0]
    assert (one.total, len(built(multisets.task).enumerated.labels_N)) == (other.total, 55)
    np.testing.assert_allclose(one.loss_E, other.loss_E, rtol=1e-9)
    np.testing.assert_array_equal(one.hits_E, other.hits_E)


def test_weighted_samples_in_mini_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="full batch"):
        train([config(task=SumTask(length=2, size=10, vocab_size=30))])


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"lr": -1.0}, {"batch_size": 0}, {"checkpoints": (7,)}]
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needed"):
        config(**changes)


def test_an_interrupted_stack_goes_on_to_the_bit() -> None:
    configs = [ending(seed) for seed in (1, 2, 3)]
    straight = train(configs)
    assert len({int(run.kept_T[-1]) for run in straight}) > 1, "the runs should end apart"
    training = Training(configs)
    while training.epoch < int(min(run.kept_T[-1] for run in straight)) + 1:
        training.run_epoch()
    resumed = Training(configs)
    resumed.restore(training.state())
    while not resumed.finished:
        resumed.run_epoch()
    for one, other in zip(resumed.result(), straight, strict=True):
        assert_same(one, other)


def test_a_run_ends_at_its_accuracy_and_the_others_are_not_moved() -> None:
    together = train([ending(seed) for seed in (1, 2)])
    for run in together:
        assert run.accuracy[-1] >= 0.9
        assert (run.accuracy[:-1] < 0.9).all()
        assert run.first_epoch_at(0.9) == run.kept_T[-1]
        assert_same(run, train([run.config])[0])


def test_a_run_on_disk_is_the_run(tmp_path: Path) -> None:
    run = train([config()])[0]
    save_run(run, tmp_path)
    assert_same(load_run(tmp_path, run.config), run)
    assert [path.name for path in tmp_path.iterdir()] == [run_path(tmp_path, run.config).name]


def test_a_stack_left_half_way_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [config(seed=seed) for seed in (1, 2)]
    monkeypatch.setattr("workflows.controlled.run_store._SECONDS_BETWEEN_STATES", 0.0)

    def fail_at_four(self: Training, *, real: Any = Training.run_epoch) -> None:
        if self.epoch == 4:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "run_epoch", fail_at_four)
        with pytest.raises(KeyboardInterrupt):
            train_stack(configs, tmp_path, "test")
    assert not run_path(tmp_path, configs[0]).exists()
    train_stack(configs, tmp_path, "test")
    assert "goes on at epoch 4" in capsys.readouterr().err
    for one, straight in zip(configs, train(configs), strict=True):
        assert_same(load_run(tmp_path, one), straight)
    assert {path.suffix for path in tmp_path.iterdir()} == {".npz"}


def test_a_toy_model_is_a_checkpoint_for_the_probes() -> None:
    run = train([config(checkpoints=(0, 3))])[0]
    series: list[Checkpoint] = [run.checkpoint(epoch) for epoch in (0, 3, 6)]
    check_series(series)
    tokens = np.array([3, 1])
    assert series[0].vocab_size == 30
    np.testing.assert_array_equal(
        series[1].input_embedding(tokens), run.parameters["embedding"][1][tokens]
    )
    assert series[1].unembedding().shape == (30, 16)
    assert series[2].describe()["config"] == run.config.record()
    with pytest.raises(ValueError, match="belong to another vocabulary"):
        series[0].input_embedding(np.array([30]))
    with pytest.raises(ValueError, match="checkpoints"):
        run.checkpoint(4)
