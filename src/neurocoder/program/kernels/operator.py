"""`layer.forward` and `layer.backward` over the Triton core as custom torch operators, which `torch.compile` and
`torch.export` treat as opaque.

An operator cannot take or return None, or return its inputs. So it takes only the parameters the layer has, the inputs
that the backward needs are passed to it again, and an empty tensor stands for a gradient that is not needed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...ops.autograd import cast, refuse_second_derivatives
from ...ops.launch import on_device_of
from ...ops.operators import library, operator
from ...ops.torch_private import BelowAutograd
from ..config import ProgramConfig
from ..tensors import NONE, CallSpec, ProgramTensors
from .autograd import Saved, backward, forward
from .gpu import State, state_shapes
from .sizes import sizes_of

_RESIDUALS: tuple[Any, ...] = (False, True, "plain")
_SIZES = ("slots", "key_dim", "steps", "heads", "least_used", "hidden")


def _numbers(spec: CallSpec) -> list[int]:
    """What `_spec` needs besides the sharpness and the dtype."""
    sizes = [getattr(spec.program, name) for name in _SIZES]
    return [spec.fused, spec.needs_backward, _RESIDUALS.index(spec.program.residual), *sizes]


@lru_cache(maxsize=256)
def _spec(sharpness: float, dtype: torch.dtype, executes: int, keeps: int, residual: int, *sizes: int) -> CallSpec:
    shape: dict[str, Any] = dict(zip(_SIZES, sizes, strict=True))
    program = ProgramConfig(**shape, residual=_RESIDUALS[residual], sharpness=sharpness)
    return CallSpec("operator", program, dtype, bool(executes), bool(keeps))


def _scatter_present(values: list[Any], present: list[int]) -> ProgramTensors:
    """The values at these positions, None elsewhere."""
    found: list[Any] = list(NONE)
    for place, value in zip(present, values, strict=True):
        found[place] = value
    return ProgramTensors(*found)


def _outputs(spec: CallSpec) -> int:
    """How many of the results are the layer's outputs: y, or attention, sigma and, if the residual is gated, scale."""
    return 1 if spec.fused else 2 + (spec.program.residual is True)


def _kept(spec: CallSpec, given: ProgramTensors) -> list[str]:
    """The fields of `Saved` that `run` returns: not those that are inputs or outputs of the operator."""
    names = ["readers", "projected", "keys", "signal"]
    if spec.fused:
        names += ["coefficients", "scale", "xR"] if spec.program.residual is True else ["coefficients"]
        names += [name for name in ("V", "R") if getattr(getattr(given, name), "dtype", spec.dtype) != spec.dtype]
    return names


@operator
def run(
    x: Tensor, tensors: list[Tensor], present: list[int], sharpness: float, dtype: torch.dtype, numbers: list[int]
) -> list[Tensor]:
    """The forward: returns the outputs and, if a backward may follow, what it keeps and the core's state."""
    spec, given = _spec(sharpness, dtype, *numbers), _scatter_present(tensors, present)
    with on_device_of(x), BelowAutograd():
        outputs, kept, _, state = forward(spec, x, given)
    made: list[Any] = list(outputs[: _outputs(spec)])
    if spec.needs_backward:
        made += [getattr(kept, name) for name in _kept(spec, given)]
        made += state if spec.fused else state[2:]  # attention and sigma are then outputs
    return made


