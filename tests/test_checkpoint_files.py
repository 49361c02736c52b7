"""Whose files are whose: checkpoints of format 1, and folders that another library shares."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import neurocoder as nc
from snapshots import Snapshot
from test_checkpoint import Net as OtherNet
from test_checkpoint import assert_same, coded_net, full_disk

DATA = Path(__file__).parent / "data"
FORMAT_1 = DATA / "checkpoint-format-1"
"""Written by the last commit of format 1: a convolution and a shared linear layer with programs, a mixture, a norm."""


class Net(nn.Module):
    """The plain model of that checkpoint."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.again = self.twice
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.again(self.twice(self.norm(self.conv(x)).mT).tanh()))


def recoded():
    sizes = {"slots": 6, "key_dim": 2, "steps": 3, "heads": 2, "least_used": 3, "hidden": 4}
    program = nc.ProgramConfig(**sizes)
    plain = nc.ProgramConfig(**sizes, residual="plain")
    return nc.recode(Net(), {"conv": plain, "twice": program, "head": nc.MixtureConfig(experts=3)})


@pytest.mark.parametrize("build", [Net, recoded])
def test_a_folder_of_format_1_loads_and_computes_what_it_did(build):
    model = nc.load(FORMAT_1, build()).eval()
    expected = load_file(DATA / "checkpoint-format-1-outputs.safetensors")
    assert [type(layer) for layer in (model.conv, model.twice, model.head)] == [nc.Conv1d, nc.Linear, nc.MixtureLinear]
    assert model.again is model.twice
    assert model.twice.name == "twice"
    torch.testing.assert_close(model(expected["x"]), expected["y"], rtol=1e-4, atol=1e-5)


def test_it_is_saved_anew_in_the_format_of_today_and_its_old_files_stay(tmp_path):
    folder = shutil.copytree(FORMAT_1, tmp_path / "copy")
    (folder / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    model = nc.load(folder, Net())
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    nc.save(model, folder)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name: after.pop(name) for name in before} == before
    assert sorted(after) == ["neurocoder.json", "neurocoder.safetensors"]
    assert json.loads(after["neurocoder.json"])["format"] == 2
    assert_same(model, nc.load(folder, Net()))


def test_a_failing_save_leaves_a_folder_of_format_1_as_it_was(tmp_path, monkeypatch):
    folder = shutil.copytree(FORMAT_1, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full_disk)
        with pytest.raises(nc.CheckpointError, match="No space left"):
            nc.save(Net(), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in FORMAT_1.iterdir()
    }


def test_old_names_are_for_format_1_only(tmp_path):
    """A tensor that the model lacks is an error in a checkpoint of today."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    nc.save(model, tmp_path)
    other = nn.Module()
    other.a_weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(nc.CheckpointError, match=r"it lacks a_weight and has a\.weight, which the model does not have"):
        nc.load(tmp_path, other)


def test_where_both_are_there_the_new_one_counts(tmp_path):
    model = nc.load(FORMAT_1, Net())
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    nc.save(model, tmp_path)
    for file in FORMAT_1.iterdir():
        shutil.copy(file, tmp_path)
    assert_same(model, nc.load(tmp_path, Net()))


def foreign_files(folder):
    """A folder as `save_pretrained` leaves it."""
    folder.mkdir()
    save_file({"model.embed_tokens.weight": torch.ones(3, 2)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}\n')
    (folder / "generation_config.json").write_text("{}")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_files_of_another_library_survive_byte_for_byte(tmp_path):
    folder = tmp_path / "pretrained"
    before = foreign_files(folder)
    model = coded_net()
    for _ in range(2):
        nc.save(model, folder)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name: after.pop(name) for name in before} == before
    assert sorted(after) == ["neurocoder.json", "neurocoder.safetensors"]
    assert_same(model, nc.load(folder, OtherNet()))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b'["format", "version", "layers", "aliases"]'),
        ("config.json", b'{"format": 1, "layers": 12}'),
        ("model.safetensors", b"not safetensors"),
        ("model.safetensors", b""),
    ],
)
def test_so_do_files_that_nobody_can_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    nc.save(coded_net(), tmp_path)
    assert (tmp_path / name).read_bytes() == content


def test_a_folder_of_another_library_is_no_checkpoint(tmp_path):
    foreign_files(tmp_path / "pretrained")
    model = OtherNet()
    before = Snapshot(model)
    with pytest.raises(nc.CheckpointError, match=r"model\.safetensors is not a neurocoder checkpoint, it carries no"):
        nc.load(tmp_path / "pretrained", model)
    before.assert_unchanged()
