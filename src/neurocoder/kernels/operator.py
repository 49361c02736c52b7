"""`layer.forward` and `layer.backward` over the Triton core as operators of torch's library, which `torch.compile` and
`torch.export` keep whole.

An operator returns neither its inputs nor None: what is missing comes as an empty tensor, and what the backward needs
of the inputs is given to it anew.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..config import ProgramConfig
from ..tensors import ProgramTensors
from .gpu import State, state_shapes
from .layer import Form, Kept, backward, composing, forward
from .rounding import aligned
from .side_stream import on_device_of
from .sizes import sizes_of

_INPUTS = ("x", "V", "R")
"""What is kept of the operator's own inputs."""


_RESIDUALS: tuple[Any, ...] = (False, True, "plain")


@lru_cache(maxsize=256)
def _config(sharpness: float, residual: int, *sizes: int) -> ProgramConfig:
    slots, key_dim, steps, heads, least_used, hidden = sizes
    shape = {"slots": slots, "key_dim": key_dim, "steps": steps, "heads": heads, "hidden": hidden}
    return ProgramConfig(**shape, least_used=least_used, residual=_RESIDUALS[residual], sharpness=sharpness)


def _numbers(program: ProgramConfig) -> list[int]:
    """What the kernels need of a configuration, in numbers, besides the sharpness."""
    sizes = (program.slots, program.key_dim, program.steps, program.heads, program.least_used, program.hidden)
    return [_RESIDUALS.index(program.residual), *sizes]


def _with_empty(x: Tensor, tensors: Any) -> list[Tensor]:
    return [x.new_empty(0) if tensor is None else tensor for tensor in tensors]


def _outputs(executes: bool) -> int:
    """How many of the results are the layer's outputs: y, or attention, sigma and scale."""
    return 1 if executes else 3


@torch.library.custom_op("neurocoder::run", mutates_args=())
def run(
    x: Tensor, tensors: list[Tensor | None], sharpness: float, program: list[int], dtype: torch.dtype, executes: bool
) -> list[Tensor]:
    """The forward; the outputs, then what is kept for the backward, then the core's state."""
    form = Form(True, _config(sharpness, *program), dtype, executes)
    with on_device_of(x):
        outputs, kept, _, state = forward(form, x, ProgramTensors(*tensors))
    kept = kept._replace(**dict.fromkeys(_INPUTS))
    if not executes:  # then the scale, attention and sigma are among the outputs
        kept, state = kept._replace(scale=None), state[2:]
    return _with_empty(x, (*outputs, *kept, *state))


@run.register_fake
def _(
    x: Tensor, tensors: list[Tensor | None], sharpness: float, program: list[int], dtype: torch.dtype, executes: bool
) -> list[Tensor]:
    given, config = ProgramTensors(*tensors), _config(sharpness, *program)
    sizes, (count, inputs) = sizes_of(config, executes), x.shape

    def low(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=dtype)

    def full(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    width = sizes.logit + sizes.gate
    width += -width % 8 if x.is_cuda else 0
    kept: dict[str, Tensor] = {
        "readers": low(width, inputs),
        "projected": full(count, width),
        "keys": full(3, config.slots, config.key_dim),
        "signal": full(aligned(len(given.signal_weight)), aligned(config.hidden + 1)),
    }
    state = [full(*shape) for shape in state_shapes(count, sizes)]
    scale = full(count, 1) if sizes.gate else None
    if executes:
        outputs: list[Any] = [low(count, given.V.shape[1])]
        kept["coefficients"] = full(count, sizes.mixed)
        if scale is not None:
            kept |= {"scale": scale, "xR": low(count, len(given.R))}
    else:
        outputs, state = [*state[:2], scale], state[2:]
    return _with_empty(x, (*outputs, *(kept.get(name) for name in Kept._fields), *state))


@torch.library.custom_op("neurocoder::run_backward", mutates_args=())
def run_backward(
    grads: list[Tensor],
    x: Tensor,
    tensors: list[Tensor | None],
    made: list[Tensor],
    wants: list[bool],
    sharpness: float,
    program: list[int],
    dtype: torch.dtype,
    executes: bool,
) -> list[Tensor]:
    """The backward: gradients of x and of each parameter. `made` is what `run` returned, `wants` begins with x."""
    form = Form(True, _config(sharpness, *program), dtype, executes)
    given, first = ProgramTensors(*tensors), _outputs(executes)
    last = first + len(Kept._fields)
    kept = Kept(*(tensor if tensor.numel() or tensor.dim() > 1 else None for tensor in made[first:last]))
    V, R = (None if tensor is None else tensor.to(dtype) for tensor in (given.V, given.R))
    kept = kept._replace(x=x.to(dtype), V=V, R=R)
    state = State(*(made[last:] if executes else [*made[:2], *made[last:]]))
    whole = composing(given, kept.projected.dtype)
    grad_x, found = backward(form, grads, kept, whole, state, wants[0], ProgramTensors(*wants[1:]))
    # Autograd itself would cast each gradient to its parameter's dtype; and outputs share no storage.
    cast = (
        None if grad is None else grad.to(like.dtype) for grad, like in zip((grad_x, *found), (x, *given), strict=True)
    )
    return [
        tensor.clone() if tensor._is_view() or not tensor.is_contiguous() else tensor for tensor in _with_empty(x, cast)
    ]


@run_backward.register_fake
def _(
    grads: list[Tensor],
    x: Tensor,
    tensors: list[Tensor | None],
    made: list[Tensor],
    wants: list[bool],
    sharpness: float,
    program: list[int],
    dtype: torch.dtype,
    executes: bool,
) -> list[Tensor]:
    composition = any(
        wanted for name, wanted in zip(ProgramTensors._fields, wants[1:], strict=True) if name not in ("R", "bias")
    )
    given = ProgramTensors(*tensors)._asdict()
    found = [
        None
        if tensor is None or not (wants[1 + i] if name in ("R", "bias") else composition)
        else torch.empty_like(tensor)
        for i, (name, tensor) in enumerate(given.items())
    ]
    return _with_empty(x, [torch.empty_like(x) if wants[0] else None, *found])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, tensors, *ctx.settings = inputs
    ctx.present = [tensor is not None for tensor in tensors]
    ctx.wants = [tensor is not None and tensor.requires_grad for tensor in (x, *tensors)]
    ctx.save_for_backward(x, *(tensor for tensor in tensors if tensor is not None), *output)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    x, *saved = ctx.saved_tensors
    saved = iter(saved)
    tensors = [next(saved) if present else None for present in ctx.present]
    made, executes = list(saved), ctx.settings[-1]
    outputs = zip(grads[: _outputs(executes)], made, strict=False)
    given = [torch.zeros_like(output) if grad is None else grad for grad, output in outputs]
    grad_x, *found = run_backward(given, x, tensors, made, ctx.wants, *ctx.settings)
    return (
        grad_x if ctx.wants[0] else None,
        [grad if wanted else None for grad, wanted in zip(found, ctx.wants[1:], strict=True)],
        *[None] * len(ctx.settings),
    )


run.register_autograd(_backward, setup_context=_setup)


def run_operator(form: Form, x: Tensor, tensors: ProgramTensors) -> list[Tensor | None]:
    """The layer's outputs, by the operator."""
    settings = form.program.sharpness, _numbers(form.program), form.dtype, form.executes
    with torch.autocast(x.device.type, enabled=False):
        made = run(x, list(tensors), *settings)
    outputs: list[Tensor | None] = list(made[: _outputs(form.executes)])
    if not form.executes and form.program.residual is not True:
        outputs[2] = None
    return outputs
