"""Program layers under DistributedDataParallel."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import neurocoder as nc
from ranks import run_both


def build(steps, residual):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(21, 8), nn.ReLU(), nn.Linear(8, 4))
    sizes = {"slots": 6, "key_dim": 2, "heads": 2, "least_used": 3, "hidden": 4}
    return nc.recode(plain, "*", nc.ProgramConfig(steps=steps, residual=residual, **sizes))


def work(rank, folder):
    x = torch.randn(8, 2, 9, generator=torch.Generator().manual_seed(1))
    for case in ((1, True), (3, False), (3, "plain")):
        alone, model = build(*case), DistributedDataParallel(build(*case))
        for _ in range(2):  # a parameter left unused makes the second forward fail
            model.zero_grad()
            (model(x[rank::2]).square().mean() + nc.auxiliary_loss(model)).backward()
        (alone(x).square().mean() + nc.auxiliary_loss(alone)).backward()
        for (name, p), q in zip(alone.named_parameters(), model.module.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, msg=lambda m, about=f"{case} {name}": f"{about}: {m}")


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    run_both(work, tmp_path)
