"""Sequences of polynomial chunks, and how well they can be predicted.

A sequence has `chunks` polynomials of degree 2 to 10 with coefficients in [-1, 1], each sampled at `points`
consecutive x; x runs from -5 to 5 over the whole sequence. By default polynomials are evaluated at x / 5, where
|y| <= 11: at x itself (`reach` 5) they would reach 5^10, and the ends of a sequence would dominate the error. `scale`
says in what unit y is given: the paper says neither this nor the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

DEGREES = (2, 10)
REACH = 5.0
"""x runs from -REACH to REACH."""

Role = Literal["train", "validation", "test"]
ROLES: tuple[Role, ...] = ("train", "validation", "test")


class Sequences(NamedTuple):
    """Sampled sequences."""

    y: Tensor
    """With noise (N, T)."""
    clean: Tensor
    """Without (N, T)."""


@dataclass(frozen=True)
class Family:
    """A distribution of sequences of T = chunks * points points."""

    chunks: int = 5
    points: int = 20
    """Points per chunk."""
    noise: float = 0.0
    """Standard deviation of the Gaussian noise on y / scale, in the inputs and in the targets."""
    scale: float = 1.0
    """y is multiplied by it, in the inputs and in the targets."""
    reach: float = 1.0
    """Polynomials are evaluated from -reach to reach; the network sees x / 5 with any reach."""

    @property
    def length(self) -> int:
        """T."""
        return self.chunks * self.points

    def places(self) -> Tensor:
        """x / 5, from -1 to 1 in equal steps (T,), in double precision."""
        return torch.linspace(-1.0, 1.0, self.length, dtype=torch.float64)

    def sample(self, count: int, generator: torch.Generator) -> Sequences:
        """`count` sequences, drawn and kept on the generator's device."""
        device = generator.device
        low, high = DEGREES
        degrees = torch.randint(low, high + 1, (count, self.chunks, 1), generator=generator, device=device)
        coefficients = torch.rand(count, self.chunks, high + 1, generator=generator, device=device) * 2 - 1
        coefficients *= torch.arange(high + 1, device=device) <= degrees
        places = (self.reach * self.places()).view(self.chunks, self.points).to(coefficients)
        clean = torch.zeros(count, self.chunks, self.points, device=device)
        for k in range(high, -1, -1):  # Horner's scheme: a matrix product might be rounded to tf32
            clean = torch.addcmul(coefficients[..., k : k + 1], clean, places)
        clean = clean.flatten(1) * self.scale
        if self.noise == 0:
            return Sequences(clean, clean)
        noise = self.noise * self.scale
        return Sequences(clean + noise * torch.randn(clean.shape, generator=generator, device=device), clean)

    def first_points(self) -> Tensor:
        """Which points are the first of a chunk, booleans (T,)."""
        return torch.arange(self.length) % self.points == 0

    def features(self) -> Tensor:
        """`phi (chunks, points, 11)` with `E[y_i y_j] = phi_i . phi_j` for points of one chunk, without noise.

        A coefficient is present with the probability that the degree is at least its power, and has variance 1/3.
        """
        low, high = DEGREES
        powers = torch.arange(high + 1, dtype=torch.float64)
        present = ((high + 1 - powers) / (high + 1 - low)).clamp(max=1.0)
        places = self.reach * self.places().view(self.chunks, self.points, 1)
        return self.scale * places**powers * (present / 3).sqrt()

    def floor(self) -> float:
        """The mean square error that no predictor can avoid: "first-point floor".

        Nothing seen before predicts the first point of a chunk: the best prediction is 0, its mean, and costs its
        variance. The noise adds its own variance everywhere.
        """
        first = self.features()[:, 0].square().sum()
        return first.item() / self.length + (self.scale * self.noise) ** 2

    def linear_oracle(self) -> Tensor:
        """Expected square error at each point (T,) of the best *linear* predictor that knows where chunks begin.

        It predicts a point from the earlier ones of its chunk by the second moments of y. A reference, not a bound: a
        nonlinear predictor may do better, since degrees and coefficients are uniform, not Gaussian.
        """
        errors = torch.zeros(self.chunks, self.points, dtype=torch.float64)
        for chunk, phi in enumerate(self.features()):
            noise = self.scale * self.noise * torch.eye(self.points, dtype=torch.float64)
            factor = torch.linalg.qr(torch.cat((phi, noise), dim=-1).T, mode="r").R
            # the Cholesky factor of the second moments, transposed: its diagonal is the innovation at each point
            errors[chunk, : len(factor)] = factor.diagonal().square()
        return errors.flatten()

    def realised_floor(self, sequences: Sequences) -> float:
        """The first-point floor of these sequences: the error of predicting 0 at the first points of chunks and
        the noiseless y elsewhere. Its expectation is `floor`; errors above it are free of sampling noise."""
        first = self.first_points().to(sequences.y.device)
        return (sequences.y - sequences.clean * ~first).double().square().mean().item()


def generator(role: Role, seed: int, block: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A separate random generator for each role, seed and block."""
    words = np.random.SeedSequence([ROLES.index(role), seed, block]).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


def network_input(places: Tensor, y: Tensor) -> Tensor:
    """The network's input at each time step: `(x_t / 5, y_{t-1})`, with `y_0 = 0`: (N, T) -> (N, T, 2)."""
    return torch.stack((places.expand_as(y), pad(y[..., :-1], (1, 0))), dim=-1)


class PolynomialStream:
    """Fresh sequences for every batch, drawn on the device a block of batches at a time."""

    def __init__(self, family: Family, batch: int, steps: int, seed: int, device: torch.device) -> None:
        self.family, self.steps, self.seed = family, steps, seed
        self.places = family.places().to(device, torch.float32)
        self.y = torch.zeros(steps, batch, family.length, device=device)

    def fill(self, block: int) -> None:
        """Draw the sequences of block number `block`."""
        steps, batch, length = self.y.shape
        source = generator("train", self.seed, block, self.y.device)
        self.y.copy_(self.family.sample(steps * batch, source).y.view(steps, batch, length))

    def batch(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (N, T, 2) and targets (N, T)."""
        y = self.y.index_select(0, step.view(1)).squeeze(0)
        return network_input(self.places, y), y
