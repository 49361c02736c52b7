"""Usage, groups, drift and growth as numbers, against values worked out by hand."""

import pytest
import torch

import neurocoder as nc
from neurocoder.inspect import clusters, views
from neurocoder.inspect.clusters import SAMPLE


def programs(u, v=None, s=None):
    """Programs with this attention (..., r, P); what the views do not read is zero."""
    u = torch.tensor(u)
    zeros = torch.zeros(*u.shape[:-2], 3, *u.shape[-2:])
    v, s = (u if part is None else torch.tensor(part) for part in (v, s))
    return nc.Programs(u, v, s, u.sum(-1), None, zeros, zeros, zeros)


TWO = programs([[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]], [[0.0, 0.0, 0.2], [0.0, 0.0, 0.4]]])
"""Two inputs, two components, three slots."""
GROWING = nc.GrowingPrograms(
    slots=torch.tensor([[1, 0], [2, 3]]),
    share=torch.tensor([[0.75, 0.25], [1.0, 0.0]]),
    similarity=torch.tensor([[0.9, 0.8], [0.9, -1.0]]),
    born=torch.tensor([[4, 0], [9, -1]]),
    written=torch.tensor(3),
)
"""Two inputs, two slots each; slot 3 is not written."""


def test_attention_is_the_mean_over_components():
    torch.testing.assert_close(views.attention(TWO), torch.tensor([[0.5, 0.25, 0.0], [0.0, 0.0, 0.3]]))
    other = TWO._replace(v=2 * TWO.u)
    torch.testing.assert_close(views.attention(other, "v"), 2 * views.attention(TWO))


def test_a_layer_without_slots_reads_none():
    none = programs(torch.zeros(5, 2, 0).tolist())
    assert views.attention(none).shape == views.vectors(none).shape == (5, 0)
    assert views.attention(none, inputs=1).shape == (1, 0)


def test_positions_of_an_input_are_averaged():
    sequence = programs(TWO.u.reshape(1, 2, 2, 3).tolist())
    torch.testing.assert_close(views.attention(sequence), torch.tensor([[0.25, 0.125, 0.15]]))
    torch.testing.assert_close(views.attention(TWO, inputs=1), views.attention(sequence))
    assert views.vectors(TWO, inputs=1).shape == (1, 18)


def test_the_inputs_may_be_a_later_dimension_but_only_one():
    later = programs(torch.rand(5, 2, 3, 4).tolist())  # positions first
    torch.testing.assert_close(views.attention(later, inputs=2), later.u.mean((0, 2)))
    torch.testing.assert_close(views.vectors(later, inputs=2)[:, :12], later.u.mean(0).flatten(1))
    torch.testing.assert_close(views.attention(later, inputs=5), later.u.mean((1, 2)))
    both = programs(torch.rand(2, 2, 3, 4).tolist())
    torch.testing.assert_close(views.attention(both, inputs=2), both.u.mean((1, 2)))
    two = programs(torch.rand(5, 2, 2, 3, 4).tolist())
    for wrong, count in ((later, 10), (TWO, 3), (programs(torch.rand(32, 3, 4).tolist()), 16), (two, 2)):
        with pytest.raises(
            ValueError, match=f"inputs must be one dimension of the programs of this call.*, got {count}"
        ):
            views.attention(wrong, inputs=count)


def test_many_inputs_are_grouped_by_a_sample_without_all_distances(monkeypatch):
    rows, before = [], torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda a, b: rows.append(len(a) * len(b)) or before(a, b))
    groups = torch.arange(20_000) % 3
    points = 10 * torch.eye(3)[groups] + 0.1 * torch.randn(20_000, 3)
    found = clusters(points)
    assert max(rows) <= SAMPLE**2
    assert len(found.centres) == 3
    assert found.silhouette > 0.9
    assert all(len(groups[found.groups == group].unique()) == 1 for group in range(3))
    assert torch.equal(clusters(points).groups, found.groups)


def test_attention_of_a_growing_layer_is_over_its_written_slots():
    torch.testing.assert_close(views.attention(GROWING), torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]))
    torch.testing.assert_close(views.vectors(GROWING), views.attention(GROWING))


def test_vectors_hold_every_component_of_u_v_and_s():
    found = views.vectors(TWO._replace(v=TWO.u + 1, s=TWO.u + 2))
    torch.testing.assert_close(found, torch.cat([TWO.u.flatten(1) + add for add in range(3)], 1))


def test_means_by_label():
    names, means = views.by_label(torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([7, 2, 7]))
    assert names.tolist() == [2, 7]
    assert means.tolist() == [[0.0, 1.0], [2.0, 0.0]]
    with pytest.raises(ValueError, match="labels must have one entry for each of the 2 inputs, got 3"):
        views.by_label(torch.zeros(2, 2), torch.zeros(3))


