"""Models distributed over processes: `fully_shard` shards their parameters, DDP keeps them in sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from .ops.compiled import uncompiled


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, DDP, DataParallel or PEFT, unless PEFT holds more; or the model itself."""
    inner = uncompiled(model)
    if isinstance(model, DistributedDataParallel | nn.DataParallel):
        inner = model.module
    elif type(model).__module__.startswith("peft."):
        base: Any = getattr(model, "get_base_model", lambda: model)()  # with adapters, but not with learned prompts
        inner = base if len(base.state_dict()) == len(model.state_dict()) else model
    return model if inner is model else unwrapped(inner)


def is_sharded(tensor: Any) -> bool:
    """Whether this is a DTensor, without importing `torch.distributed.tensor`, which is slow."""
    return hasattr(tensor, "full_tensor")


_REMEDIES = {
    "FSDPModule": "sharded by fully_shard, which must come after nc.{call}",
    "FullyShardedDataParallel": "sharded by FullyShardedDataParallel, which must come after nc.{call}",
    "DistributedDataParallel": "kept in sync by DistributedDataParallel: give nc.{call} the inner model, wrap it again",
}


def wrapper_conflict(modules: dict[str, nn.Module], name: str, call: str) -> str | None:
    """Why the parameters of the module with this name cannot be replaced, if a wrapper relies on them; else None."""
    while True:
        for base in type(modules[name]).__mro__:
            if base.__name__ in _REMEDIES and base.__module__.startswith("torch."):
                return f"its parameters are {_REMEDIES[base.__name__].format(call=call)}"
        if not name:
            return None
        name = name.rpartition(".")[0]


def gathered(tensor: Any) -> Tensor:
    """The full value of a sharded tensor, on the CPU. All processes must call this together."""
    return tensor.detach().full_tensor().cpu()


def sharded_like(whole: Tensor, tensor: Any) -> Tensor:
    """This process's shard of a tensor that every process has, sharded like `tensor`."""
    from torch.distributed.tensor import distribute_tensor

    device = tensor.to_local().device
    return distribute_tensor(whole.to(device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def is_first_process() -> bool:
    """Whether this process writes on behalf of all."""
    return distributed.get_rank() == 0


def on_first_process(action: Callable[[], None], failed: type[Exception]) -> None:
    """Let the first process act while the others wait; if it fails, all fail. All processes must call this together."""
    failure = None
    if is_first_process():
        try:
            action()
        except Exception as error:
            failure = error
    outcome = [None if failure is None else str(failure)]
    distributed.broadcast_object_list(outcome, src=0)
    if failure is not None:
        raise failure
    if outcome[0] is not None:
        raise failed(outcome[0])
