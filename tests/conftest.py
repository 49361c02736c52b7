"""Shared fixtures and helpers."""

import gc
import os
import re

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

import neurocoder as nc


def pytest_collection_finish():
    """What was imported stays: the collector, and searches of all objects for optimisers, pass over half a million."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """At its end Python can collect them, or triton's binding would complain of leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors of the tests are tiny, and two processes may share two cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    """No test reaches for a network: a data set that is not there cannot be had."""

    def refuse(source, folder):
        raise OSError(f"tests do not download {source.url}")

    monkeypatch.setattr("neurocoder.lab.data.sources.retrieve", refuse)


def randomised(layer, scale=1.0):
    """Give every parameter a random value, so that nothing hides behind a start at zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, scale)
    return layer


def unboxed(said):
    """What a command says about wrong options, without the frame that tyro draws around it, as one line."""
    return " ".join(re.sub(r"[│─╭╮╰╯|+]|-{3,}", " ", said).split())


def small(**changes):
    """A small configuration in which every mechanism is at work."""
    fields = {"slots": 6, "key_dim": 2, "steps": 3, "heads": 2, "least_used": 3, "hidden": 4}
    return nc.ProgramConfig(**(fields | changes))


def assert_same_programs(actual, expected):
    for name, value in expected._asdict().items():
        if value is None:
            assert getattr(actual, name) is None
        else:
            torch.testing.assert_close(getattr(actual, name), value)


@pytest.fixture
def toy(monkeypatch):
    """Reports know one experiment, without training."""
    from toy import Toy

    from neurocoder.lab.report import build as report

    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": "toys:Toy"})
    monkeypatch.setattr(report, "load", lambda name: Toy())
    monkeypatch.setattr(report, "paper_numbers", lambda: {"toy": {"parameters": {"neurocoder": 7300}}})
