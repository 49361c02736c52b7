"""What the server's page shows, against values worked out by hand; the model, the data and the runs it takes."""

import json
import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from server_helpers import GROUPS, SIDE, build, inputs, study
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neurocoder as nc
from conftest import unboxed
from neurocoder.lab.cli import main
from neurocoder.lab.explorer import command as explore
from neurocoder.lab.explorer.server.inputs import gathered
from neurocoder.lab.explorer.server.study import Study
from test_new_kind import GatedLinear


@pytest.fixture(scope="module")
def found():
    return study()


def test_layers_are_listed_with_kind_sizes_and_parameters(found):
    first, second = found.summary()["layers"]
    assert (first["name"], first["kind"], first["shape"], first["grows"]) == ("1", "Linear", [12, SIDE * SIDE], False)
    assert (second["name"], second["kind"], second["shape"], second["grows"]) == ("3", "GrowingLinear", [3, 12], True)
    assert first["parameters"] == nc.count_parameters(found.model[1])
    assert first["config"]["slots"] == 5
    assert json.loads(json.dumps(found.summary())) == found.summary()


def test_usage_is_the_mean_attention_over_all_inputs_and_by_label(found):
    x, labels = inputs()
    programs = found.model[1].programs(x.flatten(1))
    usage = found.layer(0)["usage"]
    attention = torch.stack([programs.u, programs.v, programs.s]).mean(2)  # (3, N, P), over components
    torch.testing.assert_close(torch.tensor(usage["mean"]), attention.mean(1), atol=1e-5, rtol=0)
    assert usage["labels"] == [0, 1, 2]
    for label in range(GROUPS):
        mean = attention[:, labels == label].mean(1)
        torch.testing.assert_close(torch.tensor(usage["by_label"])[:, label], mean, atol=1e-5, rtol=0)


def test_inputs_of_one_label_share_their_programs(found):
    clusters = found.layer(0)["clusters"]
    assert clusters["silhouette"] > 0.9
    assert [group["size"] for group in clusters["groups"]] == [10, 10, 10]
    assert sorted(group["labels"] for group in clusters["groups"]) == [[0, 0, 10], [0, 10, 0], [10, 0, 0]]
    for group in clusters["groups"]:
        assert len({index % GROUPS for index in group["typical"]}) == 1


def test_a_growing_layer_tells_when_slots_were_written_and_what_they_serve():
    layer = nc.GrowingLinear(3, 2, growing=nc.GrowingConfig(slots=4, top_k=1))
    with torch.no_grad():
        layer.memory.keys[:3] = nn.functional.normalize(torch.eye(3) - 1 / 3)
        layer.memory.born[:3], layer.memory.visits[:3] = torch.tensor([4, 0, 9]), torch.tensor([30.0, 2.0, 8.0])
        layer.memory.written.fill_(3)
        layer.memory.steps.fill_(12)
    x = torch.eye(3)[[0, 0, 1, 0]]
    growth = Study(layer, gathered((x, torch.tensor([5, 5, 6, 6])), 10)).layer(0)["growth"]
    assert (growth["written"], growth["capacity"], growth["steps"]) == (3, 4, 12)
    assert growth["born"] == [0, 4, 9]
    assert growth["labels"] == [5, 6]
    slots = {slot["slot"]: slot for slot in growth["slots"]}
    assert [slot["slot"] for slot in growth["slots"]] == [1, 0, 2], "in order of writing"
    assert slots[0] == {
        "slot": 0,
        "born": 4,
        "visits": 30,
        "use": 0.75,
        "inputs": [0, 1, 3],
        "labels": [0.6667, 0.3333],
    }
    assert slots[1] == {"slot": 1, "born": 0, "visits": 2, "use": 0.25, "inputs": [2], "labels": [0, 1]}
    assert slots[2] == {"slot": 2, "born": 9, "visits": 8, "use": 0, "inputs": [], "labels": [0, 0]}


