"""Models inside wrappers, and other ways of saving: what fits the plain model, and what is one clear error."""

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlamaConfig, LlamaForCausalLM

import neurocoder as nc
from conftest import randomised, small
from test_checkpoint import assert_same


def plain():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def coded(seed=0, config=None):
    torch.manual_seed(seed)
    return randomised(nc.recode(plain(), "0", config or small()))


def lora(model):
    return get_peft_model(model, LoraConfig(r=2, target_modules=["2"]))


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compiled DataParallel": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_is_saved_under_the_names_of_the_inner_one(tmp_path, wrapper):
    model, wrap = coded(), WRAPPERS[wrapper]
    nc.save(wrap(model), tmp_path)
    assert_same(model, nc.load(tmp_path, plain()))
    other = plain()
    wrapped = wrap(other)
    assert nc.load(tmp_path, wrapped) is wrapped
    assert_same(model, other)


def test_adapters_are_saved_and_load_under_the_same_adapters(tmp_path):
    wrapped = lora(coded())
    for name, tensor in wrapped.named_parameters():
        if "lora" in name:
            nn.init.normal_(tensor)
    nc.save(wrapped, tmp_path)
    other = lora(plain())
    nc.load(tmp_path, other)
    x = torch.randn(3, 6)
    assert torch.equal(other(x), wrapped(x))
    assert {name for name, p in other.named_parameters() if p.requires_grad} == {
        name for name, p in wrapped.named_parameters() if p.requires_grad
    }
    with pytest.raises(nc.CheckpointError, match=r"2\.base_layer.*: wrap the model with PEFT as the saved one was, or"):
        nc.load(tmp_path, plain())


def test_merged_adapters_load_into_the_plain_model(tmp_path):
    wrapped = lora(coded())
    nc.save(wrapped.merge_and_unload(), tmp_path)
    x = torch.randn(3, 6)
    assert torch.equal(nc.load(tmp_path, plain())(x), wrapped(x))


def prompted():
    """A transformer whose prompt is learned: PEFT's wrapper holds it."""
    sizes = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    model = nc.recode(LlamaForCausalLM(LlamaConfig(**sizes)), "gate_proj", small())
    return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def test_learned_prompts_are_saved_with_their_wrapper(tmp_path):
    wrapped, other = prompted(), prompted()
    nc.save(wrapped, tmp_path)
    assert not torch.equal(
        wrapped.prompt_encoder.default.embedding.weight, other.prompt_encoder.default.embedding.weight
    )
    assert_same(wrapped, nc.load(tmp_path, other))


def test_an_average_is_saved_with_its_count(tmp_path):
    """An average without it would start anew at its next update."""
    model = coded()
    average = AveragedModel(model)
    for _ in range(2):
        randomised(model)
        average.update_parameters(model)
    nc.save(average, tmp_path / "average")
    again = nc.load(tmp_path / "average", AveragedModel(plain()))
    assert_same(average, again)
    assert again.n_averaged == 2
    with pytest.raises(nc.CheckpointError, match=r"such as AveragedModel, load it into one, or save wrapper\.module"):
        nc.load(tmp_path / "average", plain())
    nc.save(average.module, tmp_path / "model")
    assert_same(average.module, nc.load(tmp_path / "model", plain()))


def growing(slots):
    """A growing layer whose every new input is written, up to eight."""
    return coded(config=nc.GrowingConfig(slots=slots, top_k=2, max_slots=8, max_similarity=0.99))


def trained(model, steps=6, average=None):
    """After some steps, with an average that follows them."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    nc.grow(model, optimiser)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimiser.step()
        if average is not None:
            average.update_parameters(model)
    return model


def test_an_average_of_a_memory_of_its_final_size_follows_it():
    model = growing(slots=8)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    memory, mean = trained(model, average=average)[0].memory, average.module[0].memory
    assert int(memory.written) == int(mean.written) == 6
    assert torch.equal(memory.keys, mean.keys)
    assert 0 < (memory.U - mean.U).abs().max() < 1
    assert average(torch.randn(3, 6)).isfinite().all()


def test_an_average_of_a_memory_that_grows_is_an_error():
    model = growing(slots=2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    with pytest.raises(RuntimeError, match=r"size of tensor a \(2\) must match the size of tensor b \(4\)"):
        trained(model, average=average)
    assert_same(trained(model, steps=2), AveragedModel(model).module)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_of_a_memory_that_has_grown(tmp_path):
    """It fits a layer of the size in `layer.config`; for any other, the error names the tensor and its sizes."""
    model = trained(growing(slots=2))
    assert model[0].config.slots == model[0].memory.capacity == 8
    dcp.save(get_model_state_dict(model), checkpoint_id=tmp_path)
    again = nc.recode(plain(), "0", model[0].config)
    state = get_model_state_dict(again)
    dcp.load(state, checkpoint_id=tmp_path)
    set_model_state_dict(again, state)
    assert_same(model, again)
    x = torch.randn(3, 6)
    assert torch.equal(again(x), model(x))
    with pytest.raises(dcp.api.CheckpointException, match=r"saved torch.Size\(\[8, 4, 6\]\) and current.*0\.memory\.U"):
        dcp.load(get_model_state_dict(growing(slots=2)), checkpoint_id=tmp_path)


def test_a_memory_that_has_grown_loads_into_the_plain_model(tmp_path):
    model = trained(growing(slots=2))
    nc.save(model, tmp_path)
    assert_same(model, nc.load(tmp_path, plain()))
