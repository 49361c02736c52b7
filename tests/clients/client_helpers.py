"""What the tests with real clients share: small models from a configuration. Nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported: an accidental download fails at once

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import neurocoder as nc
from conftest import small

GATES = "model.layers.*.mlp.gate_proj"
TOKENS = torch.arange(20).view(2, 10)


def llama(seed=0, **changes):
    """A Llama of two blocks, in eval mode."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "bos_token_id": 0, "eos_token_id": 1, **changes})).eval()


def gpt2(seed=0, **changes):
    """A GPT-2 of two blocks, in eval mode; its linear layers are of transformers' own kind, `Conv1D`."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 48, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 1, **changes})).eval()


def recoded(model, targets=GATES, **changes):
    """The model with layers recoded and moved off their start, so that each input has a program of its own."""
    nc.recode(model, targets, small(**changes))
    return moved(model)


def moved(model, by=0.3):
    """Add noise to every parameter of the coded layers."""
    torch.manual_seed(1)
    with torch.no_grad():
        for layer in coded(model).values():
            for parameter in layer.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=by)
    return model


def coded(model):
    """The coded layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nc.CodedLayer)}


def state(module):
    """A copy of a module's tensors."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_same(left, right):
    """Require the same tensors, bit for bit."""
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name


def logits(model, **options):
    """What the model says about `TOKENS`."""
    with torch.no_grad():
        return model(TOKENS, **options).logits
