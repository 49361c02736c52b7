"""Images as functions: what is measured, how new latents are fitted, and what a run leaves."""

import base64
import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from neurocoder.lab.experiments import load
from neurocoder.lab.experiments.fields import data, fitting, pictures, rates, report
from neurocoder.lab.experiments.fields.experiment import FieldsConfig, Pace, Run, Variant
from neurocoder.lab.experiments.fields.models import FieldNetwork
from neurocoder.lab.report.sections import Estimate, PairedDifference
from neurocoder.lab.train.context import Context
from neurocoder.lab.train.graphs import GraphStepper
from neurocoder.lab.train.loop import Stepper

TINY = load("fields").presets["smoke"]
CPU = torch.device("cpu")


def test_psnr_by_hand():
    wanted = torch.zeros(2, 4, 1)
    found = torch.full((2, 4, 1), 0.1)
    found[1] = torch.tensor([[1.0], [0.0], [0.0], [0.0]])  # mean square error 1/4
    each = data.psnr(found, wanted)
    assert each.tolist() == pytest.approx([20.0, 10 * math.log10(4)])
    assert data.pooled(each) == pytest.approx(-10 * math.log10((0.01 + 0.25) / 2))


def test_places_run_from_corner_to_corner_row_by_row():
    assert data.places((2, 3)).tolist() == [[-1, -1], [0, -1], [1, -1], [-1, 1], [0, 1], [1, 1]]


def test_a_step_sees_the_colours_at_its_places():
    trained = data.load("mnist", 16, 4, False, 0, CPU).trained
    stream = data.PointStream(trained, 8, 8, seed=0)
    assert stream.steps == 2
    seen = []
    for block in range(2):
        stream.fill(block)
        for step in range(2):
            rows, places, colours = stream.batch(torch.tensor(step))
            assert colours.shape == (8, 98, 1)
            assert places.shape == (98, 2)
            for n, row in enumerate(rows.tolist()):
                at = ((places + 1) * 27 / 2).round().long()
                image = trained.colours[row].view(28, 28)
                assert torch.equal(colours[n, :, 0], image[at[:, 1], at[:, 0]].float() / 255)
            seen.append((rows.tolist(), places))
    assert sorted(seen[0][0] + seen[1][0]) == list(range(16))
    assert seen[0][0] != seen[2][0]
    assert not torch.equal(seen[0][1], seen[2][1])


def test_validation_images_are_not_those_of_the_report(monkeypatch):
    def images(train):
        return torch.arange(20_000 if train else 10_000).view(-1, 1, 1) + (0 if train else 50_000)

    monkeypatch.setattr(data, "_load", lambda dataset, train: data.Pictures(images(train), (1, 1)))
    found = {flag: data.load("mnist", 64, 32, flag, 0, CPU) for flag in (False, True)}
    numbers = {flag: [part.colours.flatten().tolist() for part in parts] for flag, parts in found.items()}
    assert [len(part) for part in numbers[False]] == [64, 32, data.SPARE]
    for flag, (trained, new, spare) in numbers.items():
        assert len({*trained, *new, *spare}) == 96 + data.SPARE
        assert max(trained + spare) < (15_000 if flag else 20_000)  # the last training images are held out
        assert min(new) >= (15_000 if flag else 50_000)
    assert max(numbers[True][1]) < 20_000
    other = data.load("mnist", 64, 32, False, 1, CPU)
    assert other.trained.colours.flatten().tolist() != numbers[False][0]
    assert other.new.colours.flatten().tolist() != numbers[False][1]
    with pytest.raises(ValueError, match=r"new must be in 1\.\.10000 for mnist, got 10001"):
        data.load("mnist", 8, 10_001, False, 0, CPU)


def network_of(contender="core"):
    torch.manual_seed(0)
    return FieldNetwork(contender, "fourier", [10, 10], 1, 4)


