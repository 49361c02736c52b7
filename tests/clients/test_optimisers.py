"""Optimisers that were made before the model was recoded, as libraries for reinforcement learning make them."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small


class Policy(nn.Module):
    """A policy that makes its own optimiser, as those of stable-baselines3 do."""

    def __init__(self):
        super().__init__()
        self.body, self.action = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)

    def forward(self, observation):
        return self.action(self.body(observation))


def untrained(policy):
    """The names of the parameters that a step of the policy's optimiser leaves as they are."""
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    for _ in range(2):  # the controller's first maps get a gradient once its last ones are not zero any more
        policy.optimizer.zero_grad()
        (policy(torch.randn(8, 4)).square().sum() + nc.auxiliary_loss(policy)).backward()
        policy.optimizer.step()
    return [name for name, parameter in policy.named_parameters() if torch.equal(parameter, before[name])]


def test_recoding_what_an_optimiser_holds_warns_and_a_new_one_trains_all():
    policy = Policy()
    with pytest.warns(UserWarning, match=r"Adam.*body\.0\.weight.*Make the optimiser after nc\.recode"):
        nc.recode(policy, "body.0", small())
    policy.optimizer = torch.optim.Adam(nc.parameter_groups(policy, lr=1e-2))
    assert untrained(policy) == []


def test_an_optimiser_made_before_would_leave_the_new_parameters_untrained():
    """What the warning is about."""
    policy = Policy()
    with pytest.warns(UserWarning, match=r"Make the optimiser after nc\.recode"):
        nc.recode(policy, "body.0", small())
    assert set(untrained(policy)) == {f"body.0.{name}" for name, _ in policy.body[0].named_parameters()}


def test_loading_into_what_an_optimiser_holds_warns(tmp_path):
    plain = nn.Sequential(nn.Linear(4, 6))
    nc.save(nc.recode(plain, "0", small()), tmp_path)
    model = nn.Sequential(nn.Linear(4, 6))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"SGD.*0\.weight.*Make the optimiser after nc\.load"):
        nc.load(tmp_path, model)
    assert optimiser.param_groups


def test_an_optimiser_of_other_layers_does_not_warn():
    policy = Policy()
    policy.optimizer = torch.optim.Adam(policy.action.parameters())
    nc.recode(policy, "body.0", small())  # a warning would be an error here
