"""`nc.diagnose`: what layers of every kind do with some inputs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import neurocoder as nc
from conftest import randomised, small

CONFIGS = {
    "program": small(residual="plain"),
    "core": nc.CoreConfig(slots=4),
    "diagonal": nc.CoreConfig(slots=4, diagonal=True),
    "growing": nc.GrowingConfig(slots=8, rank=2),
    "mixture": nc.MixtureConfig(experts=4, active=2),
    "stored program": nc.StoredProgramConfig(programs=3, key_dim=2),
    "hyper": nc.HyperConfig(hidden=4),
}
KINDS = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def network(config, control_dim=None):
    """A plain layer and a coded one with random values."""
    model = nc.recode(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)), "2", config, control_dim=control_dim)
    randomised(model)
    if model[2].grows:
        memory = model[2].memory
        memory.keys.copy_(normalize(torch.randn_like(memory.keys)))
        memory.written.fill_(6)
    return model


@KINDS
@pytest.mark.parametrize("steered", [False, True])
def test_how_much_the_weight_varies(config, steered):
    model, x = network(config, 3 if steered else None).eval(), torch.randn(40, 4)
    z = torch.randn(40, 3) if steered else None
    given = {"control": z} if steered else {}
    weights = model[2].materialize(model[1](model[0](x)), **given).double().flatten(1)
    spread = (weights - weights.mean(0)).square().sum() / weights.square().sum()
    found = nc.diagnose(model, x, **given)["2"]
    assert found.programs == 40
    assert found.varies == pytest.approx(spread.sqrt().item(), rel=1e-4)
    assert found.varies > 0.01
    assert found.steered == steered
    batches = nc.diagnose(model, [x[:20], x[20:]]) if not steered else None
    assert batches is None or batches["2"].varies == pytest.approx(found.varies, rel=1e-6)


def test_an_offset_is_a_part_of_what_varies():
    model = nn.Sequential(nc.CoreLinear(4, 3, core=nc.CoreConfig(slots=2, shift=True), control_dim=3))
    randomised(model)
    nn.init.zeros_(model[0].memory.cores)
    found = nc.diagnose(model, torch.randn(9, 4), control=torch.randn(9, 3))["0"]
    assert found.varies > 0.1


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_one_control_for_all_inputs_shows_no_variation(kind):
    model = nn.Sequential(kind(4, 3) if kind is nn.Linear else kind(4, 3, 3))
    randomised(nc.recode(model, "0", nc.CoreConfig(), control_dim=3))
    x, z = torch.randn(6, 4) if kind is nn.Linear else torch.randn(6, 4, 5, 5), torch.randn(3)
    for control in (z, z.expand(6, -1)):
        found = nc.diagnose(model, x, control=control)["0"]
        assert (found.programs, found.varies) == (1, None)
        assert found.advice.startswith("got one of the controls: give several")


def test_a_model_that_diverged_is_looked_into():
    model = randomised(nc.recode(nn.Sequential(nn.Linear(4, 3)), "0", nc.CoreConfig(), control_dim=3))
    z = torch.randn(6, 3)
    z[0] = torch.nan
    with torch.no_grad():
        sigma = model[0].programs(torch.randn(6, 4), control=z).sigma
    assert sigma[0, :3].isnan().all()
    assert sigma[1:].isfinite().all()
    assert nc.diagnose(model, torch.randn(6, 4), control=z)["0"].programs == 6


@pytest.mark.parametrize("config", [CONFIGS["program"], CONFIGS["core"], CONFIGS["hyper"]])
def test_a_layer_that_composes_one_program_says_so(config):
    model = nc.recode(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5)), "1", config)
    found = nc.diagnose(model, torch.randn(9, 4))["1"]
    assert found.varies == 0
    assert found.advice.startswith("composes the same program for all inputs: train it, or nc.restore it")
    steered = nc.recode(nn.Sequential(nn.Linear(4, 6)), "0", config, control_dim=3)
    told = nc.diagnose(steered, torch.randn(9, 4), control=torch.randn(9, 3))["0"].advice
    assert told.startswith("composes the same program for all controls")


@pytest.mark.parametrize("spatial", [1, 2])
@pytest.mark.parametrize("config", [CONFIGS["program"], CONFIGS["core"], CONFIGS["growing"]])
def test_convolutions(config, spatial):
    plain = (nn.Conv1d, nn.Conv2d)[spatial - 1](3, 5, 3)
    model, x = randomised(nc.recode(nn.Sequential(plain), "0", config)), torch.randn(9, 3, *[6] * spatial)
    weights = model[0].materialize(x).double().flatten(1)
    spread = (weights - weights.mean(0)).square().sum() / weights.square().sum()
    assert nc.diagnose(model, x)["0"].varies == pytest.approx(spread.sqrt().item(), rel=1e-4, abs=1e-9)


def test_idle_slots():
    model, x = network(CONFIGS["core"], 3), torch.randn(9, 4)
    with torch.no_grad():
        for table in (model[2].memory.cores, model[2].memory.C_0):
            table[..., 1:] = 0  # no row of V takes from slots 2 to 4
    found = nc.diagnose(model, x, control=torch.randn(9, 3))["2"]
    assert (found.slots, found.idle) == (4, 3)
    assert found.advice == "leaves 3 of 4 slots idle: fewer would do"
    growing = network(CONFIGS["growing"])
    used = (growing[2].programs(growing[1](growing[0](x))).reads()["u"].mean(0) > 0).sum()
    found = nc.diagnose(growing, x)["2"]
    assert found.slots == 6
    assert found.idle >= 6 - used
    mixture = network(nc.MixtureConfig(experts=4, active=1)).eval()
    with torch.no_grad():
        mixture[2].gating_weight[2:] = 0
        mixture[2].gating_weight[:2] = torch.stack([torch.ones(6), -torch.ones(6)])
    assert nc.diagnose(mixture, x)["2"].idle == 2


def test_layers_without_slots_in_use():
    model = nc.recode(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5)), {"0": nc.CoreConfig(), "1": nc.GrowingConfig()})
    for row in nc.diagnose(model, torch.randn(9, 4)).values():
        assert row.slots == 0
        assert row.advice == "has no slots in use: it works as a plain layer"
    gated = randomised(nn.Sequential(nc.CoreLinear(2, 20)))
    assert nc.diagnose(gated, torch.randn(9, 2))["0"].advice.endswith("works as a plain layer with a gate")


def test_saturation():
    model, x = randomised(nn.Sequential(nc.CoreLinear(7, 17, core=nc.CoreConfig(slots=4))), 0.1), torch.randn(9, 7)
    assert nc.diagnose(model, x)["0"].saturated == 0
    with torch.no_grad():
        model[0].reader.weight.fill_(0)
        model[0].reader.bias.copy_(torch.tensor([50.0, -50.0, 50.0, 0.0]))
        model[0].reader.gate.zero_()
    found = nc.diagnose(model, x)["0"]
    assert found.saturated == pytest.approx(3 / 5)  # three of four blends, and not the gate
    assert found.advice == "has 60% of its gates or blends at their bounds: lower its controller_lr"
    program = nn.Sequential(nc.Linear(4, 5, program=small(start=nc.Start(gate_bias=30.0, residual_gate_bias=0.0))))
    gates = 3 * 3 * 2 * 6
    assert nc.diagnose(program, torch.randn(9, 4))["0"].saturated == pytest.approx(gates / (gates + 1))
    assert nc.diagnose(network(CONFIGS["core"], 3), x[:, :4], control=torch.randn(9, 3))["2"].saturated is None


def test_the_auxiliary_losses_share_of_the_gradient():
    x, y = torch.randn(40, 4), torch.randint(5, (40,))
    for weight in (1e-4, 0.1, 10.0):
        model = network(small(orthogonality=weight))
        memory = [model[2].memory.U, model[2].memory.V]
        a, g = (
            torch.cat([one.flatten() for one in torch.autograd.grad(value, memory)]).norm().item()
            for value in (nc.auxiliary_loss(model), cross_entropy(model(x), y))
        )
        found = nc.diagnose(model, x, loss=lambda output: cross_entropy(output, y))["2"]
        assert found.auxiliary == pytest.approx(a / (a + g), rel=1e-3)
        assert ("the auxiliary loss has" in found.advice) == (found.auxiliary > 0.5)
    assert nc.diagnose(network(CONFIGS["core"]), x, loss=lambda output: cross_entropy(output, y))["2"].auxiliary == 0
    mixture = nc.diagnose(network(CONFIGS["mixture"]), x, loss=lambda output: cross_entropy(output, y))["2"]
    assert 0 < mixture.auxiliary < 1
    assert nc.diagnose(mixture_of := network(CONFIGS["mixture"]), x)["2"].auxiliary is None
    assert mixture_of[2].balance_loss is None


@KINDS
@pytest.mark.parametrize("trains", [True, False])
def test_nothing_changes(config, trains):
    model, x = network(config).train(trains), torch.randn(9, 4)
    model[0].train(not trains)
    y = torch.randint(5, (9,))
    if config is CONFIGS["growing"]:
        nc.grow(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(x).sum().backward()
    kept = (
        copy.deepcopy(model.state_dict()),
        {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
    )
    modes, loss = [module.training for module in model.modules()], nc.auxiliary_loss(model)
    keys, place = set(vars(model[2])), torch.get_rng_state()
    nc.diagnose(model, x, loss=lambda output: cross_entropy(output, y))
    assert torch.equal(torch.get_rng_state(), place)
    assert set(vars(model[2])) == keys
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(model.state_dict(), kept[0], rtol=0, atol=0)
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, kept[1], rtol=0, atol=0)
    assert torch.equal(nc.auxiliary_loss(model), loss)
    assert not model[2]._forward_hooks


def test_a_mended_model_is_told_so_and_the_table_is_readable():
    model = network(CONFIGS["core"], 3)
    found = nc.diagnose(model, torch.randn(9, 4), control=torch.randn(9, 3))
    assert found["2"].advice == "nothing to change"
    title, rule, row = str(found).splitlines()
    assert title.split("  ")[0] == "layer"
    assert set(rule) == {"-", " "}
    assert row.startswith("2      nc.CoreLinear")
    assert row.endswith("0 of 4          -  nothing to change")
    assert "auxiliary" not in title
    assert repr(found) == str(found)


def test_too_little_to_say():
    model = network(CONFIGS["core"], 3)
    one = nc.diagnose(model, torch.randn(9, 4), control=torch.randn(3))["2"]
    assert (one.programs, one.varies) == (1, None)
    assert one.advice == "got one of the controls: give several to see how much its weight varies"

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nc.CoreLinear(4, 5, core=nc.CoreConfig(slots=2)), nc.Linear(4, 5)

        def forward(self, x):
            return self.used(x)

    found = nc.diagnose(Skips(), torch.randn(9, 4))
    assert found["idle"].advice == "was not called: give data that pass through it"


def test_an_exact_layer():
    head = nc.ExactLinear(8, 3, exact=nc.ExactConfig(slots=5, rank=2))
    x = torch.randn(64, 8)
    head.basis(x)
    head.observe(x, torch.randint(3, (64,)))
    head.solve()
    found = nc.diagnose(nn.Sequential(head), x)["0"]
    assert found.slots == 5
    assert found.varies > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": "data"}, "x must be a tensor"),
        ({"x": []}, "x must have at least one batch, got none"),
        ({"loss": lambda y: y}, r"loss must return a tensor of shape \(\), got shape \(9, 5\)"),
        ({"loss": lambda y: 1.0}, r"loss must return a tensor of shape \(\), got float"),
        ({"control": torch.zeros(9, 3)}, "model must have a layer that was built with control_dim"),
    ],
)
def test_wrong_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        nc.diagnose(network(CONFIGS["core"]), **({"x": torch.randn(9, 4)} | given))
    with pytest.raises(ValueError, match="model must have coded layers to diagnose, found none"):
        nc.diagnose(nn.Linear(4, 5), torch.randn(9, 4))
    with pytest.raises(ValueError, match="control must be given"):
        nc.diagnose(network(CONFIGS["core"], 3), torch.randn(9, 4))
