"""A new M(z) is all that a new kind needs: the rest follows from the equation, for a linear layer and a convolution."""

import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import neurocoder as nc
from neurocoder.surgery import registry

PAGE = Path(__file__).parents[1] / "docs" / "quickstart.md"


@dataclass(frozen=True)
class GatedConfig(nc.Config):
    """A user's own configuration."""

    slots: int = 4
    residual: bool = True


class Gated(nc.CodedLayer):
    """M(z) = A + diag(B z), g(z) = 1 + tanh(c z)"""

    config_type = GatedConfig
    parts = {"U": "memory", "V": "memory", "A": "main", "B": "controller", "c": "controller", "R": "residual"}

    def build(self, options):
        slots = self.config.slots
        for name, shape in {
            "U": (slots, self.d_in),
            "V": (slots, self.d_out),
            "A": (slots, slots),
            "B": (slots, self.control_width),
            "c": (1, self.control_width),
        }.items():
            setattr(self, name, nn.Parameter(torch.empty(shape, **options)))

    def start(self):
        for parameter in (self.U, self.A, self.B):
            nn.init.normal_(parameter)
        nn.init.zeros_(self.V)
        nn.init.zeros_(self.c)

    def compose(self, rows):
        scales, scale = linear(rows, self.B).unsqueeze(1), 1 + torch.tanh(linear(rows, self.c))
        return nc.ActiveProgram(self.U, self.V, lambda a: a @ self.A + a * scales, scale)


class GatedLinear(nc.CodedLinear, Gated):
    pass


class GatedConv1d(nc.CodedConv1d, Gated):
    pass


class GatedConv2d(nc.CodedConv2d, Gated):
    pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    for plain, coded in ((nn.Linear, GatedLinear), (nn.Conv1d, GatedConv1d), (nn.Conv2d, GatedConv2d)):
        nc.register(plain, coded)


