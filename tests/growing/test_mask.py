"""`nc.mask`: inputs that are masked out neither visit slots nor write them, as if they were not there."""

import copy

import pytest
import torch
from growing_helpers import fill, filled, small
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow

KEEP = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 1]])
STATE = ("memory.keys", "memory.visits", "memory.born", "memory.written", "memory.U", "memory.V")


def pair(**options):
    """The same layer twice, with what grows each."""
    layer = fill(GrowingLinear(7, 3, growing=small(slots=12, writes=2), **options), 2)
    return layer, copy.deepcopy(layer)


def trained(layer, calls):
    """The layer's memory after a step of each call, which returns a loss."""
    optimiser = torch.optim.Adam(layer.parameters(), 0.05)
    grow(layer, optimiser)
    for call in calls:
        optimiser.zero_grad()
        call(layer).backward()
        optimiser.step()
    return {name: layer.state_dict()[name] for name in STATE}


def assert_same(found, expected):
    assert int(expected["memory.written"]) > 2
    for name in STATE:
        torch.testing.assert_close(found[name], expected[name], msg=lambda m, n=name: f"{n}: {m}")


def masked(x, keep, **options):
    """The loss of the inputs that count, in a block that also holds the backward."""

    def call(layer):
        with nc.mask(layer, keep):
            return layer(x, **options)[keep != 0].square().sum()

    return call


def alone(x, keep, control=None):
    """The same of a batch without the others."""
    given = {} if control is None else {"control": control[keep != 0]}
    return lambda layer: layer(x[keep != 0], **given).square().sum()


@pytest.mark.parametrize("keep", [KEEP, KEEP.bool(), torch.zeros_like(KEEP)])
def test_masked_tokens_leave_the_memory_that_a_batch_without_them_leaves(keep):
    layer, twin = pair()
    xs = [torch.randn(3, 4, 7) for _ in range(3)]
    if not keep.any():
        memory = trained(layer, [lambda layer, x=x: _all_masked(layer, x, keep) for x in xs])
        assert int(memory["memory.written"]) == 2
        assert torch.equal(memory["memory.visits"], twin.memory.visits)
        return
    found = trained(layer, [masked(x, keep) for x in xs])
    assert_same(found, trained(twin, [alone(x, keep) for x in xs]))


def _all_masked(layer, x, keep):
    with nc.mask(layer, keep):
        return layer(x).square().sum()


def test_with_a_control_for_each_token():
    layer, twin = pair(control_dim=5)
    x, z = torch.randn(3, 4, 7), torch.randn(3, 4, 5)
    found = trained(layer, [masked(x, KEEP, control=z)] * 3)
    assert_same(found, trained(twin, [alone(x, KEEP, z)] * 3))


def test_a_control_of_a_whole_sequence_counts_if_any_of_its_tokens_does():
    layer, twin = pair(control_dim=5)
    keep = KEEP.clone()
    keep[1] = 0
    x, z = torch.randn(3, 4, 7), torch.randn(3, 5)
    found = trained(layer, [masked(x, keep, control=z)] * 3)
    sequences = torch.tensor([0, 2])
    expected = trained(twin, [lambda t: t(x[sequences], control=z[sequences])[keep[sequences] != 0].square().sum()] * 3)
    assert_same(found, expected)


def test_a_mask_of_sequences_serves_their_tokens():
    layer, twin = pair()
    x, keep = torch.randn(3, 4, 7), torch.tensor([True, False, True])
    assert_same(trained(layer, [masked(x, keep)] * 3), trained(twin, [alone(x, keep)] * 3))


def test_a_layer_whose_tokens_are_flattened():
    layer, twin = pair()
    x = torch.randn(3, 4, 7)

    def call(layer):
        with nc.mask(layer, KEEP):
            return layer(x.flatten(0, 1))[KEEP.flatten() != 0].square().sum()

    assert_same(trained(layer, [call] * 3), trained(twin, [alone(x, KEEP)] * 3))


