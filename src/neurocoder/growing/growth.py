"""`grow` writes slots and consolidates them around an optimiser's step; `shrink` erases them."""

from __future__ import annotations

import math
import warnings
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..distributed import is_sharded
from ..layer.base import coded_layers
from ..layer.checks import require_choice, require_module, require_whole
from .capacity import erase, require_resizable, restart_state, set_capacity
from .config import USED
from .freezing import FROZEN, FreezeWatch
from .guard import has_closure
from .layer import GrowingLayer
from .memory import GrowingMemory
from .notes import is_capturing
from .processes import gathered, group_of, refuse_hidden_wrapper, stale_wrappers

_grown: WeakKeyDictionary[GrowingMemory, ref[Growth]] = WeakKeyDictionary()
"""What grows each memory; the optimiser's hooks keep it alive."""


def _growth_of(memory: GrowingMemory) -> Growth | None:
    found = _grown.get(memory)
    return None if found is None else found()


class Growth:
    """The link between growing layers and the optimiser that trains them; `grow` makes it.

    Before a step it keeps the slots' values. After it, with what the backward passes noted since the step before:

        visits_i += min(1, sum of w_i over the inputs)                 count="inputs": without the min
        slot_i   <- old_i + (new_i - old_i) / (1 + visits_i / c)       slots not written, or not used: old_i
        the least similar input becomes the next slot's key if its cosine < max_similarity; at max_slots it may
        overwrite a slot of little use

    The *step* is scaled, since Adam and Adagrad would undo a scaled gradient.

    Example:
        >>> layer = nc.GrowingLinear(8, 4)
        >>> optimiser = torch.optim.Adagrad(layer.parameters(), lr=1e-2)
        >>> growth = nc.grow(layer, optimiser)
        >>> growth.optimiser is optimiser
        True
        >>> growth.remove()
    """

    def __init__(self, model: nn.Module, optimiser: Optimizer, layers: dict[str, GrowingLayer]) -> None:
        self._layers, self._model, self._optimiser = layers, ref(model), ref(optimiser)
        self._before: dict[Tensor, Tensor] = {}
        self._active: list[GrowingLayer] = []
        self._is_checked = False
        self._warned: set[str] = set()
        self._idle: set[GrowingMemory] = set()
        """Those that a step in eval mode was warned of."""
        self._makes_room = False
        self._steps = 0
        self._watches = {layer.memory: FreezeWatch() for layer in layers.values()}
        self._handles = [
            optimiser.register_step_pre_hook(self._before_step),
            optimiser.register_step_post_hook(self._after_step),
        ]
        for layer in layers.values():
            layer.memory.written_bound = int(layer.memory.written)
            layer.memory.notes.clear()
            layer.memory.guard.allow(optimiser)

    @property
    def optimiser(self) -> Optimizer:
        """The optimiser that this is attached to."""
        found = self._optimiser()
        assert found is not None, "the optimiser is gone"
        return found

    def remove(self) -> None:
        """Detach: from now on, a step that moves these layers' slots is an error."""
        for handle in self._handles:
            handle.remove()
        for layer in self._layers.values():
            if _growth_of(layer.memory) is self:
                del _grown[layer.memory]
                layer.memory.guard.allow(None)

    def _before_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        """Before a step: keep all slots, since optimisers with momentum move them all; idle layers stay out of it."""
        group = group_of(self._model())
        self._steps += 1
        if group is None and self._steps.bit_count() == 1:  # looking takes tenths of a second
            refuse_hidden_wrapper(self._layers)
        everything = has_closure(args, kwargs) or group is not None
        self._active = [
            layer
            for layer in self._layers.values()
            if everything or any(bank.grad is not None for bank in layer.memory.parameters())
        ]
        with torch.no_grad():
            for layer in self._active:
                for bank in layer.memory.parameters():
                    kept = self._before.get(bank)
                    if kept is None or kept.shape != bank.shape or kept.device != bank.device:
                        kept = self._before[bank] = torch.empty_like(bank, requires_grad=False)
                    kept.copy_(bank)

    @torch.no_grad()
    def _after_step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        """After a step: consolidate, write, forget the notes, and make room."""
        skipped = getattr(optimiser, "found_inf", None)  # a fused step under a GradScaler skips itself
        group = group_of(self._model())
        for layer in self._active:
            memory = layer.memory
            visits, similarity, keys = gathered(memory, group)
            taken: Tensor | bool = True
            if isinstance(skipped, Tensor):
                taken = (skipped == 0).view(()).to(memory.visits.device)
                visits = visits * taken
            by_step = memory.config.count == "steps"
            if by_step and not layer.training:
                self._warn_of_evaluation(memory)
            memory.visits.add_(visits.clamp(max=1.0) if by_step else visits)
            self._consolidate(memory, visits >= USED if by_step else True)
            self._warn_if_premature(memory, visits)
            for place, overwrites in memory.write(similarity, keys, taken):
                restart_state(memory, optimiser, place, overwrites)
            memory.steps.add_(taken)
            memory.notes.clear()
            memory.written_bound += memory.config.writes
        if not self._is_checked:  # the optimiser's state exists now: better an error here than when memory is full
            for layer in self._layers.values():
                if layer.memory.capacity < layer.config.limit or layer.memory.reuses:
                    require_resizable(layer.memory, optimiser)
            self._is_checked = True
        for layer in self._layers.values():
            layer.memory.guard.settle()
        self._make_room_if_possible(group is not None)

    def _consolidate(self, memory: GrowingMemory, is_used: Tensor | bool) -> None:
        """Scale what the step did to the slots that are written and were used; the others are as before it."""
        c = math.inf if memory.config.consolidation is None else memory.config.consolidation
        is_written = torch.arange(memory.capacity, device=memory.visits.device) < memory.written
        scale = ((is_written & is_used) / (1 + memory.visits / c)).view(-1, 1, 1)
        for bank in memory.parameters():
            torch.lerp(self._before[bank], bank, scale.to(bank.dtype), out=bank)

    def _warn_of_evaluation(self, memory: GrowingMemory) -> None:
        """Say once that a backward in eval mode moves no slot."""
        if memory not in self._idle:
            self._idle.add(memory)
            name = next(name for name, layer in self._layers.items() if layer.memory is memory)
            warnings.warn(
                f"growing layer {name!r} is in eval mode, where no visits are noted: this step moves none of its "
                "slots. Call train() on it, or set count='inputs'",
                UserWarning,
                stacklevel=5,
            )

    def _warn_if_premature(self, memory: GrowingMemory, use: Tensor) -> None:
        """Say once that slots are frozen while they would still learn."""
        watch = self._watches.get(memory)
        if watch is not None and not is_capturing() and watch.is_premature(memory, use):
            del self._watches[memory]
            name = next(name for name, layer in self._layers.items() if layer.memory is memory)
            c, unit = memory.config.consolidation, memory.config.count
            warnings.warn(
                f"growing layer {name!r}: most slots in use are frozen, their steps scaled by less than {FROZEN}, and "
                f"gradients are still large. Set a larger consolidation than {c:g}, which counts {unit}, or None",
                UserWarning,
                stacklevel=5,
            )

    def _make_room_if_possible(self, is_parallel: bool) -> None:
        """Grow what may be full; a captured or DDP-wrapped model is only told, since it has to be rebuilt."""
        if is_capturing():
            self._announce_capture()  # replays run no hook, so they cannot
            return
        for name, layer in self._layers.items():
            memory = layer.memory
            if memory.is_captured:
                memory.written_bound = memory.capacity  # replays may have written more than the host knows
            if name in self._warned or not _may_be_full(memory):
                continue
            if memory.capacity >= memory.config.limit:
                if memory.written_bound >= memory.capacity:
                    others = "overwrite slots of little use, or use the nearest" if memory.reuses else "use the nearest"
                    self._warn_once(name, f"is full: {memory.capacity} slots, which is max_slots. New inputs {others}")
            elif is_parallel or memory.is_captured:
                wrapper = "wrap the inner model in DDP" if is_parallel else "capture the step"
                self._warn_once(
                    name,
                    f"is full: {memory.capacity} slots. It cannot grow in a step that is captured or kept in sync by "
                    f"DDP: call make_room() on what nc.grow returned, then {wrapper} again",
                )
            else:
                set_capacity(layer, _more(memory), self.optimiser)

    def _announce_capture(self) -> None:
        """Say once that a graph cannot grow, unless the caller makes room."""
        fixed = [name for name, layer in self._layers.items() if layer.memory.capacity < layer.config.limit]
        if fixed and not self._makes_room:
            self._makes_room = True
            warnings.warn(
                f"growing layers {fixed} cannot grow while they are captured in a CUDA graph: call make_room() on what "
                "nc.grow returned before the capture and between replays; if it returns a name, capture the step again",
                UserWarning,
                stacklevel=6,
            )

    def _warn_once(self, name: str, message: str) -> None:
        self._warned.add(name)
        warnings.warn(f"growing layer {name!r} {message}", UserWarning, stacklevel=6)

    def make_room(self, free: int = 1) -> list[str]:
        """Grow each layer that has fewer free slots than this, up to `max_slots`; returns the names of those that grew.

        Steps do this by themselves, unless the model is captured in a CUDA graph or wrapped in DDP: then call this
        between steps, and if it returns a name, capture again, or wrap the inner model again. A wrapper that is stale
        raises an error when it is called.
        """
        require_whole("free", free)
        grown = []
        self._makes_room = True
        for name, layer in self._layers.items():
            memory = layer.memory
            memory.written_bound = int(memory.written)
            capacity, wanted = memory.capacity, min(memory.written_bound + free, memory.config.limit)
            if wanted > capacity:
                set_capacity(layer, max(_more(memory), wanted), self.optimiser)
                self._warned.discard(name)
                grown.append(name)
        model = self._model()
        if grown and model is not None:
            stale_wrappers(model)
        return grown