def test_one_input_and_the_way_to_another(found):
    x, _ = inputs()
    alone = found.inspect(0, 4)
    programs = found.model[1].programs(x[4].flatten().unsqueeze(0))
    parts = torch.stack([programs.u[0], programs.v[0], programs.s[0]])
    torch.testing.assert_close(torch.tensor(alone["attention"]), parts, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(alone["sigma"]), programs.sigma[0], atol=1e-5, rtol=1e-5)
    assert {index % GROUPS for index, _ in alone["nearest"][:9]} == {1}
    assert 4 not in [index for index, _ in alone["nearest"]]
    chances = found.model(x[4:5]).detach().softmax(1)[0]
    assert alone["answer"][0] == [int(chances.argmax()), pytest.approx(float(chances.max()), abs=1e-4)]
    start, end = (found.inspect(0, 4, 5, way) for way in (0, 1))
    assert start["attention"] == alone["attention"]
    assert end["attention"] == found.inspect(0, 5)["attention"]
    middle = found.inspect(0, 4, 5, 0.5)["attention"]
    mixed = found.model[1].programs(((x[4] + x[5]) / 2).flatten().unsqueeze(0))
    torch.testing.assert_close(torch.tensor(middle[0]), mixed.u[0], atol=1e-5, rtol=0)


def test_the_model_stays_as_it_is():
    model = build()
    model[0].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = Study(model, gathered(inputs(), 512))
    found.inspect(1, 0)
    assert [module.training for module in model.modules()] == modes
    assert sum(modes) == len(modes) - 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Sequences(nn.Module):
    """Several programs an input, a layer that runs twice, one that never runs, and one without programs."""

    def __init__(self):
        super().__init__()
        self.each, self.idle, self.expert = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        small = nc.ProgramConfig(slots=3, steps=1, heads=1, least_used=1, hidden=4)
        nc.recode(self, ["each", "idle"], small)
        nc.recode(self, "expert", nc.MixtureConfig(experts=2, active=1))

    def forward(self, tokens, scale=1.0):
        return self.expert(self.each(self.each(tokens) * scale).mean(1))


def test_sequences_repeated_calls_and_layers_without_programs():
    model, x = Sequences(), torch.randn(6, 5, 4)
    found = Study(model, gathered({"tokens": x, "scale": 2.0, "labels": torch.arange(6) % 2}, 4))
    assert found.inputs.total == 4
    assert found.summary()["labels"] == [0, 1, 0, 1]
    problems = [layer["problem"] for layer in found.summary()["layers"]]
    assert problems == ["", "the model did not call it on this data", "this kind of layer keeps no programs to look at"]
    assert found.layer(1) == {"problem": problems[1]}
    once = model.each.programs(x[:4]).u.mean((1, 2))
    twice = model.each.programs(model.each(x[:4]) * 2).u.mean((1, 2))
    expected = ((once + twice) / 2).mean(0)
    torch.testing.assert_close(torch.tensor(found.layer(0)["usage"]["mean"][0]), expected, atol=1e-5, rtol=0)
    assert found.pictures is None


class Reads:
    """What a layer of an unknown kind may say of its programs: no tensor of the paper's, memories of any size."""

    def __init__(self, x):
        self.x = x

    def reads(self):
        return {"u": self.x.abs().unsqueeze(-2), "w": torch.ones(*self.x.shape[:-1], 2, 7)}

    def title(self, memory):
        return {"u": "direction of $M_U$", "w": "word"}[memory]

    def detach(self):
        return self


class Unknown(GatedLinear):
    def programs(self, x, control=None):
        return Reads(x)


def test_any_kind_is_seen_by_what_it_says_of_its_programs():
    x = torch.randn(6, 4)
    found = Study(nn.Sequential(Unknown(4, 3)), gathered(x, 6))
    layer, one = valid(found.layer(0)), valid(found.inspect(0, 2))
    assert layer["titles"] == {"u": "direction of U", "w": "word"}
    torch.testing.assert_close(torch.tensor(layer["usage"]["mean"][0]), x.abs().mean(0), atol=1e-5, rtol=0)
    assert layer["usage"]["mean"][1] == [1.0] * 7
    assert one["titles"] == ["direction of U", "word"]
    torch.testing.assert_close(torch.tensor(one["attention"][0]), x[2:3].abs(), atol=1e-5, rtol=0)
    assert one["attention"][1] == [[1.0] * 7] * 2
    assert (one["sigma"], one["gate"], one["heads"], one["decides"]) == (None, None, None, None)
    empty = nn.Sequential(Unknown(4, 3))
    empty[0].programs = lambda x, control=None: Reads(x[:, :0])
    assert Study(empty, gathered(x, 6)).layer(0) == {"problem": "it has no slots"}


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_core_layer_is_seen_with_its_blend(diagonal):
    layer, x = nc.CoreLinear(6, 5, core=nc.CoreConfig(slots=3, programs=2, diagonal=diagonal)), torch.randn(8, 6)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    one = valid(Study(nn.Sequential(layer), gathered(x, 8)).inspect(0, 4))
    programs = layer.programs(x[4:5])
    torch.testing.assert_close(torch.tensor(one["decides"]), programs.blend[0].detach(), atol=1e-5, rtol=1e-5)
    core = programs.core[0].detach().abs()
    expected = core.unsqueeze(0) if diagonal else core
    torch.testing.assert_close(torch.tensor(one["attention"][0]), expected, atol=1e-5, rtol=1e-5)
    assert one["titles"] == ["slot of U", "slot of V"]
    assert one["heads"] is None


