"""Code that reads `layer.weight`: sizes are answered, any other use names the layer and says what to do."""

import copy
import operator

import pytest
import torch
from client_helpers import TOKENS
from torch import nn
from torch.nn import functional as F
from transformers import MambaConfig, MambaForCausalLM

import neurocoder as nc
from conftest import small

REMEDY = r"materialize.*nc\.restore|nc\.restore.*materialize"


@pytest.fixture
def weight():
    model = nn.ModuleDict({"block": nn.ModuleList([nn.Linear(6, 4)])})
    return nc.recode(model, "block.0", small())["block"][0].weight


def test_sizes_are_answered(weight):
    plain = nn.Linear(6, 4).weight
    assert weight.shape == plain.shape
    assert weight.size() == plain.size()
    assert weight.size(0) == plain.size(0)
    assert weight.size(-1) == plain.size(-1)
    assert weight.size(dim=1) == plain.size(dim=1)
    assert weight.dim() == plain.dim()
    assert weight.ndim == plain.ndim
    assert weight.numel() == plain.numel()
    assert len(weight) == len(plain)
    assert (weight.dtype, weight.device, weight.requires_grad) == (plain.dtype, plain.device, plain.requires_grad)


USES = {
    "data": lambda weight: weight.data,
    "t": lambda weight: weight.t(),
    "T": lambda weight: weight.T,
    "detach": lambda weight: weight.detach(),
    "to": lambda weight: weight.to(torch.float64),
    "weight + delta": lambda weight: weight + torch.ones(4, 6),
    "delta + weight": lambda weight: torch.ones(4, 6) + weight,
    "weight - delta": lambda weight: weight - torch.ones(4, 6),
    "2 * weight": lambda weight: 2 * weight,
    "weight / 2": lambda weight: weight / 2,
    "2 / weight": lambda weight: 2 / weight,
    "weight @ x": lambda weight: weight @ torch.ones(6),
    "x @ weight": lambda weight: torch.ones(4) @ weight,
    "weight ** 2": lambda weight: weight**2,
    "-weight": operator.neg,
    "abs": abs,
    "weight[0]": lambda weight: weight[0],
    "weight[0] = 1": lambda weight: operator.setitem(weight, 0, 1.0),
    "weight += delta": lambda weight: operator.iadd(weight, torch.ones(4, 6)),
    "weight *= 2": lambda weight: operator.imul(weight, 2),
    "weight > 0": lambda weight: weight > 0,
    "for row in weight": list,
    "float": float,
    "F.linear": lambda weight: F.linear(torch.ones(6), weight),
    "torch.cat": lambda weight: torch.cat([weight, weight]),
    "torch.equal": lambda weight: torch.equal(weight, torch.ones(4, 6)),
    "nn.init": nn.init.xavier_uniform_,
    "nn.Parameter": nn.Parameter,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_any_other_use_names_the_layer_and_the_remedy(weight, use):
    with pytest.raises((TypeError, AttributeError), match=rf"(?s)block\.0.*({REMEDY})"):
        use(weight)


def test_hasattr_and_getattr_with_a_default_work(weight):
    """How transformers, PEFT and others ask for what they may find."""
    assert not hasattr(weight, "quant_state")
    assert not hasattr(weight, "ds_id")
    assert getattr(weight, "compress_statistics", None) is None


def test_a_weight_is_copied(weight):
    for twin in (copy.copy(weight), copy.deepcopy(weight)):
        assert twin.shape == weight.shape
        with pytest.raises(AttributeError, match=r"block\.0"):
            twin.data  # noqa: B018 - the access is what is tried


def test_setting_the_weight_of_a_coded_layer_names_it():
    model = nc.recode(nn.ModuleDict({"block": nn.Linear(6, 4)}), "block", small())
    with pytest.raises((TypeError, ValueError, AttributeError), match=r"block.*nc\.restore"):
        model["block"].weight = nn.Parameter(torch.ones(4, 6))
    with pytest.raises((TypeError, ValueError, AttributeError), match=r"block.*nc\.restore"):
        model["block"].weight = torch.ones(4, 6)


def test_a_mixer_that_multiplies_by_the_weight_itself_names_the_layer():
    """Mamba calls most of its projections, and multiplies by the weight of one."""
    sizes = {"vocab_size": 48, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 2}
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(**sizes)).eval()
    expected = model(TOKENS).logits
    nc.recode(model, ["*.in_proj", "*.x_proj", "*.out_proj"], small())
    torch.testing.assert_close(model(TOKENS).logits, expected)
    nc.recode(model, "*.dt_proj", small())
    with pytest.raises(TypeError, match=rf"backbone\.layers\.0\.mixer\.dt_proj.*({REMEDY})"):
        model(TOKENS)
    nc.restore(model, "*.dt_proj")
    torch.testing.assert_close(model(TOKENS).logits, expected)