def grow(model: nn.Module, optimiser: Optimizer) -> Growth:
    """Let the growing layers of a model write slots when this optimiser takes a step, and consolidate them.

    A forward never writes. The backward notes which slots were used and which inputs were new; the step decides, once,
    however many backward passes came before. Without a step nothing is written. A step without this is an error. Give
    the DDP wrapper, not the inner model, so that all processes decide together.

    Args:
        model: any module with growing layers.
        optimiser: holds their slots. A layer grows with one optimiser: a later call replaces an earlier one.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.GrowingConfig(slots=16))
        >>> optimiser = torch.optim.Adagrad(model.parameters(), lr=1e-2)
        >>> growth = nc.grow(model, optimiser)
        >>> model(torch.randn(32, 8)).square().mean().backward()
        >>> optimiser.step()
        >>> int(model[0].memory.written)
        1
    """
    layers = growing_layers(model)
    optimiser = unwrapped(optimiser)
    if len({layer.memory for layer in layers.values()}) < len(layers):
        raise ValueError("growing layers must not share a memory, whose steps would count twice: use one layer twice")
    held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    chosen = {}
    for name, layer in layers.items():
        banks = dict(layer.memory.named_parameters())
        if not any(bank.requires_grad for bank in banks.values()):
            continue
        for key, bank in banks.items():
            if is_sharded(bank):
                raise ValueError(f"growing layer {name!r} must not be sharded: fully_shard splits its slots")
            if id(bank) not in held:
                raise ValueError(f"optimiser must hold memory.{key} of growing layer {name!r}, which it does not")
        if layer.memory.capacity < layer.config.limit or layer.memory.reuses:
            require_resizable(layer.memory, optimiser)
        if layer.trains_frozen_residual:
            raise ValueError(
                f"growing layer {name!r} has residual='frozen', but its R or bias is trainable, as PEFT's "
                "modules_to_save leaves them: call freeze_residual() on the layer, then make the optimiser"
            )
        chosen[name] = layer
    if not chosen:
        raise ValueError("model must have a growing layer whose slots are trained, but all are frozen")
    for layer in chosen.values():
        earlier = _growth_of(layer.memory)
        if earlier is not None:
            earlier._layers = {name: other for name, other in earlier._layers.items() if other is not layer}
    growth = Growth(model, optimiser, chosen)
    for layer in chosen.values():
        _grown[layer.memory] = ref(growth)
    return growth


