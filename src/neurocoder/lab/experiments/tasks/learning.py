"""Learning tasks, at many rates side by side: one network for all; new tasks by z alone, by all parameters, or anew."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot
from torch.nn.utils import vector_to_parameters

from ..everyday.stacked import BETAS, EPSILON, Stack
from .models import TaskLoss, TaskNetwork, errors, loss
from .samples import Tasks

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Of a network."""
RATIOS = (1.0, 5.0)
"""Of the latents' rate to the network's."""
LATENT_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Of z, where it is fitted alone."""
LENGTHS, NOISES = (0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 8.0), (1e-6, 1e-4, 1e-2, 1e-1)
"""Of a Gaussian process: lengths in units of the root of the inputs' number, and noise."""
LOOKS = 4
"""How often the error on held-out samples is looked at; the best moment counts, for every contender."""
WARM_UP = 20
AT_ONCE, EACH = 32, 16
"""Tasks a step, and samples of each."""


class Found(NamedTuple):
    """The best on held-out data, and how it was found."""

    error: Tensor
    """In percent, of each task on its test samples (tasks,)."""
    rate: float
    """Of the network, or of z where it is fitted alone."""
    ratio: float = 1.0
    share: float = 1.0
    """Of the steps, after which it was best."""


def decay(step: int, steps: int, warm_up: int = WARM_UP) -> float:
    """The factor on the rates: a warm-up, then half a cosine."""
    return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2


