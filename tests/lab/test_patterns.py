"""Distinct attention patterns, the information in them and the binary tree."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import neurocoder as nc
from neurocoder.lab.experiments.digits import patterns


def blobs(*sizes, apart=1.0, spread=0.02, slots=5):
    """Groups of vectors around unit vectors, in mixed order; and the group of each."""
    random = np.random.default_rng(0)
    kinds = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return apart * np.eye(slots)[kinds] + random.normal(0, spread, (len(kinds), slots)), kinds


@pytest.mark.parametrize("sizes", [(300, 200), (400, 300, 200), (2000, 900, 500, 100)])
def test_separate_groups_are_found_and_counted(sizes):
    vectors, kinds = blobs(*sizes)
    found, two = patterns.find(vectors)
    assert found["count"] == len(sizes)
    assert found["best"]["share"] == pytest.approx([size / sum(sizes) for size in sizes], abs=1e-3)
    np.testing.assert_allclose(found["best"]["centres"], np.eye(5)[: len(sizes)], atol=0.01)
    assert found["best"]["explain"] > 0.99
    assert max(found["silhouettes"]) == found["silhouettes"][len(sizes) - 2] > 0.9
    assert sorted(np.unique(two)) == [0, 1]
    if len(sizes) == 2:
        assert np.array_equal(two, kinds)
        assert found["two"] == found["best"]


def test_a_continuum_has_no_distinct_patterns():
    vectors = np.random.default_rng(0).normal(0, 1, (2000, 6))
    found, two = patterns.find(vectors)
    assert found["count"] == 1
    assert max(found["silhouettes"]) < patterns.DISTINCT
    assert len(found["two"]["share"]) == 2
    assert (two == 0).mean() >= 0.5


@pytest.mark.parametrize("spread", [0.0, 1e-6])
def test_attention_that_stands_still_is_one_pattern(spread):
    vectors, _ = blobs(300, 300, apart=spread, spread=0.0)
    found, _ = patterns.find(vectors + 0.5)
    assert found["count"] == 1


def naive_silhouette(vectors, kinds):
    distances, values = cdist(vectors, vectors), []
    for i, kind in enumerate(kinds):
        own = [distances[i, j] for j in range(len(kinds)) if kinds[j] == kind and j != i]
        others = [distances[i, kinds == other].mean() for other in set(kinds) - {kind}]
        a, b = np.mean(own) if own else 0, min(others)
        values.append((b - a) / max(a, b) if own else 0)
    return np.mean(values)


def test_silhouette_is_the_textbooks():
    vectors, kinds = blobs(20, 15, 1, spread=0.5)
    distances = torch.from_numpy(cdist(vectors, vectors))
    found = nc.inspect.silhouette(distances, torch.from_numpy(kinds))
    assert found == pytest.approx(naive_silhouette(vectors, kinds))
    assert nc.inspect.silhouette(distances, torch.from_numpy(3 * kinds)) == found, "a number may be left out"
    assert nc.inspect.silhouette(distances, torch.zeros(36, dtype=torch.int64)) == 0


def test_information_in_bits():
    assert patterns.information(np.array([[5, 0], [0, 5]])) == pytest.approx(1)
    assert patterns.information(np.array([[4, 4], [2, 2]])) == pytest.approx(0)
    assert patterns.information(np.diag([1, 1, 1, 1])) == pytest.approx(2)


def test_observed_paths_and_means_are_those_of_the_attention(monkeypatch):
    import torch

    torch.manual_seed(0)
    layer = nc.Linear(4, 3, program=nc.ProgramConfig(slots=5, key_dim=2, steps=2, heads=1, least_used=2, hidden=4))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x, y = torch.randn(400, 4), torch.arange(400) % 10
    seen = patterns.observe(layer, x, y)
    with nc.record(layer) as trace:
        layer(x)
    attention = trace[""].u
    torch.testing.assert_close(attention, layer.programs(x).u)
    torch.testing.assert_close(torch.tensor(seen["mean"][3]), attention[3::10].mean(0), rtol=0, atol=1e-4)
    followed = [patterns.find(attention[:, n].double().numpy())[1] for n in range(2)]
    path = 2 * followed[0] + followed[1]
    assert seen["paths"][3] == [int((path[3::10] == number).sum()) for number in range(4)]
    assert 0 <= seen["bits"] <= math.log2(4)
    assert patterns.observe(layer, x, y) == seen
