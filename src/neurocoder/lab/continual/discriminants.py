"""Learners that keep means and covariances: nearest class mean, streaming LDA, RanDumb, FeCAM."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

import neurocoder as nc

Device = torch.device | str | None


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


class RanDumb(StreamingLDA):
    """Streaming LDA of random Fourier features (Prabhu et al., 2024): `cos(W x + b)`, W and b from the seed.

    `basis` sets the width of the kernel; without it inputs should have unit variance. The authors use the shrinkage of
    Chen et al. (OAS) on stored features; here it is a setting.

    Args:
        d: Width of the inputs.
        classes: How many there are.
        features: How many random features.
        width: Of the Gaussian kernel, over the median distance between inputs.
        shrinkage: As in `StreamingLDA`.
        seed: Of W and b.
        device: Of all tensors.

    Example:
        >>> learner = cl.RanDumb(4, classes=2, features=50)
        >>> learner.basis(x)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(
        self,
        d: int,
        classes: int,
        features: int = 2000,
        width: float = 0.7,
        shrinkage: float = 1e-4,
        seed: int = 0,
        device: Device = None,
    ) -> None:
        super().__init__(features, classes, shrinkage, device)
        config = nc.ExactConfig(features="fourier", slots=features, width=width, residual=False, seed=seed)
        self.embedding = nc.ExactLinear(d, classes, bias=False, exact=config, device=device)

    def basis(self, x: Tensor) -> None:
        """Take the width of the kernel from the distances between these inputs."""
        self.embedding.basis(x)

    def embed(self, x: Tensor) -> Tensor:
        """The features (N, features)."""
        return self.embedding.programs(x).use

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sums of the features."""
        super().observe(self.embed(x), y)

    def __call__(self, x: Tensor) -> Tensor:
        """Those of streaming LDA on the features."""
        return super().__call__(self.embed(x))


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
        self.inverses: dict[int, Tensor] = {}
        """Of the correlations of classes that were asked for since they were last observed."""

    def transformed(self, x: Tensor) -> Tensor:
        """`sign(x) |x|^power`."""
        return x.double().sign() * x.double().abs() ** self.power

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sums of each class."""
        x = self.transformed(x)
        self.mean.observe(x, y)
        for label in y.unique().tolist():
            self.squares[label].addmm_(x[y == label].mT, x[y == label])
            self.inverses.pop(label, None)

    def inverse(self, label: int) -> Tensor:
        """Of the shrunk covariance of a class, scaled to correlations (d, d)."""
        if label not in self.inverses:
            mean = self.mean.means[label]
            covariance = self.squares[label] / self.mean.counts[label] - torch.outer(mean, mean)
            diagonal = covariance.diagonal()
            off = (covariance.sum() - diagonal.sum()) / max(1, covariance.numel() - len(diagonal))
            eye = torch.eye(len(diagonal)).to(covariance)
            shrunk = covariance + self.shrinkage * (diagonal.mean() * eye + off * (1 - eye))
            deviation = shrunk.diagonal().clamp(min=1e-12).sqrt()
            self.inverses[label] = torch.linalg.inv(shrunk / torch.outer(deviation, deviation))
        return self.inverses[label]

    def __call__(self, x: Tensor) -> Tensor:
        """Minus the squared Mahalanobis distance to each class."""
        x, scores = normalize(self.transformed(x)), []
        for label, (mean, count) in enumerate(zip(self.mean.means, self.mean.counts, strict=True)):
            if not count:
                scores.append(x.new_zeros(len(x)))  # not a class yet
                continue
            difference = x - normalize(mean, dim=0)
            scores.append(-(difference @ self.inverse(label) * difference).sum(1))
        return self.mean.unseen(torch.stack(scores, 1))

    def numbers(self) -> dict[str, int]:
        """A mean and half of a symmetric matrix for each class."""
        classes, d = self.mean.sums.shape
        size = classes * (d * (d + 1) // 2 + d + 1)
        return {"answer": size, "learn": size}
