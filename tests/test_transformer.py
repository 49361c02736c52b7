"""torch's transformer modules, which read the weights of their children, with recoded feed-forward layers."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small

MASK = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()


@pytest.fixture(autouse=True)
def fast_path():
    """Leave the fast path enabled, as it is by default, whatever a test does."""
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def slow(model, *args, **kwargs):
    """The result without torch's fast path: the oracle."""
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        y = model(*args, **kwargs)
    torch.backends.mha.set_fastpath_enabled(True)
    return y


def layer(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "padding mask"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False}], ids=str)
@pytest.mark.parametrize("targets", ["linear1", "linear2", "linear?"])
def test_encoder_layer_in_eval_mode(targets, options, mask):
    model, x = layer(**options), torch.randn(3, 5, 8)
    expected = slow(model, x, src_key_padding_mask=mask)
    nc.recode(model, targets, small())
    with torch.no_grad():
        assert_close(model(x, src_key_padding_mask=mask), expected)
        randomised(model.get_submodule(targets.replace("?", "1")))
        y = model(x, src_key_padding_mask=mask)
        assert (y - expected).abs().max() > 0.01, "the coded layer must be in use"
        assert_close(y, slow(model, x, src_key_padding_mask=mask))


@pytest.mark.parametrize("targets", [["layers.1.linear1"], ["layers.0.linear2"], "layers.*.linear?"], ids=str)
def test_encoder_in_eval_mode(targets):
    model, x = nn.TransformerEncoder(layer(), 3).eval(), torch.randn(3, 5, 8)
    expected = slow(model, x, src_key_padding_mask=MASK)
    nc.recode(model, targets, small())
    with torch.no_grad():
        assert_close(model(x, src_key_padding_mask=MASK), expected)
        assert_close(model(x), slow(model, x))
    nc.restore(model)
    assert model.use_nested_tensor, "a plain encoder gets its nested tensors back"
    assert_close(slow(model, x, src_key_padding_mask=MASK), expected)


def test_encoder_inside_a_model_and_after_load(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer(), 2)).eval()

    model, x = nc.recode(build(), "1.layers.1.linear1", small()), torch.randn(3, 5, 8)
    nc.save(model, tmp_path)
    other = nc.load(tmp_path, build())
    with torch.no_grad():
        expected = model[1](model[0](x), src_key_padding_mask=MASK)
        assert_close(other[1](other[0](x), src_key_padding_mask=MASK), expected)
    assert not other[1].use_nested_tensor


def test_encoder_without_nested_tensors_stays_without():
    model = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)
    nc.restore(nc.recode(model, "layers.0.linear1", small()))
    assert not model.use_nested_tensor


@pytest.mark.parametrize("build", [layer, lambda: nn.TransformerEncoder(layer(), 2).eval()], ids=["layer", "encoder"])
def test_compiled_in_eval_mode(build):
    torch._dynamo.reset()
    model, x = build(), torch.randn(3, 5, 8)
    expected = slow(model, x, src_key_padding_mask=MASK)
    nc.recode(model, "*linear?", small(steps=1))
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert_close(compiled(x, src_key_padding_mask=MASK), expected)


def test_training_goes_on():
    model, x, target = layer(dropout=0.0).train(), torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    nc.recode(model, "linear?", small())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad.abs().max() > 0 for p in (model.linear1.memory.U, model.linear2.memory.V))


def test_decoder_and_whole_transformer():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    source, target = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    expected = slow(model, source, target, src_key_padding_mask=MASK)
    nc.recode(model, "*.linear?", small())
    assert sum(isinstance(m, nc.Linear) for m in model.modules()) == 4
    with torch.no_grad():
        assert_close(model(source, target, src_key_padding_mask=MASK), expected)


def test_attention_projections_are_passed_over_by_type_and_listed():
    plan = nc.plan(layer(), nn.Linear, small())
    assert [item.names for item in plan.replacements] == [("linear1",), ("linear2",)]
    assert [name for name, _ in plan.skipped] == ["self_attn.out_proj"]


def test_a_composed_weight_cannot_be_multiplied():
    coded = nc.Linear(4, 3, program=small())
    assert coded.weight.shape == (3, 4)
    assert coded.weight.dtype is torch.float32
    with pytest.raises(TypeError, match=r"linear needs the weight of this Linear.*layer.materialize"):
        nn.functional.linear(torch.randn(2, 4), coded.weight)
