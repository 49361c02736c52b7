"""Which implementation serves a call of a program layer: chosen once, in `choose`, and carried out by `compose`.

`compose` returns the active program, factored, of each row that a controller reads; a geometry executes it. Where the
inputs of a linear layer steer themselves and a kernel serves it, `run` does both at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..layer.active import ActiveProgram
from ..ops.backend import HAS_TRITON, Implementation, chosen, is_traced
from ..ops.launch import power_of_two
from ..ops.torch_private import has_global_hooks, is_transformed
from . import functional as F
from . import reference
from .config import ProgramConfig
from .kernels.autograd import ProgramFunction, eager_forward
from .tensors import CallSpec, ProgramTensors

if TYPE_CHECKING:
    from .layer import ProgramLayer
    from .memory import Slots

MAX_SLOTS, MAX_KEY, MAX_HIDDEN, MAX_MIX = 256, 16, 64, 16384
_LIMITS = f"at most {MAX_SLOTS} slots, keys of {MAX_KEY}, {MAX_HIDDEN} hidden, and slots * components of {MAX_MIX}"
MAX_ORTHOGONAL = 64, 8192
"""Limits of the orthogonal loss kernel: slots, whose Gram matrix must fit in the 99 KB that the smallest GPUs have on
chip, and their width, since the work grows as its square."""


def choose(layer: ProgramLayer, rows: Tensor, fused: bool = False) -> CallSpec:
    """The one place that decides how a call runs, for rows (N, control width) that the controller reads; `fused` if a
    kernel may also execute what it composes, as where each input steers itself.

    "torch", which calls the modules, serves what a user changed, what `torch.func` transforms, mixed dtypes, and
    compiled code on a CPU.
    """
    name, program, parameter = chosen(), layer.config, layer.memory.U
    if name == "torch" or layer.is_customised() or has_global_hooks():
        return CallSpec("torch", program)
    if name == "auto":
        name = _fastest(program, parameter)
    elif name == "triton":
        _require_triton(program, parameter)
    if name in ("torch", "reference"):
        return CallSpec(name, program)
    dtype = rows.dtype
    if torch.is_autocast_enabled(rows.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(rows.device.type)
    elif dtype != parameter.dtype:
        raise ValueError(
            f"{'x' if layer.control_dim is None else 'control'} must be {parameter.dtype}, as the slots of "
            f"{layer.name or 'this layer'} are, got {dtype}: cast it, or run the layer under torch.autocast"
        )
    traced = is_traced()
    if (traced and name == "cpu") or rows.is_meta or is_transformed():
        return CallSpec("torch", program)
    return CallSpec("operator" if traced else name, program, dtype, fused, torch.is_grad_enabled())


def _fastest(program: ProgramConfig, parameter: Tensor) -> Implementation:
    """What "auto" means for parameters like this."""
    if parameter.device.type == "cpu":
        return "cpu"
    kernels = HAS_TRITON and parameter.is_cuda and parameter.dtype != torch.float64 and supports(program)
    return "triton" if kernels else "torch"


def supports(program: ProgramConfig) -> bool:
    """Whether the Triton kernels support this configuration: beyond these sizes, a block's state spills registers."""
    small = program.slots <= MAX_SLOTS and program.key_dim <= MAX_KEY and program.hidden <= MAX_HIDDEN
    return small and power_of_two(program.components) * power_of_two(program.slots) <= MAX_MIX


def _require_triton(program: ProgramConfig, parameter: Tensor) -> None:
    if not supports(program):
        raise ValueError(f"backend 'triton' takes {_LIMITS}, got {program}")
    if parameter.dtype == torch.float64:
        raise ValueError("backend 'triton' takes float32 and narrower types, got a layer in float64")


def fuses_orthogonality(left: Tensor, right: Tensor) -> bool:
    """Whether the Triton kernels compute the orthogonal loss of M_U (P, d_in) and M_V (P, d_out)."""
    name = chosen()
    if name not in ("auto", "triton") or not HAS_TRITON or torch.compiler.is_compiling():
        return False
    slots, width = MAX_ORTHOGONAL
    small = len(left) <= slots and max(left.shape[1], right.shape[1]) <= width
    return small and left.dtype != torch.float64 and not is_transformed() and (left.is_cuda or name == "triton")


def compose(spec: CallSpec, layer: ProgramLayer, rows: Tensor) -> ActiveProgram:
    """The active programs of rows (N, control width), for a geometry to execute."""
    if spec.implementation in ("torch", "reference"):
        slots = layer.memory()
        u, v, sigma, gate = (_literal if spec.implementation == "reference" else _by_modules)(layer, rows, slots)
        scale = None if gate is None else sigma[:, -1:] * gate
    else:
        attention, sigma, scale = run(spec, layer, rows)
        slots, (u, v, _) = layer.memory, attention.to(spec.dtype)
        sigma, scale = sigma.to(spec.dtype), None if scale is None else scale.to(spec.dtype)
    return ActiveProgram(slots.U, slots.V, partial(F.execute, u=u, v=v, sigma=sigma), scale)


def _by_modules(layer: ProgramLayer, rows: Tensor, slots: Slots) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Attention u, v (N, r, P), sigma (N, r) and the gate (N, 1), by the layer's modules under autograd."""
    attention, gate = layer.controller(rows, slots.keys)
    u, v, s = attention.weight.flatten(2, 3)
    return u, v, F.singular_values(s, slots.S), gate


def _literal(layer: ProgramLayer, rows: Tensor, slots: Slots) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The same by the equations as the paper prints them, row by row."""
    if not len(rows):
        return _by_modules(layer, rows, slots)
    parameters = dict(layer.named_parameters())
    traces = [reference.compose(parameters, layer.config, z) for z in rows]
    u, v, _ = torch.stack([trace.attention for trace in traces], dim=1)
    gates = [trace.gate for trace in traces if trace.gate is not None]
    return u, v, torch.stack([trace.sigma for trace in traces]), torch.stack(gates) if gates else None


def run(spec: CallSpec, layer: ProgramLayer, rows: Tensor) -> Any:
    """The hand-written layer: `y = x W_t + bias` (N, d_out) for inputs (N, d_in) that steer themselves if it is fused,
    else attention, sigma and scale. As an operator while traced, as an autograd function if a backward may follow."""
    tensors, rows = layer.tensors(spec.fused), rows.contiguous()
    if spec.implementation != "cpu":  # a Triton kernel reads rows from first to last
        tensors = ProgramTensors(*[None if tensor is None else tensor.contiguous() for tensor in tensors])
        if spec.implementation == "operator":
            from .kernels.operator import run_operator  # needs Triton

            return run_operator(spec, rows, tensors)
    if spec.needs_backward:
        return ProgramFunction.apply(spec, rows, *tensors)
    outputs, *_ = eager_forward(spec, rows, tensors)
    return outputs[0] if spec.fused else outputs
