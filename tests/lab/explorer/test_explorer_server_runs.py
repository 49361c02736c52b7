"""Usage of slots over training, from checkpoints and records."""

from types import SimpleNamespace

import pytest
import torch
from server_helpers import build, inputs, study

import neurocoder as nc
from neurocoder.growing.capacity import set_capacity
from neurocoder.lab.explorer.server.runs import Runs, natural, of_record, titles
from neurocoder.lab.records.record import Record


def test_runs_of_the_same_name_have_distinct_titles():
    def record(**config):
        return SimpleNamespace(experiment="split", preset="best", variant="a", seed=0, config=config)

    base = "split/best a, seed 0"
    assert titles([record(rate=1, x=1)]) == [base]
    assert titles([record(rate=1, x=1), record(rate=2, x=1)]) == [f"{base}, rate=1", f"{base}, rate=2"]
    nested = titles([record(net={"rank": 2}), record(net={"rank": 3}), record(net={"rank": 3})])
    assert nested == [f"{base}, rank=2", f"{base}, rank=3 (1 of 2)", f"{base}, rank=3 (2 of 2)"]


def test_drift_over_checkpoints_is_that_of_the_saved_models(tmp_path):
    model = build()
    x, _ = inputs()
    expected = {}
    for step in (0, 9, 10):
        with torch.no_grad():
            model[1].controller.signal_bias.add_(0.3 * step)
            if step == 10:
                set_capacity(model[3], 8)
        nc.save(model, tmp_path / f"step-{step}")
        expected[f"step-{step}"] = model[1].programs(x.flatten(1)).u.mean((0, 1))
    (tmp_path / "step-11").mkdir()
    (tmp_path / "step-11" / "neurocoder.safetensors").write_bytes(b"damaged")
    found = study()
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    runs = Runs(tmp_path, found)
    assert runs.summary() == [f"checkpoints {tmp_path.name}"]
    run = runs.run(0)
    first, second = run["panels"]
    assert (first["title"], first["rows"]) == ("1", list(expected))
    usage = torch.stack(list(expected.values()))
    torch.testing.assert_close(torch.tensor(first["usage"]), usage, atol=1e-5, rtol=0)
    shares = usage / usage.sum(1, keepdim=True)
    torch.testing.assert_close(torch.tensor(first["moved"]), shares.diff(dim=0).abs().sum(1) / 2, atol=1e-5, rtol=0)
    assert second["title"] == "3"
    assert run["problems"][0].startswith("step-11 is left out: CheckpointError")
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0", "step-10", "step-11", "step-9"]


def test_numbers_in_names_are_in_order():
    assert sorted(["b2", "a10", "a9", "a"], key=natural) == ["a", "a9", "a10", "b2"]


def test_drift_over_tasks_from_a_record(tmp_path):
    observations = {
        "drift": {"0": [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]},
        "usage": {"0": [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]},
        "slot_map": {"written": [2, 1, 0], "use": [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], "width": 2, "keys": []},
    }
    history = [{"step": 1, "average_accuracy": 90.0}]
    rest = {"loop": "plain", "device": "cpu", "precision": "32-true", "processes": 1, "parameters": {"total": 1}}
    record = Record(
        *("split", "quick", "some-variant", 0, {}, None),
        **rest, metrics={"average_accuracy": 90.0}, history=history, observations=observations, seconds=1.0,
    )  # fmt: skip
    found = of_record(record)
    drift, layer, slots = found["panels"]
    assert drift["rows"] == ["after task 1", "after task 2", "after task 3"]
    assert drift["moved"] == [0.5, 0.0]
    assert layer["rows"] == ["task 1", "task 2", "task 3"]
    assert layer["moved"] == [0.5, 0.0]
    assert slots["rows"] == ["task 1: 2 written", "task 2: 1 written", "task 3: 0 written"]
    assert (slots["moved"], slots["width"]) == ([0.5, 0.5], 2)
    assert found["metrics"] == {"average_accuracy": 90.0}
    target = tmp_path / "split" / "quick" / "some-variant" / "seed0.json"
    target.parent.mkdir(parents=True)
    record.write(target)
    runs = Runs(tmp_path, study())
    assert runs.summary() == ["split/quick some-variant, seed 0"]
    assert runs.run(0) == found


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has neither several checkpoints of nc\.save"):
        Runs(tmp_path, study())
