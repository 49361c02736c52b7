"""The experiment: records, kill and resume, reports, and an episode as a GIF."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gymnasium")
from neurocoder.lab.cli import main
from neurocoder.lab.experiments import EXPERIMENTS
from neurocoder.lab.experiments.atari.experiment import Atari, load_agent, parse, variants
from neurocoder.lab.experiments.atari.figures import LOOKS, band, learning_curves
from neurocoder.lab.experiments.atari.report import claim, scores
from neurocoder.lab.report.build import paper_numbers
from neurocoder.lab.rl import HEADS, Settings, human_normalised
from neurocoder.lab.rl.play import Options, play

NAME = "atari" if "atari" in EXPERIMENTS else "neurocoder.lab.experiments.atari:Atari"
CART = ["--environment", "CartPole-v1", "--environments", "2", "--width", "16", "--rollout", "10", "--episodes", "3"]


def run(folder, *options, preset="smoke", variants="cartpole-plain"):
    wish = ["run", NAME, "--preset", preset, "--variants", variants, "--output", str(folder), "--device", "cpu"]
    return [*wish, *CART, "--frames", "400", *map(str, options)]


def record(folder, variant="cartpole-plain"):
    return json.loads((folder / "atari" / "smoke" / variant / "seed0.json").read_text())


def test_variants_are_games_or_the_environment_asked_for():
    assert list(variants(None))[:3] == ["seaquest-plain", "seaquest-hyper", "seaquest-neurocoder"]
    assert list(variants("ALE/Breakout-v5")) == [f"breakout-{head}" for head in HEADS]
    assert next(iter(variants("ALE/MontezumaRevenge-v5"))) == "montezuma-plain"
    with pytest.raises(ValueError, match=r"variant must be GAME-HEAD, one of cartpole-plain, .*, got 'cartpole-moe'"):
        parse("cartpole-moe", "CartPole-v1")
    assert set(Atari().minutes) == set(Atari().presets) == set(Atari().seeds)


def test_records_from_before_the_correction_count_as_without():
    old = {name: value for name, value in asdict(Settings()).items() if name != "correction"}
    assert Atari().effective(old, "seaquest-plain")["correction"] is False
    assert Atari().effective(old | {"correction": True}, "seaquest-plain")["correction"] is True


def test_records_from_before_sharpness_and_orthogonality_have_the_papers():
    old = {name: value for name, value in asdict(Settings()).items() if name not in ("sharpness", "orthogonality")}
    assert Atari().effective(old, "seaquest-neurocoder") == Atari().effective(asdict(Settings()), "seaquest-neurocoder")


def test_settings_of_neurocoder_heads_do_not_set_other_heads_apart():
    usual, other = asdict(Settings()), asdict(Settings(sharpness=10.0, orthogonality=0.0, hidden=32, residual=False))
    for head in ("plain", "hyper"):
        assert Atari().effective(usual, f"seaquest-{head}") == Atari().effective(other, f"seaquest-{head}")
    assert Atari().effective(usual, "seaquest-neurocoder") != Atari().effective(other, "seaquest-neurocoder")


def test_every_kind_of_heads_has_a_colour():
    assert set(LOOKS) == set(HEADS)


def test_output_scale_sets_only_scaled_heads_apart():
    usual, other = asdict(Settings()), asdict(Settings(output_scale=1.0))
    for head in HEADS:
        alike = Atari().effective(usual, f"seaquest-{head}") == Atari().effective(other, f"seaquest-{head}")
        assert alike is (head != "scaled")
    assert "seaquest-constant" not in Atari().selections["best"]


def test_scores_are_normalised_and_the_paper_is_quoted():
    assert human_normalised("ALE/Seaquest-v5", 68.4) == 0
    assert human_normalised("ALE/MsPacman-v5", 6_951.6) == pytest.approx(100)
    assert human_normalised("CartPole-v1", 500.0) is None
    paper = paper_numbers()["atari"]
    assert claim(paper, "seaquest", "plain") == "2,500 at 32M"
    assert claim(paper, "montezuma", "neurocoder") == "1,500 to 3,000 at 300M"
    assert claim(paper, "cartpole", "plain") is None


def test_differences_to_plain_heads_are_between_runs_of_one_seed():
    def runs(scores):
        metrics = [{"score": score, "score_low": score - 1, "score_high": score + 1} for score in scores.values()]
        both = zip(scores, metrics, strict=True)
        return [SimpleNamespace(seed=seed, metrics=own, history=[{"step": 5}]) for seed, own in both]

    heads = {"plain": runs({0: 10.0, 1: 20.0}), "hyper": runs({2: 7.0}), "neurocoder": runs({1: 25.0, 0: 9.0})}
    table = scores({"cartpole": heads}, {})
    column = table.headings.index("to plain heads")
    plain, hyper, neurocoder = (row[column] for row in table.rows)
    assert (plain, hyper) == (None, None)  # the same heads, no seed in common
    assert neurocoder.values == [-1, 5]


def test_three_panels_leave_no_empty_one():
    curve = np.array([[0.0, 1.0], [10.0, 2.0]])
    panels = {name: {"plain": [curve]} for name in ("a", "b", "c")}
    figure = learning_curves(panels, dict.fromkeys(panels, 1))
    assert [axis.get_title() for axis in figure.axes] == ["a", "b", "c"]


def test_curves_of_seeds_that_log_at_other_steps_share_a_band():
    runs = [np.array([[10.0, 1], [20, 2], [30, 3]]), np.array([[11.0, 3], [21, 3], [41, 3]])]
    steps, mean, spread = band(runs)
    assert steps.tolist() == [20, 30]
    assert mean.tolist() == [2.5, 3.0]
    assert spread.tolist() == pytest.approx([0.5**0.5, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["a2c", "a3c"])
def test_a_run_makes_a_record_and_a_report(tmp_path, trainer, capsys):
    assert main(run(tmp_path, "--steps", 400, "--trainer", trainer, "--workers", 1, "--log-every", 200)) == 0
    found = record(tmp_path)
    assert {"score", "score_low", "steps", "frames", "entropy", "gradient_norm"} <= set(found["metrics"])
    assert found["metrics"]["steps"] >= 400
    assert all(entry["steps_per_second"] > 0 for entry in found["history"])
    assert found["observations"]["environments_seeded_at"] == [0]
    assert len(found["observations"]["episodes"]) == 3
    said = capsys.readouterr().out
    assert said.startswith("cartpole-plain seed 0: score ")
    title = said.partition("\nScores\n")[0]
    assert "environment CartPole-v1, steps 400" in title.replace("\n", " ")
    assert {"a2c": "workers 1", "a3c": "environments 2"}[trainer] not in title  # of the other trainer
    assert "Scores after training" in said
    assert (tmp_path / "report").exists()


@pytest.mark.slow
def test_configurations_are_compared_and_cores_make_no_difference(tmp_path, capsys):
    options = ["--output", str(tmp_path), "--experiments", NAME, "--target", str(tmp_path / "page")]
    for name, steps, cores in (("a", 400, 1), ("b", 400, 2), ("c", 200, 1)):
        wish = run(tmp_path / name, "--steps", steps, "--cores", cores, "--log-every", 100)
        assert main([*wish, "--seeds", "1" if name == "b" else "0"]) == 0
    capsys.readouterr()
    assert main(["report", *options]) == 0
    said = capsys.readouterr().out
    assert re.search(r"steps 200 .*\n.*steps 400 .*\(n=2\)", said)
    assert "cores" not in said
    assert len(list((tmp_path / "page" / "images").glob("*curves.png"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_run_that_is_killed_resumes(tmp_path, how, capsys):
    wish = run(tmp_path, "--steps", 12_000, "--log-every", 200, "--checkpoint-seconds", 0)
    process = subprocess.Popen([sys.executable, "-m", "neurocoder.lab", *wish], stdout=subprocess.DEVNULL)
    path = tmp_path / "atari" / "smoke" / "cartpole-plain" / "seed0.checkpoint.safetensors"
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(how)
    assert process.wait() == (-how if how == signal.SIGKILL else 128 + how)
    agent, variant, settings = load_agent(path)
    assert (variant.game, settings.steps, agent.width) == ("cartpole", 12_000, 16)
    wish = [*wish, "--resume"]
    wish[wish.index("--checkpoint-seconds") + 1] = "60"
    assert main(wish) == 0
    found = record(tmp_path)
    first, second = found["observations"]["environments_seeded_at"]
    assert first == 0 < second < 12_000
    steps = [entry["step"] for entry in found["history"][:-1]]
    assert steps == list(range(200, 12_001, 200))  # neither lost nor doubled


@pytest.mark.parametrize("head", ["plain", "neurocoder"])
def test_a_kept_agent_plays(tmp_path, head, capsys):
    wish = run(tmp_path, "--steps", 40, "--save-agents", tmp_path / "agents", variants=f"cartpole-{head}")
    assert main(wish) == 0
    agent, variant, settings = load_agent(tmp_path / "agents" / f"cartpole-{head}-seed0.checkpoint.safetensors")
    target = tmp_path / "play.gif"
    count = play(agent, variant.environment, settings, Options(tmp_path, target, frames=8))
    with Image.open(target) as picture:
        assert (picture.n_frames, picture.size) == (count, (820, 420))
        shown = [picture.seek(place) or picture.convert("RGB").tobytes() for place in range(count)]
    assert play(agent, variant.environment, settings, Options(tmp_path, target, frames=2, every=3)) == 2
    with Image.open(target) as picture:
        assert picture.info["duration"] == 3 * 66 // 10 * 10  # a GIF counts in hundredths of a second
        picture.seek(1)
        assert picture.convert("RGB").tobytes() == shown[3]
    with pytest.raises(ValueError, match="--every must be a whole number >= 1, got 0"):
        play(agent, variant.environment, settings, Options(tmp_path, target, every=0))
    with pytest.raises(ValueError, match=r"--target must end in \.gif, got play\.mp4"):
        play(agent, variant.environment, settings, Options(tmp_path, tmp_path.__class__("play.mp4")))
    os.unlink(target)