def test_compiled_models_and_numbers_that_are_not_finite():
    x, labels = inputs()
    x[3] = torch.nan
    plain = Study(build(), gathered((x, labels), 512)).layer(0)
    compiled = Study(torch.compile(build(), backend="eager"), gathered((x, labels), 512))
    assert list(compiled.layers) == ["1", "3"]
    assert compiled.layer(0) == plain
    assert sum(group["size"] for group in plain["clusters"]["groups"]) == 29
    assert list(Study(torch.compile(nc.Linear(4, 2)), gathered(torch.randn(3, 4), 3)).layers) == [""]


def valid(value):
    """As JSON holds it; numbers that JSON lacks are an error."""
    return json.loads(json.dumps(value, allow_nan=False))


def test_inputs_whose_programs_are_not_finite_are_told_and_left_out(found):
    x, labels = inputs()
    x[[3, 4, 10]] = torch.nan
    kept = [index for index in range(30) if index not in (3, 4, 10)]
    study = Study(build(), gathered((x, labels), 512))
    note = "3 inputs give programs that are not finite: left out"
    assert study.summary()["layers"][0]["note"] == study.layer(0)["note"] == note
    assert study.summary()["notes"][0] == f"1: {note}"
    assert study.summary()["says"][3] is None
    usage = study.layer(0)["usage"]["mean"]
    expected = study.model[1].programs(x[kept].flatten(1)).u.mean((0, 1))
    torch.testing.assert_close(torch.tensor(usage[0]), expected, atol=1e-5, rtol=0)
    assert sum(group["size"] for group in study.layer(0)["clusters"]["groups"]) == 27
    for place in (0, 1):
        valid(study.layer(place))
        bad = valid(study.inspect(place, 3))
        assert (bad["nearest"], bad["group"], bad["note"]) == ([], None, "this program is not finite")
        assert bad["answer"][0][1] is None
    assert study.layer(1)["growth"]["slots"]
    assert study.inspect(0, 3)["sigma"][0] is None
    good = study.inspect(0, 0)
    assert good["note"] == ""
    assert not {3, 4, 10} & {index for index, _ in good["nearest"]}
    assert found.summary()["notes"] == []
    none = Study(build(), gathered(x * torch.nan, 512))
    assert none.layer(0) == {"problem": "no input gives a program that is finite"}