def shrink(
    model: nn.Module,
    optimiser: Optimizer | None = None,
    *,
    below: float,
    merge: bool = True,
    slots: int | None = None,
) -> dict[str, int]:
    """Erase slots of little use; returns how many each layer lost.

    Call it between steps. The others keep their order, programs, keys and optimiser state. Erased slots are free again.

    Args:
        model: any module with growing layers.
        optimiser: the one that trains them, whose state goes along; None: the one that `nc.grow` was given, if any.
        below: erase slots with fewer visits than this.
        merge: let the nearest slot that stays (by key) take over: visits add up, and its program becomes the mean of
            both, weighted by visits. False: drop them.
        slots: the new capacity, if there is room for what stays; None: as it is.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.GrowingConfig(slots=16))
        >>> optimiser = torch.optim.Adagrad(model.parameters(), lr=1e-2)
        >>> growth = nc.grow(model, optimiser)
        >>> for _ in range(4):
        ...     model(torch.randn(32, 8)).square().mean().backward()
        ...     optimiser.step()
        >>> nc.shrink(model, optimiser, below=1.0)  # the slot written last has no visits yet
        {'0': 1}
    """
    layers = growing_layers(model)
    if isinstance(below, bool) or not isinstance(below, int | float) or not below >= 0:
        raise ValueError(f"below must be a number >= 0, got {below!r}")
    require_choice("merge", merge)
    if slots is not None:
        require_whole("slots", slots)
    given = None if optimiser is None else unwrapped(optimiser)
    stays = {}
    for name, layer in layers.items():
        memory = layer.memory
        require_resizable(memory, given or memory.guard.allowed)
        written = int(memory.written)
        stays[name] = memory.visits[:written] >= below
        left = int(stays[name].sum())
        if slots is not None and slots < max(left, 1):
            raise ValueError(f"slots must be at least the {left} that stay in layer {name!r}, got {slots}")
    lost = {}
    for name, layer in layers.items():
        lost[name] = erase(layer, stays[name], merge, slots, given or layer.memory.guard.allowed)
    if slots is not None:
        stale_wrappers(model)
    return lost


