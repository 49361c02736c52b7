"""The benchmark on tiny cases: what it times, what it refuses, what it keeps and what it reports."""

import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import neurocoder as nc
from neurocoder.lab import cli
from neurocoder.lab.bench import cases, contenders, gpt, measure, records, report, tables
from neurocoder.lab.bench import command as bench
from neurocoder.ops import backend

SIZES = nc.ProgramConfig(slots=4, key_dim=3, steps=3, heads=2, least_used=2, hidden=5)
EAGER = cases.groups("float32", ["eager"], cases.BOTH)
ONE = (cases.Group("float32", "eager", "forward", ("linear",)),)
FAST = cases.Settings("cpu", seconds=0.001, repetition=1e-4, limit=2**20, minimum=3)


def tiny(name, groups=EAGER, **changes):
    return dataclasses.replace(cases.Case(name, (12, 7), 9, SIZES, groups), **changes)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command over given cases, in a folder of its own."""
    monkeypatch.setattr(bench, "settings", lambda device, quick, growth: FAST)

    def command(*options, only=None):
        monkeypatch.setattr(cases, "cpu_cases", lambda: list(only or [tiny("one")]))
        fixed = ["--device", "cpu", "--output", str(tmp_path / "records"), "--docs", str(tmp_path / "docs")]
        return cli.main(["bench", *fixed, *options])

    return command


def load(tmp_path, name):
    return records.read(tmp_path / "records" / "cpu.jsonl")[name]


def test_an_earlier_version_is_checked_and_timed_in_the_same_run(run, tmp_path, capsys):
    """Here the earlier version is a copy, with a wrong equation the second time."""
    source = Path(nc.__file__).parent
    shutil.copytree(source, tmp_path / "before" / "neurocoder", ignore=shutil.ignore_patterns("lab", "__pycache__"))
    assert run("--against", str(tmp_path / "before")) == 0
    record = load(tmp_path, "one")
    assert [e["contender"] for e in record["measurements"]] == 2 * ["linear", "program", "earlier"]
    assert len(record["case"]["against"]) == 64
    again = load(tmp_path, "one")
    assert run("--against", str(tmp_path / "before")) == 0
    assert load(tmp_path, "one") == again
    printed = capsys.readouterr().out
    assert "nc.Linear before" in printed
    assert "now / before" in printed

    contenders.package.cache_clear()
    wrong = tmp_path / "before" / "neurocoder" / "program" / "kernels" / "cpu.py"
    wrong.write_text(wrong.read_text().replace("strength = sigma * read", "strength = sigma + read"))
    for name in [name for name in sys.modules if name.startswith("neurocoder_earlier")]:
        del sys.modules[name]
    assert run("--against", str(tmp_path / "before")) == 1, "another earlier version is measured again"
    assert "nc.Linear before refused" in capsys.readouterr().out


def test_an_earlier_version_must_be_there(run, tmp_path, capsys):
    assert run("--against", str(tmp_path)) == 2
    assert "--against must be a folder with the package neurocoder" in capsys.readouterr().err


def test_every_contender_is_checked_and_timed(run, tmp_path, capsys):
    assert run() == 0
    record = load(tmp_path, "one")
    assert {entry["contender"] for entry in record["measurements"]} == set(cases.LAYERS)
    assert len(record["measurements"]) == 2 * len(cases.LAYERS)
    for entry in record["measurements"]:
        assert entry["status"] == "measured"
        assert len(entry["seconds"]) >= FAST.minimum
        assert entry["peak_bytes"] is None
        assert max(entry["errors"].values()) < 1e-4
        assert len(entry["errors"]) == (1 if entry["direction"] == "forward" else 3)
    assert record["case"]["program"] == dataclasses.asdict(SIZES)
    assert record["torch"] == torch.__version__
    assert record["settings"]["minimum"] == FAST.minimum
    assert record["hardware"]
    assert record["changed"] in ("yes", "no", "unknown")
    assert len(record["source"]) == 64
    printed = capsys.readouterr().out
    for name in cases.LAYERS:
        assert contenders.TITLES[name] in printed


def test_a_growing_layer(run, tmp_path):
    config = nc.GrowingConfig(slots=20, rank=2, top_k=3)
    group = cases.groups("float32", ["eager"], cases.BOTH, ("linear", "growing"))
    assert run(only=[tiny("growing", group, program=config)]) == 0
    record = load(tmp_path, "growing")
    assert record["case"]["program"] == dataclasses.asdict(config)
    assert [entry["contender"] for entry in record["measurements"]] == 2 * ["linear", "growing"]
    assert all(entry["status"] == "measured" for entry in record["measurements"])
    assert max(record["measurements"][-1]["errors"].values()) < 1e-4
    assert "20 written slots of rank 2, 3 for each input" in report.about(record)
    assert run(only=[tiny("growing", group, program=config)]) == 0
    assert load(tmp_path, "growing") == record, "it is finished"
    assert run("--against", str(Path(nc.__file__).parents[1]), only=[tiny("growing", group, program=config)]) == 0
    assert load(tmp_path, "growing") == record, "it has no earlier version to compare with"


def wrong_slot(layer):
    forward = layer.memory.forward
    capacity = layer.memory.capacity
    layer.memory.forward = lambda *z: (found := forward(*z))._replace(slots=(found.slots + 1) % capacity)


def half_share(layer):
    forward = layer.memory.forward
    layer.memory.forward = lambda *z: (found := forward(*z))._replace(share=found.share / 2)


@pytest.mark.parametrize("spoil", [wrong_slot, half_share])
def test_a_wrong_growing_layer_is_refused(run, tmp_path, monkeypatch, spoil):
    build = contenders.Contenders.subject

    def spoiled(self, name):
        subject = build(self, name)
        if name == "growing":
            spoil(subject.module)
        return subject

    monkeypatch.setattr(contenders.Contenders, "subject", spoiled)
    group = cases.groups("float32", ["eager"], cases.BACKWARD, ("linear", "growing"))
    assert run(only=[tiny("growing", group, program=nc.GrowingConfig(slots=20, rank=2, top_k=3))]) == 1
    assert load(tmp_path, "growing")["measurements"][1]["status"] == "refused"


def test_a_training_step(run, tmp_path):
    step = (cases.Group("float32", "eager", "step", ("plain", "recoded")),)
    assert run(only=[tiny("step", step, widths=(12, 8, 8, 5))]) == 0
    assert [entry["contender"] for entry in load(tmp_path, "step")["measurements"]] == ["plain", "recoded"]


def test_compiled(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # quicker
    group = (cases.Group("float32", "compiled", "forward+backward", ("linear", "program")),)
    assert run(only=[tiny("one", group, program=dataclasses.replace(SIZES, steps=1), threads=1)]) == 0
    assert all(entry["first_call_seconds"] > 0 for entry in load(tmp_path, "one")["measurements"])


def test_bfloat16_is_autocast(run, tmp_path):
    group = (cases.Group("bfloat16", "eager", "forward+backward", ("linear", "program", "mixture", "stored")),)
    assert run(only=[tiny("one", group)]) == 0
    entries = load(tmp_path, "one")["measurements"]
    assert all(entry["status"] == "measured" for entry in entries)
    assert "| nc.Linear              | eager, bfloat16 |" in tables.table(entries)


def wrong_value(layer):
    forward = layer.forward
    layer.forward = lambda x: 1.01 * forward(x)


def wrong_gradient(layer):
    forward = layer.forward
    layer.forward = lambda x: forward(x).detach() + 0.9 * (forward(x) - forward(x).detach())


def frozen_slots(layer):
    layer.memory.S.requires_grad_(False)


def no_number(layer):
    forward = layer.forward
    layer.forward = lambda x: forward(x) / 0


def raises(layer):
    def forward(x):
        raise RuntimeError("no such kernel")

    layer.forward = forward


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (wrong_value, "refused"),
        (wrong_gradient, "refused"),
        (frozen_slots, "refused"),
        (no_number, "refused"),
        (raises, "failed"),
    ],
)
def test_a_wrong_contender_is_refused(run, tmp_path, monkeypatch, capsys, spoil, status):
    build = contenders.Contenders.subject

    def spoiled(self, name):
        subject = build(self, name)
        if name == "program":
            spoil(subject.module)
        return subject

    monkeypatch.setattr(contenders.Contenders, "subject", spoiled)
    group = (cases.Group("float32", "eager", "forward+backward", ("linear", "program")),)
    assert run(only=[tiny("one", group)]) == 1
    plain, program = load(tmp_path, "one")["measurements"]
    assert plain["status"] == "measured"
    assert program["status"] == status
    assert program["reason"]
    assert "seconds" not in program
    assert program["reason"] in capsys.readouterr().out
    assert run(only=[tiny("one", group)]) == 1, "a record with a wrong result counts as unfinished"
    assert run("--report") == 0
    assert f"nc.Linear {status}: {program['reason']}" in (tmp_path / "docs" / "BENCHMARKS.md").read_text()


def test_a_step_that_does_not_learn_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: None)
    step = (cases.Group("float32", "eager", "step", ("plain",)),)
    assert run(only=[tiny("step", step, widths=(12, 8, 5))]) == 1
    assert load(tmp_path, "step")["measurements"][0]["reason"] == "the step does not move 0.weight"


def test_what_does_not_fit_is_skipped_with_the_reason(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "settings", lambda device, quick, growth: dataclasses.replace(FAST, limit=100))
    assert run() == 0
    skipped = [entry for entry in load(tmp_path, "one")["measurements"] if entry["status"] == "skipped"]
    assert {entry["contender"] for entry in skipped} == {"materialising"}
    assert "over the limit" in skipped[0]["reason"]


def test_an_interrupted_run_keeps_finished_records(run, tmp_path, monkeypatch, capsys):
    two = [tiny("one", ONE), tiny("two", ONE)]
    whole = measure.measure_case

    def interrupted(case, how, log):
        if case.name == "two":
            raise KeyboardInterrupt
        return whole(case, how, log)

    monkeypatch.setattr(bench, "measure_case", interrupted)
    assert run(only=two) == 130
    assert list(records.read(tmp_path / "records" / "cpu.jsonl")) == ["one"]
    before = load(tmp_path, "one")
    monkeypatch.setattr(bench, "measure_case", whole)
    capsys.readouterr()
    assert run(only=two) == 0
    assert load(tmp_path, "one") == before
    assert "one: finished" in capsys.readouterr().out
    assert load(tmp_path, "two")["measurements"]
    assert run("--overwrite", "--cases", "one", only=two) == 0
    assert load(tmp_path, "one") != before


def test_a_changed_case_is_measured_again(run, tmp_path):
    assert run("--skip", "forward") == 0
    assert len(load(tmp_path, "one")["measurements"]) == 5
    assert run() == 0
    assert len(load(tmp_path, "one")["measurements"]) == 10, "the record did not hold the forward"
    before = load(tmp_path, "one")
    assert run("--skip", "forward") == 0
    assert load(tmp_path, "one") == before, "a part of it is measured already"
    assert run(only=[tiny("one", batch=10)]) == 0
    assert load(tmp_path, "one")["case"]["batch"] == 10


@pytest.mark.parametrize("damage", [lambda text: text[:-100], lambda text: "[]\n", lambda text: text + "{}\n"])
def test_a_damaged_record_is_reported_and_kept(run, tmp_path, capsys, damage):
    assert run(only=[tiny("one", ONE)]) == 0
    path = tmp_path / "records" / "cpu.jsonl"
    path.write_text(damage(path.read_text()))
    before = path.read_text()
    for options in ([], ["--report"]):
        assert run(*options, only=[tiny("one", ONE)]) == 2
        assert re.search(r"cpu\.jsonl, line \d: not a record", capsys.readouterr().err)
    assert path.read_text() == before


def test_records_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "cpu.jsonl"
    good = {"case": {"name": "one"}}
    records.write(path, {"one": good})
    with pytest.raises(ValueError, match="JSON"):
        records.write(path, {"one": good, "two": {"case": {"name": "two"}, "value": float("nan")}})
    assert records.read(path) == {"one": good}
    assert [file.name for file in tmp_path.iterdir()] == ["cpu.jsonl"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_committed_records_are_read_and_finished(device):
    found = records.read(Path(__file__).parents[2] / "results" / "bench" / f"{device}.jsonl")
    known = cases.cases(device)
    assert [
        name for name, case in known.items() if name not in found or not records.is_complete(found[name], case)
    ] == []


def test_the_page_has_ratios_bars_and_the_growth_figure(run, tmp_path):
    group = cases.groups("float32", ["eager"], cases.BACKWARD, cases.LAYERS[:3])
    points = {"slots": (1, 2), "steps": (1, 2), "heads": (1, 2), "width": (4, 8), "batch": (4, 8)}
    axes = [tiny(f"growth-{axis}", group, axis=axis, points=points[axis]) for axis in cases.AXES]
    assert run(only=[tiny("1024x1024"), *axes]) == 0
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "BENCHMARKS.md").write_text(
        f"# By hand\n\n{report.MARK}\n\nold\n\n{report.END}\n\n## Also by hand\n"
    )
    assert run("--report") == 0
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    assert run("--report") == 0
    assert (tmp_path / "docs" / "BENCHMARKS.md").read_text() == page
    assert page.startswith("# By hand\n")
    assert page.endswith(f"\n\n{report.END}\n\n## Also by hand\n")
    assert "\nold\n" not in page
    entries = load(tmp_path, "1024x1024")["measurements"]
    plain, program = (
        next(e for e in entries if e["contender"] == name and e["direction"] == "forward+backward")
        for name in ("linear", "program")
    )
    ratio = tables.ratio(program, plain).shown("x")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    mode = "eager, forward+backward"
    assert ["CPU, 1024x1024, batch 256", ratio, "2.5x", "1.5x", mode] in [row[:2] + row[3:] for row in rows]
    assert ["nc.Linear", "eager", tables.cell(entries[1], entries[0]), ratio] in rows
    assert ["CPU, 4096x4096, batch 256", "not measured", "", "1.3x", "1.15x", mode] in rows
    assert "](images/bench-cpu-growth.png)" in page
    assert "## CUDA" not in page
    for kind in ("png", "svg"):
        assert (tmp_path / "docs" / "images" / f"bench-cpu-growth.{kind}").stat().st_size > 1000
    assert {entry["point"] for entry in load(tmp_path, "growth-steps")["measurements"]} == {1, 2}
    assert run("--again", "--skip", "growth", only=axes) == 0


def test_a_ratio_is_that_of_repetitions_in_turn():
    """The machine is ten times as slow in every other repetition, which says nothing about the layer."""
    slow = [1, 10] * 10
    base = {"mode": "eager", "seconds": [0.1 * factor for factor in slow]}
    ours = {"mode": "eager", "seconds": [0.8 * factor for factor in slow]}
    assert tables.ratio(ours, base) == pytest.approx((8, 8, 8))
    assert tables.ratio({**ours, "seconds": ours["seconds"][::2]}, base) == pytest.approx((8, 8, 8))
    assert tables.ratio({**ours, "mode": "compiled"}, base) == pytest.approx((0.8, 8, 80)), "they took no turns"


def test_a_ratio_that_says_nothing_has_no_range():
    assert tables.Spread(8.83, 9.5, 5_644).shown("x") == "9.5x (unsteady)"
    assert tables.Spread(8.83, 9.5, 26).shown("x") == "9.5x (8.83–26)"


def test_a_loaded_machine_is_warned_of(run, monkeypatch, capsys):
    for load, warned in ((0.4, False), (7.5, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0, 0))
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        assert run("--again", only=[tiny("one", ONE)]) == 0
        assert ("warning: the load is 7.5 on 2 cores" in capsys.readouterr().out) == warned


def test_small_layers_stand_beside_large_ones_and_an_earlier_version_has_a_table(run, tmp_path, capsys):
    group = cases.groups("float32", ["eager"], cases.BACKWARD, cases.PAIR)
    wide = [tiny("large", group, widths=(24, 7)), tiny("growth-width", group, axis="width", points=(3, 16))]
    assert run(only=[*wide, tiny("small", group)]) == 0
    assert "### Small layers beside large ones on CPU" in capsys.readouterr().out
    pairs = {
        name: {**record, "case": {**record["case"], "against": 64 * "e"}}
        for name, record in records.read(tmp_path / "records" / "cpu.jsonl").items()
        if name == "small"
    }
    before, now = pairs["small"]["measurements"]
    pairs["small"]["measurements"] = [{**before, "contender": "earlier"}, now]
    records.write(tmp_path / "records-pairs" / "cpu.jsonl", pairs)
    assert run("--report") == 0
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    _, sizes, *_ = page.split("### ")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in sizes.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["3x3", "12x7", "24x7", "16x16"]
    assert rows[3][4] == tables.ratio(now, before).shown("x")
    assert "source has the hash eeeeeeeeeeee " in page
    assert f"| small | float32 | eager | forward+backward | {tables.ratio(now, before).shown('x')} |" in page


@pytest.mark.parametrize("target", report.TARGETS, ids=lambda target: f"{target.device} {target.what}")
def test_every_target_is_measured_by_a_case(target):
    case, fields = cases.cases(target.device)[target.case], (target.dtype, target.modes[0], target.direction)
    (group,) = [group for group in case.groups if group[:3] == fields]
    assert set(target.ours) & set(group.contenders)


def test_repetitions_follow_the_budget():
    how = cases.Settings("cpu", seconds=1.5, repetition=0.02, limit=0)
    assert measure.plan(0.001, how) == (20, 75)
    assert measure.plan(0.1, how) == (1, 15)
    assert measure.plan(1.0, how) == (1, 10)
    assert measure.plan(5.0, how) == (1, 4)
    assert measure.plan(100.0, how) == (1, 3)


@pytest.mark.parametrize("options", [["--cases", "two"], ["--skip", "nothing"], ["--device", "tpu"]])
def test_bad_options_are_refused(run, capsys, options):
    assert run(*options) == 2
    assert options[1] in capsys.readouterr().err


def test_measuring_needs_neither_matplotlib_nor_scipy():
    code = "import sys; sys.modules.update(matplotlib=None, scipy=None); "
    subprocess.run([sys.executable, "-c", code + "import neurocoder.lab.bench.command"], check=True)


def test_core_layers_are_checked_by_the_weights_that_they_build(run, tmp_path, monkeypatch, capsys):
    config = nc.CoreConfig(slots=5, programs=3)
    group = cases.groups("float32", ["eager"], cases.BOTH, cases.CORES)
    case = tiny("core", group, program=config, widths=(12, 17))
    assert run(only=[case]) == 0
    found = load(tmp_path, "core")["measurements"]
    assert [e["contender"] for e in found] == 2 * list(cases.CORES)
    assert max(found[-1]["errors"].values()) < 1e-4
    assert run("--report") == 0
    assert "core layers at their defaults" in (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    materialize = nc.CoreLinear.materialize
    monkeypatch.setattr(nc.CoreLinear, "materialize", lambda *args, **given: 1.1 * materialize(*args, **given))
    assert run("--overwrite", only=[case]) == 1
    assert "nc.CoreLinear refused" in capsys.readouterr().out


def test_blocks_of_a_gpt_are_checked_and_timed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpt, "LENGTH", 5)
    monkeypatch.setattr(gpt, "BLOCKS", 2)
    group = cases.groups("bfloat16", ["eager"], cases.BACKWARD, cases.GPT)
    assert run(only=[tiny("gpt", group, program=nc.CoreConfig(), widths=(16, 32, 16), batch=3)]) == 0
    found = load(tmp_path, "gpt")["measurements"]
    assert [(e["contender"], e["status"]) for e in found] == [(name, "measured") for name in cases.GPT]


def test_two_implementations_of_one_layer_are_a_row_for_each_number_of_steps(run, tmp_path):
    paths = cases.groups("float32", ["eager"], cases.BOTH, cases.PATHS)
    case = tiny("path-12x7-9", paths, axis="steps", points=(1, 2))
    assert run(only=[case]) == 0
    found = load(tmp_path, case.name)["measurements"]
    assert {(e["contender"], e["point"], e["status"]) for e in found} == {
        (path, point, "measured") for path in cases.PATHS for point in (1, 2)
    }
    assert run("--report") == 0
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| 12x7")]
    assert [row[:3] for row in rows] == [["12x7, P=4 H=2", "9", "1"], ["12x7, P=4 H=2", "9", "2"]]
    torch_path, cpu_path = (
        next(e for e in found if e["contender"] == path and e["direction"] == "forward") for path in cases.PATHS
    )
    assert rows[0][5] == tables.ratio(torch_path, cpu_path).shown("x")
    assert "bench-cpu-growth" not in page, "it is no size of the growth figure"
    assert run("--skip", "path", "--again", only=[case, tiny("one", ONE)]) == 0
    assert load(tmp_path, case.name)["measurements"] == found


def test_each_implementation_is_the_one_that_it_says(monkeypatch):
    seen, built = [], contenders.Contenders(tiny("one"), FAST)
    modules = [built.subject(path).module for path in cases.PATHS]
    monkeypatch.setattr(modules[0].layer, "forward", lambda x: seen.append(backend.chosen()))
    for module in modules:
        module(torch.zeros(9, 12))
    assert seen == list(cases.PATHS)