@pytest.mark.parametrize("adam", [True, False])
def test_fitting_latents_is_one_image_after_the_other_and_leaves_the_network(adam):
    network, places = network_of("film"), data.places((6, 5))
    colours, start = torch.rand(40, 30, 1), torch.randn(4) / 10  # more than are fitted at once
    before = {name: entry.clone() for name, entry in network.named_parameters()}
    found = fitting.fit(network, places, colours, start, 4, 0.1, adam)
    for name, entry in network.named_parameters():
        assert torch.equal(entry, before[name])
        assert entry.grad is None
    for n in (0, 39):
        z = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([z], 0.1) if adam else torch.optim.SGD([z], 0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 4) if adam else None
        for _ in range(4):
            (z.grad,) = torch.autograd.grad((network(places, z[None])[0] - colours[n]).square().mean(), z)
            optimiser.step()
            if schedule:
                schedule.step()
        torch.testing.assert_close(found[n], z.detach(), atol=1e-5, rtol=1e-4)


def test_the_best_rate_is_the_best_of_those_tried():
    network, places, colours = network_of(), data.places((6, 5)), torch.rand(8, 30, 1)
    chosen = fitting.best_rate(network, places, colours, torch.zeros(4), 5)
    with torch.no_grad():
        quality = {
            rate: float(
                data.psnr(
                    network(places, fitting.fit(network, places, colours, torch.zeros(4), 5, rate)), colours
                ).mean()
            )
            for rate in fitting.RATES
        }
    assert quality[chosen] == max(quality.values())


def test_meta_learning_differentiates_the_steps():
    """Against torch.func: the gradient of the loss after one step of gradient descent from zero."""
    config = FieldsConfig(**{**vars(TINY), "learn": "meta", "inner_steps": 1, "inner_rate": 0.5})
    run = Run(config, "mnist-fourier-film-10000", 0, CPU)
    network = run.model.network.double()
    places, colours = data.places((4, 4)).double(), torch.rand(3, 16, 1).double()
    z = torch.zeros(3, 8, dtype=torch.float64, requires_grad=True)
    network.requires_grad_(True)

    def after(own):
        def error(z):
            made = torch.func.functional_call(network, own, (places, z))
            return (made - colours).square().mean((1, 2)).sum()

        moved = z - 0.5 * torch.func.grad(error)(z)
        return (torch.func.functional_call(network, own, (places, moved)) - colours).square().mean()

    own = dict(network.named_parameters())
    wanted = torch.func.grad(after)({name: entry.detach() for name, entry in own.items()})
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        run.meta_loss(run.model, (torch.arange(3), places, colours)).backward()
    finally:
        torch.set_default_dtype(default)
    for name, entry in own.items():
        torch.testing.assert_close(entry.grad, wanted[name], msg=name)


