"""`restore`: back to plain layers."""

import copy

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from snapshots import Snapshot


class Reused(nn.Module):
    """Calls one layer several times, the last time with fewer inputs."""

    def __init__(self):
        super().__init__()
        self.fc, self.drop, self.inputs = nn.Linear(4, 4), nn.Dropout(0.5), []

    def forward(self, x):
        self.inputs = []
        for rows in (6, 6, 2):
            x = self.drop(x)[:rows]
            self.inputs.append(x)
            x = self.fc(x).tanh()
        return x


def mixed_mlp():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))


STARTS_EXACTLY = [small(), small(residual="plain"), nc.MixtureConfig(), nc.StoredProgramConfig(), nc.HyperConfig()]


@pytest.mark.parametrize("config", STARTS_EXACTLY)
def test_right_after_recode_the_old_weight_comes_back(config):
    model = mixed_mlp()
    old, bias = [model[0].weight.clone(), model[2].weight.clone()], model[0].bias.clone()
    nc.recode(model, "*", config)
    assert nc.restore(model) is model
    for layer, weight in zip((model[0], model[2]), old, strict=True):
        assert type(layer) is nn.Linear
        torch.testing.assert_close(layer.weight.detach(), weight, rtol=1e-5, atol=1e-5)
    assert torch.equal(model[0].bias, bias)
    assert model[2].bias is None


@pytest.mark.parametrize(
    ("plain", "x"),
    [
        (nn.Conv1d(3, 4, 5, 2, 3, 2, padding_mode="circular"), torch.randn(2, 3, 20)),
        (nn.Conv2d(3, 4, (3, 2), (1, 2), "valid", bias=False), torch.randn(2, 3, 9, 8)),
        (nn.Conv2d(3, 4, 3, padding="same", dtype=torch.float64), torch.randn(2, 3, 9, 8, dtype=torch.float64)),
    ],
)
def test_convolutions_come_back_with_their_geometry(plain, x):
    model = nn.Sequential(plain)
    expected, description = model(x), repr(model)
    nc.restore(nc.recode(model, "0", small()))
    assert repr(model) == description
    assert model[0].weight.dtype is plain.weight.dtype
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_after_training_it_is_the_mean_weight_over_the_data():
    model, x = randomised(nc.recode(mixed_mlp(), "*", small())), torch.randn(9, 5)
    hidden = model[1](model[0](x))
    expected = [model[0].materialize(x).mean(0).T, model[2].materialize(hidden).mean(0).T]
    bias = model[0].bias.clone()
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[2].weight, expected[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(model[0].bias, bias)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


@pytest.mark.parametrize("config", [nc.MixtureConfig(), nc.StoredProgramConfig(), nc.HyperConfig()])
def test_baselines_give_their_mean_weight_too(config):
    model, x = randomised(nc.recode(mixed_mlp(), "0", config)).eval(), torch.randn(9, 5)
    expected = model[0].materialize(x).mean(0).T
    with pytest.raises(ValueError, match="data must be given: the program of '0' differs from input to input"):
        nc.restore(model)
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected, rtol=1e-4, atol=1e-4)


def test_several_calls_count_by_their_inputs():
    model, x = randomised(nc.recode(Reused(), "fc", small()), scale=0.5), torch.randn(6, 4)
    model.eval()(x)
    expected = model.fc.materialize(torch.cat(model.inputs)).mean(0).T
    nc.restore(model.train(), data=x)
    assert model.training
    assert model.drop.training
    torch.testing.assert_close(model.fc.weight, expected, rtol=1e-4, atol=1e-4)


def test_a_shared_layer_averages_over_both_uses_and_stays_shared():
    fc = nn.Linear(4, 4)
    model = randomised(nc.recode(nn.Sequential(fc, nn.Tanh(), fc), "*", small()), scale=0.5)
    x = torch.randn(6, 4)
    inputs = torch.cat([x, model[1](model[0](x))])
    expected = model[0].materialize(inputs).mean(0).T
    nc.restore(model, data=x)
    assert model[0] is model[2]
    torch.testing.assert_close(model[0].weight, expected, rtol=1e-4, atol=1e-4)


def test_convolution_over_images():
    model, x = randomised(nc.recode(nn.Sequential(nn.Conv2d(2, 3, 3)), "0", small())), torch.randn(7, 2, 6, 6)
    expected = model[0].materialize(x).mean(0)
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected, rtol=1e-4, atol=1e-4)


def test_under_control():
    model = randomised(nc.recode(nn.Sequential(nn.Linear(4, 3)), "0", small(), control_dim=2))
    x, z = torch.randn(5, 6, 4), torch.randn(5, 2)
    expected = model[0].materialize(x, control=z).mean(0).T
    with nc.control(model, z):
        nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected, rtol=1e-4, atol=1e-4)


class Named(nn.Module):
    """Calls its layer with keywords, and takes two arguments."""

    def __init__(self):
        super().__init__()
        self.fc = nc.Linear(4, 3, program=small(), control_dim=2)

    def forward(self, x, z):
        return self.fc(x=x, control=z)


