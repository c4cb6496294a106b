"""The decoder itself: its parameters, its first weights, and the stand-ins for CUDA."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lm_processes import small_run

from lm_training import cpu
from lm_training.config import PRESETS, ParallelConfig
from lm_training.distributed import process_groups
from lm_training.megatron_core import quiet
from lm_training.model import build_decoder, build_model, transformer_config
from lm_training.parameters import count_parameters


@pytest.fixture
def run():
    return small_run(Path("corpus"), Path("out"))


@pytest.fixture(autouse=True)
def _one_process():
    with quiet(), cpu.stand_ins(), process_groups(ParallelConfig(), seed=0):
        yield


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_counted_on_the_meta_device(preset, tied, run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "meta")
    run = replace(run, model=replace(PRESETS[preset](), tied=tied))
    config = transformer_config(run)
    config.use_cpu_initialization = config.perform_initialization = False
    config.init_model_with_meta_device = True
    with torch.device("meta"), cpu.cuda_means_cpu():
        model = build_model(config, run)
    assert all(parameter.is_meta for parameter in model.parameters())
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embeddings = sum(
        size for name, size in sizes.items() if "embedding" in name or "output_layer" in name
    )
    counted = count_parameters(run.model)
    assert sum(sizes.values()) == counted.total
    assert sum(sizes.values()) - embeddings == counted.non_embedding


@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_initial_deviation_is_d_in_to_the_minus_gamma(gamma, run):
    run = replace(run, model=replace(run.model, gamma=gamma))
    seen = set()
    for name, parameter in build_decoder(run).inner.named_parameters():
        if parameter.dim() == 1:
            assert torch.all(parameter == 1), name
            continue
        deviation = parameter.shape[1] ** -gamma
        assert parameter.std().item() == pytest.approx(deviation, rel=0.03), name
        assert abs(parameter.mean().item()) < 5 * deviation / parameter.numel() ** 0.5, name
        seen.add(parameter.shape[1])
    hidden, heads, ffn = 64, 4 * 24, 128
    assert seen == {hidden, heads, ffn}


def test_every_matrix_has_numbers_of_its_own_and_the_seed_fixes_them(run):
    first, again, other = (
        dict(build_decoder(replace(run, seed=seed)).inner.named_parameters()) for seed in (1, 1, 2)
    )
    matrices = [name for name in first if first[name].dim() > 1]
    for name in matrices:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    leading = [first[name].flatten()[:8] / first[name].std() for name in matrices]
    assert len(np.unique(torch.stack(leading).detach().numpy(), axis=0)) == len(matrices)


def test_tied_embeddings_are_one_matrix(run):
    model = build_decoder(replace(run, model=replace(run.model, tied=True))).inner
    assert "output_layer.weight" not in dict(model.named_parameters())


def test_stand_ins_are_taken_away_again():
    with cpu.stand_ins(), cpu.cuda_means_cpu():
        assert torch.zeros(1, device="cuda").device.type == "cpu"
        assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
        torch.cuda.synchronize()
    assert torch.zeros(1).type() == "torch.FloatTensor"


def test_with_cuda_the_stand_ins_do_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.cuda.current_device, torch.cuda.synchronize
    with cpu.stand_ins(), cpu.cuda_means_cpu():
        assert (torch.cuda.current_device, torch.cuda.synchronize) == before
        assert torch.zeros(1).type() == "torch.FloatTensor"
