"""Sequences of polynomial chunks: what they are made of, and the floors that no predictor gets below."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from neurocoder.lab.experiments.polynomials.data import Family, PolynomialStream, generator, network_input

CPU = torch.device("cpu")


# Sequences


def test_each_chunk_is_one_polynomial_of_degree_2_to_10():
    sequences = Family(chunks=4, points=20)
    y = sequences.sample(200, generator("test", 0)).y.double().numpy().reshape(-1, 4, 20)
    x = sequences.places().numpy().reshape(4, 20)
    assert (x[0, 0], x[-1, -1]) == pytest.approx((-1, 1))
    degrees = set()
    for chunk in range(4):
        centre = x[chunk].mean()
        for values in y[:, chunk]:
            residues = [
                np.abs(np.polyval(np.polyfit(x[chunk] - centre, values, d), x[chunk] - centre) - values).max()
                for d in (1, 2, 10)
            ]
            degrees.add(residues[1] < 1e-5)
            assert residues[0] > 1e-5
            assert residues[2] < 1e-5
    assert degrees == {True, False}


def test_degrees_and_coefficients_are_uniform():
    """At x = 1 y is the sum of the coefficients: degree + 1 of them, of variance 1/3; 7/3 for a mean degree of 6."""
    last = Family(chunks=2, points=2).sample(200_000, generator("test", 1)).y[:, -1]
    assert last.abs().max() <= 11
    assert last.mean().abs() < 0.02
    assert last.var().item() == pytest.approx(7 / 3, rel=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_scale_multiplies_y_its_noise_and_its_floor(noise):
    base = Family(chunks=2, points=6, noise=noise)
    unit, large = (f.sample(300, generator("test", 0)) for f in (base, replace(base, scale=1_000.0)))
    torch.testing.assert_close(large.y, 1_000 * unit.y)
    assert replace(base, scale=1_000.0).floor() == pytest.approx(1e6 * base.floor())
    torch.testing.assert_close(replace(base, scale=1_000.0).linear_oracle(), 1e6 * base.linear_oracle())


def test_reach_says_where_polynomials_are_evaluated():
    """At x = 5: E[y^2] is a third of the sum of 25^k over the powers, each with the chance that the degree has it."""
    last = Family(chunks=2, points=2, reach=5.0).sample(200_000, generator("test", 1)).y[:, -1].double()
    chances = [1, 1, 1, *((11 - k) / 9 for k in range(3, 11))]
    assert last.square().mean().item() == pytest.approx(sum(p * 25**k for k, p in enumerate(chances)) / 3, rel=0.02)
    places = Family(reach=5.0).places()
    assert (places[0], places[-1]) == (-1, 1), "the network sees x / 5"


def test_roles_seeds_and_blocks_have_sequences_of_their_own():
    sequences = Family(chunks=2, points=3)
    samples = [
        sequences.sample(4, generator(role, seed, block)).y
        for role, seed, block in itertools.product(("train", "validation", "test"), (0, 1), (0, 1))
    ]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(samples, 2))
    assert torch.equal(samples[0], sequences.sample(4, generator("train", 0, 0)).y)


def test_the_network_is_fed_x_and_the_last_y():
    places, y = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([[2.0, 3.0, 4.0]])
    assert network_input(places, y).tolist() == [[[-1, 0], [0, 2], [1, 3]]]


def test_a_stream_resumes_in_any_block_and_keeps_its_tensors():
    stream, other = (PolynomialStream(Family(2, 4, 0.1), 3, 5, seed=7, device=CPU) for _ in range(2))
    place = stream.y.data_ptr()
    stream.fill(0)
    first = [tensor.clone() for tensor in stream.batch(torch.tensor(2))]
    stream.fill(3)
    other.fill(3)
    for step in range(5):
        for mine, theirs in zip(stream.batch(torch.tensor(step)), other.batch(torch.tensor(step)), strict=True):
            assert torch.equal(mine, theirs)
    inputs, y = stream.batch(torch.tensor(2))
    assert (inputs.shape, y.shape) == ((3, 8, 2), (3, 8))
    assert torch.equal(inputs[:, 1:, 1], y[:, :-1])
    assert not torch.equal(y, first[1])
    assert stream.y.data_ptr() == place


# Floors


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_floors_agree_with_samples(noise):
    """The floor by predicting 0 at first points, the oracle by regressing points on the earlier ones of their chunk."""
    sequences = Family(chunks=2, points=4, noise=noise)
    sample = sequences.sample(200_000, generator("test", 3))
    assert sequences.realised_floor(sample) == pytest.approx(sequences.floor(), rel=0.01)
    y = sample.y.double().view(-1, 2, 4)
    oracle = sequences.linear_oracle().view(2, 4)
    for chunk in range(2):
        assert y[:, chunk, 0].square().mean().item() == pytest.approx(oracle[chunk, 0].item(), rel=0.02)
        for point in range(1, 4):
            earlier, now = y[:, chunk, :point], y[:, chunk, point]
            guess = earlier @ torch.linalg.lstsq(earlier, now.unsqueeze(1)).solution.squeeze(1)
            measured = (guess - now).square().mean().item()
            assert measured == pytest.approx(oracle[chunk, point].item(), rel=0.02, abs=1e-9)


def test_the_floor_is_what_the_oracle_cannot_avoid():
    for sequences in (Family(), Family(noise=0.1), Family(chunks=10)):
        oracle, first = sequences.linear_oracle(), sequences.first_points()
        unavoidable = torch.where(first, oracle, sequences.noise**2).mean().item()
        assert sequences.floor() == pytest.approx(unavoidable, rel=1e-12)
        assert (oracle >= sequences.noise**2 - 1e-12).all()
        assert sequences.floor() < oracle.mean() < sequences.features().square().sum(-1).mean()  # the variance
    assert Family().linear_oracle().view(5, 20)[:, 11:].max() < 1e-20, "eleven points determine any of the polynomials"
