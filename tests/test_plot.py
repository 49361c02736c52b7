"""Figures of programs: they show the numbers of `views`, in any layout of inputs, and say what is wrong."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch

import neurocoder as nc
from conftest import small
from neurocoder.inspect import views
from test_views import GROWING, TWO, programs

EMPTY = programs(torch.zeros(5, 2, 0).tolist())
MANY = programs(torch.rand(32, 2, 5).tolist())


def images_of(figure):
    return [np.asarray(image.get_array()) for axis in figure.axes for image in axis.images]


def bars_of(axis):
    return [patch.get_height() for patch in axis.patches]


@pytest.fixture
def trace():
    model = nc.recode(torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)), "0", small())
    nc.recode(model, "1", nc.GrowingConfig(slots=8, top_k=2))
    memory = model[1].memory
    memory.keys[:3] = torch.nn.functional.normalize(torch.randn(3, 6))
    memory.born[:3], memory.visits[:3] = torch.tensor([0, 3, 9]), torch.tensor([5.0, 1.0, 2.0])
    memory.written.fill_(3)
    with nc.record(model) as found:
        model(torch.randn(12, 8))
    return model, found


def test_programs_shows_attention_over_the_three_memories_and_sigma():
    found = images_of(nc.plot.programs(TWO, input=0))[:3]
    for image in found:
        np.testing.assert_allclose(image, TWO.u[0])
    figure = nc.plot.programs(TWO)
    np.testing.assert_allclose(images_of(figure)[0], TWO.u.mean(0))
    assert [axis.get_title() for axis in figure.axes[:4]] == ["$M_U$", "$M_V$", "$M_S$", "singular values σ"]
    np.testing.assert_allclose([bar.get_width() for bar in figure.axes[3].patches], TWO.sigma.mean(0))


def test_programs_of_a_growing_layer_shows_the_slots_of_each_input():
    np.testing.assert_allclose(images_of(nc.plot.programs(GROWING))[0], views.attention(GROWING))
    np.testing.assert_allclose(images_of(nc.plot.programs(GROWING, input=1))[0], [[0, 0, 1]])


def test_usage_shows_means_as_bars_or_by_label():
    figure = nc.plot.usage(TWO)
    np.testing.assert_allclose(bars_of(figure.axes[0]), [0.25, 0.125, 0.15])
    figure = nc.plot.usage(TWO, labels=torch.tensor([4, 3]))
    np.testing.assert_allclose(images_of(figure)[0], [[0, 0, 0.3], [0.5, 0.25, 0]])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["3", "4"]


def test_usage_of_a_whole_trace_has_a_panel_for_each_layer(trace):
    _, found = trace
    figure = nc.plot.usage(found)
    assert [axis.get_title() for axis in figure.axes] == ["0: 6 slots of $M_U$", "1: 3 written slots"]
    np.testing.assert_allclose(bars_of(figure.axes[0]), views.attention(found["0"]).mean(0))


def test_clusters_shows_usage_labels_and_typical_inputs():
    copies = TWO._replace(**{name: getattr(TWO, name).repeat(3, 1, 1) for name in "uvs"})
    pictures, labels = torch.rand(6, 8, 8), torch.tensor([0, 1] * 3)
    figure = nc.plot.clusters(copies, inputs=pictures, labels=labels, count=2)
    rows = [figure.axes[place : place + 3] for place in (0, 3)]
    assert sorted(bars_of(row[1]) for row in rows) == [[0, 3], [3, 0]]
    usage = sorted(np.round(bars_of(row[0]), 5).tolist() for row in rows)
    np.testing.assert_allclose(usage, [[0, 0, 0.3], [0.5, 0.25, 0]], atol=1e-5)
    assert images_of(figure)[0].shape == (8, 8 * 9 - 1)
    texts = [text.get_text() for axis in nc.plot.clusters(copies, count=2).axes for text in axis.texts]
    assert sorted(texts) == ["0, 2, 4", "1, 3, 5"]


def test_drift_shows_usage_and_how_far_it_moved():
    figure = nc.plot.drift([[1.0, 1.0], [0.0, 2.0]], steps=["first", "last"])
    np.testing.assert_allclose(images_of(figure)[0], [[1, 1], [0, 2]])
    assert [bar.get_width() for bar in figure.axes[1].patches] == [0.5]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["first", "last"]
    over_time = nc.plot.drift([GROWING._replace(written=torch.tensor(2), slots=GROWING.slots % 2), GROWING])
    assert images_of(over_time)[0].shape == (2, 3), "a growing layer has more slots later"


def test_growth_shows_when_slots_were_written_and_what_they_serve(trace):
    model, found = trace
    figure = nc.plot.growth(model[1], found["1"], labels=torch.arange(12) % 2)
    written, visits, serves = figure.axes[:3]
    assert written.lines[0].get_xydata().tolist() == [[0, 1], [3, 2], [9, 3]]
    assert bars_of(visits) == [5, 1, 2]
    np.testing.assert_allclose(
        np.asarray(serves.images[0].get_array()), views.by_label(views.attention(found["1"]), torch.arange(12) % 2)[1]
    )
    assert len(nc.plot.growth(nc.GrowingLinear(3, 2)).axes) == 2


def test_a_notebook_shows_a_figure_and_settings_stay(trace):
    _, found = trace
    before = dict(matplotlib.rcParams)
    figure = nc.plot.programs(found["0"])
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nc.plot.programs({"fc": TWO}),
            r"programs must be those of one layer, such as trace\['fc'\], got dict",
        ),
        (
            lambda: nc.plot.programs(TWO, input=2),
            "input must be a whole number below 2, the inputs of this call, got 2",
        ),
        (lambda: nc.plot.usage({}), "programs must have at least one layer, got none"),
        (lambda: nc.plot.usage(TWO, labels=torch.zeros(3)), "labels must have one entry for each input, 2, got 3"),
        (lambda: nc.plot.usage(MANY, labels=torch.zeros(16)), "labels must have one entry for each input, 32, got 16"),
        (lambda: nc.plot.usage(TWO, labels=["a", "b"]), "labels must be whole numbers, one for each input, got str"),
        (
            lambda: nc.plot.clusters(MANY, labels=torch.zeros(16)),
            "labels must have one entry for each input, 32, got 16",
        ),
        (lambda: nc.plot.clusters(MANY, torch.zeros(16, 64)), "inputs must have one entry for each input, 32, got 16"),
        (lambda: nc.plot.clusters(MANY, count=2.5), r"count must be a whole number in 1\.\.32, the inputs, got 2\.5"),
        (lambda: nc.plot.clusters(MANY._replace(u=MANY.u / 0)), "programs must be finite, got 32 inputs of 32"),
        (lambda: nc.plot.programs(EMPTY), "programs must be those of a layer with slots, got a layer without any"),
        (lambda: nc.plot.usage(EMPTY), "programs must be those of a layer with slots, got a layer without any"),
        (lambda: nc.plot.programs(TWO, input=1.5), r"input must be a whole number below 2, .*, got 1\.5"),
        (lambda: nc.plot.drift([{"fc": TWO}, {"fc": TWO}]), "usage must be the programs of one layer, .*, got traces"),
        (lambda: nc.plot.drift(None), "usage must be a sequence, one entry for each moment, got NoneType"),
        (lambda: nc.plot.drift(torch.zeros(0, 4)), r"usage must have shape \(moments, slots\), got \(0, 4\)"),
        (lambda: nc.plot.drift([TWO, MANY]), r"usage must be of one layer at several moments, .* \[3, 5\] slots"),
        (lambda: nc.plot.drift([TWO, GROWING]), "usage must be of one layer .*, got Programs, GrowingPrograms"),
        (
            lambda: nc.plot.growth(nc.GrowingLinear(3, 2), TWO),
            "programs must be those of a growing layer, got Programs",
        ),
        (lambda: nc.plot.growth(nc.GrowingLinear(3, 2), GROWING), "programs must be those of this layer .* with 3"),
        (lambda: nc.plot.usage(TWO, memory="x"), "memory must be among u, v, s, got 'x'"),
        (lambda: nc.plot.drift([[1.0]], steps=[1, 2]), "steps must have one entry for each of the 1 moments, got 2"),
        (lambda: nc.plot.growth(nc.Linear(2, 2)), "layer must be a growing layer, got Linear"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_matplotlib_is_imported_only_for_a_figure_and_named_when_missing(monkeypatch):
    code = "import neurocoder, sys; print([name for name in ('matplotlib', 'neurocoder.lab') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="the figure 'usage' needs matplotlib: pip install matplotlib"):
        nc.plot.usage(TWO)


def test_growth_of_a_layer_without_slots_has_no_panel_of_what_they_serve():
    layer, x = nc.GrowingLinear(8, 4), torch.randn(5, 8)
    figure = nc.plot.growth(layer, layer.programs(x), labels=torch.zeros(5, dtype=torch.int64))
    assert [axis.get_title() for axis in figure.axes] == ["0 of 512 slots written", ""]


@pytest.mark.filterwarnings("error")
def test_clusters_of_a_layer_without_slots_is_one_group_without_a_warning():
    layer = nc.GrowingLinear(8, 4)
    figure = nc.plot.clusters(layer.programs(torch.randn(5, 8)))
    assert figure.get_suptitle().startswith("1 group of inputs")


def test_inputs_that_are_not_finite_are_left_out_of_usage():
    some = TWO._replace(u=torch.cat([TWO.u, TWO.u[:1] * torch.nan]))
    figure = nc.plot.usage(some)
    np.testing.assert_allclose(bars_of(figure.axes[0]), [0.25, 0.125, 0.15])
    assert figure.axes[0].get_title() == "3 slots of $M_U$; 1 input left out: not finite"
    growing = GROWING._replace(similarity=torch.tensor([[0.9, 0.8], [torch.nan, -1.0]]))
    np.testing.assert_allclose(bars_of(nc.plot.usage(growing).axes[0]), [0.25, 0.75, 0])
    with pytest.raises(ValueError, match="programs must be finite, got 1 input of 2 with others"):
        nc.plot.clusters(growing)
