"""Control inside models of transformers: activation checkpointing reruns a forward, beam search repeats inputs."""

import pytest
import torch
from client_helpers import GATES, TOKENS, llama, moved
from transformers import T5Config, T5ForConditionalGeneration

import neurocoder as nc
from conftest import small


def steered():
    """A Llama whose gate projections are steered by z (2, 3), and z."""
    model = moved(nc.recode(llama(), GATES, small(), control_dim=3))
    return model, torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def loss_of(model):
    return model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_read_the_control_again_in_the_backward(use_reentrant):
    model, z = steered()
    slots = model.model.layers[0].mlp.gate_proj.memory.U
    with nc.control(model, z):
        (expected,) = torch.autograd.grad(loss_of(model), [slots])
    model.train()
    model.enable_input_require_grads()  # which the reentrant kind needs
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    with nc.control(model, z):
        loss_of(model).backward()
    torch.testing.assert_close(slots.grad, expected)
    with nc.control(model, z):
        loss = loss_of(model)
    with pytest.raises(ValueError, match=r"control must be given.*the backward must run inside the block too"):
        loss.backward()


def test_beams_need_a_control_each():
    model, z = steered()
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    with (
        nc.control(model, z),
        pytest.raises(ValueError, match=r"got \(2,\); beam search .*z.repeat_interleave\(3, 0\)"),
    ):
        model.generate(TOKENS, num_beams=3, **options)
    with nc.control(model, z.repeat_interleave(3, 0)):
        both = model.generate(TOKENS, num_beams=3, **options)
    for i in range(2):  # as each input alone, with its own control
        with nc.control(model, z[i].expand(3, 3)):
            assert torch.equal(model.generate(TOKENS[i : i + 1], num_beams=3, **options)[0], both[i])


def test_t5_in_float16_keeps_wo_in_float32():
    """T5 casts what `wo` reads only if its weight is a tensor, which that of a coded layer is not."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 48, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval().half()
    for name in ("encoder.block.0.layer.1", "decoder.block.0.layer.2"):  # as `from_pretrained` does
        model.get_submodule(name).DenseReluDense.wo.float()
    model(input_ids=TOKENS, labels=TOKENS)
    nc.recode(model, "*.wo", small())
    message = r"x must be torch.float32, as the slots of encoder\S*wo are, got torch.float16: cast it"
    with pytest.raises(ValueError, match=message):
        model(input_ids=TOKENS, labels=TOKENS)