def test_a_tuple_is_the_arguments_of_the_model():
    model, x, z = randomised(Named()), torch.randn(5, 4), torch.randn(5, 2)
    expected = model.fc.materialize(x, control=z).mean(0).T
    nc.restore(model, data=(x, z))
    torch.testing.assert_close(model.fc.weight, expected, rtol=1e-4, atol=1e-4)


def test_a_dictionary_is_its_keyword_arguments():
    model, x, z = randomised(Named()), torch.randn(5, 4), torch.randn(5, 2)
    expected = model.fc.materialize(x, control=z).mean(0).T
    nc.restore(model, data={"z": z, "x": x})
    torch.testing.assert_close(model.fc.weight, expected, rtol=1e-4, atol=1e-4)


class Once:
    """A loader that may be read once, and that notes how the model was run."""

    def __init__(self, batches, model):
        self.batches, self.model, self.seen = batches, model, []

    def __iter__(self):
        assert not self.seen, "a loader is read once"
        for batch in self.batches:
            self.seen.append((self.model.training, torch.is_grad_enabled()))
            yield batch


def loaders(x, z):
    pairs = torch.utils.data.TensorDataset(x, z)
    parts = [(x[:5], z[:5]), (x[5:6], z[5:6]), (x[6:], z[6:])]
    return {
        "torch's loader": torch.utils.data.DataLoader(pairs, batch_size=4),
        "list of tuples": parts,
        "list of lists": [list(part) for part in parts],
        "dictionaries": [{"x": x, "z": z} for x, z in parts],
        "generator": (part for part in parts),
        "both forms": [parts[0], {"x": x[5:], "z": z[5:]}],
    }


@pytest.mark.parametrize("form", loaders(torch.zeros(9, 4), torch.zeros(9, 2)))
def test_a_loader_gives_the_mean_over_all_inputs_of_all_batches(form):
    model, x, z = randomised(Named()), torch.randn(9, 4), torch.randn(9, 2)
    expected = model.fc.materialize(x, control=z).mean(0).T
    nc.restore(model, data=loaders(x, z)[form])
    torch.testing.assert_close(model.fc.weight, expected, rtol=1e-4, atol=1e-4)


def test_a_loader_is_read_once_in_eval_mode_without_gradients():
    model, x = randomised(nc.recode(mixed_mlp(), "*", small())), torch.randn(9, 5)
    expected = model[0].materialize(x).mean(0).T
    loader = Once([x[:2], x[2:]], model)
    nc.restore(model, data=loader)
    assert loader.seen == [(False, False), (False, False)]
    assert model.training
    torch.testing.assert_close(model[0].weight, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("targets", "restored"),
    [
        ("0", ["0"]),
        (["0", "3.fc"], ["0", "3.fc"]),
        ("fc", ["3.fc"]),
        ("3.*", ["3.fc"]),
        (nc.Linear, ["0", "3.fc"]),
        (nn.Module, ["0", "2", "3.fc"]),
        (lambda name, module: isinstance(module, nc.MixtureLinear), ["2"]),
    ],
)
def test_only_the_targets_are_restored(targets, restored):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.ModuleDict({"fc": nn.Linear(3, 3)}))
    nc.recode(model, {"0": small(), "fc": small(), "2": nc.MixtureConfig()})
    layers = {name: model.get_submodule(name) for name in ("0", "2", "3.fc")}
    assert nc.restore(model, targets) is model
    for name, layer in layers.items():
        now = model.get_submodule(name)
        assert type(now) is nn.Linear if name in restored else now is layer


def test_a_shared_layer_is_restored_under_all_its_names():
    fc = nn.Linear(4, 4)
    model = nc.recode(nn.ModuleDict({"left": fc, "right": nn.Sequential(fc)}), "*", small())
    nc.restore(model, "right.0")
    assert type(model["left"]) is nn.Linear
    assert model["left"] is model["right"][0]


def test_data_is_only_for_the_targets():
    model, x = randomised(nc.recode(SideStream(), "*", small())), torch.randn(4, 3)
    expected, idle = model.used.materialize(x).mean(0).T, model.idle
    with pytest.raises(ValueError, match="data must be given: the program of 'used' differs"):
        nc.restore(model, "used")
    nc.restore(model, "used", data=x)
    torch.testing.assert_close(model.used.weight, expected, rtol=1e-4, atol=1e-4)
    assert model.idle is idle