def growing_layers(model: nn.Module) -> dict[str, GrowingLayer]:
    """The growing layers of a model by name, each once."""
    require_module("model", model)
    found = {name: layer for name, layer in coded_layers(model).items() if isinstance(layer, GrowingLayer)}
    if not found:
        raise ValueError("model must have a growing layer, found none: use nc.recode(model, ..., nc.GrowingConfig())")
    return found


def unwrapped(optimiser: Any) -> Optimizer:
    """The optimiser itself, without the wrapper of Lightning or Accelerate."""
    found = optimiser
    while isinstance(getattr(found, "optimizer", None), Optimizer):
        found = found.optimizer
    if not isinstance(found, Optimizer):
        raise ValueError(f"optimiser must be a torch optimiser, got {type(optimiser).__name__}")
    return found


def _may_be_full(memory: GrowingMemory) -> bool:
    """Whether the next step may lack a free slot; asks the device only if the host cannot rule it out."""
    if memory.written_bound + memory.config.writes > memory.capacity:
        memory.written_bound = int(memory.written)
    return memory.written_bound + memory.config.writes > memory.capacity


def _more(memory: GrowingMemory) -> int:
    """The capacity after growing once."""
    return min(max(math.ceil(memory.capacity * memory.config.growth), memory.capacity + 1), memory.config.limit)
