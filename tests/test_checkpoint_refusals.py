"""`load` of what is no sound checkpoint of the model: one clear error, and nothing changed."""

import json
import random
import struct

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import neurocoder as nc
from attack_checkpoints import CONFIG, TENSORS, coded, flipped, forge, header_length, places, plain
from conftest import small
from snapshots import Snapshot
from test_checkpoint import Net, assert_same, coded_net


def edit(change):
    """A function that forges a checkpoint: `change` gets its config and tensors, and may return another config."""
    return lambda folder: forge(folder, change)


def untie(config, tensors):
    del config["aliases"]["again.bias"]
    tensors["again.bias"] = torch.ones(4)


def write(content):
    return lambda folder: (folder / "neurocoder.safetensors").write_bytes(content)


def truncate(share):
    def apply(folder):
        content = (folder / "neurocoder.safetensors").read_bytes()
        (folder / "neurocoder.safetensors").write_bytes(content[: int(share * len(content))])

    return apply


DAMAGE = {
    "truncated tensors": (truncate(0.9), "damaged or not a safetensors file: .*; save it again"),
    "truncated header": (truncate(0.01), "damaged or not a safetensors file"),
    "empty file": (write(b""), "damaged or not a safetensors file"),
    "random bytes": (write(bytes(range(256)) * 20), "damaged or not a safetensors file"),
    "a pickle": (
        lambda f: torch.save({"a": torch.ones(2)}, f / "neurocoder.safetensors"),
        "damaged or not a safetensors file",
    ),
    "foreign safetensors": (
        lambda folder: save_file({"a": torch.ones(2)}, folder / "neurocoder.safetensors"),
        "not a neurocoder checkpoint, it carries no neurocoder config",
    ),
    "no tensors": (
        lambda f: (f / "neurocoder.safetensors").unlink(),
        "has no neurocoder.safetensors: give a folder that nc.save",
    ),
    "newer format": (
        edit(lambda config, _: config.update(format=4, version="9.0")),
        r"written by neurocoder 9\.0 in format 4; this is .*, which reads up to format 3: upgrade neurocoder",
    ),
    "config is not JSON": (edit(lambda *_: "{"), "damaged neurocoder config, save it again: JSONDecodeError"),
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
        "another architecture: it has other, which the model does not have",
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
        ("nowhere", "no checkpoint at .*nowhere, it has no neurocoder.safetensors"),
        ("neurocoder.safetensors", "path must be a folder that nc.save wrote, but .* is a file"),
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


@pytest.mark.parametrize("place", ["values", "header", "neurocoder.json"])
def test_any_flipped_bit_is_found(tmp_path, place):
    nc.save(coded(), tmp_path)
    file, bits = places(tmp_path)[place]
    content, model = file.read_bytes(), plain()
    before = Snapshot(model)
    for bit in random.Random(0).sample(bits, 60):
        file.write_bytes(flipped(content, bit))
        with pytest.raises(nc.CheckpointError, match=f"{tmp_path}"):
            nc.load(tmp_path, model)
        before.assert_unchanged()


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
@pytest.mark.parametrize("word", ['"format', '"digest', "1", " ", "e"])
def test_flips_that_leave_a_sound_looking_config(tmp_path, name, word):
    """3 to 2, a format without digests; another name for the digest; another number, or white space."""
    nc.save(coded(), tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    config = content[: header_length(content)] if name == TENSORS else content
    place = config.replace(b"\\", b" ").rindex(word.encode()) + len(word) - 1
    if word == '"format':
        place = config.index(b"3", place)
    for bit in (0, 1, 2, 3, 5):
        file.write_bytes(flipped(content, 8 * place + bit))
        with pytest.raises(nc.CheckpointError, match=name):
            nc.load(tmp_path, plain())


def resized(**changes):
    """Change what the header says of one tensor, with the same bytes behind it."""

    def apply(folder):
        content = (folder / TENSORS).read_bytes()
        begin = header_length(content)
        header = json.loads(content[8:begin])
        header["0.R"].update(changes)
        text = json.dumps(header).encode()
        (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + content[begin:])

    return apply


def long_header(length):
    return lambda folder: (folder / TENSORS).write_bytes(struct.pack("<Q", length) + b"{}" * 100)


def asking(layer, **fields):
    """A config with valid digests, whose layer is far larger than the file."""
    return edit(lambda config, _: config["layers"][layer]["config"].update(fields))


LARGER = "is of another architecture, or damaged: its coded layers would have more numbers in this model than the"
FORGED = {
    "header of exabytes": (long_header(2**63), "damaged or not a safetensors file"),
    "header of gigabytes": (long_header(2**32), "damaged or not a safetensors file"),
    "header longer than the file": (long_header(1000), "damaged or not a safetensors file"),
    "offsets beyond the file": (resized(data_offsets=[0, 2**50]), "damaged or not a safetensors file"),
    "offsets backwards": (resized(data_offsets=[120, 0]), "damaged or not a safetensors file"),
    "offsets below zero": (resized(data_offsets=[-120, 0]), "damaged or not a safetensors file"),
    "overlapping offsets": (resized(data_offsets=[4, 124]), "damaged or not a safetensors file"),
    "shape of terabytes": (resized(shape=[2**40, 6]), "damaged or not a safetensors file"),
    "shape that overflows": (resized(shape=[2**62, 2**62]), "damaged or not a safetensors file"),
    "larger dtype": (resized(dtype="F64"), "damaged or not a safetensors file"),
    "unknown dtype": (resized(dtype="F99"), "damaged or not a safetensors file"),
    "dtype of that size": (resized(dtype="I32"), "its tensors do not match their digest"),
    "shape of that size": (resized(shape=[6, 5]), "its tensors do not match their digest"),
    "a million slots": (asking("0", slots=10**6), LARGER),
    "slots of terabytes": (asking("0", slots=10**12), LARGER),
    "an LSTM of terabytes": (asking("0", hidden=10**7), LARGER),
    "experts of terabytes": (asking("4", experts=10**12), LARGER),
    "more slots than a size can be": (asking("0", slots=10**30), "cannot be recoded as it was saved"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_sizes_are_refused_before_anything_is_allocated(tmp_path, forgery):
    apply, message = FORGED[forgery]
    nc.save(coded(), tmp_path)
    apply(tmp_path)
    model = plain()
    before = Snapshot(model)
    with pytest.raises(nc.CheckpointError, match=message):
        nc.load(tmp_path, model)
    before.assert_unchanged()
