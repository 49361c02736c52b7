"""The page of results/sweeps/scale.py: it is the one that the script writes, and its arithmetic by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("scale", ROOT / "results" / "sweeps" / "scale.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scale"]


def test_the_committed_page_is_the_one_that_the_script_writes(scale):
    sources = scale.found()
    assert len(sources) >= 4, "polynomials, digits, LeNet and MLP"
    committed = (ROOT / "docs" / "results" / "scale.md").read_text()
    assert scale.page(sources, scale.plot_of(sources)) == committed, "run `python results/sweeps/scale.py`"


def test_gains_are_taken_at_best_epochs_and_at_the_end(scale):
    """Plain: best epochs 6 and 8 at the first rate, 9 and 9 at the second, so its own best is 9."""
    found = {
        (0.1,): {"plain": {0: [4.0, 6.0], 1: [8.0, 2.0]}, "other": {0: [7.0, 1.0], 1: [5.0, 10.0], 2: [99.0, 99.0]}},
        (0.2,): {"plain": {0: [9.0, 3.0], 1: [9.0, 3.0]}},
        (0.3,): {"other": {0: [50.0]}},
    }
    source = scale.Source(
        "t", "m", (), "plain", {"Neurocoder": "other"}, None, lambda key: str(key[0]), None, (1,), found=found
    )
    assert source.best == 9
    rows = scale.gain_table(source).rows
    assert [row[0] for row in rows] == ["0.1", "0.2"], "without the plain layer there is nothing to compare with"
    _, plain, short, gain, end, short_end, gain_end = rows[0]
    assert (list(plain.values), short, list(gain.values)) == ([6.0, 8.0], "2.0", [1.0, 2.0])
    assert (list(end.values), short_end, list(gain_end.values)) == ([6.0, 2.0], "5.0", [-5.0, 8.0])
    assert rows[1][3] is None
    assert scale.missing((source,)) == "Not run: t, 0.2, Neurocoder: 2 of 2 seeds."
