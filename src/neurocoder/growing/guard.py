"""A step of an optimiser that would move slots without growing them is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..ops.optimisers import held, live_optimisers
from ..ops.torch_private import current_backward

_latest: tuple[int, list[ref[Optimizer]]] = (-1, [])
"""The optimisers that were found in a backward, and its number."""


class StepGuard:
    """Refuses the steps of optimisers that hold a memory's slots, except of the one that grows them.

    It costs other optimisers nothing. A backward through slots that nothing grows looks for the optimisers that hold
    them, and gives each a hook that raises an error before its step moves anything. So does one more backward without a
    step of the optimiser that grows them than there ever was: another one may take the steps.

    Looking takes tenths of a second, since it goes through all objects of the process. So it is repeated only when the
    number of such backward passes has doubled: an optimiser made after the first is refused after a few steps.
    """

    belongs_to_layer = True
    """Surgery may replace parameters with this hook: it is not the user's."""

    def __init__(self, memory: nn.Module) -> None:
        self._memory = ref(memory)
        self._watching: list[RemovableHandle] = []
        self._refusing: list[RemovableHandle] = []
        self._allowed: ref[Optimizer] | None = None
        self._backward = -1
        self._passes = self._usual = self._patience = 0
        """Backward passes since the last step that grew the slots; the most before such a step; the most before a look
        for other optimisers."""

    def watch(self, banks: Iterable[Tensor]) -> None:
        """Notice when a backward, compiled or not, accumulates gradients of these: U and V."""
        for handle in self._watching:
            handle.remove()
        self._watching = []
        for bank in banks:
            is_trained = bank.requires_grad
            bank.requires_grad_(True)  # torch takes no hook of a frozen parameter, which may be trained later
            self._watching.append(bank.register_post_accumulate_grad_hook(self))
            bank.requires_grad_(is_trained)

    @property
    def allowed(self) -> Optimizer | None:
        """The optimiser that grows the slots."""
        return None if self._allowed is None else self._allowed()

    def allow(self, optimiser: Optimizer | None) -> None:
        """From now on, the steps of this optimiser grow the slots, until it is gone; None: nothing grows them."""
        earlier = self.allowed
        self._allowed = None if optimiser is None else ref(optimiser, lambda _: self.allow(None))
        self._passes = 0
        self._usual = self._patience = int(optimiser is not None)
        if earlier is not None:
            self._refuse_steps_of(earlier)

    def settle(self) -> None:
        """A step has grown the slots."""
        self._usual = self._patience = max(self._usual, self._passes)
        self._passes = 0

    def __call__(self, bank: Tensor) -> None:
        """A backward has accumulated the gradient of U or V."""
        number = current_backward()
        if number != self._backward:
            self._backward = number
            self._passes += 1
            if self._passes > self._patience:
                self._patience = 2 * self._passes
                self._look()

    def _look(self) -> None:
        for handle in self._refusing:
            handle.remove()
        self._refusing = []
        for optimiser in _optimisers():
            if self._holds(optimiser):
                self._refuse_steps_of(optimiser)

    def _refuse_steps_of(self, optimiser: Optimizer) -> None:
        self._refusing.append(optimiser.register_step_pre_hook(self._before_step))

    def _holds(self, optimiser: Optimizer) -> bool:
        """Whether this optimiser holds slots that it does not grow."""
        memory = self._memory()
        if memory is None or optimiser is self.allowed:
            return False
        return bool(held(optimiser, [id(bank) for bank in memory.parameters()]))

    def _before_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        memory = self._memory()
        if memory is None or not self._holds(optimiser):
            return
        if has_closure(args, kwargs) or any(bank.grad is not None for bank in memory.parameters()):
            raise RuntimeError(
                "this optimiser trains a growing layer, but would neither write nor consolidate its slots: call "
                "nc.grow(model, optimiser) once, before training. Nothing was changed"
            )


def has_closure(args: Any, kwargs: Any) -> bool:
    """Whether an optimiser's step that is called like this differentiates."""
    return len(args) > 1 or kwargs.get("closure") is not None


def _optimisers() -> list[Optimizer]:
    """All optimisers of this process, looked for once in each backward."""
    global _latest
    number = current_backward()
    if _latest[0] != number:
        _latest = number, [ref(optimiser) for optimiser in live_optimisers()]
    return [optimiser for each in _latest[1] if (optimiser := each()) is not None]
