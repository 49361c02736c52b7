"""Full precision for values that must be exact: starting values, and the weights that surgery computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast on the CPU or this device.

    Autocast would round, and cache the first rounded copy of a parameter whose values are still being set.
    """
    with torch.no_grad(), ExitStack() as stack:
        for kind in {"cpu", device.type}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