@pytest.mark.filterwarnings("ignore:programs in torch.bfloat16")
def test_bfloat16_means_are_summed_in_float32():
    model = Reused().to(torch.bfloat16)
    randomised(nc.recode(model, "fc", small()), scale=0.5)
    model.eval()
    x = torch.randn(6, 4, dtype=torch.bfloat16)
    model(x)
    double = copy.deepcopy(model.fc).double()
    expected = double.materialize(torch.cat(model.inputs).double()).mean(0).T
    nc.restore(model, data=x)
    assert model.fc.weight.dtype is torch.bfloat16
    assert (model.fc.weight - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_part_of_a_model_is_averaged(in_place):
    torch._dynamo.reset()
    inner = randomised(nc.recode(nn.Sequential(nn.Linear(4, 4)), "0", small(steps=1)))
    x = torch.randn(5, 4)
    expected = inner[0].materialize(x).mean(0).T
    if in_place:
        inner.compile(backend="eager", fullgraph=True)
    model = nn.Sequential(inner if in_place else torch.compile(inner, backend="eager", fullgraph=True))
    model.eval()
    with torch.no_grad():
        model(x)
    nc.restore(model, data=x)
    torch.testing.assert_close(inner[0].weight, expected, rtol=1e-4, atol=1e-4)


def test_only_layers_that_need_it_use_the_data():
    model = nc.recode(mixed_mlp(), "*", small())
    randomised(model[2])
    with pytest.raises(ValueError, match="the program of '2' differs from input to input"):
        nc.restore(model)
    nc.restore(model, data=torch.randn(4, 5))
    assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh, nn.Linear]


class SideStream(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


def hooked():
    model = nc.recode(mixed_mlp(), "0", small())
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("build", "data", "message"),
    [
        (mixed_mlp, None, "model must have coded layers to restore, found none"),
        (lambda: nc.Linear(3, 2, program=small()), None, "cannot restore the model itself in place"),
        (lambda: randomised(nc.recode(mixed_mlp(), "*", small())), None, "the program of '0', '2' differs"),
        (
            lambda: nc.recode(mixed_mlp(), "*", small(residual=False)),
            None,
            "data must be given: .*nc.restore",
        ),
        (
            lambda: randomised(nc.recode(SideStream(), "*", small())),
            torch.randn(2, 3),
            "data must pass through every coded layer, but reached no input of 'idle'",
        ),
        (
            lambda: randomised(nc.recode(SideStream(), "used", small())),
            torch.randn(0, 3),
            "reached no input of 'used'",
        ),
        (
            lambda: randomised(nc.recode(SideStream(), "used", small())),
            torch.randn(2, 4),
            r"x must have shape \(\.\.\., 3\), got \(2, 4\)",
        ),
        (
            lambda: randomised(nc.recode(SideStream(), "used", small(), control_dim=2)),
            torch.randn(2, 3),
            "control must be given",
        ),
        (hooked, None, "cannot restore '0': it has hooks, which would be lost"),
    ],
)
def test_errors_change_nothing(build, data, message):
    model = build()
    before = Snapshot(model)
    with pytest.raises(ValueError, match=message):
        nc.restore(model, data=data)
    before.assert_unchanged()


TENSOR = torch.randn(2, 3)
LOADER = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(TENSOR, TENSOR))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": TENSOR}, r"got a tensor of shape \(2, 3\): for data write nc\.restore\(model, data=\.\.\.\)"),
        ({"targets": (TENSOR, TENSOR)}, "got a tensor of shape .*: for data write nc.restore"),
        ({"targets": {"x": TENSOR}}, "targets must be names, .* got a dictionary: for data write nc.restore"),
        ({"targets": LOADER}, "targets must be names, .* got <torch.*DataLoader.*: for data write nc.restore"),
        ({"targets": 3}, "targets must be names, suffixes, globs, types or predicates, got 3"),
        ({"targets": "nope"}, "targets matched no layer: 'nope'; the model has used, idle, plain"),
        ({"targets": "plain"}, "cannot restore 'plain': nn.Linear is not a coded layer; the coded layers are used"),
        ({"targets": ["used", ""]}, "cannot restore the model itself: Wider is not a coded layer"),
        ({"targets": lambda name, module: "l" in name}, "cannot restore 'plain': nn.Linear is not a coded layer"),
        ({"targets": nn.Linear}, "targets matched no coded layer: nn.Linear; the coded layers are used, idle"),
        ({"targets": "p*"}, r"targets matched no coded layer: 'p\*'; the coded layers are used, idle"),
        (
            {"data": "used"},
            r"data must be a tensor, .*, got 'used'; targets go before it: nc.restore\(model, targets, data=x\)",
        ),
        ({"data": 3}, "data must be a tensor, a tuple of arguments, .* or an iterable of these, got 3"),
        ({"data": ["used"]}, r"got a batch that is str: wrap it as \(batch,\)"),
        ({"data": []}, "reached no input of 'used', 'idle'"),
        (
            {"data": LOADER},
            r"data must be what the model's forward takes: too many positional .*data=\(x for x, _ in loader\)",
        ),
        ({"data": {"z": TENSOR}}, "data must be what the model's forward takes: .* argument"),
    ],
)
def test_wrong_targets_and_data_change_nothing(arguments, message):
    class Wider(SideStream):
        def __init__(self):
            super().__init__()
            self.plain = nn.Linear(3, 3)

    model = randomised(nc.recode(Wider(), ["used", "idle"], small()))
    before = Snapshot(model)
    with pytest.raises(ValueError, match=message):
        nc.restore(model, **arguments)
    before.assert_unchanged()


def test_data_is_named_not_given_as_a_third_argument():
    model = nc.recode(mixed_mlp(), "*", small())
    with pytest.raises(TypeError, match="positional"):
        nc.restore(model, None, TENSOR)
