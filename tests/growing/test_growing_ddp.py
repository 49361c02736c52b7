"""Growing layers under DistributedDataParallel: which slots are written, and what happens when they are full."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from neurocoder.growing import GrowingConfig, GrowingLinear, grow
from ranks import run_both

SIZES = {
    "slots": 10,
    "rank": 2,
    "top_k": 3,
    "max_similarity": 0.9,
    "sharpness": 5.0,
    "consolidation": 3.0,
    "max_slots": 16,
}


def build():
    torch.manual_seed(0)
    layers = [
        GrowingLinear(6, 5, growing=GrowingConfig(**SIZES), dtype=torch.float64),
        nn.Tanh(),
        GrowingLinear(
            5, 3, growing=GrowingConfig(residual=False, writes=2, count="inputs", **SIZES), dtype=torch.float64
        ),
    ]
    return nn.Sequential(*layers)


def work(rank, folder):
    alone, model = build(), DistributedDataParallel(build())
    pairs = [(net, torch.optim.Adam(net.parameters(), 0.05)) for net in (alone, model)]
    growths = [grow(*pair) for pair in pairs]
    generator = torch.Generator().manual_seed(1)
    for index in range(4):
        x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
        halves = x.view(2, 2, 2, 6)  # two accumulated parts, each with a half for each rank
        for (net, optimiser), parts in zip(pairs, (halves.flatten(1, 2), halves[:, rank]), strict=True):
            optimiser.zero_grad(set_to_none=index % 2 == 0)
            if index == 2:
                net(x[:1]).sum().backward()  # its gradients do not count
                optimiser.zero_grad(set_to_none=False)
            for part in parts:
                net(part).square().mean().backward()
            optimiser.step()
        for (name, a), b in zip(alone.state_dict().items(), model.module.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, about=f"step {index} {name}": f"{about}: {m}")
    assert int(alone[2].memory.written) == 8

    inner = build()
    optimiser = torch.optim.SGD(inner.parameters(), 0.1)
    grow(inner, optimiser)
    wrapped = DistributedDataParallel(inner)
    wrapped(x).sum().backward()
    kept = [parameter.clone() for parameter in inner.parameters()]
    with pytest.raises(RuntimeError, match=r"'0' is kept in sync by Distr.* Call nc\.grow\(wrapper, optimiser\) once"):
        optimiser.step()
    assert all(torch.equal(old, new) for old, new in zip(kept, inner.parameters(), strict=True))
    grow(wrapped, optimiser)
    optimiser.step()

    ungrown = DistributedDataParallel(build())
    optimiser = torch.optim.SGD(ungrown.parameters(), 0.1)
    ungrown(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"nc\.grow"):
        optimiser.step()

    optimiser = pairs[1][1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            optimiser.zero_grad()
            model(3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)).square().mean().backward()
            optimiser.step()
    said = [str(one.message) for one in caught if "growing layer" in str(one.message)]
    assert len(said) == 1, said
    assert "call make_room()" in said[0]
    assert growths[1].make_room() == ["module.2"]
    with pytest.raises(RuntimeError, match="wrap the inner model again"):
        model(x)
    model = DistributedDataParallel(model.module)
    grow(model, optimiser)
    model(x).square().mean().backward()
    optimiser.step()


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    run_both(work, tmp_path)
