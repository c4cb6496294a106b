"""Run files: presets, refusals, the checkpoint schedule, the learning rate, the plan."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_processes import small_run

from corpus.config import ConfigError, load
from lm_training.config import (
    PRESETS,
    ModelConfig,
    RunConfig,
    checkpoint_steps,
    decoder_680m,
    decoder_as_printed,
    demo_run,
)
from lm_training.parameters import count_parameters
from lm_training.plan import plan
from lm_training.schedule import learning_rate

SHIPPED = sorted((Path(__file__).parents[1] / "workflows" / "runs").glob("*.toml"))

RUN_FILE = """
out = "run"
[model]
preset = "decoder_demo"
gamma = 0.5
[data]
corpus = "corpus"
seq_length = 128
[train]
steps = 100
"""


def loaded(tmp_path, text=RUN_FILE):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load(path, RunConfig)


def test_a_preset_fills_in_what_is_not_given(tmp_path):
    run = loaded(tmp_path, RUN_FILE.replace("gamma = 0.5", "gamma = 0.5\nvocab_size = 512"))
    assert (run.model.hidden_size, run.model.vocab_size, run.model.gamma) == (128, 512, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gamma = 0.5", "gama = 0.5", r"\[model\]: unknown key\(s\) \['gama'\]"),
        ('"decoder_demo"', '"decoder_1b"', "presets are decoder_680m"),
        ('preset = "decoder_demo"', "num_layers = 2", r"\['hidden_size'.*missing"),
        ("steps = 100", "", "either steps or tokens"),
        ("steps = 100", "steps = 0", "steps is 0"),
        ("steps = 100", "steps = 100\nlr = -1.0", "lr is -1.0"),
        ('corpus = "corpus"', "", "either corpus or blend"),
        ('"decoder_demo"', '"decoder_demo"\nkv_channels = 33', "RoPE needs an even number"),
        ("steps = 100", "steps = 100\n[parallel]\ntensor = 3", "cannot be cut 3 ways"),
        ("steps = 100", "steps = 100\n[log]\nprobe_every = 5", "belong together"),
        ("steps = 100", "steps = 100\n[checkpoint]\nevery = 0", "every is 0"),
    ],
)
def test_bad_run_files_are_refused(tmp_path, old, new, expected):
    with pytest.raises(ConfigError, match=expected):
        loaded(tmp_path, RUN_FILE.replace(old, new))


def test_a_blend_is_a_recipe_or_spelled_out(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[[source]]\ncorpus = "a"\nweight = 2\n[[source]]\ncorpus = "b"\nweight = 1\n'
    )
    by_name = loaded(tmp_path, RUN_FILE.replace('corpus = "corpus"', f'blend = "{recipe}"'))
    assert by_name.data.prefixes == (tmp_path / "a", tmp_path / "b")
    assert [source.weight for source in by_name.data.blend] == [2.0, 1.0]
    sources = '{corpus = "a", weight = 2}, {corpus = "b", weight = 1.0}'
    spelled = loaded(tmp_path, RUN_FILE.replace('corpus = "corpus"', f"blend = [{sources}]"))
    assert spelled.data.prefixes == (Path("a"), Path("b"))
    with pytest.raises(ConfigError, match="twice"):
        loaded(tmp_path, RUN_FILE.replace('"corpus"', '["a", "a"]'))


def test_tokens_round_up_to_whole_steps(tmp_path):
    run = loaded(tmp_path, RUN_FILE.replace("steps = 100", "tokens = 100_000"))
    assert run.tokens_per_step == 256 * 128
    assert run.steps == 4


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_run_files_that_ship_are_whole(path):
    run = load(path, RunConfig)
    assert run.out.name == path.stem
    assert run.checkpoint_steps()[-1] == run.steps


def test_shipped_run_files_hold_the_source_settings():
    folder = SHIPPED[0].parent
    big, printed = (
        load(folder / name, RunConfig) for name in ("decoder_680m.toml", "decoder_as_printed.toml")
    )
    assert (big.train.lr, big.train.global_batch_size, big.train.bf16) == (2.5e-4, 256, True)
    assert (big.train.min_lr_ratio, big.train.warmup_ratio) == (0.1, 0.03)
    assert sum(source.weight for source in big.data.blend) == 36.0
    assert plan(big)["non_embedding_parameters"] == 679_552_512
    assert plan(printed)["non_embedding_parameters"] == 453_035_008


@pytest.mark.parametrize(
    ("shape", "non_embedding", "untied"),
    [
        (decoder_680m(), 679_552_512, 865_150_464),
        (decoder_as_printed(), 453_035_008, 576_766_976),
    ],
)
def test_parameters_of_the_big_models(shape, non_embedding, untied):
    assert count_parameters(shape).non_embedding == non_embedding
    assert count_parameters(shape).total == untied
    tied = count_parameters(replace(shape, tied=True)).total
    assert tied == untied - shape.vocab_size * shape.hidden_size


def test_presets_are_named_as_they_are_called():
    assert set(PRESETS) == {
        "decoder_680m",
        "decoder_as_printed",
        "decoder_small",
        "decoder_demo",
    }
    for name, preset in PRESETS.items():
        assert replace(ModelConfig(preset=name), preset=None) == preset()


def test_checkpoint_schedule_of_the_source():
    assert checkpoint_steps(2300, early=True, every=500) == [
        *(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1500, 2000, 2300)
    ]
    assert checkpoint_steps(20, early=False, every=8) == [8, 16, 20]
    assert checkpoint_steps(100, early=True, every=40, early_until=16) == [
        *(0, 1, 2, 4, 8, 16, 40, 80, 100)
    ]


@given(
    total=st.integers(0, 3000),
    early=st.booleans(),
    every=st.integers(1, 700),
    early_until=st.integers(1, 600),
)
def test_checkpoint_schedule(total, early, every, early_until):
    steps = checkpoint_steps(total, early, every, early_until)
    assert steps == sorted(set(steps))
    assert steps[-1] == total
    assert all(0 <= step <= total for step in steps)
    if early and total:
        assert steps[:2] == [0, 1]
    after = early_until if early else 0
    assert {step for step in steps if step > after} >= {
        step for step in range(after + 1, total) if step % every == 0
    }


def test_learning_rate_warms_up_from_above_zero_and_ends_at_its_floor():
    run = demo_run(corpus=Path("c"), out=Path("o"), gamma=0.8, steps=600, seed=0)
    run = replace(run, train=replace(run.train, warmup_ratio=0.1, min_lr_ratio=0.1))
    rates = [learning_rate(step, run) for step in range(1, 601)]
    assert rates[0] == pytest.approx(run.train.lr / 60)
    assert max(rates) == rates[59] == run.train.lr
    assert rates[-1] == pytest.approx(run.train.lr * run.train.min_lr_ratio)
    assert rates[59:] == sorted(rates[59:], reverse=True)
    middle = (59 + 599) // 2
    assert rates[middle] == pytest.approx(run.train.lr * (1 + run.train.min_lr_ratio) / 2)


@pytest.mark.parametrize(("steps", "warmup_ratio"), [(1, 0.03), (1, 0.0), (5, 1.0), (3, 0.5)])
def test_learning_rate_of_short_runs(steps, warmup_ratio):
    run = small_run(Path("c"), Path("o"))
    run = replace(run, train=replace(run.train, steps=steps, warmup_ratio=warmup_ratio))
    assert all(0 < learning_rate(step, run) <= run.train.lr for step in range(1, steps + 1))
