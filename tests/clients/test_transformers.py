"""Models of Hugging Face transformers: their folders, their initialisation, their tied heads, their `Conv1D`."""

import pytest
import torch
from client_helpers import GATES, TOKENS, assert_same, coded, gpt2, llama, logits, recoded, state
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.pytorch_utils import Conv1D

import neurocoder as nc
from conftest import small
from neurocoder.surgery import registry as kinds


@pytest.fixture
def conv1d_registered(monkeypatch):
    """Teach `recode` the kind of GPT-2's layers, and forget it afterwards."""
    monkeypatch.setattr(kinds, "_registry", dict(kinds._registry))
    nc.register(Conv1D, nc.Linear, transposed=True)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("first", ["save_pretrained", "nc.save"])
def test_both_kinds_of_checkpoint_live_in_one_folder(tmp_path, first):
    model = recoded(llama())
    writers = {"save_pretrained": model.save_pretrained, "nc.save": lambda folder: nc.save(model, folder)}
    writers.pop(first)(tmp_path)
    before = contents(tmp_path)
    next(iter(writers.values()))(tmp_path)
    after = contents(tmp_path)
    assert {"config.json", "model.safetensors"} <= set(after)
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)

    config = AutoConfig.from_pretrained(tmp_path)
    assert {**config.to_dict(), "_name_or_path": ""} == model.config.to_dict()
    plain = AutoModelForCausalLM.from_config(config).eval()
    assert plain.model.layers[0].mlp.gate_proj.weight.shape == (24, 16)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).lm_head.weight.shape == (48, 16)
    loaded = nc.load(tmp_path, plain)
    assert list(coded(loaded)) == [f"model.layers.{i}.mlp.gate_proj" for i in range(2)]
    assert_same(state(loaded), state(model))
    assert torch.equal(logits(loaded), logits(model))


def test_from_pretrained_reports_the_layers_that_it_cannot_know(tmp_path):
    model = recoded(llama())
    model.save_pretrained(tmp_path)
    plain, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not coded(plain)
    names = [f"model.layers.{i}.mlp.gate_proj" for i in range(2)]
    assert set(info["missing_keys"]) == {f"{name}.weight" for name in names}
    assert set(info["unexpected_keys"]) == {key for key in model.state_dict() if key.rpartition(".mlp.gate_proj.")[0]}
    assert set(info["unexpected_keys"]) > {f"{name}.memory.U" for name in names}


def test_a_checkpoint_is_loaded_into_a_model_from_pretrained(tmp_path):
    """The same recipe where the rest of the model comes from `from_pretrained`: the base as published, then nc.load."""
    base = llama()
    base.save_pretrained(tmp_path / "base")
    model = recoded(AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    nc.save(model, tmp_path / "recoded")
    loaded = nc.load(tmp_path / "recoded", AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    assert torch.equal(logits(loaded), logits(model))


def test_generate_writes_the_same_after_loading(tmp_path):
    model = recoded(llama())
    nc.save(model, tmp_path)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 1}
    prompt = torch.tensor([[3, 4, 5]])
    expected = model.generate(prompt, **options)
    assert torch.equal(nc.load(tmp_path, llama(seed=7)).generate(prompt, **options), expected)


def plain_init(module):
    """How most code bases initialise a model anew."""
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | Conv1D):
        nn.init.zeros_(module.weight)
        if module.bias is not None:
            nn.init.ones_(module.bias)


INITIALISERS = {
    "model.apply": lambda model: model.apply(plain_init),
    "_init_weights": lambda model: model.apply(model._init_weights),
    "init_weights": lambda model: model.init_weights(),
    "initialize_weights": lambda model: model.initialize_weights(),
}


@pytest.mark.parametrize("initialise", INITIALISERS.values(), ids=INITIALISERS)
def test_initialising_a_model_anew_leaves_coded_layers_alone(initialise):
    model = llama()
    nc.recode(model, "model.layers.*.mlp.*_proj", small())
    for module in model.modules():  # as in a model that was just built: transformers skips what it initialised before
        vars(module).pop("_is_hf_initialized", None)
    for parameter in model.parameters():
        vars(parameter).pop("_is_hf_initialized", None)
    before = {name: state(layer) for name, layer in coded(model).items()}
    attention = model.model.layers[0].self_attn.q_proj.weight
    earlier = attention.detach().clone()
    initialise(model)
    assert not torch.equal(attention, earlier)
    assert len(before) == 6
    for name, layer in coded(model).items():
        assert_same(state(layer), before[name])


def test_only_the_targets_are_restored():
    model = llama()
    expected = logits(model)
    nc.recode(model, GATES, small())
    nc.restore(model, "model.layers.0.*")
    assert list(coded(model)) == ["model.layers.1.mlp.gate_proj"]
    assert type(model.model.layers[0].mlp.gate_proj) is nn.Linear
    torch.testing.assert_close(logits(model), expected)


def test_the_last_part_of_a_name_is_a_target():
    model = nc.recode(llama(), ["gate_proj", "down_proj"], small())
    names = [f"model.layers.{i}.mlp.{name}" for i in range(2) for name in ("gate_proj", "down_proj")]
    assert list(coded(model)) == names


def test_each_pattern_has_its_own_config():
    wide, narrow = small(slots=8), small(slots=4)
    model = nc.recode(llama(), {"model.layers.0.*.gate_proj": wide, "down_proj": narrow})
    found = {name: layer.config for name, layer in coded(model).items()}
    downs = dict.fromkeys([f"model.layers.{i}.mlp.down_proj" for i in range(2)], narrow)
    assert found == {"model.layers.0.mlp.gate_proj": wide, **downs}


