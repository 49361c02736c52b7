"""`plan` and `recode` on all sorts of models."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from snapshots import Snapshot


class Net(nn.Module):
    """Nested modules, a convolution, an embedding and a module that is used twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
        self.conv = nn.Conv1d(8, 6, 3, padding=1)
        self.twice = nn.Linear(6, 6)
        self.again = self.twice
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        x = self.body(self.embed(tokens))
        x = self.conv(x.mT).mT
        return self.head(self.again(self.twice(x).tanh()))


def tokens():
    return torch.randint(11, (5, 7))


def trained(model, x, steps=20):
    """Move the weights away from their start, as any use would."""
    target = torch.randn_like(model(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x) - target).square().mean().backward()
        optimiser.step()
    return model


def row_change(after, before):
    """The largest change of an output row, relative to its norm; one row for each sample."""
    after, before = (y.detach().double().flatten(1) for y in (after, before))
    return ((after - before).norm(dim=1) / before.norm(dim=1)).max().item()


def coded_names(model):
    return [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nc.CodedLayer)]


def test_plan_is_a_dry_run_that_foretells_the_count():
    model = Net()
    before = Snapshot(model)
    random_state = torch.get_rng_state()
    plan = nc.plan(model, "*", small())
    before.assert_unchanged()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert plan.total_before == sum(p.numel() for p in model.parameters())
    assert [item.names for item in plan.replacements] == [
        ("body.0",),
        ("body.2.0",),
        ("conv",),
        ("twice", "again"),
        ("head",),
    ]
    nc.recode(model, "*", small())
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    for item in plan.replacements:
        layer = model.get_submodule(item.names[0])
        assert type(layer) is item.coded_type
        assert item.after == sum(p.numel() for p in layer.parameters())


def test_plan_prints_as_a_table():
    plan = nc.plan(Net(), ["*"], small(residual=False))
    assert str(plan) == repr(plan)
    table, notes = str(plan).splitlines()[:-2], str(plan).splitlines()[-2:]
    assert table[0].split() == ["layer", "from", "to", "parameters", "after"]
    assert table[2].split()[:4] == ["body.0", "nn.Linear", "nc.Linear", "72"]
    assert table[4].split()[:4] == ["conv", "nn.Conv1d", "nc.Conv1d", "150"]
    assert table[5].split()[:6] == ["twice", "=", "again", "nn.Linear", "nc.Linear", "42"]
    assert table[-1].split() == ["whole", "model", f"{plan.total_before:,}", f"{plan.total_after:,}"]
    assert len({len(line) for line in table}) == 1, "the columns must line up"
    assert notes[0].startswith(
        "left as it is: embed (nn.Embedding is of an unknown kind: ProgramConfig covers nn.Conv1d"
    )
    assert notes[1].startswith("left as it is: body.2.1 (nn.LayerNorm is of an unknown kind")


def test_plan_of_a_partly_coded_model():
    model = nc.recode(Net(), "head", small())
    plan = nc.plan(model, "*", nc.MixtureConfig(experts=3))
    assert ("head", "it is already coded: nc.restore it first") in plan.skipped
    nc.recode(model, "*", nc.MixtureConfig(experts=3))
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    assert isinstance(model.head, nc.Linear)
    assert isinstance(model.twice, nc.MixtureLinear)


def test_recode_returns_the_model_in_place():
    model = Net()
    assert nc.recode(model, "head", small()) is model


def test_a_module_used_twice_becomes_one_layer():
    model = trained(Net(), tokens())
    x = tokens()
    expected = model(x)
    nc.recode(model, "again", small())
    assert isinstance(model.twice, nc.Linear)
    assert model.twice is model.again
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_a_block_used_twice_becomes_one_block():
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.ModuleDict({"left": block, "right": nn.Sequential(block, nn.Linear(4, 2))})
    nc.recode(model, "right.*", small())
    assert coded_names(model) == ["left.0", "right.0.0", "right.1"]
    assert model["left"][0] is model["right"][0][0]


def test_frozen_layers_stay_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    model[2].train()
    nc.recode(model, "*", small())
    assert [(layer.R.requires_grad, layer.bias.requires_grad) for layer in model] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    for layer in model:
        assert all(p.requires_grad for part in (layer.memory, layer.controller) for p in part.parameters())
    assert [layer.training for layer in model] == [False, False, True]
    assert all(child.training is layer.training for layer in model for child in layer.modules())
    frozen = model[0].R.clone()
    trained(model, torch.randn(6, 4), steps=3)
    assert torch.equal(model[0].R, frozen)
    nc.restore(model, data=torch.randn(6, 4))
    assert [(layer.weight.requires_grad, layer.bias.requires_grad) for layer in model] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert [layer.training for layer in model] == [False, False, True]


KINDS = {
    "linear": (lambda: nn.Linear(12, 7), (12,)),
    "linear, wide, no bias": (lambda: nn.Linear(5, 40, bias=False), (5,)),
    "linear over a sequence": (lambda: nn.Linear(6, 4), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), (4, 15)),
    "conv1d, circular": (lambda: nn.Conv1d(4, 6, 4, padding=3, padding_mode="circular", bias=False), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0)), (3, 8, 7)),
    "conv2d, same": (lambda: nn.Conv2d(3, 5, 3, padding="same", dilation=2), (3, 8, 7)),
    "conv2d, reflect": (lambda: nn.Conv2d(3, 5, (4, 3), padding="same", padding_mode="reflect"), (3, 8, 7)),
    "conv2d, replicate": (lambda: nn.Conv2d(3, 5, 3, padding=2, stride=2, padding_mode="replicate"), (3, 8, 7)),
}


