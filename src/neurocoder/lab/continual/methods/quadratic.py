"""Penalties on the distance to the parameters of earlier tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...validate import NonNegative, check
from ..tasks import Task
from .base import Method, copies, joined, trainable

if TYPE_CHECKING:
    from ..trainer import Trainer


@dataclass(frozen=True)
class Term:
    """`sum_i Omega_i (theta_i - theta*_i)^2`, by parameter name."""

    importance: dict[str, Tensor]
    """Omega."""
    anchor: dict[str, Tensor]
    """theta*."""

    @cached_property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Both, joined (n,)."""
        return joined(self.importance), joined(self.anchor)


class Quadratic(Method):
    """`lambda sum_t sum_i Omega_ti (theta_i - theta*_ti)^2` over a list of terms.

    There is no factor 1/2, as in Hsu et al. A subclass says what is important after a task, and which terms stay.
    Parameters that are not in use are left out of the gradient: they are at their anchors. In the code of Hsu et al.
    their gradient is zero, and Adam's momentum moves them a little.

    Args:
        coefficient: lambda.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = check("coefficient", coefficient, NonNegative)
        self.terms: list[Term] = []

    def importance(self, trainer: Trainer, task: Task) -> dict[str, Tensor]:
        """The Omega that a task adds, by parameter name."""
        raise NotImplementedError

    def merge(self, term: Term) -> list[Term]:
        """The terms after a task. By default, one: importance is summed over tasks, the anchor is the latest."""
        if self.terms:
            before = self.terms[0].importance
            term = Term({name: before[name] + value for name, value in term.importance.items()}, term.anchor)
        return [term]

    def end(self, trainer: Trainer, task: Task) -> None:
        self.terms = self.merge(Term(self.importance(trainer, task), copies(trainer.model)))

    def penalty(self, model: nn.Module) -> Tensor:
        if not self.terms:
            return super().penalty(model)
        theta, distances = joined(trainable(model)), []
        for importance, anchor in (term.vectors for term in self.terms):
            distances.append((importance * (theta - anchor).square()).sum())
        return self.coefficient * torch.stack(distances).sum()

    def state_dict(self) -> dict[str, Any]:
        return {"terms": [{"importance": term.importance, "anchor": term.anchor} for term in self.terms]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.terms = [Term(**term) for term in state["terms"]]


class L2(Quadratic):
    """`lambda ||theta - theta*||^2` with the latest anchor: every parameter is as important as the next.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.L2(1.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    def importance(self, trainer: Trainer, task: Task) -> dict[str, Tensor]:
        return {name: torch.ones_like(entry) for name, entry in copies(trainer.model).items()}

    def merge(self, term: Term) -> list[Term]:
        return [term]