PLAIN = {
    "linear": (lambda: nn.Linear(7, 5), (6, 7)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, stride=2, padding=1), (6, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect", bias=False), (6, 3, 5, 6)),
}
CASES = pytest.mark.parametrize("case", PLAIN)


def coded(case, control_dim=None, **changes):
    """A recoded layer with random values, in a container, in float64, and inputs."""
    torch.manual_seed(0)
    build, shape = PLAIN[case]
    model = nc.recode(nn.Sequential(build().double()), "0", GatedConfig(**changes), control_dim=control_dim)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model, torch.randn(shape, dtype=torch.float64)


def literal_weight(layer, z):
    """W_t (d_out, d_in) of one control, from the formulas of `Gated`."""
    mixed = layer.A + torch.diag(layer.B @ z)
    weight = (layer.U.mT @ mixed @ layer.V).mT
    if layer.R is None:
        return weight
    return weight + (1 + torch.tanh(layer.c @ z)) * layer.R.flatten(1)


def literal(layer, x, controls):
    """The layer's outputs, one input at a time, from weights that are built."""
    plain, outputs = layer.to_plain().double(), []
    for row, z in zip(x, controls, strict=True):
        weight = literal_weight(layer, z).view(layer.weight_shape)
        tensors = {"weight": weight} | ({} if layer.bias is None else {"bias": layer.bias})
        outputs.append(torch.func.functional_call(plain, tensors, (row,)))
    return torch.stack(outputs)


@CASES
@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("residual", [True, False])
def test_outputs_weights_and_gradients_are_the_literal_ones(case, steered, residual):
    model, x = coded(case, control_dim=2 if steered else None, residual=residual)
    layer = model[0]
    z = torch.randn(len(x), 2, dtype=torch.float64) if steered else x if case == "linear" else x.flatten(2).mean(-1)
    given = {"control": z} if steered else {}
    expected = literal(layer, x, z)
    torch.testing.assert_close(layer(x, **given), expected)
    weights = layer.materialize(x, **given)
    weights = weights.mT if case == "linear" else weights
    torch.testing.assert_close(weights.flatten(2), torch.stack([literal_weight(layer, one) for one in z]))
    wanted = [p for name, p in layer.named_parameters() if residual or name != "c"]
    found = torch.autograd.grad(layer(x, **given).sin().sum(), wanted)
    for grad, target in zip(found, torch.autograd.grad(expected.sin().sum(), wanted), strict=True):
        torch.testing.assert_close(grad, target)


@CASES
def test_recode_starts_from_the_old_weight_and_restore_gives_it_back(case):
    build, shape = PLAIN[case]
    plain, x = build(), torch.randn(shape)
    model = nc.recode(nn.Sequential(copy.deepcopy(plain)), "0", GatedConfig())
    torch.testing.assert_close(model(x), plain(x))
    restored = nc.restore(model)[0]
    assert type(restored) is type(plain)
    torch.testing.assert_close(restored.weight, plain.weight)


@CASES
def test_restore_takes_the_mean_weight_over_data(case):
    model, x = coded(case)
    weights = model[0].materialize(x)
    expected = (weights.mean(0).mT if case == "linear" else weights.mean(0)).detach()
    with pytest.raises(ValueError, match="data must be given: the program of '0' differs from input to input"):
        nc.restore(model)
    restored = nc.restore(model, data=[x[:4], x[4:]])
    torch.testing.assert_close(restored[0].weight.detach(), expected)


@CASES
def test_save_and_load(case, tmp_path):
    model, x = coded(case)
    nc.save(model, tmp_path)
    again = nc.load(tmp_path, nn.Sequential(PLAIN[case][0]().double()))
    assert type(again[0]) is type(model[0])
    assert torch.equal(again(x), model(x))


@CASES
def test_record_views_and_figures(case):
    model, x = coded(case)
    with nc.record(model) as trace:
        model(x)
    assert trace["0"].matrix.shape == (6, 4, 4)
    z = x if case == "linear" else x.flatten(2).mean(-1)
    torch.testing.assert_close(trace["0"].matrix[1], (model[0].A + torch.diag(model[0].B @ z[1])).detach())
    assert nc.inspect.attention(trace["0"], "v").shape == (6, 4)
    assert nc.inspect.vectors(trace["0"]).shape == (6, 16)
    for draw in (nc.plot.programs, nc.plot.usage, nc.plot.clusters):
        assert draw(trace["0"])._repr_png_()
    assert nc.plot.usage(trace, labels=torch.arange(6) % 2)._repr_png_()
    assert nc.plot.drift([trace["0"], model[0].programs(x)])._repr_png_()


def test_counts_and_groups_and_repr():
    model, _ = coded("linear")
    assert nc.count_parameters(model) == {"memory": 48, "controller": 35, "residual": 35, "main": 21, "total": 139}
    assert "slots=4, residual=True" in repr(model)
    assert str(nc.plan(nn.Sequential(nn.Linear(7, 5)), "*", GatedConfig())).splitlines()[2].split()[-1] == "139"


@CASES
def test_it_compiles_exports_and_vmaps(case):
    model, x = coded(case)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(x[:3]), model(x[:3]))
    parameters = {name: torch.stack([p, 2 * p]) for name, p in model.named_parameters()}
    both = torch.func.vmap(lambda p: torch.func.functional_call(model, p, (x,)))(parameters)
    torch.testing.assert_close(both[0], model(x))


def test_a_first_program_that_is_not_constant_is_an_error():
    class Never(GatedLinear):
        def start(self):
            for parameter in self.parameters():
                nn.init.normal_(parameter)

    with pytest.raises(ValueError, match="Never: the first program must be the same for every input"):
        Never(7, 5)


def test_one_control_for_all_inputs_and_no_inputs():
    model, x = coded("linear", control_dim=2)
    z = torch.randn(2, dtype=torch.float64)
    torch.testing.assert_close(model[0](x, control=z), model[0](x, control=z.expand(6, 2)))
    assert model[0](x[:0], control=z.expand(0, 2)).shape == (0, 5)
    assert coded("conv2d")[0](torch.zeros(0, 3, 5, 6, dtype=torch.float64)).shape == (0, 5, 5, 6)


def test_the_documented_kind_is_short():
    text = PAGE.read_text()
    block = text[text.index("class ScaledConfig") :]
    assert block[: block.index("\nsmall = ")].count("\n") <= 60