def test_images():
    layer = filled("conv2d", 2)
    twin, x, keep = copy.deepcopy(layer), torch.randn(4, 3, 8, 8), torch.tensor([True, False, True, True])
    assert_same(trained(layer, [masked(x, keep)] * 3), trained(twin, [alone(x, keep)] * 3))


def test_pads_that_are_not_finite_leave_no_trace():
    layer, twin = pair(control_dim=5)
    x, z = torch.randn(3, 4, 7), torch.randn(3, 4, 5)
    dirty = torch.where(KEEP.unsqueeze(-1) != 0, z, float("nan"))

    def call(layer):
        with nc.mask(layer, KEEP):
            return layer(x, control=dirty)[KEEP != 0].square().sum()

    call(layer).backward()
    alone(x, KEEP, z)(twin).backward()
    torch.testing.assert_close(layer.memory.notes.visits, twin.memory.notes.visits)
    torch.testing.assert_close(layer.memory.notes.keys, twin.memory.notes.keys)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers(use_reentrant):
    layer, twin = pair()
    x = torch.randn(3, 4, 7, requires_grad=True)

    def run(layer):
        return checkpoint(layer, x, use_reentrant=use_reentrant)[KEEP != 0].square().sum()

    optimiser = torch.optim.Adam(layer.parameters(), 0.05)
    grow(layer, optimiser)
    for _ in range(3):
        optimiser.zero_grad()
        with nc.mask(layer, KEEP):
            run(layer).backward()
        optimiser.step()
    found = {name: layer.state_dict()[name] for name in STATE}
    assert_same(found, trained(twin, [alone(x, KEEP)] * 3))
    with nc.mask(layer, KEEP):
        loss = run(layer)
    with pytest.raises(ValueError, match=r"nc\.mask ended before the backward"):
        loss.backward()
    run(layer).backward()  # without a mask nothing is missing


@pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"
)  # dynamo
def test_a_compiled_model():
    torch._dynamo.reset()
    layer, twin = pair()
    compiled, x = torch.compile(layer, fullgraph=True, backend="aot_eager"), torch.randn(3, 4, 7)

    def call(layer):
        with nc.mask(layer, KEEP):
            return compiled(x)[KEEP != 0].square().sum()

    assert_same(trained(layer, [call] * 3), trained(twin, [alone(x, KEEP)] * 3))


def test_outputs_stay_and_layers_that_do_not_grow_ignore_it():
    model = nc.recode(nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 3)), {"0": nc.CoreConfig(), "1": small()})
    x = torch.randn(3, 4, 7)
    with nc.mask(model, KEEP):
        inside = model(x)
    assert torch.equal(inside, model(x))
    assert model[1].ambient_mask is None
    with nc.mask(nn.Linear(7, 3), KEEP):
        pass


@pytest.mark.parametrize("keep", [None, [1, 0], torch.ones(3, 4), torch.tensor(1)])
def test_what_is_no_mask_is_refused(keep):
    layer, _ = pair()
    with pytest.raises(ValueError, match="keep must be a tensor of booleans or whole numbers, one for each input, got"):
        nc.mask(layer, keep).__enter__()


@pytest.mark.parametrize("shape", [(4, 3), (2,), (3, 5), (3, 4, 7)[::-1]])
def test_a_mask_of_another_shape_is_refused(shape):
    layer, _ = pair()
    with (
        nc.mask(layer, torch.ones(shape, dtype=torch.bool)),
        pytest.raises(ValueError, match=r"keep must have the first dimensions of the inputs \(3, 4\) of growing layer"),
    ):
        layer(torch.randn(3, 4, 7))


def test_a_copy_made_inside_a_block_has_no_mask():
    layer, _ = pair()
    with nc.mask(layer, KEEP):
        assert copy.deepcopy(layer).ambient_mask is None
