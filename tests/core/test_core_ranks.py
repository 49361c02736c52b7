"""Core layers under DistributedDataParallel and `fully_shard` (FSDP2), in two processes."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import neurocoder as nc
from ranks import run_both


def build(config, control_dim):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(2, 17, 3), nn.Flatten(), nn.Linear(119, 9), nn.Tanh(), nn.Linear(9, 3))
    model = nc.recode(plain, "*", config, control_dim=control_dim)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def loss(model, x, z):
    if z is None:
        return model(x).square().mean()
    with nc.control(model, z):
        return model(x).square().mean()


CASES = {
    "steered": (nc.CoreConfig(slots=4, shift=True), 3),
    "no residual": (nc.CoreConfig(slots=4, residual=False, programs=2), 3),
    "own": (nc.CoreConfig(slots=4), None),
    "own, some too small": (nc.CoreConfig(), None),
}


def work(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    generator = torch.Generator().manual_seed(1)
    x, z = torch.randn(8, 2, 9, generator=generator), torch.randn(8, 3, generator=generator)
    for name, case in CASES.items():
        steers = case[1] is not None
        alone, model = build(*case), DistributedDataParallel(build(*case))
        for _ in range(2):  # a parameter left unused makes the second forward fail
            model.zero_grad()
            loss(model, x[rank::2], z[rank::2] if steers else None).backward()
        loss(alone, x, z if steers else None).backward()
        for (key, p), q in zip(alone.named_parameters(), model.module.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, msg=lambda m, about=f"{name} {key}": f"DDP {about}: {m}")
        sharded = build(*case)
        mesh = init_device_mesh("cpu", (2,))
        for layer in (sharded[0], sharded[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        loss(sharded, x, z if steers else None).backward()
        for (key, p), q in zip(alone.named_parameters(), sharded.parameters(), strict=True):
            whole = q.grad.full_tensor()
            torch.testing.assert_close(whole, p.grad, msg=lambda m, about=f"{name} {key}": f"FSDP2 {about}: {m}")
        nc.save(sharded, folder / name)
        again = nc.load(folder / name, nn.Sequential(*(getattr(one, "to_plain", lambda o=one: o)() for one in alone)))
        for key, tensor in alone.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    run_both(work, tmp_path)