def looks(step: int, steps: int) -> bool:
    """Whether to look after this step."""
    return (step + 1) % max(1, steps // LOOKS) == 0 or step + 1 == steps


def run(
    network: TaskNetwork,
    contender: str,
    parts: tuple[Tasks, Tasks, Tasks],
    chosen: tuple[Tasks, Tasks],
    new: tuple[Tasks, Tasks],
    lengths: tuple[int, int],
    generator: Generator,
) -> dict[str, Found]:
    """The results of one contender.

    Args:
        network: the start, with a latent for each task.
        contender: by name.
        parts: training, held-out and test samples of the tasks to learn.
        chosen, new: samples of tasks to choose rates by, and of new ones, to fit and to measure on.
        lengths: steps for all tasks, and for a new one.
        generator: draws batches.
    """
    steps, tuning = lengths
    if contender == "kernel":
        return {"new": by_kernel(chosen, new)}
    if contender == "own":
        return {"new": by_parameters(network, chosen, new, tuning)}
    error = train(network, *parts, steps, generator)
    if contender == "unsteered":
        return {"error": error, "new": unchanged(network, new), "tuned": by_parameters(network, chosen, new, tuning)}
    own, latents = by_latents(network, chosen, new, tuning)
    return {"error": error, "new": own, "tuned": by_parameters(network, chosen, new, tuning, latents)}


def train(network: TaskNetwork, data: Tasks, held_out: Tasks, test: Tasks, steps: int, generator: Generator) -> Found:
    """One network for all tasks; it ends with the parameters that are best on held-out samples of its tasks.

    Args:
        network: the start, with a latent for each task.
        data: the samples of each task.
        held_out, test: others, of the first tasks.
        steps: of Adam, on `AT_ONCE` tasks each.
        generator: draws tasks and samples.
    """
    (count, samples), device = data.x.shape[:2], data.x.device
    cells = [(rate, ratio) for rate in RATES for ratio in RATIOS]
    ratios = {"model.latents": [ratio for _, ratio in cells]}
    stack = Stack(TaskLoss(network), [("adam", rate) for rate, _ in cells], ratios)
    best = Best(stack)
    first = torch.arange(len(held_out.x), device=device)
    for step in range(steps):
        tasks = torch.randperm(count, generator=generator)[:AT_ONCE].to(device)
        rows = torch.rand(len(tasks), samples, generator=generator).argsort(1)[:, :EACH].to(device)
        stack.factor = decay(step, steps)
        stack.train(data.x[tasks.unsqueeze(1), rows], data.y[tasks.unsqueeze(1), rows], tasks)
        if looks(step, steps):
            outputs = evaluated(stack, held_out.x, first)
            best.keep(torch.stack([errors(each, held_out).mean() for each in outputs]), (step + 1) / steps)
    winner = int(best.error.argmin())
    vector_to_parameters(best.values[winner].clone(), network.parameters())
    with torch.no_grad():
        error = errors(network(test.x, first[: len(test.x)]), test)
    return Found(error, *cells[winner], best.share[winner])


class Best:
    """The parameters of each copy in a stack at the moment when its error was least."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.values = stack, stack.values.clone()
        self.error = torch.full((len(stack.cells),), math.inf, device=stack.values.device)
        self.share = [0.0] * len(stack.cells)

    def keep(self, error: Tensor, share: float) -> None:
        """Look at errors (S,) after this share of the steps."""
        better = error.nan_to_num(math.inf) < self.error
        self.error = torch.where(better, error, self.error)
        self.values[better] = self.stack.values[better]
        self.share = [share if now else before for now, before in zip(better.tolist(), self.share, strict=True)]


def evaluated(stack: Stack, x: Tensor, tasks: Tensor, own: bool = False) -> Tensor:
    """The outputs of each copy (S, tasks, samples, outputs)."""
    with torch.no_grad():
        return stack.call(stack.model.get_submodule("model"), x, tasks, prefix="model.", own=own)


def fit_latents(network: TaskNetwork, data: Tasks, start: Tensor, rate: float, steps: int) -> list[Tensor]:
    """z (tasks, latent) of new tasks at each look: the network stays, each z follows its own gradient (Adam with cosine
    decay), as `nc.fit_control` does for one task."""
    z = start.detach().expand(len(data.x), -1).clone()
    mean, square = torch.zeros_like(z), torch.zeros_like(z)
    seen = []
    for step in range(steps):
        z.requires_grad_()
        total = len(z) * loss(network.outputs(data.x, z), data.y)
        (g,) = torch.autograd.grad(total, z)
        mean, square = mean.lerp(g, 1 - BETAS[0]), square.lerp(g * g, 1 - BETAS[1])
        size = (square / (1 - BETAS[1] ** (step + 1))).sqrt() + EPSILON
        z = z.detach() - rate * decay(step, steps, 1) / (1 - BETAS[0] ** (step + 1)) * mean / size
        if looks(step, steps):
            seen.append(z.detach())
    return seen


def by_latents(
    network: TaskNetwork, chosen: tuple[Tasks, Tasks], new: tuple[Tasks, Tasks], steps: int
) -> tuple[Found, tuple[Tensor, Tensor]]:
    """New tasks by z alone, from the mean latent, at the rate and the moment that are best for the chosen tasks; also
    the latents of chosen and new tasks.

    Args:
        network: trained.
        chosen, new: samples to fit, and samples to measure on.
        steps: of the latents.
    """
    start = network.latents.detach().mean(0)

    def error(z: Tensor, test: Tasks) -> Tensor:
        with torch.no_grad():
            return errors(network.outputs(test.x, z), test)

    moments = []
    for rate in LATENT_RATES:
        pairs = zip(*(fit_latents(network, data, start, rate, steps) for data, _ in (chosen, new)), strict=True)
        moments += [(rate, (look + 1) / LOOKS, z) for look, z in enumerate(pairs)]
    rate, share, z = min(moments, key=lambda moment: float(error(moment[2][0], chosen[1]).mean().nan_to_num(math.inf)))
    return Found(error(z[1], new[1]), rate, share=min(1.0, share)), z


def by_kernel(chosen: tuple[Tasks, Tasks], new: tuple[Tasks, Tasks]) -> Found:
    """New tasks by a Gaussian process each, which learns nothing from other tasks but its length and noise.

    f(x) = k(x, X) (k(X, X) + noise I)^-1 y        k = exp(-|x - x'|² / 2 length²); classes as targets of 0 and 1
    """

    def error(data: Tasks, test: Tasks, length: float, noise: float) -> Tensor:
        floating = data.y.is_floating_point()
        y = data.y if floating else one_hot(data.y, int(max(data.y.max(), test.y.max())) + 1).double()
        x, places, y = data.x.double(), test.x.double(), y.double()
        mean = y.mean(1, keepdim=True)
        scale = 2 * x.shape[2] * length**2
        own, other = ((-torch.cdist(rows, x).square() / scale).exp() for rows in (x, places))
        weights = torch.linalg.solve(own + noise * torch.eye(x.shape[1], dtype=x.dtype, device=x.device), y - mean)
        return errors((mean + other @ weights).to(test.x.dtype), test)

    cells = [(length, noise) for length in LENGTHS for noise in NOISES]
    length, noise = min(cells, key=lambda cell: float(error(*chosen, *cell).mean()))
    return Found(error(*new, length, noise), length, noise)


def by_parameters(
    network: TaskNetwork,
    chosen: tuple[Tasks, Tasks],
    new: tuple[Tasks, Tasks],
    steps: int,
    latents: tuple[Tensor, Tensor] | None = None,
) -> Found:
    """New tasks by all parameters, a copy of the network for each; rate and number of steps are the best for the chosen
    tasks.

    Args:
        network: where each copy starts: trained (fine-tuning all), or not (a network a task).
        chosen, new: samples to fit, and samples to measure on.
        steps: of Adam.
        latents: where those of chosen and new tasks start, (tasks, latent) each; None: the mean latent.
    """
    data, test = (
        Tasks(*(torch.cat(both) for both in zip(*parts, strict=True))) for parts in zip(chosen, new, strict=True)
    )
    count, device = len(data.x), data.x.device
    start = TaskLoss(network)
    kept = network.latents
    network.latents = torch.nn.Parameter(kept.detach().mean(0, keepdim=True))
    stack = Stack(start, [("adam", rate) for rate in RATES for _ in range(count)])
    if latents is not None:
        with torch.no_grad():
            stack.parameters["model.latents"].copy_(torch.cat(latents).repeat(len(RATES), 1).unsqueeze(1))
    inputs = [part.repeat(len(RATES), *[1] * (part.dim() - 1)).unsqueeze(1) for part in (data.x, data.y, test.x)]
    zero = torch.zeros(len(stack.cells), 1, dtype=torch.long, device=device)
    moments, samples = [], data.x.shape[1]
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.randperm(samples, generator=generator)[:EACH].to(device)
        stack.factor = decay(step, steps)
        stack.train(inputs[0][:, :, rows], inputs[1][:, :, rows], zero, own=True)
        if looks(step, steps):
            outputs = evaluated(stack, inputs[2], zero, own=True).view(len(RATES), count, *test.y.shape[1:2], -1)
            for rate, each in zip(RATES, outputs, strict=True):
                first, others = each.split([len(chosen[0].x), len(new[0].x)])
                moments.append((errors(first, chosen[1]), errors(others, new[1]), rate, (step + 1) / steps))
    network.latents = kept
    _, error, rate, share = min(moments, key=lambda moment: float(moment[0].mean().nan_to_num(math.inf)))
    return Found(error, rate, share=share)


def unchanged(network: TaskNetwork, new: tuple[Tasks, Tasks]) -> Found:
    """New tasks with the network as it is, for one that no latent steers."""
    test = new[1]
    with torch.no_grad():
        return Found(errors(network.outputs(test.x, network.latents.mean(0).expand(len(test.x), -1)), test), 0.0)
