"""PEFT beside coded layers: adapters, merging, `modules_to_save`, and what is saved of a frozen base."""

import pytest
import torch
from client_helpers import GATES, TOKENS, assert_same, coded, gpt2, llama, logits, moved, recoded, state
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn

import neurocoder as nc
from conftest import small

CONFIGS = [small(), nc.MixtureConfig(experts=3), nc.StoredProgramConfig(programs=3), nc.HyperConfig(hidden=4)]


def lora(model, **options):
    torch.manual_seed(0)
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", **options))


def adapters(model):
    return {name: tensor for name, tensor in model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_all_linear_puts_no_adapter_inside_a_coded_layer(config):
    model = nc.recode(llama(), "model.layers.*.mlp.*_proj", config)
    wrapped = lora(model)
    names = adapters(wrapped)
    assert len(names) == 2 * 4 * 2  # blocks, projections of the attention, A and B
    assert all(".self_attn." in name for name in names)
    assert not [name for layer in coded(wrapped).values() for name, _ in layer.named_parameters() if "lora" in name]


@pytest.mark.parametrize("build", [llama, gpt2])
def test_every_adapter_gets_a_gradient(build):
    targets = GATES if build is llama else "lm_head"  # GPT-2 has no other nn.Linear
    model = recoded(build(tie_word_embeddings=False), targets)
    wrapped = lora(model, fan_in_fan_out=build is gpt2).train()
    with torch.no_grad():
        for name, tensor in adapters(wrapped).items():
            if "lora_B" in name:  # starts at zero, and with it the gradient of A
                tensor.normal_()
    wrapped(TOKENS, labels=TOKENS).loss.backward()
    assert adapters(wrapped)
    for name, tensor in adapters(wrapped).items():
        assert tensor.grad is not None, name
        assert tensor.grad.count_nonzero(), name


def test_merging_adapters_leaves_coded_layers_as_they_are():
    model = recoded(llama())
    before = {name: state(layer) for name, layer in coded(model).items()}
    wrapped = lora(model).eval()
    with torch.no_grad():
        for tensor in adapters(wrapped).values():
            tensor.normal_(0, 0.1)
    expected = logits(wrapped)
    merged = wrapped.merge_and_unload()
    assert list(coded(merged)) == list(before)
    for name, layer in coded(merged).items():
        assert_same(state(layer), before[name])
    torch.testing.assert_close(logits(merged), expected)


def test_merging_an_adapter_into_a_layer_that_was_recoded_under_it_names_the_layer():
    wrapped = lora(llama()).eval()
    name = "base_model.model.model.layers.0.mlp.gate_proj.base_layer"
    nc.recode(wrapped, name, small())
    assert logits(wrapped).isfinite().all()
    with pytest.raises((TypeError, AttributeError), match=rf"{name}.*nc\.restore"):
        wrapped.merge_and_unload()


def test_an_adapter_on_a_coded_layer_by_name_is_an_error():
    """PEFT's own: it knows the kinds that it can adapt."""
    model = nc.recode(llama(), GATES, small())
    with pytest.raises(ValueError, match=r"(?s)Linear\(.*not supported"):
        get_peft_model(model, LoraConfig(r=2, target_modules=["gate_proj"]))


def saved_module():
    """A Llama whose recoded head PEFT trains as a copy, beside the original, which it keeps and never calls."""
    model = recoded(llama(), "lm_head")
    return model, get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))


def test_the_copy_that_modules_to_save_trains_counts_once():
    _, wrapped = saved_module()
    one = nc.auxiliary_loss(recoded(llama(), "lm_head"))
    assert one > 0
    torch.testing.assert_close(nc.auxiliary_loss(wrapped), one)
    torch.testing.assert_close(nc.orthogonal_loss(wrapped), one / 0.1)


def test_the_auxiliary_loss_of_modules_to_save_follows_the_copy_that_runs():
    model, wrapped = saved_module()
    wrapper = model.lm_head
    copy = wrapper.modules_to_save["default"]
    with torch.no_grad():
        copy.memory.U.mul_(2.0)
    torch.testing.assert_close(nc.auxiliary_loss(wrapped), nc.auxiliary_loss(copy))
    nc.auxiliary_loss(wrapped).backward()
    assert copy.memory.U.grad is not None
    assert wrapper.original_module.memory.U.grad is None
    with nc.record(wrapped) as trace:
        logits(wrapped)
    assert len(list(trace)) == 1


