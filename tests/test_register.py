"""A user's own kind of layer, taught to `recode` by `register`."""

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from neurocoder.surgery import registry as kinds
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
    monkeypatch.setattr(kinds, "_registry", dict(kinds._registry))
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
    monkeypatch.delitem(kinds._registry, (Diagonal, SwayConfig))
    model = nn.Sequential(Diagonal(4))
    before = Snapshot(model)
    wanted = r"layer '0' was saved with test_register\.SwayConfig, which is not registered: see nc\.register"
    with pytest.raises(nc.CheckpointError, match=wanted):
        nc.load(tmp_path, model)
    before.assert_unchanged()


def namesake(name, module):
    """A user's own kind of linear layer, whose config has this name and lies in this module."""
    config_type = type(name, (nc.HyperConfig,), {"__module__": module, "__qualname__": name})
    return type("Theirs", (nc.HyperLinear,), {"config_type": config_type})


def rename_saved(folder, kind):
    """Give the layers of a checkpoint's file another kind."""
    file = folder / "neurocoder.safetensors"
    with safe_open(file, "pt") as content:
        config = json.loads(content.metadata()["neurocoder"])
    for layer in config["layers"].values():
        layer["config"]["kind"] = kind
    del config["digest"]
    text = json.dumps(config, indent=2)
    digest = hashlib.sha256(text.encode()).hexdigest()
    signed = f'{text.removesuffix(chr(10) + "}")},\n  "digest": "{digest}"\n}}'
    save_file(load_file(file), file, {"neurocoder": signed})
    (folder / "neurocoder.json").write_text(signed)


def saved_kind(folder):
    return json.loads((folder / "neurocoder.json").read_text())["layers"]["0"]["config"]["kind"]


def test_a_users_config_may_be_named_like_one_of_ours(tmp_path):
    ours = nc.recode(nn.Sequential(nn.Linear(4, 4)), "0", nc.ProgramConfig())
    nc.save(ours, tmp_path / "ours")
    theirs = namesake("ProgramConfig", "my.layers")
    nc.register(nn.Linear, theirs)
    model = nc.recode(nn.Sequential(nn.Linear(4, 4)), "0", theirs.config_type())
    nc.save(model, tmp_path / "theirs")
    assert [saved_kind(tmp_path / name) for name in ("ours", "theirs")] == ["ProgramConfig", "my.layers.ProgramConfig"]
    assert type(nc.load(tmp_path / "ours", nn.Sequential(nn.Linear(4, 4)))[0]) is nc.Linear
    assert type(nc.load(tmp_path / "theirs", nn.Sequential(nn.Linear(4, 4)))[0]) is theirs
    config = theirs.config_type()
    assert type(config).from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"program\.kind must be 'ProgramConfig', got 'my\.layers\.ProgramConfig'"):
        nc.ProgramConfig.from_dict(config.to_dict())


@pytest.mark.parametrize("kind", ["PulseConfig", "__main__.PulseConfig"])
def test_a_users_config_is_found_by_its_name_if_that_is_unambiguous(tmp_path, kind):
    """Older files have no module, and a class may move to another one."""
    one, other = namesake("PulseConfig", "one.layers"), namesake("PulseConfig", "other")
    nc.register(nn.Linear, one)
    nc.save(nc.recode(nn.Sequential(nn.Linear(4, 4)), "0", one.config_type()), tmp_path)
    rename_saved(tmp_path, kind)
    assert type(nc.load(tmp_path, nn.Sequential(nn.Linear(4, 4)))[0]) is one
    nc.register(nn.Linear, other)
    model = nn.Sequential(nn.Linear(4, 4))
    before = Snapshot(model)
    wanted = rf"'0' was saved with {kind}, which may be one\.layers\.PulseConfig or other\.PulseConfig: register only"
    with pytest.raises(nc.CheckpointError, match=wanted):
        nc.load(tmp_path, model)
    before.assert_unchanged()
    rename_saved(tmp_path, "other.PulseConfig")
    assert type(nc.load(tmp_path, model)[0]) is other


