"""Polynomials: the network, the AUC, the task, and what is reported."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.experiments import load
from neurocoder.lab.experiments.polynomials import figures as plots
from neurocoder.lab.experiments.polynomials import report as polynomials_sections
from neurocoder.lab.experiments.polynomials.data import Family, generator, network_input
from neurocoder.lab.experiments.polynomials.evaluation import auc, auc_first_two, boundary_auc, change, in_chunks
from neurocoder.lab.experiments.polynomials.experiment import PolynomialsConfig, Rates
from neurocoder.lab.experiments.polynomials.models import CONTROLS, MODELS, SETTINGS, Regressor, family, split
from neurocoder.lab.records.record import Record
from neurocoder.lab.report.build import paper_numbers

EXPERIMENT = load("polynomials")
SMOKE = EXPERIMENT.presets["smoke"]
CPU = torch.device("cpu")


# The network


def test_sizes_are_near_the_papers():
    totals = {name: nc.count_parameters(model.build())["total"] for name, model in MODELS.items()}
    near = {"gru": 3489, "hyper": 3498, "single-2": 3095, "single-3": 3748, "multi": 2047}
    assert totals == near | {"gru-16": 977, "gru-8": 297}
    published = paper_numbers()["polynomials"]["parameters"]
    for name, total in near.items():
        assert total == pytest.approx(published[MODELS[name].paper], rel=0.15)


# Beginnings of chunks


@pytest.mark.parametrize(
    ("positive", "negative", "expected"),
    [
        ([3.0], [1.0, 2.0], 1.0),
        ([1.0], [2.0, 3.0], 0.0),
        ([2.0, 4.0], [1.0, 3.0], 0.75),
        ([2.0, 2.0], [2.0], 0.5),
        ([1.0, 2.0], [1.0, 0.0], 0.875),
        ([], [1.0], math.nan),
    ],
)
def test_auc_by_hand(positive, negative, expected):
    assert auc(np.array(positive), np.array(negative)) == pytest.approx(expected, nan_ok=True)


def test_auc_by_counting_pairs():
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 6, 40).astype(float), rng.integers(0, 5, 60).astype(float)
    pairs = positive[:, None] - negative
    assert auc(positive, negative) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_changes_are_distances_in_time():
    signal = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]]])
    assert change(signal)[0].tolist() == pytest.approx([0, 5, 0])


def test_scores_count_by_their_place_in_the_chunk():
    points, rng = 6, np.random.default_rng(0)
    noise = rng.random((50, 4 * points))
    position = np.arange(4 * points) % points
    first, second, last = (noise + 2 * (position == place) for place in (0, 1, points - 1))
    jump = noise + 2 * (position == 1)
    jump[25:, position == 1] += 5
    found = boundary_auc({"first": first, "second": second, "last": last, "jump": jump}, points)
    assert [found["first"][name] for name in ("either", "quiet")] == pytest.approx([1, 1])
    assert found["second"]["either"] == pytest.approx(1)
    assert found["last"]["either"] < 0.5


def test_the_first_chunk_does_not_count():
    points = 4
    score = np.tile([9.0, 9.0, 0.0, 1.0] + 2 * [0.0, 0.0, 1.0, 2.0], (3, 1))
    assert auc_first_two(in_chunks(score, points)) == pytest.approx(0)


def test_quiet_beginnings_are_those_with_the_smaller_jump():
    points = 4
    jump = np.array([[0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 9, 0, 0.0]])
    score = np.array([[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 5, 1, 1.0]])
    found = boundary_auc({"jump": jump, "score": score}, points)["score"]
    assert (found["either"], found["quiet"]) == pytest.approx((0.5, 0.0))


# The experiment


def train(task, steps=None):
    """A plain loop; the losses."""
    optimiser, losses = task.optimiser(list(task.model.named_parameters()), task.learning_rate), []
    rates = [group["lr"] for group in optimiser.param_groups]
    for step in range(steps or task.steps):
        block, position = divmod(step, task.stream.steps)
        if position == 0:
            task.stream.fill(block)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * task.schedule(step)
        optimiser.zero_grad()
        loss = task.loss(task.model, task.stream.batch(torch.tensor(position)))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("variant", [*MODELS, "gru-noise", "hyper-doubled"])
def test_every_model_learns(variant):
    task = EXPERIMENT.build(SMOKE, variant, 0, CPU)
    with torch.no_grad():
        before = task.evaluate(task.model)
    train(task)
    with torch.no_grad():
        after = task.evaluate(task.model)
    assert after["above_floor"] < 0.5 * before["above_floor"]
    first, total = len(task.stream.places) // SMOKE.points, len(task.stream.places)
    assert after["mse"] == pytest.approx((first * after["first_points"] + (total - first) * after["rest"]) / total)


def test_variants_say_which_sequences():
    assert family("clean", 5, 20, 0.1) == Family(5, 20, 0.0)
    assert family("noise", 5, 20, 0.1) == Family(5, 20, 0.1)
    assert family("doubled", 5, 20, 0.1) == Family(10, 20, 0.0)
    assert {split(variant) for variant in EXPERIMENT.variants(SMOKE)} == set(itertools.product(MODELS, SETTINGS))
    streams = [EXPERIMENT.build(SMOKE, variant, seed, CPU).stream for variant, seed in (("gru-noise", 0), ("multi", 1))]
    assert [stream.family for stream in streams] == [Family(3, 8, 0.1), Family(3, 8, 0.0)]
    assert [stream.seed for stream in streams] == [0, 1]


LEVELS = ("persistence", "floor")
LARGE = dataclasses.replace(SMOKE, scale=1_000.0)


@pytest.mark.parametrize("variant", CONTROLS)
def test_every_control_learns_what_is_large(variant):
    task = EXPERIMENT.build(dataclasses.replace(LARGE, iterations=120), variant, 0, CPU)
    with torch.no_grad():
        before = task.evaluate(task.model)["r2"]
    train(task)
    with torch.no_grad():
        after = task.evaluate(task.model)
    assert after["r2"] > before
    assert variant not in EXPERIMENT.variants(SMOKE)
    assert variant in EXPERIMENT.variants(LARGE)


def test_controls_hold_constant_what_they_say():
    models = {name: EXPERIMENT.build(LARGE, name, 0, CPU).model for name in (*CONTROLS, "gru")}
    states = torch.randn(3, 4, 8)
    programs = models["multi-constant"].output.layer.programs(states, control=states.new_ones(8))
    assert programs.u.shape == (5, 20), "one program for all inputs"
    (h,) = torch.randn(1, 32)
    linear = models["gru-scaled"].output.linear
    torch.testing.assert_close(models["gru-scaled"].output(h), 1_000 * linear(h))
    torch.testing.assert_close(models["gru-exp"].output(h), models["gru-exp"].output.linear(h))
    optimiser = EXPERIMENT.build(LARGE, "gru-fast", 0, CPU).optimiser(list(models["gru"].named_parameters()), 1e-3)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in models["gru"].named_parameters()}
    assert {name for name, rate in found.items() if rate == 0.1} == {"output.weight", "output.bias"}
    assert all(rate == 1e-3 for name, rate in found.items() if not name.startswith("output"))


def test_r2_does_not_depend_on_the_scale():
    found = {}
    for scale in (1.0, 1_000.0):
        task = EXPERIMENT.build(dataclasses.replace(SMOKE, scale=scale), "gru", 0, CPU)
        with torch.no_grad():
            for parameter in task.model.parameters():
                parameter.zero_()
            found[scale] = task.evaluate(task.model)
    assert found[1.0]["r2"] == found[1_000.0]["r2"] == pytest.approx(0, abs=1e-6)
    assert found[1_000.0]["mse"] == pytest.approx(1e6 * found[1.0]["mse"], rel=1e-5)


def test_records_without_a_scale_are_of_scale_one():
    old = {"iterations": 10}
    assert EXPERIMENT.effective(old, "gru") == EXPERIMENT.effective({**old, "scale": 1.0, "reach": 1.0}, "gru")


def test_a_task_depends_on_its_arguments_alone():
    tasks = []
    for draws in (0, 3):
        torch.rand(draws)
        tasks.append(EXPERIMENT.build(SMOKE, "multi", 5, CPU))
    state = torch.random.get_rng_state()
    other = EXPERIMENT.build(SMOKE, "multi", 6, CPU)
    assert torch.equal(state, torch.random.get_rng_state())
    first, second = (task.model.state_dict() for task in tasks)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["gru.weight_ih_l0"], other.model.state_dict()["gru.weight_ih_l0"])
    assert train(tasks[0], 3) == train(tasks[1], 3)


def test_errors_are_those_of_the_predictions():
    """A network that answers 0 everywhere: its error is the mean square of y, the floor's part at first points."""
    config = dataclasses.replace(SMOKE, held_out=300)  # more than go through a network at once
    task = EXPERIMENT.build(config, "gru", 0, CPU)
    for parameter in task.model.parameters():
        nn.init.zeros_(parameter)
    sequences = family("clean", config.chunks, config.points, config.noise)
    y = sequences.sample(300, generator("test", 0)).y.double().view(-1, config.points)
    with torch.no_grad():
        metrics = task.evaluate(task.model)
    assert metrics["mse"] == pytest.approx(y.square().mean().item())
    assert metrics["first_points"] == pytest.approx(y[:, 0].square().mean().item())
    assert metrics["above_floor"] == pytest.approx(y[:, 1:].square().sum().item() / y.numel())


