"""What other libraries leave in a model, as surgery meets it. None of them is imported: their traces are enough."""

from __future__ import annotations

import warnings

from torch import nn

from ..distributed import is_sharded
from ..layer.base import coded_layers
from ..ops.torch_private import all_hooks
from .targets import overview


def alteration(plain: nn.Module) -> str | None:
    """Why the parameters of this layer hold no weight to start from: they are split or quantised; else None."""
    for name, tensor in plain.named_parameters(recurse=False):
        if is_sharded(tensor):
            return (
                f"its {name} is split over processes, as ColwiseParallel does: nc.recode comes first, and coded layers "
                "are left out of the parallel plan"
            )
        if hasattr(tensor, "__tensor_flatten__") or tensor.element_size() == 1:
            kind = tensor.dtype if type(tensor) is nn.Parameter else type(tensor).__name__
            return f"its {name} is quantised ({kind}): call nc.recode first, then quantise the layers that stay plain"
    return None


def container(plain: nn.Module) -> str | None:
    """Why a module of an unknown kind is not one layer: it is an adapter or a stack of layers; else None."""
    if hasattr(plain, "adapter_layer_names"):
        return "it is PEFT's, and what it adapts lies inside: call nc.recode first, or give the name of the inner layer"
    for name, tensor in plain.named_parameters(recurse=False):
        if tensor.dim() == 3 and not hasattr(plain, "kernel_size"):  # not a convolution
            return (
                f"its {name} {tuple(tensor.shape)} is a stack of layers, such as fused experts: only layers that are "
                "modules of their own can be recoded"
            )
    return None


def hooks(module: nn.Module) -> str | None:
    """The hooks that a replacement of this module would lose, or a `forward` of its own, and what to do; else None."""
    if any(hasattr(part, "_hf_hook") for part in module.modules()):
        return (
            "Accelerate has dispatched it: undo that with accelerate.hooks.remove_hook_from_submodules(model), and "
            "dispatch the model again afterwards"
        )
    forward = vars(module).get("forward")  # what undoing leaves here is the method of the class
    is_own = forward is not None and getattr(forward, "__func__", None) is not type(module).forward
    if is_own or any(all_hooks(module)):
        return "it has hooks, which would be lost: remove them first, and register them again on the new layer"
    return None


def is_in_adapter(modules: dict[str, nn.Module], name: str) -> bool:
    """Whether this module is a part of an adapter of PEFT, other than the layer that is adapted."""
    while name:
        parent, _, child = name.rpartition(".")
        above = modules[parent]
        if child != "base_layer" and hasattr(above, "base_layer") and hasattr(above, "adapter_layer_names"):
            return True
        name = parent
    return False


def warn_of_peft(model: nn.Module) -> None:
    """Warn of trained coded layers that PEFT's `save_pretrained` leaves out, and of frozen residuals that it trains."""
    if not any(hasattr(module, "peft_config") for module in model.modules()):
        return
    layers = coded_layers(model)
    unsaved = [
        name
        for name, layer in layers.items()
        if "modules_to_save" not in name.split(".") and any(p.requires_grad for p in layer.parameters())
    ]
    thawed = [name for name, layer in layers.items() if layer.trains_frozen_residual]
    if unsaved:
        warnings.warn(
            f"save_pretrained of PEFT leaves out coded layers that are trained: {overview(unsaved, 3)}. Name them in "
            "LoraConfig(modules_to_save=list(nc.coded_layers(model))) before get_peft_model, or save with nc.save too",
            UserWarning,
            stacklevel=3,
        )
    if thawed:
        warnings.warn(
            f"modules_to_save of PEFT trains R and bias of coded layers with residual='frozen': {overview(thawed, 3)}. "
            "Call freeze_residual() on each of them before you make the optimiser",
            UserWarning,
            stacklevel=3,
        )