class Conv1D(nn.Module):
    """A linear layer of another library: its weight is (in, out), its sizes have other names."""

    def __init__(self, nf, nx, bias=True):
        super().__init__()
        self.nf, self.nx, self.tag = nf, nx, ["kept"]
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf)) if bias else None

    def forward(self, x):
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Watching(nc.Linear):
    """A user's own program layer that notes the weight it starts from."""

    def start_from(self, weight):
        super().start_from(weight)
        object.__setattr__(self, "seen", weight.detach().clone())


@pytest.fixture
def transposed():
    nc.register(Conv1D, nc.Linear, transposed=True)
    nc.register(Conv1D, nc.MixtureLinear, transposed=True)


def block():
    return nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(6, 6, bias=False))


TRANSPOSED = [small(), small(residual="plain"), nc.MixtureConfig(experts=3)]


@pytest.mark.parametrize("config", TRANSPOSED)
def test_a_transposed_weight_takes_one_line(transposed, config, tmp_path):
    model, x = block().eval(), torch.randn(5, 4)
    empty, weights, expected = block().eval(), [model[0].weight, model[2].weight], model(x)
    plan = nc.plan(model, Conv1D, config)
    assert str(plan).splitlines()[2].split()[1] == "Conv1D"
    nc.recode(model, Conv1D, config)
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    assert (model[0].in_features, model[0].out_features, model[2].bias) == (4, 6, None)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)

    nc.save(randomised(copy.deepcopy(model), 0.3), tmp_path)
    loaded = nc.load(tmp_path, empty)
    assert (loaded(x) - expected).abs().max() > 0.1
    mean = [loaded[0].materialize(x).mean(0), loaded[2].materialize(loaded[:2](x)).mean(0)]

    for one, wanted in ((nc.restore(model), weights), (nc.restore(loaded, data=x), mean)):
        for layer, weight in zip((one[0], one[2]), wanted, strict=True):
            assert type(layer) is Conv1D
            assert layer.tag == ["kept"]
            assert layer.weight.is_contiguous()
            torch.testing.assert_close(layer.weight, weight, rtol=1e-4, atol=1e-4)
        assert one[2].bias is None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    nc.recode(model, Conv1D, config)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_start_from_sees_one_layout():
    nc.register(Conv1D, Watching, transposed=True)
    model = nc.recode(nn.Sequential(Conv1D(6, 4)), "0", small())
    assert model[0].seen.shape == model[0].R.shape == (6, 4)


def test_a_transposed_layer_keeps_mode_freezing_dtype_and_its_kind_through_a_copy(transposed):
    model, x = block().double().eval(), torch.randn(3, 4, dtype=torch.float64)
    model[0].weight.requires_grad_(False)
    model[2].train()
    expected = model(x)
    nc.recode(model, "*", small())
    assert (model[0].R.requires_grad, model[0].bias.requires_grad, model[2].R.requires_grad) == (False, True, True)
    assert not any("template" in name for name in [*model.state_dict(), *dict(model.named_modules())])
    model = nc.restore(copy.deepcopy(model).to(torch.bfloat16).double())
    assert [type(layer) for layer in model] == [Conv1D, nn.Tanh, Conv1D]
    assert [(layer.training, layer.weight.requires_grad) for layer in (model[0], model[2])] == [
        (False, False),
        (True, True),
    ]
    assert model[0].weight.dtype is torch.float64
    torch.testing.assert_close(model(x), expected, rtol=0.05, atol=0.05)


def test_a_transposed_layer_on_the_meta_device(transposed):
    with torch.device("meta"):
        model = block()
    nc.recode(model, "*", small())
    assert model[0].R.is_meta
    assert model[0].R.shape == (6, 4)


class Scaled(Conv1D):
    def __init__(self):
        super().__init__(3, 3)
        self.scale = nn.Parameter(torch.ones(3))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(("kind", "got"), [(Scaled, "scale"), (Flat, r"a tensor of shape \(3,\)"), (nn.ReLU, "None")])
def test_what_cannot_be_read_as_a_transposed_layer_is_refused(kind, got):
    nc.register(kind, nc.Linear, transposed=True)
    model = nn.Sequential(kind())
    before = Snapshot(model)
    with pytest.raises(ValueError, match=rf"cannot recode '0': {kind.__name__}: a transposed layer must .*, got {got}"):
        nc.recode(model, "0", small())
    before.assert_unchanged()
