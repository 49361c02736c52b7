"""An optimiser that was made before `recode` would not train the new parameters: a warning says so."""

import gc
import warnings

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small
from snapshots import Snapshot


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def test_an_optimiser_of_replaced_parameters_is_named():
    model = mlp()
    optimiser = torch.optim.Adam(model.parameters())
    message = (
        "nc.recode replaces parameters that an optimiser holds, which would not train the new ones: "
        "Adam holds 2.weight, 2.bias. Make the optimiser after nc.recode"
    )
    with pytest.warns(UserWarning, match="an optimiser") as caught:
        nc.recode(model, "2", small())
    assert [str(one.message) for one in caught] == [message]
    assert caught[0].filename == __file__
    assert isinstance(model[2], nc.Linear)
    assert optimiser is not None


def test_several_optimisers_make_one_warning():
    model = mlp()
    optimisers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
    with pytest.warns(UserWarning, match=r"holds [02]\.weight, [02]\.bias; .*holds [02]\.weight, [02]\.bias\. Make"):
        nc.recode(model, nn.Linear, small())
    assert len(optimisers) == 2


def test_as_an_error_it_leaves_the_model_as_it_was():
    model = mlp()
    optimiser = torch.optim.Adam(model.parameters())
    before = Snapshot(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Adam holds"):
            nc.recode(model, nn.Linear, small())
    before.assert_unchanged()
    assert optimiser is not None


def test_loading_into_a_plain_model_warns_too(tmp_path):
    nc.save(nc.recode(mlp(), "0", small()), tmp_path)
    model = mlp()
    optimiser = torch.optim.Adam(model.parameters())
    with pytest.warns(UserWarning, match=r"nc\.load replaces .*Adam holds 0\.weight, 0\.bias\.") as caught:
        nc.load(tmp_path, model)
    assert caught[0].filename == __file__
    assert optimiser is not None


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


class Unfinished(torch.optim.Optimizer):
    """An optimiser that has no groups yet."""

    def __init__(self):
        pass

    def __repr__(self):
        return "Unfinished"


def dead_optimiser(model):
    """An optimiser that nobody has any more, and that refers to itself."""
    optimiser = torch.optim.Adam(model.parameters())
    optimiser.me = optimiser


QUIET = {
    "no optimiser": lambda model: None,
    "one of another part": lambda model: torch.optim.Adam(model[0].parameters()),
    "one of another model": lambda model: torch.optim.Adam(mlp().parameters()),
    "one that nobody has any more": dead_optimiser,
    "one without groups": lambda model: Unfinished(),
}


@pytest.mark.parametrize("case", QUIET)
def test_no_warning_without_need(case):
    """Warnings are errors in these tests."""
    model = mlp()
    gc.collect()
    gc.disable()
    try:
        optimiser = QUIET[case](model)
        nc.recode(model, "2", small())
    finally:
        gc.enable()
    assert isinstance(model[2], nc.Linear)
    del optimiser


def test_a_parameter_that_stays_in_the_model_is_none_of_its_business():
    model = Decoder()
    optimiser = torch.optim.Adam(model.parameters())
    nc.recode(model, "head", small())
    assert optimiser.param_groups[0]["params"][0] is model.embed.weight