def test_validation_sequences_are_others():
    tasks = [EXPERIMENT.build(dataclasses.replace(SMOKE, validation=choice), "gru", 0, CPU) for choice in (False, True)]
    with torch.no_grad():
        test, validation = (task.evaluate(task.model)["mse"] for task in tasks)
    assert test != validation


def test_observations_are_json_and_show_the_attention_of_the_first_component():
    task = EXPERIMENT.build(SMOKE, "multi", 0, CPU)
    train(task, 5)
    with torch.no_grad():
        observed = task.observe(task.model)
        task.stream.y[0, :1] = torch.tensor(observed["example"]["y"])
        inputs = network_input(task.stream.places, task.stream.y[0, :1])
        with nc.record(task.model) as trace:
            prediction = task.model(inputs)
    assert json.loads(json.dumps(observed)) == observed
    torch.testing.assert_close(torch.tensor(observed["example"]["prediction"]), prediction[0], atol=1e-4, rtol=0)
    attention = torch.tensor(observed["example"]["attention"])
    torch.testing.assert_close(attention, trace["output"].u[0, :, 0], atol=1e-4, rtol=0)
    assert set(observed["boundaries"]) == set(plots.SIGNALS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "iterations must be a whole number >= 1, got 0"),
        ({"batch": 2.5}, "batch must be a whole number >= 1, got 2.5"),
        ({"chunks": 1}, "chunks must be a whole number >= 2, got 1"),
        ({"points": 3}, "points must be a whole number >= 4, got 3"),
        ({"rates": Rates.same(0.0)}, "rate_gru must be a finite number > 0, got 0.0"),
        (
            {"rates": dataclasses.replace(Rates.same(1.0), rate_multi=math.inf)},
            "rate_multi must be a finite number > 0, got inf",
        ),
        ({"clip": 0.0}, "clip must be a finite number > 0, got 0.0"),
        ({"noise": math.nan}, "noise must be a finite number > 0, got nan"),
        ({"decay": "linear"}, "decay must be 'none' or 'cosine', got 'linear'"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PolynomialsConfig(**changes)


@pytest.mark.parametrize("variant", ["lstm", "multi-", "gru-noisy", "noise"])
def test_unknown_variants_are_refused(variant):
    with pytest.raises(ValueError, match=r"variant must be one of gru, .* got"):
        split(variant)


def test_each_model_has_its_own_learning_rate_in_every_setting():
    rates = {"gru": 0.1, "hyper": 0.2, "single-2": 0.3, "single-3": 0.4, "multi": 0.5}
    config = dataclasses.replace(SMOKE, rates=Rates(*rates.values()))
    rates |= {"gru-16": 0.1, "gru-8": 0.1}
    for variant in EXPERIMENT.variants(config):
        assert EXPERIMENT.build(config, variant, 0, CPU).learning_rate == rates[split(variant)[0]]


def test_the_learning_rate_falls_to_zero_along_a_cosine():
    factor = EXPERIMENT.build(dataclasses.replace(SMOKE, iterations=100, decay="cosine"), "gru", 0, CPU).schedule
    assert [factor(step) for step in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    assert EXPERIMENT.build(dataclasses.replace(SMOKE, decay="none"), "gru", 0, CPU).schedule(9_999) == 1


# The report


@pytest.fixture(scope="module")
def records():
    """Two seeds of some models in two settings, barely trained."""
    found = []
    for variant, seed in itertools.product(("gru", "gru-8", "single-2", "multi", "gru-noise", "multi-noise"), (0, 1)):
        task = EXPERIMENT.build(SMOKE, variant, seed, CPU)
        history = []
        for step in (1, 2):
            losses = train(task, 1)
            with torch.no_grad():
                history.append({"step": step, "loss": losses[0], **task.evaluate(task.model)})
        metrics = {name: value for name, value in history[-1].items() if name not in ("step", "loss")}
        with torch.no_grad():
            observations = json.loads(json.dumps(task.observe(task.model)))
        sizes = nc.count_parameters(task.model)
        run = ("polynomials", "smoke", variant, seed, dataclasses.asdict(SMOKE), None, "plain", "cpu", "float32", 1)
        found.append(Record(*run, sizes, metrics, history, observations, 1.0))
    return found


def test_sections_have_tables_and_figures(records):
    paper = paper_numbers()["polynomials"]
    _, errors, beginnings = EXPERIMENT.sections(records, paper)
    assert [len(table.rows) for table in errors.tables] == [5, 3]
    row = next(row for row in errors.tables[0].rows if row[0] == "multi-step")
    assert row[1:3] == [2047, 2100]
    mine = [record.metrics["above_floor"] for record in records if record.variant == "multi"]
    assert list(row[3].values) == pytest.approx([1e4 * error for error in mine])
    theirs = [record.metrics["above_floor"] for record in records if record.variant == "gru"]
    assert errors.tables[0].headings[5] == "minus GRU"
    assert list(row[5].values) == pytest.approx([1e4 * (a - b) for a, b in zip(mine, theirs, strict=True)])
    assert [plot.name for plot in beginnings.plots] == ["attention", "auc"]
    for plot in (*errors.plots, *beginnings.plots):
        plot.draw().draw_without_rendering()


def test_learning_curves_are_compared_in_units_of_the_variance(records):
    """R² by hand, from the sequences themselves; older records do not hold it, so it is computed from their errors."""
    y = family("clean", SMOKE.chunks, SMOKE.points, SMOKE.noise).sample(SMOKE.held_out, generator("test", 0)).y.double()
    speed = EXPERIMENT.sections(records, paper_numbers()["polynomials"])[0]
    curves, noisy = speed.tables
    assert "noise" in noisy.title, "no order: neither HyperNet nor the single-step model with an LSTM of 3 was run"
    assert curves.headings == ["model", "parameters", "2"], "the runs have two steps, none of those compared else"
    assert [row[0] for row in curves.rows] == ["GRU", "single-step (LSTM 2)", "multi-step", "GRU 8", *LEVELS]
    gru = [record.metrics["r2"] for record in records if record.variant == "gru"]
    assert list(curves.rows[0][2].values) == pytest.approx(gru)
    before = torch.cat((torch.zeros(len(y), 1), y[:, :-1]), dim=1)
    persistence = 1 - (y - before).square().mean() / y.square().mean()
    firsts = y.view(len(y), -1, SMOKE.points)[..., 0]
    floor = 1 - firsts.square().sum() / y.square().sum()
    assert [row[2] for row in curves.rows[-2:]] == [f"{persistence:.3f}", f"{floor:.3f}"]
    for plot in speed.plots:
        plot.draw().draw_without_rendering()


def test_the_order_of_models_is_paired_by_seed(records):
    renamed = {"gru": "hyper", "single-2": "single-3"}
    own = [dataclasses.replace(r, variant=renamed.get(r.variant, r.variant)) for r in records]
    (order,) = [t for t in EXPERIMENT.sections(own, {})[0].tables if t.rows and t.headings[0] == "question"]
    r2 = {(record.variant, record.seed): record.metrics["r2"] for record in own}
    assert [row[0] for row in order.rows] == [
        "multi-step against single-step",
        "multi-step against HyperNet",
        "single-step against HyperNet",
    ]
    for row, (one, other) in zip(
        order.rows, (("multi", "single-3"), ("multi", "hyper"), ("single-3", "hyper")), strict=True
    ):
        assert list(row[1].values) == pytest.approx([r2[one, seed] - r2[other, seed] for seed in (0, 1)])


def test_errors_of_large_sequences_are_in_units_of_their_scale(records):
    large = []
    for record in (r for r in records if r.variant == "gru"):
        config = {**record.config, "scale": 1_000.0}
        metrics = {name: value * (1 if name == "r2" else 1e6) for name, value in record.metrics.items()}
        observations = {**record.observations, "floor": 1e6 * record.observations["floor"]}
        large.append(dataclasses.replace(record, config=config, metrics=metrics, observations=observations))
    tables = [EXPERIMENT.sections(own, {})[1].tables[0] for own in (large, [r for r in records if r.variant == "gru"])]
    assert tables[0].title == tables[1].title + " times 1,000²"
    assert list(tables[0].rows[0][3].values) == pytest.approx(list(tables[1].rows[0][3].values))
    assert tables[0].rows[-1] == tables[1].rows[-1]


def test_records_without_an_example_have_no_picture_of_it(records):
    thin = [
        dataclasses.replace(record, observations={k: v for k, v in record.observations.items() if k != "example"})
        for record in records
    ]
    beginnings = EXPERIMENT.sections(thin, {})[-1]
    assert [plot.name for plot in beginnings.plots] == ["auc"]


@pytest.mark.parametrize(
    "variants",
    [("gru",), ("gru-8",), ("multi",), ("gru-noise",), ("multi-noise", "gru"), ("single-2", "multi-noise"), ()],
)
def test_sections_of_any_records(records, variants):
    chosen = [record for record in records if record.variant in variants][: 1 + len(variants)]
    sections = EXPERIMENT.sections(chosen, {})
    assert len(sections) == (0 if not variants else 2 if all("gru" in name for name in variants) else 3)
    for section in sections:
        assert section.tables
        for plot in section.plots:
            assert plot.draw().axes


def test_models_that_share_no_seed_are_not_compared(records):
    apart = [record for record in records if (record.variant, record.seed) in (("gru", 0), ("multi", 1))]
    rows = {row[0]: row for row in EXPERIMENT.sections(apart, {})[1].tables[0].rows}
    assert rows["multi-step"][5] is None


def test_the_median_run_stands_for_all(records):
    runs = [dataclasses.replace(records[0], metrics={"above_floor": error}) for error in (3.0, 1.0, 2.0)]
    assert polynomials_sections.median_run(runs) is runs[2]


def test_medians_are_of_the_evaluations_that_all_seeds_have():
    """Packed histories are thinned."""
    runs = [np.array([(1, 9.0), (2, 4.0), (3, 1.0)]), np.array([(1, 5.0), (3, 3.0)]), np.array([(1, 7.0), (3, 8.0)])]
    assert plots.middle(runs).tolist() == [[1, 7.0], [3, 3.0]]


def test_regressors_keep_leading_dimensions():
    assert Regressor(2, 4, nn.Linear(4, 1))(torch.zeros(3, 5, 2)).shape == (3, 5)
