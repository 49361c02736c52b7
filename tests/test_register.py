"""A user's own kind of layer, taught to `recode` by `register`."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

import neurocoder as nc
from neurocoder import surgery
from snapshots import Snapshot


@dataclass(frozen=True)
class SwayConfig(nc.Config):
    """A user's own configuration."""

    strength: float = 0.5
    owner: ClassVar[str] = "sway"


class Diagonal(nn.Module):
    """A user's own plain layer, which holds another module."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.register_parameter("bias", None)
        self.mix = nn.Linear(size, size)

    def forward(self, x):
        return self.mix(x * self.weight)


class Swaying(nc.CodedLayer):
    """A user's own coded layer: the diagonal sways with the mean of the input."""

    config_type = SwayConfig
    parts = {"base": "residual", "sway": "controller", "mix": "main"}

    def __init__(self, size, config=None, *, control_dim=None, device=None, dtype=None):
        super().__init__(config, (size,), control_dim)
        self.base = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))
        self.sway = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))
        self.mix = nn.Linear(size, size, device=device, dtype=dtype)
        self.bias = None

    @classmethod
    def like(cls, plain, config, *, control_dim=None, device=None):
        options = {"device": device or plain.weight.device, "dtype": plain.weight.dtype}
        return cls(len(plain.weight), config, control_dim=control_dim, **options)

    @classmethod
    def from_plain(cls, plain, config, *, control_dim=None):
        layer = super().from_plain(plain, config, control_dim=control_dim)
        layer.mix.load_state_dict(plain.mix.state_dict())
        return layer

    def start_from(self, weight):
        self.base.copy_(weight)

    def weight_parameters(self):
        yield self.base

    def constant_weight(self):
        return None if self.sway.any() else self.base.detach()

    def to_plain(self):
        plain = Diagonal(len(self.base))
        plain.mix.load_state_dict(self.mix.state_dict())
        return plain

    def auxiliary_loss(self):
        return self.config.strength * self.sway.square().sum()

    def describe(self):
        return f"strength={self.config.strength}"

    def forward(self, x, control=None):
        return self.mix(x * (self.base + self.sway * x.mean(-1, keepdim=True)))


@pytest.fixture(autouse=True)
def swaying(monkeypatch):
    """Register the user's kind, and forget it afterwards."""
    monkeypatch.setattr(surgery, "_registry", dict(surgery._registry))
    nc.register(Diagonal, Swaying)


def test_a_users_own_kind_end_to_end(tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 4), Diagonal(4)), torch.randn(5, 4)
    plain, expected = copy.deepcopy(model), model(x)
    plan = nc.plan(model, Diagonal, SwayConfig(2.0))
    assert str(plan).splitlines()[2].split() == ["1", "Diagonal", "Swaying", "24", "28"]
    nc.recode(model, Diagonal, SwayConfig(2.0))
    assert plan.total_after == sum(p.numel() for p in model.parameters()) == 48
    assert isinstance(model[1], Swaying)
    torch.testing.assert_close(model(x), expected)
    with torch.no_grad():
        model[1].sway.fill_(0.5)
    assert nc.auxiliary_loss(model).item() == pytest.approx(2.0)
    assert nc.count_parameters(model) == {"memory": 0, "controller": 4, "residual": 4, "main": 40, "total": 48}
    nc.save(model, tmp_path / "model")
    loaded = nc.load(tmp_path / "model", plain)
    assert isinstance(loaded[1], Swaying)
    assert loaded[1].config == SwayConfig(2.0)
    torch.testing.assert_close(loaded(x), model(x))
    with torch.no_grad():
        model[1].sway.zero_()
    nc.restore(model)
    torch.testing.assert_close(model(x), expected)


def test_layers_inside_a_recoded_one_are_left_alone():
    model = nn.Sequential(Diagonal(4))
    plan = nc.plan(model, nn.Module, SwayConfig())
    assert [item.names for item in plan.replacements] == [("0",)]
    nc.register(nn.Linear, Swaying)
    reason = "it lies inside '0', which is recoded as a whole"
    assert nc.plan(model, "*", SwayConfig()).skipped == (("0.mix", reason),)
    before = Snapshot(model)
    with pytest.raises(ValueError, match=r"cannot recode '0\.mix': it lies inside '0'"):
        nc.recode(model, ["0", "0.mix"], SwayConfig())
    before.assert_unchanged()


def test_a_checkpoint_of_an_unregistered_kind_says_so(tmp_path, monkeypatch):
    nc.save(nc.recode(nn.Sequential(Diagonal(4)), "0", SwayConfig()), tmp_path)
    monkeypatch.delitem(surgery._registry, (Diagonal, SwayConfig))
    model = nn.Sequential(Diagonal(4))
    before = Snapshot(model)
    with pytest.raises(nc.CheckpointError, match=r"layer '0' was saved with SwayConfig, .* see nc\.register"):
        nc.load(tmp_path, model)
    before.assert_unchanged()
