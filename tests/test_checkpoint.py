"""`save` and `load`: round trips, and writing that fails; what cannot be loaded is in test_checkpoint_refusals.py."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from neurocoder import checkpoint_files


class Net(nn.Module):
    """Linear and convolutional layers, a shared module, tied weights and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.again = self.twice
        self.head = nn.Linear(4, 3)
        self.decode = nn.Linear(4, 7, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens):
        x = self.norm(self.conv(self.embed(tokens).mT)).mT
        x = self.again(self.twice(x).tanh())
        return torch.cat([self.head(x), self.decode(x)], dim=-1)


TOKENS = torch.arange(14).view(2, 7) % 7


def coded_net(seed=0, config=None, targets=("conv", "twice", "head")):
    torch.manual_seed(seed)
    model = nc.recode(Net(), targets, config or small())
    randomised(model, 0.5)
    model.train()(TOKENS)
    return model.eval()


def assert_same(model, other):
    state, expected = other.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert state[name].dtype is tensor.dtype
        assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("into", ["plain", "recoded"])
def test_round_trip(tmp_path, into):
    model = coded_net()
    nc.save(model, tmp_path / "deep" / "folder")
    other = Net().eval() if into == "plain" else coded_net(seed=1)
    assert (model(TOKENS) - other(TOKENS)).abs().max() > 0.1
    assert nc.load(tmp_path / "deep" / "folder", other) is other
    assert_same(model, other)
    assert torch.equal(model(TOKENS), other(TOKENS))
    assert other.twice is other.again
    assert other.decode.weight is other.embed.weight
    assert [type(m) for m in model.modules()] == [type(m) for m in other.modules()]
    assert other.head.config == small()
    assert not any(m.training for m in other.modules())
    assert all(p.requires_grad for p in other.parameters())


@pytest.mark.parametrize(
    "config", [nc.MixtureConfig(experts=3), nc.StoredProgramConfig(4, 2), nc.HyperConfig(hidden=5)]
)
def test_baselines(tmp_path, config):
    model = coded_net(config=config, targets=[nn.Linear, "decode"])
    nc.save(model, tmp_path)
    other = nc.load(tmp_path, Net().eval())
    assert other.decode.config == config
    assert_same(model, other)
    assert torch.equal(model(TOKENS), other(TOKENS))


def test_several_kinds_and_controls_in_one_model(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))

    model = build()
    nc.recode(model, "0", small(residual="plain"))
    nc.recode(model, "1", small(slots=4, sharpness=2.5, orthogonality=0), control_dim=2)
    nc.recode(model, "2", nc.MixtureConfig(experts=4, active=1, balance=0.5))
    randomised(model)
    nc.save(model, tmp_path)
    other = nc.load(tmp_path, build())
    assert_same(model, other)
    assert [layer.config for layer in other] == [layer.config for layer in model]
    assert [layer.control_dim for layer in other] == [None, 2, None]
    x, z = torch.randn(4, 3), torch.randn(4, 2)
    with nc.control(model, z), nc.control(other, z):
        assert torch.equal(model.eval()(x), other.eval()(x))