def test_an_adapter_checkpoint_holds_the_trained_copy(tmp_path):
    model, wrapped = saved_module()
    moved(model)
    tensors = get_peft_model_state_dict(wrapped)
    assert {name for name in tensors if name.endswith("lm_head.memory.U")}
    wrapped.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(nc.recode(llama(), "lm_head", small()), tmp_path).eval()
    torch.testing.assert_close(logits(again), logits(wrapped.eval()))


def test_what_is_unfrozen_after_get_peft_model_is_not_saved_and_a_warning_says_so(tmp_path):
    wrapped = lora(recoded(llama()))
    nc.parameter_groups(wrapped, lr=0.1)  # all is frozen but the adapters: no warning
    for layer in nc.coded_layers(wrapped).values():
        layer.requires_grad_(True)
    wanted = r"leaves out coded layers that are trained: base_model\..*\.mlp\.gate_proj, .*modules_to_save"
    with pytest.warns(UserWarning, match=wanted):
        nc.parameter_groups(wrapped, lr=0.1)
    wrapped.save_pretrained(tmp_path)
    assert not [name for name in load_file(tmp_path / "adapter_model.safetensors") if "memory" in name]


@pytest.mark.parametrize("kind", ["program", "growing"])
def test_coded_layers_named_in_modules_to_save_are_trained_saved_and_loaded(tmp_path, kind):
    config = small() if kind == "program" else nc.GrowingConfig(slots=2, rank=2, top_k=2, max_similarity=0.9)
    model = nc.recode(llama(), "gate_proj", config)
    options = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": list(nc.coded_layers(model))}
    wrapped = get_peft_model(model, LoraConfig(**options))
    optimiser = torch.optim.Adam(nc.parameter_groups(wrapped, lr=0.05))
    growth = nc.grow(wrapped, optimiser) if kind == "growing" else None
    expected = logits(wrapped.eval())
    for _ in range(3):
        (wrapped.train()(TOKENS, labels=TOKENS).loss + nc.auxiliary_loss(wrapped)).backward()
        optimiser.step()
    if growth is not None:
        assert [layer.memory.capacity for layer in nc.coded_layers(wrapped).values()] == [4, 4]
    found = logits(wrapped.eval())
    assert not torch.allclose(found, expected, atol=1e-2)
    wrapped.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(nc.recode(llama(), "gate_proj", config), tmp_path).eval()
    torch.testing.assert_close(logits(again), found)


def test_modules_to_save_of_a_frozen_residual_is_an_error_that_says_what_to_do():
    """PEFT makes every parameter of its copy trainable."""
    model = nc.recode(llama(), "gate_proj", nc.GrowingConfig(slots=4, residual="frozen"))
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["gate_proj"]))
    with pytest.warns(UserWarning, match=r"modules_to_save of PEFT trains R and bias .* residual='frozen': base_model"):
        optimiser = torch.optim.Adam(nc.parameter_groups(wrapped, lr=0.05))
    with pytest.raises(ValueError, match=r"save\.default' has residual='frozen', but its R or bias is trainable"):
        nc.grow(wrapped, optimiser)
    for layer in nc.coded_layers(wrapped).values():
        layer.freeze_residual()
    before = [layer.R.clone() for layer in nc.coded_layers(wrapped).values()]
    optimiser = torch.optim.Adam(nc.parameter_groups(wrapped, lr=0.05))
    nc.grow(wrapped, optimiser)
    wrapped.train()(TOKENS, labels=TOKENS).loss.backward()
    optimiser.step()
    for layer, kept in zip(nc.coded_layers(wrapped).values(), before, strict=True):
        assert torch.equal(layer.R, kept)
        assert int(layer.memory.written) == 1