@pytest.mark.usefixtures("conv1d_registered")
@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_glob_passes_over_a_tied_head_and_the_plan_names_it(build):
    model = build(tie_word_embeddings=True)
    plan = str(nc.plan(model, "*", small()))
    left = plan.partition("left as it is: ")[2]
    assert "lm_head" in left
    assert "tied" in left
    nc.recode(model, "*", small())
    assert coded(model)
    assert type(model.lm_head) is nn.Linear
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("build", [llama, gpt2])
def test_where_only_a_tied_head_matches_the_error_says_so(build):
    """`"*"` on a GPT-2 found nothing else than its head, and ended the tie."""
    model = build(tie_word_embeddings=True)
    with pytest.raises(ValueError, match=r"lm_head.*tied"):
        nc.recode(model, "lm_*", small())
    assert not coded(model)


@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_tied_head_is_recoded_by_its_name_and_the_tie_ends(build):
    model = build(tie_word_embeddings=True)
    expected = logits(model)
    nc.recode(model, "lm_head", small())
    assert list(coded(model)) == ["lm_head"]
    torch.testing.assert_close(logits(model), expected)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1.0)
        head = model.lm_head.materialize(torch.ones(1, 16))
    torch.testing.assert_close(head.squeeze(0).mT, model.get_input_embeddings().weight - 1.0)


RETYINGS = {
    "tie_weights": lambda model: model.tie_weights(),
    "resize_token_embeddings": lambda model: model.resize_token_embeddings(50),
    "resize to the same": lambda model: model.resize_token_embeddings(48),
}


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("change", RETYINGS.values(), ids=RETYINGS)
def test_what_would_tie_a_recoded_head_again_is_an_error_that_names_it(build, change):
    model = nc.recode(build(tie_word_embeddings=True), "lm_head", small())
    with pytest.raises((TypeError, ValueError, AttributeError), match=r"lm_head|language model head"):
        change(model)
    assert list(coded(model)) == ["lm_head"]
    assert isinstance(model.lm_head.weight.shape, torch.Size)


def test_a_recoded_head_stays_as_it_is_once_the_config_says_untied():
    model = nc.recode(llama(tie_word_embeddings=True), "lm_head", small())
    before, expected = state(model), logits(model)
    model.config.tie_word_embeddings = False
    model.tie_weights()
    model.resize_token_embeddings(48)
    assert_same(state(model), before)
    assert torch.equal(logits(model), expected)


def test_a_model_with_other_layers_recoded_is_tied_and_resized_as_ever():
    model = nc.recode(llama(tie_word_embeddings=True), GATES, small())
    model.tie_weights()
    model.resize_token_embeddings(50)
    assert logits(model).shape == (2, 10, 50)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_an_unregistered_kind_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"transformer\.h\.0\.mlp\.c_fc.*Conv1D.*register"):
        nc.recode(gpt2(), "transformer.h.0.mlp.c_fc", small())


def mixtral():
    """A mixture of experts, which transformers keeps as parameters of three dimensions."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return MixtralForCausalLM(MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, num_local_experts=2))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "*experts",
            r"experts: its gate_up_proj \(2, 48, 16\) is a stack of layers, such as fused experts",
        ),
        ("model.layers.0.mlp.experts", r"cannot recode 'model\.layers\.0\.mlp\.experts': its gate_up_proj"),
        ("gate_up_proj", r"It is a parameter of model\.layers\.0\.mlp\.experts, not a layer"),
    ],
)
def test_fused_experts_are_refused(target, message):
    with pytest.raises(ValueError, match=message):
        nc.recode(mixtral(), target, small())


def test_a_mixture_is_recoded_around_its_experts():
    model = mixtral().eval()
    expected = logits(model)
    plan = nc.recode(model, nn.Linear, small())
    assert {name.rpartition(".")[2] for name in coded(plan)} == {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head"}
    torch.testing.assert_close(logits(model), expected)


@pytest.mark.usefixtures("conv1d_registered")
def test_one_line_teaches_recode_a_transposed_weight(tmp_path):
    model = gpt2()
    expected = logits(model)
    nc.recode(model, "transformer.h.*.mlp.*", small())
    assert len(coded(model)) == 4
    layer = model.transformer.h[0].mlp.c_fc
    assert (layer.in_features, layer.out_features) == (16, 64)
    torch.testing.assert_close(logits(model), expected)

    nc.save(model, tmp_path / "untrained")
    torch.testing.assert_close(logits(nc.load(tmp_path / "untrained", gpt2(seed=7))), expected)
    nc.restore(model)
    assert type(model.transformer.h[0].mlp.c_fc) is Conv1D
    assert_same_within_rounding(state(model), state(gpt2()))


@pytest.mark.usefixtures("conv1d_registered")
def test_a_trained_transposed_layer_is_saved_loaded_and_restored(tmp_path):
    model = recoded(gpt2(), "transformer.h.*.mlp.c_proj")
    nc.save(model, tmp_path)
    loaded = nc.load(tmp_path, gpt2(seed=7))
    assert torch.equal(logits(loaded), logits(model))
    nc.restore(loaded, data=TOKENS)
    assert type(loaded.transformer.h[0].mlp.c_proj) is Conv1D
    assert loaded.transformer.h[0].mlp.c_proj.weight.shape == (64, 16)
    assert logits(loaded).isfinite().all()


def assert_same_within_rounding(left, right):
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], msg=name)
