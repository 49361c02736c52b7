"""Atomic writes: what may be replaced, and what may not."""

import os

import pytest

from neurocoder.lab.records.files import atomic_write


def _write_half(target):
    with atomic_write(target) as temporary:
        temporary.write_text("half")
        raise KeyError("broken")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "page.html"
    with atomic_write(target) as temporary:
        temporary.write_text("first")
    with pytest.raises(KeyError, match="broken"):
        _write_half(target)
    assert target.read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "real" / "page.html", tmp_path / "link.html"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_pipes_and_devices_are_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with (
        pytest.raises(OSError, match=r"pipe cannot be written: it is not a regular file"),
        atomic_write(pipe) as temporary,
    ):
        temporary.write_text("never")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
