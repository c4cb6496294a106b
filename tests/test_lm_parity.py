"""Logits of the Megatron decoder against an independent plain PyTorch one, same weights."""

from dataclasses import replace

import pytest
import torch
from lm_processes import small_run, write_corpus

from lm_training import cpu
from lm_training.config import ParallelConfig
from lm_training.distributed import process_groups
from lm_training.folder import whole_checkpoints
from lm_training.megatron_core import quiet
from lm_training.model import build_decoder
from lm_training.optimizer import build_optimizer
from lm_training.resume import load
from lm_training.train import train
from probes.checkpoints import open_series


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_equal_those_of_a_plain_decoder(tied, tmp_path):
    """After some steps, so that the gains of the norms have moved as well."""
    run = small_run(write_corpus(tmp_path / "corpus"), tmp_path / "run")
    run = replace(
        run,
        model=replace(run.model, tied=tied),
        train=replace(run.train, steps=4, lr=3e-2),
    )
    train(run)
    newest = whole_checkpoints(run.out / "checkpoints")[-1]
    tokens_BS = torch.randint(256, (3, 32), generator=torch.Generator().manual_seed(0))
    megatron_BSV = megatron_logits(run, newest, tokens_BS)
    (checkpoint,) = open_series([newest])
    plain = checkpoint.decoder()
    assert (plain.layers[0].attention_norm.weight - 1).abs().max() > 1e-3
    with torch.no_grad():
        plain_BSV = plain(tokens_BS)
    assert plain_BSV.std() > 0.1
    torch.testing.assert_close(megatron_BSV, plain_BSV, rtol=0, atol=1e-5)


def megatron_logits(run, path, tokens_BS):
    with quiet(), cpu.stand_ins(), process_groups(ParallelConfig(), seed=0):
        decoder = build_decoder(replace(run, seed=99))
        load(path, decoder, build_optimizer(run, decoder.wrapped))
        places_BS = torch.arange(tokens_BS.shape[1]).expand_as(tokens_BS)
        with torch.no_grad():
            return decoder.inner(tokens_BS, places_BS, None)