class Later(nn.Module):
    """The batch comes second, as in `nn.RNN`."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(4, 2)
        nc.recode(self, "each", nc.ProgramConfig(slots=3, steps=1, heads=1, least_used=1, hidden=4))
        for parameter in self.each.controller.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        return self.each(x.transpose(0, 1)).mean(0)


@pytest.mark.parametrize("length", [5, 6])
def test_a_batch_that_is_not_the_first_dimension_is_found(length):
    model, x = Later(), torch.randn(6, length, 4)
    found = Study(model, gathered((x, torch.arange(6)), 6))
    expected = model.each.programs(x).u.mean((1, 2))
    by_label = torch.tensor(found.layer(0)["usage"]["by_label"])[0]
    torch.testing.assert_close(by_label, expected, atol=1e-5, rtol=0)
    assert found.inspect(0, 2, 2)["nearest"][0] == [2, pytest.approx(0, abs=1e-3)]


def test_programs_that_fit_no_input_are_refused():
    model = Later()
    model.forward = lambda x: model.each(x.flatten(0, 1)).sum()
    problem = Study(model, gathered(torch.randn(6, 5, 4), 6)).layer(0)["problem"]
    assert problem.startswith("its programs cannot be told apart by input")


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return inputs()[0][index], "ab"[index % 2]


WHOLE = "they must be whole numbers"
UNUSED = {
    "float": (lambda x, y: (x, y.float()), f"{WHOLE}, not float32"),
    "column": (lambda x, y: (x, y[:, None]), f"{WHOLE}, one for each input, not of shape (30, 1)"),
    "one-hot": (lambda x, y: [x, torch.eye(3)[y]], f"{WHOLE}, one for each input, not of shape (30, 3)"),
    "words": (lambda x, y: (x, ["a", "b", "c"] * 10), "they are words, not whole numbers"),
    "data set": (lambda x, y: Words(), "they are words, not whole numbers"),
    "numpy": (lambda x, y: (x, np.array(["a", "b", "c"] * 10)), "they are words or objects, not whole numbers"),
    "numbers": (lambda x, y: (x, [0.5] * 30), f"{WHOLE}, not float64"),
    "some": (lambda x, y: iter([(x[:5], y[:5]), x[5:]]), "some batches have none"),
}


@pytest.mark.parametrize("form", UNUSED)
def test_labels_that_cannot_be_used_are_told_and_never_inputs(form):
    make, why = UNUSED[form]
    x, y = inputs()
    found = gathered(make(x, y), 512)
    assert (found.total, found.labels, found.note) == (30, None, f"labels are not used: {why}")
    assert torch.equal(torch.cat([batch.first for batch in found.batches]), x)
    assert Study(build(), found).summary()["notes"] == [found.note]


def test_lists_of_whole_numbers_are_labels():
    x, y = inputs()
    for data in ((x, y.tolist()), [x, y], [x, y.tolist()], [(x, y.tolist())], {"input": x, "y": y.tolist()}):
        found = gathered(data, 512)
        assert (found.total, found.note) == (30, "")
        assert found.labels.tolist() == y.tolist()
    assert gathered([x[:20], x[20:]], 512).total == 30, "two batches"
    with pytest.raises(ValueError, match="y must have one entry for each of the 30 inputs, got shape"):
        gathered((x, y.tolist()[:16]), 512)


def test_arguments_that_are_named_like_labels_stay_arguments():
    x, y = inputs()
    found = gathered({"input": x, "target": x.flatten(1), "y": torch.zeros(30), "labels": y}, 512)
    assert set(found.one(0).kwargs) == {"input", "target", "y"}
    assert found.labels.tolist() == y.tolist()
    assert set(gathered({"target": x}, 512).one(0).kwargs) == {"target"}


@pytest.mark.parametrize("form", ["tensor", "pair", "list", "loader", "dataset", "numpy", "generator", "dictionary"])
def test_all_forms_of_data_give_the_same_inputs(form):
    x, y = inputs()
    data = {
        "tensor": x,
        "pair": (x, y),
        "list": [(x[:7], y[:7]), (x[7:], y[7:])],
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "dataset": TensorDataset(x, y),
        "numpy": (x.numpy(), y.numpy()),
        "generator": ((x[at : at + 5], y[at : at + 5]) for at in range(0, 30, 5)),
        "dictionary": {"input": x, "labels": y},
    }[form]
    found = gathered(data, 11)
    assert found.total == 11
    assert torch.equal(torch.cat([batch.first for batch in found.batches]), x[:11])
    assert found.labels is None if form == "tensor" else found.labels.tolist() == y[:11].tolist()
    assert torch.equal(found.one(9).first, x[9:10])


OWN = {
    "build": build,
    "inputs": inputs,
    "number": 3,
    "plain": lambda: nn.Linear(2, 2),
    "other": lambda: torch.randn(4, 5),
    "empty": lambda: torch.randn(0, 5),
    "words": lambda: "words",
    "uneven": lambda: (torch.randn(4, 5), torch.zeros(3)),
    "scalar": lambda: torch.tensor(1.0),
    "objects": lambda: [object()],
    "broken": lambda: 1 / 0,
    "targets": (torch.randn(4, 1, SIDE, SIDE), torch.randn(4, 3)),
    "names": lambda: {"a": "b"},
}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_model", SimpleNamespace(**OWN))


SHAPE = "on inputs of shape (4, 5)"
WRONG = {
    ("build", "inputs"): "--model must be like package.module:name, got 'build'",
    ("no_such.module:build", "own_model:inputs"): "--model: there is no module 'no_such', got 'no_such.module:build'",
    ("own_model:absent", "own_model:inputs"): "--model: own_model has no 'absent', got 'own_model:absent'",
    (
        "own_model:number",
        "own_model:inputs",
    ): "--model must be a torch.nn.Module or a function that returns one, got int",
    ("own_model:broken", "own_model:inputs"): "--model: own_model:broken failed: ZeroDivisionError: division by zero",
    ("own_model:plain", "own_model:inputs"): "--model has no coded layers: recode it first (nc.recode)",
    ("own_model:build", "own_model:other"): f"--model fails on --data {SHAPE}: ",
    ("own_model:build", "own_model:number"): "--data own_model:number: data must be a tensor, a tuple of arguments, a",
    ("own_model:build", "own_model:words"): "--data own_model:words: data must be a tensor, a tuple of arguments, a",
    ("own_model:build", "own_model:empty"): "--data own_model:empty: there must be at least one input, got none",
    ("own_model:build", "own_model:uneven"): "--data own_model:uneven: y must have one entry for each of the 4 inputs",
    (
        "own_model:build",
        "own_model:scalar",
    ): "--data own_model:scalar: a batch must be a tensor, (x, y) or a dictionary",
    ("own_model:build", "own_model:objects"): "--data own_model:objects: data must be a tensor, a tuple of",
    ("own_model:build", "own_model:names"): "--data own_model:names: a dictionary must hold tensors",
    ("own_model:build", "own_model:broken"): "--data: own_model:broken failed: ZeroDivisionError: division by zero",
    ("own_model:build", "own_model:inputs", "--runs", "nowhere"): "--runs must be a folder with records or checkpoints",
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words))
def test_everything_wrong_is_one_clear_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, data, *rest = words
    assert main(["explore", "--model", model, "--data", data, *rest]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {WRONG[words]}")
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --export FILE, or --model PACKAGE:NAME"),
        (["--model", "a:b"], "--model and --data must be given together"),
        (["--model", "a:b", "--data", "a:c", "--inputs", "0"], "--inputs must be a whole number >= 1, got 0"),
        (["--model", "a:b", "--data", "a:c", "--port", "70000"], "--port must be in 0..65535, got 70000"),
        (["--model", "a:b", "--export", "x.html"], "give either --export FILE, or --model PACKAGE:NAME"),
    ],
)
def test_wrong_options_are_explained(capsys, words, message):
    assert main(["explore", *words]) == 2
    assert message in unboxed(capsys.readouterr().err)


@pytest.mark.usefixtures("own")
def test_a_module_that_fails_at_import_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "fails_at_import.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert main(["explore", "--model", "fails_at_import:build", "--data", "own_model:inputs"]) == 2
    assert "--model: fails_at_import cannot be imported: ModuleNotFoundError: No module" in capsys.readouterr().err


@pytest.mark.usefixtures("own")
def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(explore, "NEEDED", ("starlette", "no_such_server"))
    assert main(["explore", "--model", "own_model:build", "--data", "own_model:inputs"]) == 2
    told = capsys.readouterr().err
    assert told == "error: explore --model needs no_such_server: pip install 'neurocoder[explorer]'\n"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_prints_the_address_and_warns_of_other_hosts(host, capsys, monkeypatch):
    from neurocoder.lab.explorer.server.app import Server

    seen = []
    monkeypatch.setattr(Server, "run", lambda server: seen.append(server) or server.socket.close())
    words = ["explore", "--model", "own_model:build", "--data", "own_model:targets", "--host", host]
    assert main([*words, "--no-images"]) == 0
    told = capsys.readouterr()
    first, address = told.out.splitlines()
    assert first == "2 coded layers, 4 inputs. Open this address; Ctrl-C ends it."
    name = socket.gethostname() if host == "0.0.0.0" else host
    assert address == f"http://{name}:{seen[0].port}/{seen[0].token}/"
    unused, *warning = told.err.splitlines()
    assert unused.startswith("labels are not used: they must be whole numbers")
    assert bool(warning) == (host == "0.0.0.0")
    assert all(one.startswith("warning: --host 0.0.0.0 lets other machines reach this page") for one in warning)


def test_inputs_that_look_like_images_become_thumbnails(found):
    assert found.pictures.shape == (30, SIDE, SIDE, 1)
    assert Study(build(), gathered(inputs(), 512), images=False).pictures is None
    table = nn.Sequential(nn.Linear(64, 4))
    nc.recode(table, "0", nc.ProgramConfig(slots=3, least_used=1, hidden=4))
    assert Study(table, gathered(np.random.default_rng(0).normal(size=(3, 64)).astype("f4"), 9)).pictures is None