def test_groups_far_apart_are_found_and_ordered_by_size():
    points = torch.tensor([[0.0, 0.0], [0.2, 0.0], [10.0, 0.0], [10.0, 0.1], [10.0, 0.4], [0.0, 20.0], [0.1, 20.0]])
    found = clusters(points)
    assert found.groups.tolist() == [1, 1, 0, 0, 0, 2, 2] or found.groups.tolist() == [2, 2, 0, 0, 0, 1, 1]
    torch.testing.assert_close(found.centres[0], torch.tensor([10.0, 0.5 / 3]))
    assert found.typical(0).tolist() == [3, 2, 4]
    assert found.typical(0, 1).tolist() == [3]
    assert found.silhouette > 0.95
    assert clusters(points).groups.tolist() == found.groups.tolist()
    assert len(clusters(points, 2).centres) == 2


def test_long_vectors_are_grouped_like_short_ones():
    points = torch.cat([torch.randn(4, 50), torch.randn(3, 50) + 9])
    found = clusters(points)
    assert found.groups.tolist() == [0] * 4 + [1] * 3
    torch.testing.assert_close(found.centres[1], points[4:].mean(0))
    torch.testing.assert_close(found.distance[6], (points[6] - points[4:].mean(0)).norm())


def test_the_silhouette_is_that_of_its_definition():
    points = torch.tensor([[0.0], [1.0], [4.0], [6.0]])
    within, between = [1.0, 1.0, 2.0, 2.0], [5.0, 4.0, 3.5, 5.5]
    expected = sum((b - a) / max(a, b) for a, b in zip(within, between, strict=True)) / 4
    assert clusters(points, 2).silhouette == pytest.approx(expected)


@pytest.mark.parametrize("points", [torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 3), torch.randn(2, 3)])
def test_equal_or_few_inputs_are_one_group(points):
    found = clusters(points)
    assert found.groups.tolist() == [0] * len(points)
    assert found.silhouette == 0


def test_drift_is_the_share_that_went_to_other_slots():
    rows = [[2.0, 2.0, 0.0], [1.0, 1.0, 2.0], [1.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    assert views.drift(rows).tolist() == [0.5, 0.0, 1.0, 1.0]
    assert views.drift(torch.ones(1, 3)).tolist() == []


def test_written_slots_are_in_order_of_writing():
    layer = nc.GrowingLinear(3, 2, growing=nc.GrowingConfig(slots=4))
    assert len(views.written(layer).slots) == 0
    layer.memory.written.fill_(3)
    layer.memory.born[:3], layer.memory.visits[:3] = torch.tensor([4, 9, 2]), torch.tensor([1.0, 2.0, 3.0])
    found = views.written(layer)
    assert (found.slots.tolist(), found.born.tolist()) == ([2, 0, 1], [2, 4, 9])
    assert found.visits.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 28, 28), (2, 28, 28, 1)),
        ((2, 784), (2, 28, 28, 1)),
        ((2, 3 * 100), (2, 10, 10, 3)),
        ((2, 1, 64, 32), (2, 32, 16, 1)),
        ((2, 3, 16, 16), (2, 16, 16, 3)),
        ((2, 50), None),
        ((2, 12, 30), None),
        ((2, 5, 16, 16), None),
        ((2,), None),
        ((2, 16), None),
    ],
)
def test_what_looks_like_an_image_becomes_a_thumbnail(shape, expected):
    found = views.thumbnails(torch.randn(shape))
    assert (None if found is None else tuple(found.shape)) == expected
    assert found is None or (float(found.min()) >= 0 and float(found.max()) <= 255.001)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: views.attention(TWO, "w"), "memory must be among u, v, s, got 'w'"),
        (
            lambda: views.attention(torch.zeros(2)),
            "programs must be those of one layer, .*, got Tensor",
        ),
        (lambda: clusters(torch.zeros(3)), r"points must have shape \(inputs, numbers\), got \(3,\)"),
        (lambda: clusters(torch.zeros(3, 2), 4), r"count must be a whole number in 1\.\.3, the inputs, got 4"),
        (lambda: clusters(torch.zeros(3, 2), 2.5), r"count must be a whole number in 1\.\.3, the inputs, got 2\.5"),
        (lambda: clusters(torch.full((3, 2), torch.nan)), "points must be finite, got 3 of 3 inputs"),
        (lambda: views.drift(torch.zeros(0, 4)), r"usage must have shape \(moments, slots\), got \(0, 4\)"),
        (lambda: views.drift(None), "usage must be numbers of shape .*, got NoneType"),
        (lambda: views.by_label(torch.zeros(2, 2), ["a", "b"]), "labels must be whole numbers, one for each input"),
        (lambda: views.drift(torch.zeros(3)), r"usage must have shape \(moments, slots\), got \(3,\)"),
        (lambda: views.written(nc.Linear(2, 2)), "layer must be a growing layer, got Linear"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
