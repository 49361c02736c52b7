"""Learners that see each sample once and need no gradients, and one evaluation for all of them.

A learner has `observe(x, y)`, answers scores for each class, `learner(x)`, and counts what it stores, `numbers()`.
`nc.ExactLinear` is one: ridge regression with `features="none"`, RanPAC and ACIL with `"relu"`, GKEAL with `"rbf"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from .metrics import average_accuracy
from .tasks import Task

Device = torch.device | str | None


class Learner(Protocol):
    """What `stream` takes.

    Example:
        >>> learner: cl.Learner = nc.ExactLinear(4, 4, exact=nc.ExactConfig(features="none"))
    """

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Learn from inputs (N, d) with labels (N,), once."""

    def __call__(self, x: Tensor) -> Tensor:
        """Scores (N, classes) of inputs (N, d)."""

    def numbers(self) -> dict[str, int]:
        """How many numbers must be stored to `answer`, and to go on to `learn`."""


class NearestMean:
    """`argmin_c |x - mean_c|²`.

    Example:
        >>> learner = cl.NearestMean(4, classes=2)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(self, d: int, classes: int, device: Device = None) -> None:
        self.sums = torch.zeros(classes, d, dtype=torch.float64, device=device)
        self.counts = torch.zeros(classes, dtype=torch.float64, device=device)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sum of each class."""
        self.sums.index_add_(0, y, x.double())
        self.counts += torch.bincount(y, minlength=len(self.counts))

    @property
    def means(self) -> Tensor:
        """(C, d); zero for classes that were not seen."""
        return self.sums / self.counts.clamp(min=1).unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Minus the squared distance to each mean; -inf for classes that were not seen."""
        return self.unseen(-torch.cdist(x.double(), self.means).square())

    def unseen(self, scores: Tensor) -> Tensor:
        """The scores, with -inf for classes that were not seen."""
        return scores.masked_fill(self.counts == 0, -torch.inf)

    def numbers(self) -> dict[str, int]:
        """A mean and a count for each class."""
        size = self.sums.numel() + len(self.counts)
        return {"answer": size, "learn": size}


class StreamingLDA(NearestMean):
    """Linear discriminant analysis (Hayes & Kanan, 2020): class means and one covariance S, shrunk to
    `(1 - shrinkage) S + shrinkage I`.

    S is that of all samples around the present means, so it does not depend on their order; the authors update it
    around the means of the time.

    Example:
        >>> learner = cl.StreamingLDA(4, classes=2)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(self, d: int, classes: int, shrinkage: float = 1e-4, device: Device = None) -> None:
        super().__init__(d, classes, device)
        self.squares = torch.zeros(d, d, dtype=torch.float64, device=device)
        self.shrinkage = shrinkage

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sums of x and of x x^T."""
        super().observe(x, y)
        self.squares.addmm_(x.double().mT, x.double())

    def covariance(self) -> Tensor:
        """S (d, d)."""
        means = self.means
        return (self.squares - (means * self.counts.unsqueeze(1)).mT @ means) / self.counts.sum()

    def __call__(self, x: Tensor) -> Tensor:
        """`x^T S^-1 mean_c - 1/2 mean_c^T S^-1 mean_c`."""
        eye = torch.eye(len(self.squares)).to(self.squares)
        weight = torch.linalg.solve((1 - self.shrinkage) * self.covariance() + self.shrinkage * eye, self.means.mT)
        return self.unseen(x.double() @ weight - 0.5 * (self.means.mT * weight).sum(0))

    def numbers(self) -> dict[str, int]:
        """To answer, a weight and a constant a class; to learn, also half of the symmetric sum."""
        size, d = super().numbers()["answer"], len(self.squares)
        return {"answer": size, "learn": size + d * (d + 1) // 2}


class FeCAM:
    """Mahalanobis distance with a covariance for each class (Goswami et al., 2023).

    Features go to the power `power` (Tukey); each covariance is shrunk by its mean variance and its mean covariance,
    `shrinkage` times each, and scaled to correlations; means and inputs are normalised.

    Example:
        >>> learner = cl.FeCAM(4, classes=2)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(self, d: int, classes: int, shrinkage: float = 1.0, power: float = 0.5, device: Device = None) -> None:
        self.mean = NearestMean(d, classes, device)
        self.squares = torch.zeros(classes, d, d, dtype=torch.float64, device=device)
        self.shrinkage, self.power = shrinkage, power

    def transformed(self, x: Tensor) -> Tensor:
        """`sign(x) |x|^power`."""
        return x.double().sign() * x.double().abs() ** self.power

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sums of each class."""
        x = self.transformed(x)
        self.mean.observe(x, y)
        for label in y.unique().tolist():
            self.squares[label].addmm_(x[y == label].mT, x[y == label])

    def __call__(self, x: Tensor) -> Tensor:
        """Minus the squared Mahalanobis distance to each class."""
        x, scores = normalize(self.transformed(x)), []
        for mean, squares, count in zip(self.mean.means, self.squares, self.mean.counts, strict=True):
            if not count:
                scores.append(x.new_zeros(len(x)))  # not a class yet
                continue
            covariance = squares / count - torch.outer(mean, mean)
            diagonal = covariance.diagonal()
            off = (covariance.sum() - diagonal.sum()) / max(1, covariance.numel() - len(diagonal))
            eye = torch.eye(len(diagonal)).to(covariance)
            shrunk = covariance + self.shrinkage * (diagonal.mean() * eye + off * (1 - eye))
            deviation = shrunk.diagonal().clamp(min=1e-12).sqrt()
            difference = x - normalize(mean, dim=0)
            solved = torch.linalg.solve(shrunk / torch.outer(deviation, deviation), difference.mT)
            scores.append(-(difference * solved.mT).sum(1))
        return self.mean.unseen(torch.stack(scores, 1))

    def numbers(self) -> dict[str, int]:
        """A mean and half of a symmetric matrix for each class."""
        classes, d = self.mean.sums.shape
        size = classes * (d * (d + 1) // 2 + d + 1)
        return {"answer": size, "learn": size}


class NearestNeighbours:
    """The `k` nearest of the stored samples vote: all samples, or a reservoir of `capacity` (Vitter, 1985).

    Example:
        >>> learner = cl.NearestNeighbours(4, classes=2, capacity=100)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(
        self, d: int, classes: int, k: int = 1, capacity: int | None = None, seed: int = 0, device: Device = None
    ) -> None:
        self.x, self.y = torch.zeros(0, d, device=device), torch.zeros(0, dtype=torch.int64, device=device)
        self.classes, self.k, self.capacity, self.seen = classes, k, capacity, 0
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Store the samples; in a full reservoir each replaces a random one, with probability capacity / seen."""
        room = len(x) if self.capacity is None else max(0, self.capacity - len(self.x))
        self.x, self.y = torch.cat([self.x, x[:room].float()]), torch.cat([self.y, y[:room]])
        self.seen += min(room, len(x))
        for row, label in zip(x[room:], y[room:], strict=True):
            self.seen += 1
            place = int(torch.randint(self.seen, (), generator=self.generator))
            if place < len(self.x):
                self.x[place], self.y[place] = row, label

    def __call__(self, x: Tensor) -> Tensor:
        """How many of the nearest samples each class has."""
        parts = []
        for rows in x.float().split(1024):
            nearest = torch.cdist(rows, self.x).topk(min(self.k, len(self.x)), largest=False).indices
            parts.append(one_hot(self.y[nearest], self.classes).sum(1))
        return torch.cat(parts).double()

    def numbers(self) -> dict[str, int]:
        """The samples with their labels."""
        size = self.x.numel() + len(self.y)
        return {"answer": size, "learn": size}


class Streamed(NamedTuple):
    """What `stream` returns, in percent.

    Example:
        >>> found = cl.stream(cl.NearestMean(4, classes=4), [cl.Task((x, y), (x, y))])
        >>> found.final == found.incremental == float(found.matrix[0, 0])
        True
    """

    matrix: Tensor
    """Accuracy after task i (row) on task j (column), over all classes."""
    task: float
    """Average accuracy after the last task where each sample's task is known: only its classes answer."""
    domain: float
    """The same over all classes, where only the place of the class in its task must be right."""
    final: float
    """Average accuracy after the last task, over all classes."""
    incremental: float
    """The mean over i of the average accuracy after task i on the tasks up to i."""