@pytest.mark.parametrize("residual", [True, "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_layer_keeps_its_outputs_and_trains_on(kind, residual):
    build, shape = KINDS[kind]
    x = torch.randn(10, *shape)
    model = trained(nn.Sequential(build()), x)
    before, new = model(x), torch.randn(10, *shape)
    expected = model(new)
    nc.recode(model, "0", small(residual=residual))
    assert row_change(model(x), before) < 1e-4
    assert row_change(model(new), expected) < 1e-4

    layer, target = model[0], torch.randn_like(before)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(15):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        if step in (0, 14):
            parts = [layer.memory.U, layer.memory.V, layer.memory.S, layer.controller.signal_weight, layer.R]
            assert all(part.grad.abs().max() > 0 for part in parts)
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert layer.programs(x).u.std(0).max() > 0, "programs must come to differ between inputs"


@pytest.mark.filterwarnings("ignore:programs in torch.bfloat16")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("residual", [True, "plain"])
def test_outputs_survive_in_every_dtype_and_on_inputs_that_the_weight_nulls(residual, dtype, limit):
    model = nn.Sequential(nn.Linear(32, 24, dtype=dtype))
    with torch.no_grad():
        model[0].weight[:, :16] = 0
        model[0].bias.normal_()
    x = torch.randn(50, 32, dtype=dtype)
    nulled = x.clone()
    nulled[:, 16:] = 0
    inputs = [x, nulled, torch.zeros_like(x)]
    expected = [model(one) for one in inputs]
    nc.recode(model, "0", small(slots=12, residual=residual))
    assert all(p.dtype is dtype for p in model.parameters())
    for one, y in zip(inputs, expected, strict=True):
        assert model(one).dtype is dtype
        assert row_change(model(one), y) < limit


@pytest.mark.filterwarnings("ignore:programs in torch.bfloat16")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("residual", [True, "plain"])
def test_convolutions_survive_in_every_dtype(residual, dtype, limit):
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, dtype=dtype)),
        torch.randn(20, 3, 9, 9, dtype=dtype),
    )
    expected = model(x)
    nc.recode(model, "0", small(residual=residual))
    assert model(x).dtype is dtype
    assert row_change(model(x), expected) < limit


def test_without_a_residual_the_bias_and_the_scale_remain():
    model = nn.Sequential(nn.Linear(64, 48))
    bias, x = model[0].bias.clone(), torch.randn(500, 64)
    scale = (model(x) - bias).std()
    nc.recode(model, "0", small(residual=False))
    assert torch.equal(model[0].bias, bias)
    assert model[0].R is None
    assert 0.5 < (model(x) - bias).std() / scale < 2


@pytest.mark.parametrize("config", [nc.MixtureConfig(experts=4), nc.StoredProgramConfig(programs=3), nc.HyperConfig()])
def test_baselines(config):
    x = tokens()
    model = trained(Net(), x).eval()
    expected = model(x)
    linears = [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)]
    plan = nc.plan(model, nn.Linear, config)
    nc.recode(model, nn.Linear, config)
    assert coded_names(model) == linears
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    assert row_change(model(x), expected) < 0.01
    trained(model.train(), x, steps=3)


def test_a_baseline_does_not_cover_convolutions():
    model = Net()
    before = Snapshot(model)
    with pytest.raises(ValueError, match=r"cannot recode 'conv': nn.Conv1d .* MixtureConfig covers nn.Linear;"):
        nc.recode(model, ["head", "conv"], nc.MixtureConfig())
    before.assert_unchanged()


class Tagger(nn.Module):
    """Reads a sequence; a recoded layer of it is steered by something else than its input."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.hidden, self.out = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.hidden(self.rnn(x)[0]).tanh())


def test_control_through_recode():
    model, x, z = Tagger(), torch.randn(3, 7, 4), torch.randn(3, 2)
    expected = model(x)
    nc.recode(model, ["hidden", "out"], small(), control_dim=2)
    assert model.hidden.control_dim == model.out.control_dim == 2
    with nc.control(model, z):
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    randomised(model.hidden), randomised(model.out)
    with nc.control(model, z):
        y = model(x)
    for i in range(3):  # one program for the whole sequence, and each sample has its own
        with nc.control(model, z[i]):
            torch.testing.assert_close(model(x[i]), y[i], rtol=1e-4, atol=1e-4)
    with nc.control(model, z.flip(0)):
        assert (model(x) - y).abs().max() > 1e-3
    states = model.rnn(x)[0]
    by_hand = model.out(model.hidden(states, control=z).tanh(), control=z)
    torch.testing.assert_close(y, by_hand)


def test_recode_on_the_meta_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 3))
    nc.recode(model, "*", small())
    assert all(p.is_meta for p in model.parameters())
    assert coded_names(model) == ["0", "1"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_recoding_a_compiled_model_takes_effect(wrapped):
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(x)
    nc.recode(compiled if wrapped else model, "2", small())
    assert isinstance(model[2], nc.Linear)
    randomised(model[2])
    torch.testing.assert_close(compiled(x), model(x))
    assert nc.restore(compiled, data=x) is compiled
    assert type(model[2]) is nn.Linear
    torch.testing.assert_close(compiled(x), model(x))