@pytest.mark.filterwarnings("ignore:programs in torch.bfloat16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(tmp_path, dtype):
    model = randomised(nc.recode(nn.Sequential(nn.Linear(3, 3, dtype=dtype)), "0", small()))
    nc.save(model, tmp_path)
    other = nc.load(tmp_path, nn.Sequential(nn.Linear(3, 3, dtype=dtype)))
    assert_same(model, other)


def test_a_plain_model_and_a_single_layer(tmp_path):
    for model, other in [(Net(), Net()), (nc.Linear(3, 2, program=small()), nc.Linear(3, 2, program=small()))]:
        nc.save(randomised(model), tmp_path)
        assert_same(model, nc.load(tmp_path, other))


def test_frozen_and_training_modes_are_the_models_own(tmp_path):
    nc.save(coded_net(), tmp_path)
    other = Net().train()
    other.head.requires_grad_(False)
    nc.load(tmp_path, other)
    assert (other.head.R.requires_grad, other.head.bias.requires_grad) == (False, False)
    assert other.head.memory.U.requires_grad
    assert all(m.training for m in other.modules())


def test_a_loaded_model_trains_and_is_independent_of_the_file(tmp_path):
    model = coded_net()
    nc.save(model, tmp_path)
    other = nc.load(tmp_path, Net().eval())
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    other(TOKENS).sum().backward()
    assert_same(model, other)


def test_compiled_models(tmp_path):
    model = coded_net()
    nc.save(torch.compile(model, backend="eager"), tmp_path)
    other = torch.compile(Net().eval(), backend="eager")
    assert nc.load(tmp_path, other) is other
    torch.testing.assert_close(other(TOKENS), model(TOKENS))


def test_frozen_parameters_stay_frozen_where_layers_are_recoded(tmp_path):
    """Also those of plain layers: a frozen base would train again without a word."""
    model = Net().requires_grad_(False)
    nc.recode(model, ("twice", "head"), small())
    model.head.memory.U.requires_grad_(False)
    model.norm.requires_grad_(True)
    nc.save(model, tmp_path)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "twice.memory.U" in trained
    other = nc.load(tmp_path, Net())
    assert {name for name, p in other.named_parameters() if p.requires_grad} == trained
    assert not other.decode.weight.requires_grad
    frozen = nc.load(tmp_path, Net().requires_grad_(False))
    assert {name for name, p in frozen.named_parameters() if p.requires_grad} == {
        name for name in trained if not name.startswith("norm.")
    }


def test_what_is_frozen_is_the_models_own_if_nothing_is_recoded(tmp_path):
    """An optimiser may hold its parameters."""
    nc.save(coded_net().requires_grad_(False), tmp_path)
    assert all(p.requires_grad for p in nc.load(tmp_path, coded_net(seed=1)).parameters())


def test_the_folder_holds_two_files_and_no_pickle(tmp_path):
    nc.save(coded_net(), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["neurocoder.json", "neurocoder.safetensors"]
    tensors = load_file(tmp_path / "neurocoder.safetensors")
    assert "head.memory.U" in tensors
    assert "again.memory.U" not in tensors, "a shared tensor is stored once"
    config = json.loads((tmp_path / "neurocoder.json").read_text())
    assert config["layers"]["head"]["config"] == {"kind": "ProgramConfig", **dataclasses.asdict(small())}
    with safe_open(tmp_path / "neurocoder.safetensors", "pt") as content:
        assert json.loads(content.metadata()["neurocoder"]) == config


def test_others_may_read_the_files_as_any_new_file(tmp_path):
    nc.save(Net(), tmp_path / "checkpoint")
    (tmp_path / "any").touch()
    modes = {file.stat().st_mode for file in [tmp_path / "any", *(tmp_path / "checkpoint").iterdir()]}
    assert len(modes) == 1


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def half_a_file(tensors, file, metadata):
    Path(file).write_bytes(b"half a file")
    full_disk()


def full_for_tensors(source, target, replace=os.replace):
    full_disk() if Path(target).name == "neurocoder.safetensors" else replace(source, target)


FAILURES = {
    "tensors": lambda patch: patch.setattr(checkpoint_files, "save_file", full_disk),
    "tensors, half written": lambda patch: patch.setattr(checkpoint_files, "save_file", half_a_file),
    "config": lambda patch: patch.setattr(Path, "write_text", full_disk),
    "flush": lambda patch: patch.setattr(os, "fsync", full_disk),
    "rename": lambda patch: patch.setattr(os, "replace", full_disk),
    "rename of the tensors": lambda patch: patch.setattr(os, "replace", full_for_tensors),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, failure):
    first, folder = coded_net(), tmp_path / "checkpoint"
    nc.save(first, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(nc.CheckpointError, match=r"cannot write the checkpoint .*: .*No space left on device"):
            nc.save(coded_net(seed=1, config=small(slots=4)), folder)
        with pytest.raises(nc.CheckpointError, match="No space left"):
            nc.save(first, tmp_path / "new")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"], "no temporary file or empty folder may remain"
    assert_same(first, nc.load(folder, Net()))


def test_an_interrupted_write_leaves_no_temporary_file(tmp_path, monkeypatch):
    first = coded_net()
    nc.save(first, tmp_path)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            nc.save(coded_net(seed=1), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert_same(first, nc.load(tmp_path, Net()))


def test_saving_over_a_checkpoint_replaces_it(tmp_path):
    nc.save(coded_net(), tmp_path)
    model = coded_net(seed=1, config=small(slots=4), targets="head")
    nc.save(model, tmp_path)
    assert_same(model, nc.load(tmp_path, Net()))


class WithExtraState(nn.Module):
    def get_extra_state(self):
        return {"step": 3}


def sparse_buffer():
    model = nn.Module()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (WithExtraState, "_extra_state is not a tensor but dict, which safetensors cannot hold"),
        (sparse_buffer, "graph is sparse or quantized, .*: make it dense first"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the meta device and has no values to save"),
    ],
)
def test_models_that_cannot_be_saved(tmp_path, build, message):
    with pytest.raises(nc.CheckpointError, match=message):
        nc.save(build(), tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_saving_onto_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(nc.CheckpointError, match=r"path must be a folder, but .*file is a file"):
        nc.save(Net(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
