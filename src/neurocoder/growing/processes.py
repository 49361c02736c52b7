"""Growing in several processes: what each saw is what all did, if DDP keeps the model in sync."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ..ops.optimisers import live_objects
from .memory import GrowingMemory
from .notes import least


def _wrappers(model: nn.Module | None) -> Iterator[DistributedDataParallel]:
    if model is not None:
        yield from (module for module in model.modules() if isinstance(module, DistributedDataParallel))


def group_of(model: nn.Module | None) -> Any:
    """The processes that train this model together, or None."""
    wrapper = next(_wrappers(model), None)
    return None if wrapper is None or wrapper.process_group.size() == 1 else wrapper.process_group


def gathered(memory: GrowingMemory, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The notes of all processes: visits add up; the least similar inputs win, then the lowest rank."""
    notes = memory.notes
    if group is None:
        return notes.visits, notes.similarity, notes.keys
    count, width = notes.keys.shape
    own = torch.cat([notes.visits, notes.similarity, notes.keys.flatten()])
    each = [torch.empty_like(own) for _ in range(group.size())]
    distributed.all_gather(each, own, group=group)
    visits, similarity, keys = torch.stack(each).split([memory.capacity, count, count * width], dim=1)
    return visits.sum(0), *least(similarity.flatten(), keys.reshape(-1, width), count)


def stale_wrappers(model: nn.Module) -> None:
    """Make DDP wrappers raise an error when called: their buckets have the old sizes."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(
            "the memory of a growing layer has changed its size, and this DistributedDataParallel still has the old "
            "one: wrap the inner model again, and call nc.grow with the new wrapper"
        )

    for wrapper in _wrappers(model):
        wrapper.register_forward_pre_hook(refuse)


def refuse_hidden_wrapper(layers: Mapping[str, nn.Module]) -> None:
    """Require that no DDP wrapper holds these layers, which grow as if this process were alone."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return
    own = {id(layer): name for name, layer in layers.items()}
    for wrapper in live_objects(DistributedDataParallel):
        found = [own[id(module)] for module in wrapper.modules() if id(module) in own]
        if found and wrapper.process_group.size() > 1:
            raise RuntimeError(
                f"growing layer {found[0]!r} is kept in sync by DistributedDataParallel, but nc.grow was given the "
                "model inside: each process would write slots of its own. Call nc.grow(wrapper, optimiser) once the "
                "model is wrapped. Nothing was changed"
            )