def test_an_adapters_own_layers_are_recoded_only_by_name():
    wrapped = get_peft_model(llama(), LoraConfig(r=2, target_modules=["gate_proj"]))
    plan = nc.plan(wrapped, "*gate_proj*", small())
    assert [item.names[0].rpartition(".")[2] for item in plan.replacements] == ["base_layer"] * 2
    assert "lora_A.default, " in str(plan)
    assert "(it is a part of an adapter of PEFT: to recode it anyway, give its full name)" in str(plan)
    nc.recode(wrapped, nn.Linear, small())
    assert not [name for name in coded(wrapped) if "lora" in name]
    inner = "base_model.model.model.layers.0.mlp.gate_proj.lora_A.default"
    assert inner in coded(nc.recode(wrapped, inner, small()))


def test_a_predicate_that_takes_in_an_adapters_own_layer_is_an_error():
    wrapped = get_peft_model(llama(), LoraConfig(r=2, target_modules=["gate_proj"]))
    with pytest.raises(ValueError, match=r"lora_A\.default': it is a part of an adapter of PEFT: to recode it anyway"):
        nc.recode(wrapped, lambda name, module: "gate_proj" in name and type(module) is nn.Linear, small())
    assert not coded(wrapped)


def test_the_name_of_an_adapted_layer_is_an_error_that_says_where_it_is():
    wrapped = get_peft_model(llama(), LoraConfig(r=2, target_modules=["gate_proj"]))
    with pytest.raises(ValueError, match=r"mlp\.gate_proj: it is PEFT's, and what it adapts lies inside: call"):
        nc.recode(wrapped, "gate_proj", small())


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        (r".*\.(gate|up)_proj", r"which PEFT takes, it means model\.layers\.0\.mlp\.gate_proj, .* 1 more: give globs"),
        ("all-linear", r"give the type nn\.Linear"),
        ("gate_porj", r"Did you mean 'gate_proj'\?"),
    ],
)
def test_what_peft_takes_as_a_target_is_explained(target, advice):
    with pytest.raises(ValueError, match=advice):
        nc.recode(llama(), target, small())


def test_a_model_with_adapters_is_restored_beside_them():
    model = recoded(llama())
    expected = logits(nc.restore(recoded(llama()), data=TOKENS))
    wrapped = lora(model).eval()
    nc.restore(wrapped, data={"input_ids": TOKENS})
    assert not coded(wrapped)
    torch.testing.assert_close(logits(wrapped), expected)


def test_a_copy_of_modules_to_save_is_restored_after_merging_as_the_error_says():
    model, wrapped = saved_module()
    moved(model)
    expected = logits(wrapped.eval())
    with pytest.raises(ValueError, match=r"original_module': PEFT calls a copy of it: merge_and_unload\(\) comes"):
        nc.restore(wrapped, data={"input_ids": TOKENS})
    assert len(coded(wrapped)) == 2
    merged = wrapped.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected)
    nc.restore(merged, data=TOKENS)
    assert type(merged.lm_head) is nn.Linear


def frozen_base(seed):
    """A network whose plain weights are frozen before it is recoded, so that only what is new trains."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).requires_grad_(False)
    torch.manual_seed(seed)
    return nc.recode(model, "0", small())


def trainable(model):
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def test_trained_tensors_without_r_do_not_load_into_another_start():
    """`R` absorbed the first program of its own seed: it is frozen, yet belongs to what was trained."""
    trained, other = moved(frozen_base(1)), frozen_base(2)
    part = trainable(trained)
    assert "0.R" not in part
    with pytest.raises(RuntimeError, match=r"0\.R"):
        other.load_state_dict(part, strict=False)


def test_trained_tensors_with_r_load_into_another_start():
    trained, other = moved(frozen_base(1)), frozen_base(2)
    part = {name: tensor for name, tensor in state(trained).items() if name.startswith("0.")}
    other.load_state_dict(part, strict=False)
    x = torch.randn(3, 6)
    assert torch.equal(other(x), trained(x))


def test_parts_of_other_layers_still_load_without_strictness():
    model = frozen_base(1)
    missing, unexpected = model.load_state_dict({"2.bias": torch.ones(4)}, strict=False)
    assert "0.R" in missing
    assert not unexpected
    assert torch.equal(model[2].bias, torch.ones(4))
