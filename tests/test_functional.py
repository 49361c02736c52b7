"""Each equation by hand, and by its properties."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import neurocoder as nc
from conftest import randomised
from neurocoder import functional as F


def sigmoid(t):
    return 1 / (1 + math.exp(-t))


def softplus(t):
    return math.log1p(math.exp(t))


def test_two_slots_two_steps_by_hand():
    """P = 2, J = 2, H = 1, K = 1, l_I = 1, one input feature, one output, one hidden unit.

    All weights of the controller are zero, so that the biases alone speak and every number can be worked out: the
    LSTM's outputs are read by zero weights, the queries are +1 and the keys +-1, so the cosine is +1 or -1.
    """
    config = nc.ProgramConfig(slots=2, key_dim=1, steps=2, heads=1, least_used=1, hidden=1)
    layer = nc.Linear(1, 1, program=config, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.memory.U.copy_(torch.tensor([[2.0], [-1.0]]))
        layer.memory.V.copy_(torch.tensor([[1.0], [3.0]]))
        layer.memory.S.copy_(torch.tensor([[0.5], [-0.5]]))
        # The key of a slot is the slot: U +2, -1; V +1, +3; S +0.5, -0.5.
        for weight in (layer.memory.key_u_weight, layer.memory.key_v_weight, layer.memory.key_s_weight):
            weight.fill_(1.0)
        layer.controller.signal_bias[:3].fill_(1.0)  # one query for each of u, v, s
        layer.controller.signal_bias[3:].fill_(math.log(3))  # gates: sigmoid(log 3) = 3/4
        layer.controller.integration_bias.fill_(0.0)  # gate 1/2
        layer.R.fill_(4.0)
        layer.bias.fill_(0.25)

    # Content: cosines (1, -1) for u and s, (1, 1) for v.
    high = math.e / (math.e + 1 / math.e)  # 0.880797
    low = 1 - high  # 0.119203
    # Step 1: usage 0, so w = 3/4 c.
    u1 = (0.75 * high, 0.75 * low)  # 0.660598, 0.089402
    v1 = (0.375, 0.375)
    # Step 2: the usage is w of step 1. For u and s slot 2 is the least used: l = (0, u1[0] - u1[1]).
    # For v both slots tie at the smallest usage and both count, with l = (0, 0).
    u2 = (0.75 * high, 0.75 * low + 0.25 * (u1[0] - u1[1]))  # 0.660598, 0.232201
    v2 = (0.375, 0.375)
    # Singular values: s_n = softplus(0.5 w_1 - 0.5 w_2); the attention to S is that to U.
    step1, step2 = softplus(0.5 * (u1[0] - u1[1])), softplus(0.5 * (u2[0] - u2[1]))
    sigma = (step1 + step2, step2)
    # u_n = 2 w_1 - w_2, v_n = w_1 + 3 w_2, P = sum sigma_n u_n v_n, W = P + 1/2 sigma_2 4.
    active = sigma[0] * (2 * u1[0] - u1[1]) * (v1[0] + 3 * v1[1]) + sigma[1] * (2 * u2[0] - u2[1]) * (v2[0] + 3 * v2[1])
    weight = active + 0.5 * sigma[1] * 4.0

    assert high == pytest.approx(0.880797, abs=1e-6)
    assert u2[1] == pytest.approx(0.232201, abs=1e-6)
    assert sigma[1] == pytest.approx(0.805971, abs=1e-6)
    assert weight == pytest.approx(5.981015, abs=1e-6)

    x = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    programs = layer.programs(x)
    expected = {
        "u": [u1, u2],
        "v": [v1, v2],
        "s": [u1, u2],
        "sigma": sigma,
        "gate": [0.5],
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(programs, name)[0], torch.tensor(value, dtype=torch.float64))
    idle = torch.tensor([[[0, 0], [0, u1[0] - u1[1]]], [[0, 0], [0, 0]], [[0, 0], [0, u1[0] - u1[1]]]])
    torch.testing.assert_close(programs.least_used[0], idle.double())
    torch.testing.assert_close(layer(x), weight * x + 0.25)


def test_composition_states_are_those_of_torch_lstm():
    cell = torch.nn.LSTMCell(3, 4, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    h, c, expected = torch.zeros(5, 4).double(), torch.zeros(5, 4).double(), []
    for _ in range(3):
        h, c = cell(x, (h, c))
        expected.append(h)
    signal = x @ cell.weight_ih.T + cell.bias_ih + cell.bias_hh
    states = F.composition_states(signal, cell.weight_hh, 3)
    torch.testing.assert_close(states, torch.stack(expected, 1))
    torch.testing.assert_close(F.composition_states(signal, None, 1), torch.stack(expected[:1], 1))


@pytest.mark.parametrize(
    ("usage", "count", "expected"),
    [
        ([0.1, 0.4, 0.2, 0.3], 2, [0.3, 0, 0.2, 0]),
        ([0.1, 0.4, 0.2, 0.3], 4, [0.3, 0, 0.2, 0.1]),
        ([0.1, 0.1, 0.1, 0.3], 1, [0.2, 0.2, 0.2, 0]),  # ties all count
        ([0.2, 0.2, 0.2, 0.2], 2, [0, 0, 0, 0]),
        ([0.5], 1, [0]),
    ],
)
def test_least_used_attention_by_hand(usage, count, expected):
    result = F.least_used_attention(torch.tensor(usage), count)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float32))


def test_least_used_gradient_flows_through_values_not_through_the_choice():
    usage = torch.tensor([0.1, 0.4, 0.2, 0.3], requires_grad=True)
    F.least_used_attention(usage, 2).sum().backward()
    assert usage.grad.tolist() == [-1, 2, -1, 0]  # two chosen slots: -1 each, and the maximum twice


def test_singular_values_by_hand():
    attention = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    slots = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    third, second, first = softplus(0), softplus(0) + softplus(-1), softplus(0) + softplus(-1) + softplus(1)
    expected = torch.tensor([first, second, third], dtype=torch.float64)
    torch.testing.assert_close(F.singular_values(attention, slots), expected)


def test_orthogonal_loss_by_hand():
    left = torch.tensor([[1.0, 0.0], [1.0, 1.0]])  # Gram [[1, 1], [1, 2]]: distance sqrt(0 + 1 + 1 + 1)
    right = torch.eye(2, 3)
    assert F.orthogonal_loss(left, right).item() == pytest.approx(math.sqrt(3))


def test_orthogonal_loss_floor_for_more_slots_than_dimensions():
    slots = torch.nn.init.orthogonal_(torch.empty(7, 3))
    assert F.orthogonal_loss(slots, torch.eye(7)).item() == pytest.approx(math.sqrt(7 - 3), rel=1e-5)


@st.composite
def composed(draw):
    slots = draw(st.integers(1, 8))
    config = nc.ProgramConfig(
        slots=slots,
        key_dim=draw(st.integers(1, 4)),
        steps=draw(st.integers(1, 4)),
        heads=draw(st.integers(1, 3)),
        least_used=draw(st.integers(1, slots)),
        hidden=draw(st.integers(1, 4)),
        residual=draw(st.sampled_from([True, False, "plain"])),
        sharpness=draw(st.floats(0.1, 20)),
    )
    torch.manual_seed(draw(st.integers(0, 2**31)))
    size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    scale = draw(st.sampled_from([0.1, 1.0, 3.0]))
    layer = randomised(nc.Linear(*size, program=config, dtype=torch.float64), scale)
    return layer, layer.programs(torch.randn(3, size[0], dtype=torch.float64))


properties = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@properties
@given(composed())
def test_sigma_decreases_and_is_positive(case):
    sigma = case[1].sigma
    assert (sigma > 0).all()
    assert (sigma.diff(dim=-1) < 0).all()


@properties
@given(composed())
def test_content_attention_sums_to_one(case):
    content = case[1].content
    assert (content > 0).all()
    torch.testing.assert_close(content.sum(-1), torch.ones_like(content.sum(-1)))


@properties
@given(composed())
def test_least_used_is_zero_outside_the_smallest(case):
    layer, programs = case
    config = layer.config
    attention = torch.stack([programs.u, programs.v, programs.s], dim=1)
    steps = attention.unflatten(2, (config.steps, config.heads))
    idle = programs.least_used.unflatten(2, (config.steps, config.heads))
    assert (idle[:, :, 0] == 0).all()
    assert (idle >= 0).all()
    for j in range(1, config.steps):
        usage = steps[:, :, :j].amax(2)
        smaller = (usage.unsqueeze(-2) < usage.unsqueeze(-1)).sum(-1)  # how many slots are used less than this one
        assert (idle[:, :, j][smaller >= config.least_used] == 0).all()


@properties
@given(composed())
def test_rank_of_the_active_program_is_at_most_its_components(case):
    layer, programs = case
    active = F.active_program(programs.u, programs.v, programs.sigma, layer.memory.U, layer.memory.V)
    values = torch.linalg.svdvals(active)
    rank = (values > values[:, :1] * 1e-10).sum(-1)
    assert (rank <= layer.config.components).all()


@properties
@given(composed())
def test_attention_interpolates_content_and_least_used(case):
    programs = case[1]
    g, attention = programs.interpolation, torch.stack([programs.u, programs.v, programs.s], dim=1)
    torch.testing.assert_close(attention, g * programs.content + (1 - g) * programs.least_used)
