"""What users see stays as it was written down; `python tests/golden.py` checks the rest."""

import subprocess
import sys

import pytest

import golden


def test_the_quick_goldens_are_as_they_were():
    """In another process: one of them registers a kind of layer, one asks for exact names of modules."""
    quick = [name for name, item in golden.ITEMS.items() if item.quick]
    words = [sys.executable, golden.__file__, "check", "portable", "--here", "--only", *quick]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert [line.split(maxsplit=1)[1:] for line in done.stdout.splitlines()] == [["equal"]] * len(quick), done


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.5]}, "/a/1 was 2.0, now 2.5"),
        ({"a": 1}, {}, " lacks 'a'"),
        ({}, {"a": 1}, " has 'a' anew"),
        (["x\ny"], ["x\nz"], "/0 line 2: was 'y', now 'z'"),
        ([1], [1, 2], " had 1 entries, now 2"),
    ],
)
def test_a_difference_is_told(old, new, told):
    assert golden.difference(old, old, golden.ITEMS["layouts"]) is None
    assert golden.difference(old, new, golden.ITEMS["layouts"]) == told
