"""Quantisers and other passes over the `nn.Linear`s of a model: inside a coded layer there are none to find."""

import pytest
import torch
from client_helpers import assert_same, coded, llama, logits, state
from torch import nn
from torch.nn.utils import prune

import neurocoder as nc
from conftest import small

CONFIGS = [small(), nc.MixtureConfig(experts=3), nc.StoredProgramConfig(programs=3), nc.HyperConfig(hidden=4)]
each_kind = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)

LINEARS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM, nn.LSTMCell, nn.Bilinear)


@each_kind
def test_no_coded_layer_holds_a_module_that_others_take_for_a_layer(config):
    layer = coded(nc.recode(nn.Sequential(nn.Linear(6, 3)), "0", config))["0"]
    assert [name for name, module in layer.named_modules() if isinstance(module, LINEARS)] == []


def test_no_coded_convolution_holds_a_module_that_others_take_for_a_layer():
    model = nc.recode(nn.Sequential(nn.Conv1d(4, 3, 2), nn.Conv2d(4, 3, 2)), "*", small())
    assert [name for name, module in model.named_modules() if isinstance(module, LINEARS)] == []


@each_kind
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")  # in favour of torchao
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # torch's quantiser calls it
def test_quantize_dynamic_quantises_the_plain_layers_alone(config):
    model = nc.recode(llama(), "model.layers.*.mlp.*_proj", config)
    before, expected = {name: state(layer) for name, layer in coded(model).items()}, logits(model)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    attention = quantised.model.layers[0].self_attn.q_proj
    assert type(attention).__module__.startswith("torch.ao.nn.quantized")
    assert list(coded(quantised)) == list(before)
    for name, layer in coded(quantised).items():
        assert_same(state(layer), before[name])
    torch.testing.assert_close(logits(quantised), expected, rtol=0, atol=0.05 * expected.abs().max().item())


def test_global_pruning_of_the_plain_layers_leaves_coded_layers_alone():
    model = nc.recode(llama(), "model.layers.*.mlp.*_proj", small())
    before = {name: state(layer) for name, layer in coded(model).items()}
    plain = [(module, "weight") for module in model.modules() if isinstance(module, nn.Linear)]
    prune.global_unstructured(plain, pruning_method=prune.L1Unstructured, amount=0.5)
    for name, layer in coded(model).items():
        assert_same(state(layer), before[name])
    assert logits(model).isfinite().all()
