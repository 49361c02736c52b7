"""The experiment of one pass: its learners and inputs. `test_smoke.py` runs it."""

import torch

from neurocoder.lab.experiments.exact.experiment import blurred
from neurocoder.lab.experiments.exact.learners import LEARNERS, make


def test_learners_have_about_the_features_asked_for():
    for name in LEARNERS:
        learner = make(name, 40, 5, features=99, residual=False, ridge=None, seed=0, device=None)
        assert learner.numbers()["learn"] >= 0
    for name, width in {"local": 99, "local-16": 85, "rbf": 99, "relu": 99, "fourier": 99, "ridge": 40}.items():
        assert make(name, 40, 5, features=99, residual=False, ridge=None, seed=0, device=None).width == width + 1


def test_blurred_images_are_centred_and_of_unit_length():
    z = blurred(torch.randn(3, 1024))
    torch.testing.assert_close(z.sum(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))
