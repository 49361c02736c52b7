"""The command line: what it offers, and what it says to wrong input."""

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lines import Lines, command, outcome, run, settings
from toy import record

import neurocoder as nc
from conftest import unboxed
from neurocoder.lab import cli, demo
from neurocoder.lab.cli import main
from neurocoder.lab.experiments import EXPERIMENTS, load
from neurocoder.lab.experiments.digits.models import build_model
from neurocoder.lab.runner.command import PRESETS
from neurocoder.lab.runner.options import INSTEAD, parse_run


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name in ("run", "report", "export", "list", "bench", "demo"):
        assert f"\n  {name} " in said
    assert main([]) == 0
    assert capsys.readouterr().out == said


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"neurocoder {nc.__version__}\n"


@pytest.mark.parametrize("words", [["--output", ""], ["--output=", "--seeds", "0"]])
def test_an_empty_option_is_refused(capsys, words):
    assert main(["run", "lines:Lines", "--preset", "smoke", *words]) == 2
    assert capsys.readouterr().err == "error: --output must have a value, got ''\n"


def test_help_of_run_shows_options_and_the_config_with_the_presets_values(capsys):
    assert main(["run", "lines:Lines", "--preset", "smoke", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--resume" in said
    assert "Examples per step. (default: 8)" in said
    assert "Steps. (default: 4)" in said
    assert "usage: neurocoder run lines:Lines [-h]" in said
    assert "Variants: linear, program, dropout," in said
    assert main(["run", "--help"]) == 0
    assert "digits, polynomials" in capsys.readouterr().out
    assert main(["run", "split", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Variants: DATASET-SCENARIO-METHOD-MODEL, where DATASET is mnist, permuted," in said
    assert "mnist-task-adam-mlp" not in said  # 840 names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rum", "command must be among run, report, export, pack, list, play, explore, bench, demo, got 'rum'"),
        ("run", "experiment must be given"),
        ("run --seeds 0 digits", "experiment must be given first"),
        ("run digit", f"among {', '.join(EXPERIMENTS)}, or package.module:Class, got 'digit'"),
        ("run nowhere:Lines", "experiment 'nowhere:Lines' cannot be imported: No module named 'nowhere'"),
        ("run lines:Circles", "experiment 'lines:Circles' cannot be imported: module 'lines' has no attribute"),
        ("run torch:nn", "experiment 'torch:nn' cannot be imported: 'module' object is not callable"),
        ("run lines:Lines --preset worst", "--preset must be among best, smoke, got 'worst'"),
        ("run lines:Lines --preset", "--preset must be among best, smoke, got None"),
        ("run lines:Lines --steps 0", "steps must be at least 1, got 0"),
        ("run lines:Lines --steps many", "Error parsing --steps: invalid literal for int() with base 10: 'many'"),
        (
            "run lines:Lines --learning-rate low",
            "parsing --learning-rate: could not convert string to float: 'low'",
        ),
        (
            "run lines:Lines --nothing",
            "--nothing For full helptext, run neurocoder run lines:Lines --help",
        ),
        ("run lines:Lines --optimizer sgd", "Unrecognized options: --optimizer, sgd Perhaps you meant: --optimiser"),
        ("run lines:Config", "experiment 'lines:Config' must be a neurocoder.lab.experiments.Experiment, got Config"),
        ("run lines:Lines --device tpu", "'tpu'"),
        ("run lines:Lines --precision 8", "'8'"),
        ("run lines:Lines --seeds 3-1", "--seeds must be like 0-9 or 0,3,5, got '3-1'"),
        ("run lines:Lines --seeds 0-99999999999", "--seeds must be below 4294967296, and at most 10,000"),
        ("run lines:Lines --seeds 99999999999999999999999", "--seeds must be below 4294967296"),
        ("run :Lines", f"among {', '.join(EXPERIMENTS)}, or package.module:Class, got ':Lines'"),
        ("run lines:Lines --seeds a", "--seeds must be like 0-9 or 0,3,5, got 'a'"),
        ("run lines:Lines --seeds 0,", "--seeds must be like 0-9 or 0,3,5, got '0,'"),
        ("run lines:Lines --variants lin,prog*", "--variants must match some of linear, program, dropout"),
        ("run lines:Lines --jobs 0", "--jobs must be a whole number >= 1, got 0"),
        ("run lines:Lines --devices 4", f"--devices is gone, a run has one device: {INSTEAD}"),
        ("run lines:Lines --nodes=2 --steps 9", f"--nodes is gone, a run has one device: {INSTEAD}"),
        ("run lines:Lines --precision 16-mixed", "'16-mixed'"),
        ("run lines:Lines --checkpoint-seconds -1", "--checkpoint-seconds must be a finite number >= 0, got -1.0"),
        ("run lines:Lines --jobs 2 --cluster auto", "--jobs and --cluster cannot be combined"),
        (
            "run lines:Lines --loop stacked",
            f"must be auto, plain or graph, got stacked, which is gone: {INSTEAD}",
        ),
        ("run lines:Lines --device cpu --loop graph", "--loop graph needs a GPU, got --device cpu"),
        ("run lines:Lines --resume --overwrite", "--resume continues runs, --overwrite starts them over"),
        ("run lines:Lines --data-root /no/such/folder", "--data-root must be a folder, got /no/such/folder"),
        ("list everything", "everything"),
        ("report --nothing", "--nothing"),
        ("demo --epochs 0", "epochs must be a whole number >= 1, got 0"),
        ("demo --epoch 2", "Unrecognized options: --epoch, 2 Perhaps you meant: --epochs"),
        ("demo --seed -1", "--seed must be in 0..4294967295, got -1"),
        ("demo --output /dev/null/x", "--output must be a folder that can be written to, got /dev/null/x"),
        ("export", "FILE The CSV file to write. (required)"),
        ("export --records results", "FILE The CSV file to write. (required)"),
        ("export runs.csv --records nowhere", "--records must be a folder with records, got nowhere"),
        ("export runs.csv --records .", "no records under .: make some with `neurocoder run`"),
        (
            "report --presets worst",
            "--presets must be among quick, best, paper, small, smoke, large, best-224, paper-224, stream, equal",
        ),
    ],
)
def test_wrong_input_is_named(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert message in unboxed(said.err)
    assert said.err.startswith("error: ") == (said.err.count("\n") == 1)  # or a box of tyro's
    assert said.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["two words", "a/b", ""])
def test_names_of_variants_must_do_as_folders(capsys, monkeypatch, name):
    monkeypatch.setattr(Lines, "variants", lambda self, config: ["linear", name])
    assert run() == 2
    assert f"variants of lines:Lines must use only letters, digits, - and ., got {name!r}" in capsys.readouterr().err


def test_an_experiment_of_our_name_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(Lines, "name", "digits")
    assert run() == 2
    assert "the name of lines:Lines must differ from the built-in ones, got 'digits'" in capsys.readouterr().err


def test_demo_asks_for_the_images_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    assert main(["demo", "--output", str(tmp_path / "demo")]) == 2
    said = capsys.readouterr()
    assert f"error: there is no MNIST in {tmp_path}" in said.err
    assert said.out == ""


def test_a_system_without_posix_is_named(capsys, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fcntl" else known(name))
    assert main(["list"]) == 2
    assert capsys.readouterr().err.startswith("error: the lab needs a POSIX system, such as Linux, macOS or WSL")


def test_a_report_that_fails_is_a_failure_although_the_runs_are_done(tmp_path, capsys, monkeypatch):
    def fail(self, records, paper):
        raise KeyError("error")

    monkeypatch.setattr(Lines, "sections", fail)
    words = ("--preset", "smoke", "--variants", "linear", "--output", tmp_path)
    assert run(*words) == 1
    assert "no report: the records of lines, preset smoke, lack what its tables need" in capsys.readouterr().err
    assert run(*words, "--no-report") == 0
    assert "no report" not in capsys.readouterr().err
    page = tmp_path / "report" / "report.html"
    assert not page.exists()
    monkeypatch.undo()
    assert run(*words) == 0
    assert "1 finished before" in capsys.readouterr().out
    assert page.exists()


def test_every_preset_is_explained(capsys):
    assert set(PRESETS) == {preset for name in EXPERIMENTS for preset in load(name).presets}
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for preset, purpose in PRESETS.items():
        assert [line for line in lines if line.split() == [preset, *purpose.split()]], preset


def test_the_demo_says_what_its_table_shows():
    errors = dict(zip(demo.MODELS, (7.5, 3.75, 5.0, 5.5), strict=True))
    first, second = demo.findings({title: record(error=error) for title, error in errors.items()})
    assert "(J=1) there is 2.50 points less error than with one weight for all" in first
    assert "(the MLP) there is 1.25 points less error than with J=1" in first
    assert second.startswith("Five steps of attention (J=5) have 0.50 points more error than one.")


def test_the_commands_that_the_demo_names_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in demo.NEXT:
        assert main([*words.split(), *(["--dry-run"] if words.startswith("run") else [])]) == 0, words


def test_the_demo_compares_no_more_parameters_than_the_linear_classifiers():
    counts = {}
    for title, variant in demo.MODELS.items():
        model = build_model(variant)
        counts[title] = sum(entry.numel() for entry in model.parameters())
    assert max(counts.values()) == counts["linear classifier"] == 7_850
    assert min(counts.values()) == counts["MLP, 200-32-10"] == 6_762


def test_a_preset_without_seeds(capsys, monkeypatch):
    monkeypatch.setattr(Lines, "seeds", {"smoke": (0,)})
    assert run() == 2
    assert "--seeds must be given: experiment 'lines' has none for preset best" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    process = command("run", "lines:Lines", "--variants", "linear", "--seeds", "0-9", "--output", tmp_path)
    with process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_experiments_are_found_where_the_command_is_called(tmp_path):
    """An installed command does not look there by itself."""
    shutil.copy(Path(__file__).with_name("lines.py"), tmp_path / "mine.py")
    code = (
        "import os, sys; sys.path[:] = [entry for entry in sys.path if entry not in ('', os.getcwd())];"
        "from neurocoder.lab.cli import main; sys.exit(main(['run', 'mine:Lines', '--preset', 'smoke', '--help']))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "Steps. (default: 4)" in said.stdout, said.stderr


def test_a_gpu_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run("--device", "cuda") == 2
    assert "--device must be cpu where there is no GPU, got cuda" in capsys.readouterr().err


def test_a_folder_of_data_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", "/no/such/folder")
    assert run() == 2
    assert "NEUROCODER_DATA must be a folder of data sets, got /no/such/folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "words", "device", "loop"),
    [
        (True, [], "cuda", "graph"),
        (False, [], "cpu", "plain"),
        (True, ["--device", "cpu"], "cpu", "plain"),
        (True, ["--loop", "plain"], "cuda", "plain"),
    ],
)
def test_what_is_automatic_is_settled_by_the_hardware(gpu, words, device, loop):
    setup = parse_run(["lines:Lines", *words])[0].setup(gpu, Lines.loops)
    assert (setup.device, setup.loop) == (device, loop)


def test_an_experiment_may_have_a_setting_named_as_a_former_option(monkeypatch):
    fields = [("nodes", int, 1)]
    kind = dataclasses.make_dataclass("Config", fields, bases=(Lines.Config,), frozen=True)
    monkeypatch.setattr(Lines, "Config", kind)
    monkeypatch.setattr(Lines, "presets", {"best": kind()})
    assert parse_run(["lines:Lines", "--nodes", "3"])[2].nodes == 3


def test_seeds_variants_and_presets_are_chosen(tmp_path, capsys):
    wish = ("--preset", "smoke", "--variants", "prog*,linear", "--seeds", "1,3-4", "--batch", 6, "--output", tmp_path)
    assert run(*wish) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("linear seed 1: error ")
    assert said[6].startswith("6 finished, ")
    for variant in ("linear", "program"):
        for seed in (1, 3, 4):
            record = outcome(tmp_path, variant, seed, "smoke")
            assert (record["config"]["batch"], record["config"]["steps"]) == (6, 4)


def test_without_seeds_the_presets_are_run(tmp_path):
    assert run("--variants", "linear", "--output", tmp_path) == 0
    assert len(list(tmp_path.glob("lines/best/linear/seed*.json"))) == len(Lines.seeds["best"])


def test_list_shows_every_experiment_and_preset(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in said
        assert all(preset in said for preset in load(name).presets)


def test_report_takes_its_options(monkeypatch):
    from neurocoder.lab.report import build as report

    seen = []
    monkeypatch.setattr(report, "main", lambda options: seen.append(options) or 0)
    assert main(["report", "--records", "records", "--target", "page"]) == 0
    assert (str(seen[0].records), str(seen[0].target)) == ("records", "page")


def test_commands_know_their_names(capsys):
    for name in ("report", "export", "pack", "play", "explore", "bench", "demo"):
        assert main([name, "--help"]) == 0
        assert f"usage: neurocoder {name}" in capsys.readouterr().out


def test_missing_packages_are_named_with_the_remedy(capsys, monkeypatch):
    monkeypatch.setattr(cli, "NEEDED", ("tyro", "not_installed"))
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "error: the lab needs not_installed: pip install 'neurocoder[lab]'\n"


def test_the_command_is_a_module_and_imports_little_for_help():
    """Neither experiments nor what they need are imported for `--help`."""
    code = (
        "import sys; from neurocoder.lab.cli import main; main(['--help']);"
        "assert not {'tyro', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_wrong_options_are_explained_to_any_terminal(tmp_path):
    """Tyro draws a box."""
    words = [sys.executable, "-m", "neurocoder.lab", "export"]
    done = subprocess.run(words, env=settings() | {"PYTHONIOENCODING": "ascii"}, cwd=tmp_path, capture_output=True)
    assert done.returncode == 2
    assert b"The CSV file to write." in done.stderr


def test_former_names_of_options_are_understood(tmp_path, capsys):
    wish = ("--preset", "smoke", "--variants", "linear", "--output", tmp_path)
    assert run(*wish) == 0
    capsys.readouterr()
    assert run(*wish, "--again") == 0
    said = capsys.readouterr()
    assert said.err == "note: --again is now --overwrite\n"
    assert said.out.splitlines()[1].startswith("1 finished, ")
    assert main(["run", "lines:Lines", "--help"]) == 0
    assert "--again" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("report --output nowhere", ["--output is now --records"]),
        ("export runs.csv --output=nowhere", ["--output is now --records"]),
        ("pack --output nowhere --into packed", ["--output is now --records", "--into is now --destination"]),
        ("run atari --keep agents --dry-run --seeds a", ["--keep is now --save-agents"]),
        ("bench --again --cases none", ["--again is now --overwrite"]),
    ],
)
def test_former_options_work_and_say_what_they_are_now(capsys, tmp_path, monkeypatch, words, notes):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2  # for another reason
    said = capsys.readouterr().err
    assert [f"note: {note}" for note in notes] == said.splitlines()[: len(notes)]
    assert "Unrecognized" not in said
