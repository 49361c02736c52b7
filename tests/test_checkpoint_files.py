"""What is in the folder, and whose it is: digests, remains of killed saves, earlier formats, files of others."""

import fcntl
import json
import os
import platform
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import neurocoder as nc
from attack_checkpoints import CONFIG, TENSORS, signed
from snapshots import Snapshot
from test_checkpoint import Net as OtherNet
from test_checkpoint import assert_same, coded_net, full_disk

DATA = Path(__file__).parent / "data"
SAVED = Path(__file__).parent / "golden" / "saved"
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


def opened(folder, model):
    """`load` of an earlier format."""
    with pytest.warns(UserWarning, match="has no digests, so damage may go unnoticed: .*save it again") as said:
        nc.load(folder, model)
    assert said[0].filename == __file__
    return model


def recoded():
    sizes = {"slots": 6, "key_dim": 2, "steps": 3, "heads": 2, "least_used": 3, "hidden": 4}
    program = nc.ProgramConfig(**sizes)
    plain = nc.ProgramConfig(**sizes, residual="plain")
    return nc.recode(Net(), {"conv": plain, "twice": program, "head": nc.MixtureConfig(experts=3)})


@pytest.mark.parametrize("build", [Net, recoded])
def test_a_folder_of_format_1_loads_and_computes_what_it_did(build):
    model = opened(FORMAT_1, build()).eval()
    expected = load_file(DATA / "checkpoint-format-1-outputs.safetensors")
    assert [type(layer) for layer in (model.conv, model.twice, model.head)] == [nc.Conv1d, nc.Linear, nc.MixtureLinear]
    assert model.again is model.twice
    assert model.twice.name == "twice"
    torch.testing.assert_close(model(expected["x"]), expected["y"], rtol=1e-4, atol=1e-5)


def test_it_is_saved_anew_in_the_format_of_today_and_its_old_files_stay(tmp_path):
    folder = shutil.copytree(FORMAT_1, tmp_path / "copy")
    (folder / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    model = opened(folder, Net())
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    nc.save(model, folder)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name: after.pop(name) for name in before} == before
    assert sorted(after) == ["neurocoder.json", "neurocoder.safetensors"]
    assert json.loads(after["neurocoder.json"])["format"] == 3
    assert_same(model, nc.load(folder, Net()))


def test_a_folder_of_format_2_loads():
    folder = SAVED / "tied"
    assert json.loads((folder / CONFIG).read_text())["format"] == 2
    tied = nn.Module()
    tied.embed, tied.first, tied.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
    tied.again, tied.head.weight = tied.first, tied.embed.weight
    model, stored = opened(folder, tied), load_file(folder / TENSORS)
    assert type(model.first) is nc.Linear
    assert all(torch.equal(model.state_dict()[name], value) for name, value in stored.items())


def test_where_warnings_are_errors_an_earlier_format_changes_nothing():
    model = Net()
    before = Snapshot(model)
    with pytest.raises(UserWarning, match="no digests"):
        nc.load(FORMAT_1, model)
    before.assert_unchanged()


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
    model = opened(FORMAT_1, Net())
    with torch.no_grad():
        model.head.bias.fill_(3.0)
    nc.save(model, tmp_path)
    for file in FORMAT_1.iterdir():
        shutil.copy(file, tmp_path)
    assert_same(model, nc.load(tmp_path, Net()))


def test_the_digests_are_what_the_documentation_says(tmp_path):
    """Of every dtype that a layer or a buffer may have, of no dimension and of no number."""
    model = coded_net()
    for kind in (torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int8, torch.bool):
        model.register_buffer(f"one_{kind}".replace(".", "_"), torch.ones((), dtype=kind))
        model.register_buffer(f"empty_{kind}".replace(".", "_"), torch.ones((2, 0, 3), dtype=kind))
    model.register_buffer("columns", torch.arange(6.0).view(2, 3).mT)
    nc.save(model, tmp_path)
    text = (tmp_path / CONFIG).read_text()
    assert text == signed(json.loads(text), load_file(tmp_path / TENSORS)) + "\n"
    assert json.loads(text)["digest"] == text.splitlines()[-2].split('"')[3]


def test_the_config_beside_the_tensors_may_be_missing(tmp_path):
    model = coded_net()
    nc.save(model, tmp_path)
    (tmp_path / CONFIG).unlink()
    assert_same(model, nc.load(tmp_path, OtherNet()))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[3]", b'{"format": 3}', b'{"format": 2, "digest": ""}'])
def test_but_not_damaged(tmp_path, content):
    nc.save(coded_net(), tmp_path)
    (tmp_path / CONFIG).write_bytes(content)
    with pytest.raises(nc.CheckpointError, match=r"neurocoder\.json (carries a damaged|is damaged)"):
        nc.load(tmp_path, OtherNet())


def test_a_save_that_is_killed_between_its_renames_leaves_the_earlier_checkpoint(tmp_path):
    first = coded_net()
    nc.save(first, tmp_path / "first")
    nc.save(coded_net(seed=1), tmp_path / "second")
    shutil.copy(tmp_path / "second" / CONFIG, tmp_path / "first")
    assert_same(first, nc.load(tmp_path / "first", OtherNet()))


def abandoned(folder, host=None):
    """A folder that a killed save has left."""
    left = folder / f".saving-{host or platform.node()}-x1y2"
    left.mkdir(parents=True)
    (left / TENSORS).write_bytes(b"half a file")
    return left


def test_the_next_save_removes_what_a_killed_one_left(tmp_path):
    for _ in range(2):
        left = abandoned(tmp_path)
        nc.save(coded_net(), tmp_path)
        assert not left.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == [CONFIG, TENSORS]


def test_but_not_while_another_process_saves(tmp_path):
    left = abandoned(tmp_path)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        nc.save(coded_net(), tmp_path)
        assert left.exists()
    finally:
        os.close(lock)
    nc.save(coded_net(), tmp_path)
    assert not left.exists()


def test_two_saves_at_a_time_leave_each_other_alone(tmp_path, monkeypatch):
    """The second begins, and ends, while the first has written its files and not renamed them."""
    first, second, replace = coded_net(), coded_net(seed=1), os.replace

    def save_between(source, target):
        monkeypatch.setattr(os, "replace", replace)
        nc.save(second, tmp_path)
        assert_same(second, nc.load(tmp_path, OtherNet()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", save_between)
    nc.save(first, tmp_path)
    assert_same(first, nc.load(tmp_path, OtherNet()))
    assert len(list(tmp_path.iterdir())) == 2


def test_what_other_hosts_left_stays(tmp_path):
    """They may be saving: not every network file system shows their locks."""
    left = abandoned(tmp_path, "elsewhere")
    nc.save(coded_net(), tmp_path)
    assert left.exists()


def test_saving_works_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    left = abandoned(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    nc.save(coded_net(), tmp_path)
    assert left.exists()
    nc.load(tmp_path, OtherNet())


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
