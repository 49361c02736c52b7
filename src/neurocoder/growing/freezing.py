"""Noticing slots that no longer move although their loss would still fall."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .memory import GrowingMemory

FROZEN = 0.1
"""A slot is frozen once its steps are scaled by less than this."""
ALIKE, LARGE = 0.3, 0.3
"""There is more to learn if the gradients of two steps have a larger cosine, and this part of the largest length."""


class FreezeWatch:
    """Compares two successive gradients of the slots that one memory froze: if they agree, and are nearly as large as
    any before, the slots are frozen too early. Of noise alone, successive gradients do not agree.

    It looks at steps 1, 2, 4, 8, ... and the step after each: only then it waits for the device, and keeps a gradient.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._largest = 0.0
        self._kept: Tensor | None = None

    def is_premature(self, memory: GrowingMemory, use: Tensor) -> bool:
        """Called after each step: whether most slots in use are frozen, and would still learn.

        Args:
            memory: with the gradients of the step.
            use: how much the step's inputs used each slot (P,).
        """
        self._steps += 1
        is_due = self._steps.bit_count() == 1
        earlier, self._kept = self._kept, None
        c, gradients = memory.config.consolidation, [bank.grad for bank in memory.parameters() if bank.grad is not None]
        if c is None or not gradients or (earlier is None and not is_due):
            return False
        gradient = torch.cat([each.detach().flatten(1) for each in gradients], dim=1).float()
        if is_due:
            self._kept = gradient.clone()
        is_frozen = (1 + memory.visits / c) * FROZEN > 1
        share = float(use[is_frozen].sum()) / max(float(use.sum()), 1e-30)
        length = float((gradient.square().sum(1) * use).sum() / use.sum().clamp(min=1e-30)) ** 0.5
        if not math.isfinite(length):  # a step that a GradScaler skips
            return False
        self._largest = max(self._largest, length)
        if share < 0.5 or earlier is None or earlier.shape != gradient.shape or length < LARGE * self._largest:
            return False
        now, before = gradient[is_frozen], earlier[is_frozen]
        return float((now * before).sum()) > ALIKE * float(now.norm() * before.norm()) > 0