def stream(learner: Any, tasks: Sequence[Task], batch: int = 1024) -> Streamed:
    """Show a learner the tasks of a class scenario one after the other, each sample once, and test it after each.

    Example:
        >>> cl.stream(cl.StreamingLDA(4, classes=4), [cl.Task((x, y), (x, y))]).matrix.shape
        torch.Size([1, 1])
    """
    if any(task.head is not None for task in tasks):
        raise ValueError("tasks must be those of cl.split(..., scenario='class'), whose labels are those of the data")
    matrix, known, domain = torch.zeros(len(tasks), len(tasks), dtype=torch.float64), 0.0, 0.0
    place = {label: index for task in tasks for index, label in enumerate(task.labels)}
    places = torch.tensor([place.get(label, -1) for label in range(max(place) + 1)]).to(tasks[0].train[1])
    for row, task in enumerate(tasks):
        x, y = task.train
        for rows, labels in zip(x.split(batch), y.split(batch), strict=True):
            learner.observe(rows, labels)
        for column, other in enumerate(tasks):
            x, y = other.test
            scores = learner(x)
            matrix[row, column] = 100 * (scores.argmax(1) == y).double().mean()
            if row == len(tasks) - 1:
                own = torch.tensor(other.labels).to(y)
                known += 100 * float((own[scores[:, own].argmax(1)] == y).double().mean()) / len(tasks)
                domain += 100 * float((places[scores.argmax(1)] == places[y]).double().mean()) / len(tasks)
    curve = [float(matrix[row, : row + 1].mean()) for row in range(len(tasks))]
    return Streamed(matrix, known, domain, average_accuracy(matrix), sum(curve) / len(curve))