@pytest.mark.parametrize("changes", [{}, {"learn": "meta"}])
def test_what_a_graph_captures_trains_as_the_eager_loop(changes):
    """On a CPU the operations of the graph run uncaptured."""
    config = replace(TINY, steps=6, **changes)
    found = []
    for stepper in (Stepper, GraphStepper):
        run = Run(config, "mnist-fourier-core-700", 0, CPU)
        steps = stepper(run.spec, Context(config, "mnist-fourier-core-700", 0, CPU))
        before = run.model.network.output.weight.detach().clone()
        for _ in range(6):
            steps.step()
        assert not torch.equal(before, run.model.network.output.weight)
        found.append([entry.detach() for entry in run.model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_network_and_latents_have_rates_of_their_own():
    """The first step of Adam is as long as its rate, in every number that has a gradient."""
    config = replace(TINY, steps=100, rate=0.01, latent_rate=0.5, warm_up=10)
    run = Run(config, "mnist-fourier-film-700", 0, CPU)
    before = {name: entry.detach().clone() for name, entry in run.model.named_parameters()}
    stepper = Stepper(run.spec, Context(config, "mnist-fourier-film-700", 0, CPU))
    stepper.step()
    moved = {name: (entry - before[name]).abs().max().item() for name, entry in run.model.named_parameters()}
    assert moved.pop("latents") == pytest.approx(0.05, rel=1e-3)  # a tenth, the first of ten steps of warm-up
    assert all(size == pytest.approx(0.001, rel=1e-2) for size in moved.values())


def test_a_run_at_other_settings_than_the_table_has_now_is_another_run(monkeypatch):
    fields = load("fields")
    usual, long = rates.Settings(0.5, 0.25, 4), rates.Settings(0.1, 0.2)
    monkeypatch.setattr(rates, "SETTINGS", {"mnist-fourier-core": usual, "mnist-fourier-core-6300": long})
    for variant in ("mnist-fourier-core-700", "mnist-fourier-core-constant-2100"):
        assert fields.chosen(TINY, variant) == {"rates": [0.5, 0.25], "size": 4}
        run = Run(TINY, variant, 0, CPU)
        assert run.settings == (0.5, 0.25, 4)
        assert run.model.network.layers[1].layer.memory.U.shape[0] == 4
    assert fields.chosen(TINY, "mnist-fourier-core-6300") == {"rates": [0.1, 0.2], "size": 12}
    assert fields.chosen(replace(TINY, rate=0.1, size=6), "mnist-fourier-core-700") == {"rates": [0.1, 0.25], "size": 6}
    assert fields.chosen(replace(TINY, size=6), "mnist-fourier-film-700")["size"] is None


def test_some_training_images_are_left():
    with pytest.raises(ValueError, match="images must leave some of mnist's training images, got 60000"):
        Run(replace(TINY, images=60_000), "mnist-fourier-core-700", 0, CPU)


def test_one_latent_for_all_images():
    run = Run(TINY, "mnist-fourier-core-constant-700", 0, CPU)
    assert run.model.latents.shape == (1, 8)
    assert torch.equal(run.model.latents_of(torch.tensor([0, 5])), run.model.latents.expand(2, -1))
    z, each = run.fitted(data.colours_of(run.new.colours), 3, 0.1)
    assert z.shape == (4, 8)
    assert (z == run.model.latents).all()
    assert each.shape == (4,)


def test_variants_and_their_names():
    assert Variant.of("cifar10-siren-core-shift-2100") == ("cifar10", "siren", "core-shift", 2100)
    experiment = load("fields")
    assert "mnist-fourier-low-rank-6300" in experiment.variants(experiment.presets["equal"])
    assert "cifar10-siren-shift-10000" in experiment.variants(experiment.presets["best"])


def test_the_pace_is_that_of_the_fastest_stretch():
    pace = Pace(CPU)
    times = iter((3.0, 3.0, 5.0, 6.0, 7.0))
    pace.clock = lambda: next(times)
    pace.begun = 0.0
    pace.stop(60)  # what precedes counts only where there is nothing else
    assert pace.steps_per_second == 20
    pace.go(60)
    pace.stop(70)  # 10 steps in 2 seconds: slower
    assert pace.steps_per_second == 20
    pace.go(70)
    pace.stop(100)
    assert pace.steps_per_second == 30


def test_pictures_lie_in_rows_and_come_back():
    colours = torch.arange(12.0).view(2, 3, 2, 1) / 255  # two rows of three pictures of two pixels
    grid = pictures.arranged(colours, (1, 2))
    assert grid[..., 0].tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    text = pictures.packed(grid)
    assert np.array_equal(pictures.unpacked(text), grid[..., 0])
    assert Image.open(io.BytesIO(base64.b64decode(text))).format == "PNG"


class Kept:
    def __init__(self, seed, **metrics):
        self.seed, self.metrics = seed, metrics


def test_equal_time_lies_between_the_lengths():
    runs = {1.0: [Kept(0, trained=10.0)], 4.0: [Kept(0, trained=20.0)], 16.0: [Kept(0, trained=24.0)]}
    assert report.between(runs, 2.0, "trained").values == pytest.approx([15.0])
    assert report.between(runs, 8.0, "trained").values == pytest.approx([22.0])
    assert report.between(runs, 16.0, "trained").values == pytest.approx([24.0])
    assert report.between(runs, 0.5, "trained") is None
    assert report.between(runs, 17.0, "trained") is None


def test_bars_say_yes_no_or_level():
    assert report.asked(PairedDifference([1.1, 1.2, 1.3]), 1.0) == "1: yes"
    assert report.asked(PairedDifference([0.8, 0.9]), 1.0) == "1: no"
    assert report.asked(PairedDifference([-0.1, 0.2, -0.15]), 0.0) == "0: level"
    assert report.asked(PairedDifference([-1.0, -1.1, -1.2]), 0.0) == "0: no"
    assert isinstance(PairedDifference([1.0]), Estimate)