@torch.library.register_fake(f"{library.ns}::run", lib=library)
def _(x: Tensor, tensors: list[Tensor], present: list[int], sharpness: float, dtype: Any, numbers: Any) -> list[Tensor]:
    given, spec = _scatter_present(tensors, present), _spec(sharpness, dtype, *numbers)
    program, sizes, (count, inputs) = spec.program, sizes_of(spec.program, spec.fused), x.shape

    def low(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=dtype)

    def full(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    width = spec.end + sizes.gate
    width += -width % 8 if x.is_cuda else 0
    kept = {
        "readers": (low, width, inputs),
        "projected": (full, count, width),
        "keys": (full, 3, program.slots, program.key_dim),
        "signal": (full, sizes.signal, sizes.state),
        "coefficients": (full, count, sizes.mixed),
        "scale": (full, count, 1),
        "xR": (low, count, given.V.shape[1]),
        "V": (low, *given.V.shape),
        "R": (low, given.V.shape[1], inputs),
    }
    state = [full(*shape) for shape in state_shapes(program, sizes, count)]
    outputs = [low(count, given.V.shape[1])] if spec.fused else [*state[:2], full(count, 1)][: _outputs(spec)]
    if not spec.needs_backward:
        return outputs
    made = [make(*shape) for make, *shape in map(kept.__getitem__, _kept(spec, given))]
    return [*outputs, *made, *(state if spec.fused else state[2:])]


@operator
def run_backward(
    grads: list[Tensor],
    made: list[Tensor],
    wants: list[bool],
    x: Tensor,
    tensors: list[Tensor],
    present: list[int],
    sharpness: float,
    dtype: torch.dtype,
    numbers: list[int],
) -> list[Tensor]:
    """The backward: gradients of x and of each parameter. `made` is what `run` returned, without y; `wants` begins with
    x."""
    spec, given = _spec(sharpness, dtype, *numbers), _scatter_present(tensors, present)
    names, first = _kept(spec, given), 0 if spec.fused else _outputs(spec)
    last = first + len(names)
    kept = Saved(cast(x, dtype), V=given.V, R=given.R)._replace(**dict(zip(names, made[first:last], strict=True)))
    state = State(*(made[last:] if spec.fused else [*made[:2], *made[last:]]))
    whole = given.composing(kept.projected.dtype)
    with BelowAutograd():
        into = (*grads, None)  # of the scale, if there is none
        grad_x, found = backward(spec, into, kept, whole, state, wants[0], _scatter_present(wants[1:], present))
        # Cast to each parameter's dtype, as autograd would.
        each = zip([grad_x, *[found[place] for place in present]], [x, *tensors], strict=True)
        results = [x.new_empty(0) if grad is None else cast(grad, like.dtype) for grad, like in each]
        # An operator's results must not share storage: parts of a larger one are copied, in one launch.
        parts = [place for place, grad in enumerate(results) if _is_part(grad)]
        if parts:
            for place, copy in zip(parts, torch._foreach_add([results[place] for place in parts], 0.0), strict=True):
                results[place] = copy.contiguous()
    return results


def _is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a part of a larger storage, which others may share."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


@torch.library.register_fake(f"{library.ns}::run_backward", lib=library)
def _(grads: Any, made: Any, wants: list[bool], x: Tensor, tensors: list[Tensor], *settings: Any) -> list[Tensor]:
    alone = [ProgramTensors._fields[place] in ("R", "bias") for place in settings[0]]
    composition = any(wanted for wanted, own in zip(wants[1:], alone, strict=True) if not own)
    made_for = [wanted if own else composition for wanted, own in zip(wants[1:], alone, strict=True)]
    each = zip([wants[0], *made_for], [x, *tensors], strict=True)
    return [torch.empty_like(like) if found else x.new_empty(0) for found, like in each]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, tensors, *ctx.settings = inputs
    _, sharpness, dtype, numbers = ctx.settings
    ctx.spec = _spec(sharpness, dtype, *numbers)
    ctx.wants = [tensor.requires_grad for tensor in (x, *tensors)]
    ctx.save_for_backward(x, *tensors, *(output[1:] if ctx.spec.fused else output))


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    refuse_second_derivatives()
    spec, first = ctx.spec, 1 + len(ctx.settings[0])
    (x, *tensors), made = ctx.saved_tensors[:first], list(ctx.saved_tensors[first:])
    outputs = zip(grads[: _outputs(spec)], made, strict=False)
    given = [torch.zeros_like(output) if grad is None else grad for grad, output in outputs]
    found = run_backward(given, made, ctx.wants, x, tensors, *ctx.settings)
    grad_x, *of_tensors = (grad if wanted else None for grad, wanted in zip(found, ctx.wants, strict=True))
    return grad_x, of_tensors, *[None] * len(ctx.settings)


torch.library.register_autograd(f"{library.ns}::run", _backward, setup_context=_setup, lib=library)


def run_operator(spec: CallSpec, x: Tensor, tensors: ProgramTensors) -> Any:
    """The layer's outputs, computed by the operator: y, or attention, sigma and scale or None."""
    present = [place for place, tensor in enumerate(tensors) if tensor is not None]
    given = [tensor for tensor in tensors if tensor is not None]
    with torch.autocast(x.device.type, enabled=False):
        made = run(cast(x, spec.dtype), given, present, spec.program.sharpness, spec.dtype, _numbers(spec))
    return made[0] if spec.fused else [*made[: _outputs(spec)], None][:3]
