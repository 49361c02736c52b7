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


class Int8Tensor(torch.Tensor):
    """A weight as torchao keeps it: a float tensor to look at, of a class of its own, over integers and scales."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, tensors, *_):
        return cls(tensors["values"], tensors["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].values, args[0].scale)
        raise NotImplementedError(f"{cls.__name__}: {func}")


def as_torchao(layer):
    """What `quantize_` of torchao leaves: an `nn.Linear` with a weight of another class."""
    scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    values = (layer.weight.detach() / scale).round().to(torch.int8)
    layer.weight = nn.Parameter(Int8Tensor(values, scale), requires_grad=False)
    return layer


class Int8Params(nn.Parameter):
    """A parameter of its own class, as in bitsandbytes."""


class Linear8bitLt(nn.Linear):
    """What replaces `nn.Linear` in a model that bitsandbytes has quantised: a subclass over an integer parameter."""


def as_bitsandbytes(layer):
    quantised = Linear8bitLt(layer.in_features, layer.out_features, bias=False)
    quantised.weight = Int8Params(layer.weight.detach().mul(127).round().to(torch.int8), requires_grad=False)
    return quantised


def by_torchao(layer):
    quantization = pytest.importorskip("torchao.quantization", reason="to try it: pip install torchao")
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    return layer


def by_bitsandbytes(layer):
    layers = pytest.importorskip("bitsandbytes.nn", reason="to try it: pip install bitsandbytes")
    quantised = layers.Linear8bitLt(layer.in_features, layer.out_features, bias=False, has_fp16_weights=False)
    quantised.load_state_dict(layer.state_dict())
    return quantised.to("cpu")


@pytest.mark.parametrize("target", ["1", "*", nn.Linear])
@pytest.mark.parametrize("quantise", [as_torchao, as_bitsandbytes, by_torchao, by_bitsandbytes])
def test_a_quantised_layer_is_refused_with_what_to_do_first(quantise, target):
    model = nn.Sequential(nn.Tanh(), quantise(nn.Linear(8, 8, bias=False)))
    before = model[1]
    with pytest.raises(ValueError, match=r"its weight is quantised \(Int8(Tensor|Params)\): call nc\.recode first"):
        nc.recode(model, target, small())
    assert model[1] is before


def test_a_layer_of_eight_bit_floats_is_refused():
    model = nn.Sequential(nn.Linear(8, 8).to(torch.float8_e4m3fn))
    with pytest.raises(ValueError, match=r"cannot recode '0': its weight is quantised \(torch\.float8_e4m3fn\)"):
        nc.recode(model, "0", small())


def test_global_pruning_of_the_plain_layers_leaves_coded_layers_alone():
    model = nc.recode(llama(), "model.layers.*.mlp.*_proj", small())
    before = {name: state(layer) for name, layer in coded(model).items()}
    plain = [(module, "weight") for module in model.modules() if isinstance(module, nn.Linear)]
    prune.global_unstructured(plain, pruning_method=prune.L1Unstructured, amount=0.5)
    for name, layer in coded(model).items():
        assert_same(state(layer), before[name])
    assert logits(model).isfinite().all()
