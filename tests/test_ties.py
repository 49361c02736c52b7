"""Layers whose weight or bias is tied to another module's."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small
from snapshots import Snapshot
from test_surgery import coded_names


class LanguageModel(nn.Module):
    """A decoder whose weight is the embedding's."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 9, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        return self.lm_head(self.hidden(self.embed(tokens)).tanh())


def nested():
    return nn.Sequential(LanguageModel())


REASON = "its weight is tied to embed.weight: to recode it anyway, and end the tie, give its full name"


@pytest.mark.parametrize("targets", ["*", nn.Linear, ["hidden", "lm_*"], {"*": small()}])
def test_globs_and_types_pass_over_a_tied_layer(targets):
    model = LanguageModel()
    config = None if isinstance(targets, dict) else small()
    plan = nc.plan(model, targets, config)
    assert ("lm_head", REASON) in plan.skipped
    assert f"left as it is: lm_head ({REASON})" in str(plan)
    nc.recode(model, targets, config)
    assert coded_names(model) == ["hidden"]
    assert model.lm_head.weight is model.embed.weight


def test_suffixes_pass_over_a_tied_layer():
    model = nested()
    reason = REASON.replace("embed", "0.embed")
    assert nc.plan(model, ["hidden", "lm_head"], small()).skipped == (("0.lm_head", reason),)
    with pytest.raises(ValueError, match=r"no layer that can be recoded\. 0\.lm_head: its weight is tied to 0\.embed"):
        nc.recode(model, "lm_head", small())


def test_a_predicate_that_takes_in_a_tied_layer_is_an_error():
    model = LanguageModel()
    before = Snapshot(model)
    with pytest.raises(
        ValueError, match=r"cannot recode 'lm_head': its weight is tied to embed.weight: to recode it anyway"
    ):
        nc.recode(model, lambda name, module: isinstance(module, nn.Linear), small())
    before.assert_unchanged()


@pytest.mark.parametrize("targets", ["lm_head", ["*", "lm_head"], {nn.Linear: small(), "lm_head": small()}])
def test_a_full_name_recodes_a_tied_layer_and_the_plan_says_that_the_tie_ends(targets):
    model, x = LanguageModel(), torch.arange(9)
    config = None if isinstance(targets, dict) else small()
    weight, expected = model.embed.weight, model(x)
    plan = nc.plan(model, targets, config)
    assert plan.replacements[-1].ties == (("lm_head.weight", "embed.weight"),)
    assert "no longer tied: lm_head.weight becomes a copy of its own, embed.weight stays as it is" in str(plan)
    nc.recode(model, targets, config)
    assert model.embed.weight is weight
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        weight.zero_()
    assert model.lm_head.R.abs().max() > 0.01


def test_a_coded_layer_cannot_be_tied_again():
    """As `tie_weights` of transformers would."""
    model = nc.recode(LanguageModel(), "lm_head", small())
    before = Snapshot(model)
    with pytest.raises(ValueError, match=r"the weight of lm_head cannot be set, or tied .* nc\.restore it first;"):
        model.lm_head.weight = model.embed.weight
    before.assert_unchanged()
    assert model.lm_head.weight.size() == (9, 4)


def test_tied_linears_are_both_copied():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5, bias=False))
    model[1].weight = model[0].weight
    weight, x = model[0].weight, torch.randn(4, 5)
    expected = model(x)
    plan = nc.plan(model, ["0", "1"], small())
    assert [item.ties for item in plan.replacements] == [(("0.weight", "1.weight"),), (("1.weight", "0.weight"),)]
    nc.recode(model, ["0", "1"], small())
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    assert model[0].R is not model[1].R
    nc.restore(model)
    for layer in model:
        torch.testing.assert_close(layer.weight, weight, rtol=1e-5, atol=1e-5)


def test_a_tied_bias_counts_and_so_does_a_parameter_of_the_parent():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].bias = model[1].bias
    model.own = model[2].weight
    assert dict(nc.plan(model, nn.Linear, small()).skipped) == {
        "0": "its bias is tied to 1.bias: to recode it anyway, and end the tie, give its full name",
        "2": "its weight is tied to own: to recode it anyway, and end the tie, give its full name",
    }


def test_a_module_of_two_names_is_no_tie():
    layer = nn.Linear(4, 4)
    model = nn.ModuleDict({"left": layer, "right": nn.Sequential(layer)})
    plan = nc.plan(model, nn.Linear, small())
    assert (plan.skipped, plan.replacements[0].ties) == ((), ())
    nc.recode(model, "*", small())
    assert model["left"] is model["right"][0]
    assert isinstance(model["left"], nc.Linear)


def test_a_module_of_two_names_may_be_tied_to_a_third():
    layer, third = nn.Linear(4, 4), nn.Linear(4, 4)
    third.weight = layer.weight
    model = nn.ModuleDict({"left": layer, "right": layer, "third": third})
    nc.recode(model, "right", small())
    assert model["left"] is model["right"]
    assert isinstance(model["right"], nc.Linear)
    assert type(model["third"]) is nn.Linear
