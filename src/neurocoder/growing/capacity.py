"""How many slots a memory has: rearranging its slots, and the optimiser's state with them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .config import GrowingConfig
from .memory import GrowingMemory, set_row

REMEDY = (
    "use Adam, AdamW, Adagrad, RMSprop or SGD, or set growing.max_slots to growing.slots and growing.reuse_below to 0"
)


class HasMemory(Protocol):
    """What these functions need of a growing layer."""

    memory: GrowingMemory
    config: GrowingConfig


def require_resizable(memory: GrowingMemory, optimiser: Optimizer | None) -> None:
    """Require that the optimiser's state has one entry for each number of U and V, or one in all."""
    if isinstance(optimiser, torch.optim.LBFGS):
        raise ValueError(
            f"optimiser must keep a state for each parameter, so that slots can come and go, got LBFGS: {REMEDY}"
        )
    for name, parameter in memory.named_parameters():
        for key, value in ({} if optimiser is None else optimiser.state.get(parameter, {})).items():
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape != parameter.shape:
                if value.shape[1:] == parameter.shape[1:]:
                    raise ValueError(
                        f"optimiser has {key} of {len(value)} slots, {name} has {len(parameter)}: load the model's "
                        "state before the optimiser's"
                    )
                raise ValueError(
                    f"optimiser must keep a state like {name} {tuple(parameter.shape)} or a scalar, so that slots can "
                    f"come and go, got {key} {tuple(value.shape)} of {type(optimiser).__name__}: {REMEDY}"
                )


@torch.no_grad()
def set_capacity(layer: HasMemory, slots: int, optimiser: Optimizer | None = None) -> None:
    """Give the memory this many slots: the first ones stay, new ones start fresh; the optimiser's state goes along."""
    memory = layer.memory
    kept = torch.arange(min(slots, memory.capacity), device=memory.U.device)
    _rearrange(layer, kept, slots, optimiser)


def _rearrange(layer: HasMemory, kept: Tensor, slots: int, optimiser: Optimizer | None) -> None:
    """Let these slots (n,) be the first ones of `slots`; the others are free, with starting values."""
    memory, free = layer.memory, slots - len(kept)
    require_resizable(memory, optimiser)
    starts = memory.start(free)
    for parameter, start in zip((memory.U, memory.V), starts, strict=True):
        state = {} if optimiser is None else optimiser.state.get(parameter, {})
        for key, value in list(state.items()):
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = _rows(value, kept, _first_state(optimiser, parameter, key, start.shape))
        grad = None if parameter.grad is None else _rows(parameter.grad, kept, torch.zeros_like(start))
        parameter.grad = None
        _replace(parameter, _rows(parameter.detach(), kept, start))
        parameter.grad = grad
    for name in ("keys", "visits", "born"):
        old = getattr(memory, name)
        setattr(memory, name, _rows(old, kept, old.new_zeros(free, *old.shape[1:])))
    limit = max(layer.config.limit, slots)
    layer.config = dataclasses.replace(layer.config, slots=slots, top_k=min(layer.config.top_k, slots), max_slots=limit)
    memory.config = layer.config
    memory.written_bound = slots  # unknown: the next step asks
    memory.is_captured = False
    memory.renew()


def _rows(old: Tensor, kept: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old[kept.to(old.device)], new.to(old)])


_FIRST_STATE = {"sum": "initial_accumulator_value", "step_size": "lr"}
"""States that start from an option of the optimiser, Adagrad's and Rprop's; all others start from zero."""


def _first_state(optimiser: Any, parameter: Tensor, key: str, shape: tuple[int, ...]) -> Tensor:
    """What this state of a parameter starts from, for new elements of this shape."""
    group = next(group for group in optimiser.param_groups if any(one is parameter for one in group["params"]))
    return optimiser.state[parameter][key].new_zeros(shape) + group.get(_FIRST_STATE.get(key), 0.0)


def restart_state(memory: GrowingMemory, optimiser: Any, place: Tensor, allowed: Tensor) -> None:
    """Give the state of the slot at this place (1,) its starting values if allowed (), without asking the device."""
    for parameter in memory.parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                set_row(value, place, allowed, _first_state(optimiser, parameter, key, ()))


def _replace(parameter: nn.Parameter, value: Tensor) -> None:
    """Another shape for the same parameter, which optimisers and others hold.

    Graphs of earlier steps may keep alive the node that accumulates its gradient, with the old shape; a change of
    dtype makes torch forget that node.
    """
    other = torch.float32 if value.dtype != torch.float32 else torch.float64
    parameter.data = value[:0].to(other)
    parameter.data = value


@torch.no_grad()
def erase(layer: HasMemory, stays: Tensor, merge: bool, slots: int | None, optimiser: Optimizer | None) -> int:
    """Erase the written slots that do not stay (written,), and give the memory `slots`; returns how many were lost."""
    memory = layer.memory
    kept, gone = stays.nonzero().squeeze(1), (~stays).nonzero().squeeze(1)
    if merge and len(kept) and len(gone):
        keys = memory.keys.to(memory.visits.dtype)
        heirs = kept[(keys[gone] @ keys[kept].mT).argmax(1)]
        before, total = memory.visits, memory.visits.index_add(0, heirs, memory.visits[gone])
        own = torch.where(total > 0, before / total, 1.0).view(-1, 1, 1)
        taken = torch.where(total[heirs] > 0, before[gone] / total[heirs], 0.0).view(-1, 1, 1)
        for bank in (memory.U, memory.V):
            bank.copy_((own * bank).index_add(0, heirs, taken * bank[gone]))
        memory.visits.copy_(total)
    count = len(kept)
    _rearrange(layer, kept, memory.capacity if slots is None else slots, optimiser)
    memory.written.fill_(count)
    memory.written_bound = count
    return len(gone)
