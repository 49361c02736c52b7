"""`layer.forward` and `layer.backward` over the Triton core as custom torch operators, which `torch.compile` and
`torch.export` treat as opaque.

An operator cannot take or return None, or return its inputs. So it takes only the parameters the layer has, an empty
tensor stands for a missing result, and the inputs that the backward needs are passed to it again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..config import ProgramConfig
from ..tensors import ProgramTensors
from .gpu import State, state_shapes
from .layer import Form, Kept, backward, forward
from .rounding import aligned
from .side_stream import on_device_of
from .sizes import sizes_of

_RESIDUALS: tuple[Any, ...] = (False, True, "plain")


def _numbers(form: Form) -> list[int]:
    """What `_form` needs besides the sharpness and the dtype."""
    c = form.program
    sizes = (c.slots, c.key_dim, c.steps, c.heads, c.least_used, c.hidden)
    return [form.executes, _RESIDUALS.index(c.residual), *sizes]


@lru_cache(maxsize=256)
def _form(sharpness: float, dtype: torch.dtype, executes: bool, residual: int, *sizes: int) -> Form:
    slots, key_dim, steps, heads, least_used, hidden = sizes
    shape: dict[str, Any] = {"slots": slots, "key_dim": key_dim, "steps": steps, "heads": heads, "hidden": hidden}
    program = ProgramConfig(**shape, least_used=least_used, residual=_RESIDUALS[residual], sharpness=sharpness)
    return Form(True, program, dtype, bool(executes))


def _spread(values: list[Any], present: list[int]) -> ProgramTensors:
    """The values at these positions, None elsewhere."""
    found = dict(zip(present, values, strict=True))
    return ProgramTensors(*(found.get(place) for place in range(len(ProgramTensors._fields))))


def _with_empty(x: Tensor, tensors: Any) -> list[Tensor]:
    return [x.new_empty(0) if tensor is None else tensor for tensor in tensors]


def _outputs(form: Form) -> int:
    """How many of the results are the layer's outputs: y, or attention, sigma and scale."""
    return 1 if form.executes else 3


@torch.library.custom_op("neurocoder::run", mutates_args=())
def run(
    x: Tensor, tensors: list[Tensor], present: list[int], sharpness: float, dtype: torch.dtype, numbers: list[int]
) -> list[Tensor]:
    """The forward: returns the outputs, then what is kept for the backward, then the core's state."""
    form = _form(sharpness, dtype, *numbers)
    with on_device_of(x):
        outputs, kept, _, state = forward(form, x, _spread(tensors, present))
    kept = kept._replace(x=None, V=None, R=None)
    if not form.executes:  # scale, attention and sigma are then among the outputs
        kept, state = kept._replace(scale=None), state[2:]
    return _with_empty(x, (*outputs, *kept, *state))


@run.register_fake
def _(x: Tensor, tensors: list[Tensor], present: list[int], sharpness: float, dtype: Any, numbers: Any) -> list[Tensor]:
    given, form = _spread(tensors, present), _form(sharpness, dtype, *numbers)
    sizes, (count, inputs) = sizes_of(form.program, form.executes), x.shape

    def low(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=dtype)

    def full(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    width = sizes.logit + sizes.gate
    width += -width % 8 if x.is_cuda else 0
    kept: dict[str, Tensor] = {
        "readers": low(width, inputs),
        "projected": full(count, width),
        "keys": full(3, sizes.slots, sizes.key_dim),
        "signal": full(aligned(len(given.signal_weight)), aligned(sizes.hidden + 1)),
    }
    state = [full(*shape) for shape in state_shapes(count, sizes)]
    scale = full(count, 1) if sizes.gate else None
    if form.executes:
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
    made: list[Tensor],
    wants: list[bool],
    x: Tensor,
    tensors: list[Tensor],
    present: list[int],
    sharpness: float,
    dtype: torch.dtype,
    numbers: list[int],
) -> list[Tensor]:
    """The backward: gradients of x and of each parameter. `made` is what `run` returned, `wants` begins with x."""
    form = _form(sharpness, dtype, *numbers)
    given, first = _spread(tensors, present), _outputs(form)
    last = first + len(Kept._fields)
    kept = Kept(*(tensor if tensor.numel() or tensor.dim() > 1 else None for tensor in made[first:last]))
    kept = kept._replace(x=x.to(dtype), V=given.V.to(dtype), R=None if given.R is None else given.R.to(dtype))
    state = State(*(made[last:] if form.executes else [*made[:2], *made[last:]]))
    whole = given.composing(kept.projected.dtype)
    grad_x, found = backward(form, grads, kept, whole, state, wants[0], _spread(wants[1:], present))
    grads = _with_empty(x, [grad_x, *(found[place] for place in present)])
    # Cast to each parameter's dtype, as autograd would. An operator's results must not share storage.
    cast = [grad.to(like.dtype) for grad, like in zip(grads, [x, *tensors], strict=True)]
    parts = [grad for grad in cast if _is_part(grad)]
    copies = iter(torch._foreach_add(parts, 0.0) if parts else ())  # one launch for all
    return [next(copies).contiguous() if _is_part(grad) else grad for grad in cast]


def _is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a part of a larger storage, which others may share."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


@run_backward.register_fake
def _(grads: Any, made: Any, wants: list[bool], x: Tensor, tensors: list[Tensor], *settings: Any) -> list[Tensor]:
    alone = [ProgramTensors._fields[place] in ("R", "bias") for place in settings[0]]
    composition = any(wanted for wanted, own in zip(wants[1:], alone, strict=True) if not own)
    made_for = [wanted if own else composition for wanted, own in zip(wants[1:], alone, strict=True)]
    each = zip([wants[0], *made_for], [x, *tensors], strict=True)
    return _with_empty(x, [torch.empty_like(like) if found else None for found, like in each])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, tensors, *ctx.settings = inputs
    ctx.wants = [tensor.requires_grad for tensor in (x, *tensors)]
    ctx.save_for_backward(x, *tensors, *output)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    present, sharpness, dtype, numbers = ctx.settings
    first = 1 + len(present)
    (x, *tensors), made = ctx.saved_tensors[:first], list(ctx.saved_tensors[first:])
    outputs = zip(grads[: _outputs(_form(sharpness, dtype, *numbers))], made, strict=False)
    given = [torch.zeros_like(output) if grad is None else grad for grad, output in outputs]
    found = run_backward(given, made, ctx.wants, x, tensors, *ctx.settings)
    grad_x, *of_tensors = (grad if wanted else None for grad, wanted in zip(found, ctx.wants, strict=True))
    return grad_x, of_tensors, *[None] * len(ctx.settings)


run.register_autograd(_backward, setup_context=_setup)


def run_operator(form: Form, x: Tensor, tensors: ProgramTensors) -> list[Tensor | None]:
    """The layer's outputs, computed by the operator."""
    present = [place for place, tensor in enumerate(tensors) if tensor is not None]
    given = [tensor for tensor in tensors if tensor is not None]
    with torch.autocast(x.device.type, enabled=False):
        made = run(x, given, present, form.program.sharpness, form.dtype, _numbers(form))
    outputs: list[Tensor | None] = list(made[: _outputs(form)])
    if not form.executes and form.program.residual is not True:
        outputs[2] = None
    return outputs
