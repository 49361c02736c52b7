"""`save` and `load`: round trips, and everything that can be wrong with a checkpoint."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from neurocoder import checkpoint
from snapshots import Snapshot


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
    model = coded_net(config=config, targets=nn.Linear)
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


def test_the_folder_holds_two_files_and_no_pickle(tmp_path):
    nc.save(coded_net(), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    tensors = load_file(tmp_path / "model.safetensors")
    assert "head.memory.U" in tensors
    assert "again.memory.U" not in tensors, "a shared tensor is stored once"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layers"]["head"]["config"] == {"kind": "ProgramConfig", **vars(small())}
    with safe_open(tmp_path / "model.safetensors", "pt") as content:
        assert json.loads(content.metadata()["neurocoder"]) == config


def test_others_may_read_the_files_as_any_new_file(tmp_path):
    nc.save(Net(), tmp_path / "checkpoint")
    (tmp_path / "any").touch()
    modes = {file.stat().st_mode for file in [tmp_path / "any", *(tmp_path / "checkpoint").iterdir()]}
    assert len(modes) == 1


@pytest.mark.parametrize("content", [None, "", "{", '{"format": 99, "layers": {}}'])
def test_config_json_is_for_reading_only(tmp_path, content):
    model = coded_net()
    nc.save(model, tmp_path)
    if content is None:
        (tmp_path / "config.json").unlink()
    else:
        (tmp_path / "config.json").write_text(content)
    assert_same(model, nc.load(tmp_path, Net()))


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def half_a_file(tensors, file, metadata):
    Path(file).write_bytes(b"half a file")
    full_disk()


def full_for_tensors(source, target, replace=os.replace):
    full_disk() if Path(target).name == "model.safetensors" else replace(source, target)


FAILURES = {
    "tensors": lambda patch: patch.setattr(checkpoint, "save_file", full_disk),
    "tensors, half written": lambda patch: patch.setattr(checkpoint, "save_file", half_a_file),
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


def edit(change):
    """A function that changes the config and the tensors inside a checkpoint, or returns another config as text."""

    def apply(folder):
        file = folder / "model.safetensors"
        tensors = load_file(file)
        with safe_open(file, "pt") as content:
            config = json.loads(content.metadata()["neurocoder"])
        text = change(config, tensors)
        save_file(tensors, file, {"neurocoder": text if isinstance(text, str) else json.dumps(config)})

    return apply


def untie(config, tensors):
    del config["aliases"]["again.bias"]
    tensors["again.bias"] = torch.ones(4)


def write(content):
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def truncate(share):
    def apply(folder):
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: int(share * len(content))])

    return apply


DAMAGE = {
    "truncated tensors": (truncate(0.9), "damaged or not a safetensors file: .*; save it anew"),
    "truncated header": (truncate(0.01), "damaged or not a safetensors file"),
    "empty file": (write(b""), "damaged or not a safetensors file"),
    "random bytes": (write(bytes(range(256)) * 20), "damaged or not a safetensors file"),
    "a pickle": (
        lambda f: torch.save({"a": torch.ones(2)}, f / "model.safetensors"),
        "damaged or not a safetensors file",
    ),
    "foreign safetensors": (
        lambda folder: save_file({"a": torch.ones(2)}, folder / "model.safetensors"),
        "not a neurocoder checkpoint, it carries no neurocoder config",
    ),
    "no tensors": (
        lambda f: (f / "model.safetensors").unlink(),
        "has no model.safetensors: give a folder that nc.save",
    ),
    "newer format": (
        edit(lambda config, _: config.update(format=2, version="9.0")),
        r"written by neurocoder 9\.0 in format 2; this is .*, which reads up to format 1: upgrade neurocoder",
    ),
    "config is not JSON": (edit(lambda *_: "{"), "damaged neurocoder config, save it anew: JSONDecodeError"),
    "config is not a table": (edit(lambda *_: "[1]"), "damaged neurocoder config"),
    "config without a format": (edit(lambda config, _: config.pop("format")), "damaged .*KeyError.*format"),
    "format is a word": (edit(lambda config, _: config.update(format="new")), "damaged neurocoder config"),
    "config without layers": (edit(lambda config, _: config.pop("layers")), "damaged .*KeyError.*layers"),
    "layers is a list": (edit(lambda config, _: config.update(layers=[])), "damaged neurocoder config"),
    "aliases is a list": (edit(lambda config, _: config.update(aliases=["a"])), "damaged neurocoder config"),
    "alias to nothing": (edit(lambda config, _: config["aliases"].update(x="y")), "damaged neurocoder config"),
    "layer without a config": (edit(lambda config, _: config["layers"].update(head={})), "damaged neurocoder config"),
    "layer without control_dim": (
        edit(lambda config, _: config["layers"]["head"].pop("control_dim")),
        "damaged .*KeyError.*control_dim",
    ),
    "config out of range": (
        edit(lambda config, _: config["layers"]["head"]["config"].update(slots=-1)),
        "damaged .*program.slots must be a whole number >= 1, got -1",
    ),
    "config with an unknown field": (
        edit(lambda config, _: config["layers"]["head"]["config"].update(colour="red")),
        "damaged .*ProgramConfig has no field 'colour'",
    ),
    "control_dim out of range": (
        edit(lambda config, _: config["layers"]["head"].update(control_dim=0)),
        "layer 'head' cannot be recoded as it was saved: .*control_dim must be a whole number >= 1, got 0",
    ),
    "unknown kind": (
        edit(lambda config, _: config["layers"]["head"]["config"].update(kind="Other")),
        "layer 'head' was saved with Other, which is not registered: see nc.register",
    ),
    "missing tensor": (edit(lambda _, tensors: tensors.pop("head.bias")), "architecture: it lacks head.bias"),
    "tensor too many": (
        edit(lambda _, tensors: tensors.update(other=torch.ones(1))),
        "another architecture: it has other, which the model has not",
    ),
    "wrong shape": (
        edit(lambda _, tensors: tensors.update({"head.R": torch.ones(3, 5)})),
        r"another architecture: head\.R is \(3, 5\) there and \(3, 4\) in the model",
    ),
    "a shared layer with two values": (
        edit(untie),
        r"twice\.bias and again\.bias are one tensor in the model and have different values there",
    ),
}


@pytest.mark.parametrize("into", ["plain", "recoded"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoints_change_nothing(tmp_path, damage, into):
    apply, message = DAMAGE[damage]
    nc.save(coded_net(), tmp_path)
    apply(tmp_path)
    model = Net() if into == "plain" else coded_net(seed=1)
    before = Snapshot(model)
    if into == "recoded" and damage == "control_dim out of range":
        message = "layer 'head' is coded with .*control_dim=None.* and with .*control_dim=0"
    with pytest.raises(nc.CheckpointError, match=message):
        nc.load(tmp_path, model)
    before.assert_unchanged()


class Renamed(Net):
    def __init__(self):
        super().__init__()
        self.top = self.head
        del self.head


class Wider(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 5)


class Grouped(Net):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, groups=2)


class OtherKind(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Bilinear(4, 3, 3)


OTHER_MODELS = {
    "renamed layer": (Renamed, "the checkpoint has a coded layer 'head', the model has no such layer"),
    "wider layer": (Wider, r"another architecture: head\..* is \(.*\) there and \(.*\) in the model"),
    "grouped convolution": (Grouped, "layer 'conv' cannot be recoded as it was saved: .*groups must be 1"),
    "other kind of layer": (OtherKind, "layer 'head' is a Bilinear in the model, which ProgramConfig does not cover"),
    "other config": (
        lambda: coded_net(config=small(slots=4)),
        "layer 'conv' is coded with .*slots=4.* in the model and with .*slots=6.* in the checkpoint: give a plain",
    ),
    "other baseline": (
        lambda: nc.recode(Net(), "head", nc.HyperConfig()),
        "layer 'head' is coded with .*HyperConfig.* in the model and with .*ProgramConfig",
    ),
    "coded layer too many": (
        lambda: nc.recode(Net(), "decode", small()),
        "layer 'decode' is coded in the model, but not in the checkpoint: give a plain model",
    ),
    "meta device": (lambda: Net().to("meta"), r"on the meta device: call model\.to_empty\(device=\.\.\.\) before"),
}


@pytest.mark.parametrize("case", OTHER_MODELS)
def test_other_models_change_nothing(tmp_path, case):
    build, message = OTHER_MODELS[case]
    nc.save(coded_net(), tmp_path)
    model = build()
    if case == "meta device":
        with pytest.raises(nc.CheckpointError, match=message):
            nc.load(tmp_path, model)
        assert type(model.head) is nn.Linear
        return
    before = Snapshot(model)
    with pytest.raises(nc.CheckpointError, match=message):
        nc.load(tmp_path, model)
    before.assert_unchanged()


def test_a_single_layer_cannot_replace_the_model_itself(tmp_path):
    nc.save(nc.Linear(3, 2, program=small()), tmp_path)
    with pytest.raises(nc.CheckpointError, match="cannot replace the model itself: give a coded layer"):
        nc.load(tmp_path, nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "no checkpoint at .*nowhere, it has no model.safetensors"),
        ("model.safetensors", "path must be a folder that nc.save wrote, but .* is a file"),
    ],
)
def test_wrong_paths(tmp_path, place, message):
    nc.save(Net(), tmp_path)
    with pytest.raises(nc.CheckpointError, match=message):
        nc.load(tmp_path / place, Net())


def test_paths_may_be_strings(tmp_path):
    model = coded_net()
    nc.save(model, str(tmp_path / "text"))
    assert_same(model, nc.load(str(tmp_path / "text"), Net()))


def test_a_failure_inside_the_models_own_loading_puts_the_plain_layers_back(tmp_path):
    nc.save(coded_net(), tmp_path)
    model = Net()

    def refuse(module, state, *_):
        raise RuntimeError("not today")

    model.embed.register_load_state_dict_pre_hook(refuse)
    before = Snapshot(model)
    with pytest.raises(nc.CheckpointError, match="not today"):
        nc.load(tmp_path, model)
    before.assert_unchanged()
