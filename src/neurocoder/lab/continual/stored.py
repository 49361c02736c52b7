"""Learners that store samples: nearest neighbours, experience replay, DER++ and GDumb."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

Device = torch.device | str | None


class Reservoir:
    """Rows of some tensors, of which each that was ever added is kept with the same chance (Vitter, 1985).

    Example:
        >>> kept = cl.Reservoir(capacity=10)
        >>> kept.add(x, y)
        >>> [len(rows) for rows in kept.columns]
        [10, 10]
    """

    def __init__(self, capacity: int | None, seed: int = 0) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be None or at least 1 sample, got {capacity}")
        self.capacity, self.seen = math.inf if capacity is None else capacity, 0
        self.columns: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def add(self, *columns: Tensor) -> None:
        """Add rows; in a full reservoir each replaces a random one, with probability capacity / seen."""
        room = int(min(len(columns[0]), self.capacity - len(self)))
        if not self.columns:
            self.columns = [rows[:room].clone() for rows in columns]
        elif room:
            self.columns = [torch.cat([kept, rows[:room]]) for kept, rows in zip(self.columns, columns, strict=True)]
        rest = len(columns[0]) - room
        ages = torch.arange(self.seen + room + 1, self.seen + room + rest + 1)
        places = (torch.rand(rest, generator=self.generator, dtype=torch.float64) * ages).long().tolist()
        for row, place in enumerate(places, room):
            if place < len(self):
                for kept, rows in zip(self.columns, columns, strict=True):
                    kept[place] = rows[row]
        self.seen += len(columns[0])

    def draw(self, count: int) -> list[Tensor]:
        """So many different rows at random, or all if there are fewer."""
        order = torch.randperm(len(self), generator=self.generator)[:count]
        return [rows[order.to(rows.device)] for rows in self.columns]

    def numbers(self) -> int:
        """How many numbers are kept."""
        return sum(rows.numel() for rows in self.columns)


class NearestNeighbours:
    """The `k` nearest of the stored samples vote: all samples, or a reservoir of `capacity`.

    Example:
        >>> learner = cl.NearestNeighbours(classes=2, capacity=100)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(self, classes: int, k: int = 1, capacity: int | None = None, seed: int = 0) -> None:
        self.classes, self.k, self.memory = classes, k, Reservoir(capacity, seed)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Store the samples."""
        self.memory.add(x.float(), y)

    def __call__(self, x: Tensor) -> Tensor:
        """How many of the nearest samples each class has, plus 1 / (2 + distance of its nearest one), for ties."""
        stored, labels = self.memory.columns
        parts = []
        for rows in x.float().split(1024):
            distances = torch.cdist(rows, stored)
            nearest = distances.topk(min(self.k, len(stored)), largest=False).indices
            closest = distances.new_full((len(rows), self.classes), torch.inf)
            closest.scatter_reduce_(1, labels.expand_as(distances), distances, "amin")
            parts.append(one_hot(labels[nearest], self.classes).sum(1) + 1 / (2 + closest.double()))
        return torch.cat(parts)

    def numbers(self) -> dict[str, int]:
        """The samples with their labels."""
        return {"answer": self.memory.numbers(), "learn": self.memory.numbers()}


class Replay:
    """Experience replay (Chaudhry et al., 2019): SGD on each batch, and on as many samples of a reservoir beside it.

        loss = CE(model(x), y) + CE(model(x'), y')        x', y': drawn from the reservoir

    Args:
        model: (N, d) -> (N, classes); it is trained in place.
        capacity: Samples stored.
        rate: Of plain SGD.
        batch: Samples of a step; `observe` takes any number.
        seed: Of the reservoir.

    Example:
        >>> learner = cl.Replay(torch.nn.Linear(4, 2), capacity=20)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(self, model: nn.Module, capacity: int, rate: float = 0.1, batch: int = 10, seed: int = 0) -> None:
        self.model, self.batch, self.memory = model, batch, Reservoir(capacity, seed)
        self.optimiser = torch.optim.SGD(model.parameters(), lr=rate)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """A step for each `batch` samples."""
        self.model.train()
        for rows, labels in zip(x.split(self.batch), y.split(self.batch), strict=True):
            logits = self.model(rows)
            loss = cross_entropy(logits, labels)
            if len(self.memory):
                loss = loss + self.replayed()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.store(rows, labels, logits.detach())

    def replayed(self) -> Tensor:
        """The loss on stored samples."""
        x, y = self.memory.draw(self.batch)
        return cross_entropy(self.model(x), y)

    def store(self, x: Tensor, y: Tensor, logits: Tensor) -> None:
        """Offer samples to the reservoir."""
        self.memory.add(x, y)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits."""
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model(rows) for rows in x.split(1024)])

    def numbers(self) -> dict[str, int]:
        """To answer, the model; to learn, the reservoir too."""
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return {"answer": size, "learn": size + self.memory.numbers()}


class DERpp(Replay):
    """DER++ (Buzzega et al., 2020): experience replay that also keeps the logits that a sample had when it was stored.

        loss = CE(model(x), y) + alpha |model(x') - logits'|² / C + beta CE(model(x''), y'')

    Example:
        >>> learner = cl.DERpp(torch.nn.Linear(4, 2), capacity=20)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        capacity: int,
        rate: float = 0.1,
        batch: int = 10,
        seed: int = 0,
        alpha: float = 0.5,
        beta: float = 0.5,
    ) -> None:
        super().__init__(model, capacity, rate, batch, seed)
        self.alpha, self.beta = alpha, beta

    def replayed(self) -> Tensor:
        """Two draws: one for the logits, one for the labels."""
        x, _, logits = self.memory.draw(self.batch)
        near = mse_loss(self.model(x), logits)
        x, y, _ = self.memory.draw(self.batch)
        return self.alpha * near + self.beta * cross_entropy(self.model(x), y)

    def store(self, x: Tensor, y: Tensor, logits: Tensor) -> None:
        """Offer samples with their logits to the reservoir."""
        self.memory.add(x, y, logits)


class GDumb:
    """GDumb (Prabhu et al., 2020): keep as many samples of each class, and train a new model on them when asked.

    A new sample is stored while its class has fewer than `capacity` over the classes seen; in a full memory it replaces
    a random one of the largest class. Training is SGD with momentum and one cosine decay; the authors' restarts and
    CutMix, which is for images, are left out.

    Args:
        build: Makes the model, (N, d) -> (N, classes), from torch's generator.
        capacity: Samples stored.
        rate: Of SGD at its start.
        epochs: Over the memory.
        batch: Samples of a step.
        seed: Of the model and of the orders.

    Example:
        >>> learner = cl.GDumb(lambda: torch.nn.Linear(4, 2), capacity=20, epochs=2)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        capacity: int,
        rate: float = 0.05,
        epochs: int = 30,
        batch: int = 16,
        seed: int = 0,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 sample, got {capacity}")
        self.build, self.capacity, self.seed = build, capacity, seed
        self.rate, self.epochs, self.batch = rate, epochs, batch
        self.memory: dict[int, list[Tensor]] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.model: nn.Module | None = None

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Store what keeps the classes even."""
        self.model = None
        for row, label in zip(x, y.tolist(), strict=True):
            own = self.memory.setdefault(label, [])
            if len(own) >= self.capacity / len(self.memory):
                continue
            if sum(map(len, self.memory.values())) >= self.capacity:
                largest = max(self.memory.values(), key=len)
                largest.pop(int(torch.randint(len(largest), (), generator=self.generator)))
            own.append(row)

    def train(self) -> nn.Module:
        """A new model, trained on what is stored."""
        x = torch.stack([row for rows in self.memory.values() for row in rows])
        y = torch.tensor([label for label, rows in self.memory.items() for _ in rows], device=x.device)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = self.build().to(x.device)
            optimiser = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9, weight_decay=1e-6)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs, self.rate / 100)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(x)).to(x.device).split(self.batch):
                    optimiser.zero_grad()
                    cross_entropy(model(x[rows]), y[rows]).backward()
                    optimiser.step()
                schedule.step()
        return model.eval()

    def __call__(self, x: Tensor) -> Tensor:
        """The logits; trains first, if samples came since."""
        if self.model is None:
            self.model = self.train()
        with torch.no_grad():
            return torch.cat([self.model(rows) for rows in x.split(1024)])

    def numbers(self) -> dict[str, int]:
        """To answer, a model; to learn, the samples with their labels, which give the model again."""
        size = sum(parameter.numel() for parameter in self.build().parameters())
        stored = sum(row.numel() + 1 for rows in self.memory.values() for row in rows)
        return {"answer": min(size, stored), "learn": stored}
