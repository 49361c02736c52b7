"""Accelerate: models that do not fit, whose tensors come and go around each call; accumulation with its accelerator."""

import copy

import pytest
import torch
from accelerate import Accelerator, cpu_offload, disk_offload, dispatch_model
from accelerate.hooks import remove_hook_from_submodules
from client_helpers import GATES, TOKENS, coded, llama, logits, recoded, state
from torch import nn

import neurocoder as nc
from conftest import small

CONFIGS = {
    "program": small(),
    "plain residual": small(residual="plain"),
    "no residual": small(residual=False),
    "one step": small(steps=1),
    "mixture": nc.MixtureConfig(experts=3),
    "stored programs": nc.StoredProgramConfig(programs=3),
    "hypernetwork": nc.HyperConfig(hidden=4),
}


def everything(config):
    """A Llama with every linear layer recoded, and moved off its start."""
    model = llama()
    nc.recode(model, ["model.layers.*_proj", "lm_head"], config)
    assert len(coded(model)) == 15
    torch.manual_seed(1)
    with torch.no_grad():
        for layer in coded(model).values():
            for parameter in layer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_offloaded_to_the_cpu_a_model_computes_the_same(config):
    model = everything(config)
    expected = logits(model)
    cpu_offload(model, execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(logits(model), expected)
    torch.testing.assert_close(logits(model), expected)  # and again, once all has been put away
    assert all(parameter.is_meta for parameter in model.parameters())


def test_offloaded_to_disk_a_model_computes_the_same(tmp_path):
    model = everything(small())
    expected = logits(model)
    disk_offload(model, str(tmp_path), execution_device="cpu")
    assert next(model.model.layers[0].mlp.gate_proj.parameters()).is_meta
    torch.testing.assert_close(logits(model), expected)


def test_dispatched_over_devices_a_model_computes_the_same(tmp_path):
    model = everything(small())
    expected = logits(model)
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "lm_head": "disk"}
    dispatch_model(model, device_map=places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert model.lm_head.memory.U.is_meta
    torch.testing.assert_close(logits(model), expected)


DISPATCHED = {
    "offloaded": lambda model, folder: cpu_offload(model, execution_device="cpu"),
    "offloaded to disk": lambda model, folder: disk_offload(model, str(folder), execution_device="cpu"),
    "on one device": lambda model, folder: dispatch_model(model, device_map={"": "cpu"}, force_hooks=True),
}
UNDO = r"Accelerate has dispatched it: undo that with accelerate\.hooks\.remove_hook_from_submodules\(model\), and"


@pytest.mark.parametrize("dispatch", DISPATCHED.values(), ids=DISPATCHED)
def test_a_dispatched_model_is_recoded_as_the_error_says(tmp_path, dispatch):
    model = llama()
    expected = logits(model)
    dispatch(model, tmp_path / "before")
    name = "model.layers.0.mlp.gate_proj"
    with pytest.raises(ValueError, match=f"cannot recode '{name}': {UNDO}"):
        nc.recode(model, name, small())
    assert not coded(model)
    remove_hook_from_submodules(model)
    nc.recode(model, GATES, small())
    assert len(coded(model)) == 2
    dispatch(model, tmp_path / "after")
    torch.testing.assert_close(logits(model), expected)


def test_a_dispatched_model_is_restored_as_the_error_says():
    model = recoded(llama())
    expected = logits(nc.restore(copy.deepcopy(model), data=TOKENS))
    cpu_offload(model, execution_device="cpu")
    with pytest.raises(ValueError, match=rf"cannot restore 'model\.layers\.0\.mlp\.gate_proj': {UNDO}"):
        nc.restore(model, data=TOKENS)
    remove_hook_from_submodules(model)
    torch.testing.assert_close(logits(nc.restore(model, data=TOKENS)), expected)


def test_convolutions_are_offloaded_too():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    nc.recode(model, "[03]", small())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(5, 3, 4, 4)
    with torch.no_grad():
        expected = model(x)
        cpu_offload(model, execution_device="cpu")
        torch.testing.assert_close(model(x), expected)


def test_an_accelerator_divides_the_sum_of_both_losses():
    """So that its loop needs no division of its own: each micro-batch adds the auxiliary loss once."""
    torch.manual_seed(0)
    model = recoded(nn.Sequential(nn.Linear(6, 5)), "0", orthogonality=2.0)
    expected = copy.deepcopy(model)
    x, y = torch.randn(8, 6), torch.randn(8, 5)
    (nn.functional.mse_loss(expected(x), y) + nc.auxiliary_loss(expected)).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.1 * parameter.grad

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    wrapped, optimiser = accelerator.prepare(model, torch.optim.SGD(nc.parameter_groups(model, lr=0.1)))
    for inputs, targets in zip(x.split(2), y.split(2), strict=True):
        with accelerator.accumulate(wrapped):
            loss = nn.functional.mse_loss(wrapped(inputs), targets) + nc.auxiliary_loss(wrapped)
            accelerator.backward(loss)
            optimiser.step()
            optimiser.zero_grad()
    for name, tensor in state(model).items():
        torch.testing.assert_close(tensor, state(expected)[name], msg=name)
