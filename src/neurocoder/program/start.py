"""Starting values, and why.

An average of P orthonormal rows has norm `1 / sqrt(P)`: with orthonormal slots and near-uniform attention, a layer
would start at a hundredth of `nn.Linear`'s output variance and lose epochs. The equations stay literal and the slots
start (semi-)orthonormal, where the orthogonal loss wants them; the other starting values compensate:

- without a residual, the mean of `M_S` is chosen so that the outputs for probe inputs have `nn.Linear`'s variance;
- with a residual, the weights that produce queries and gates start at zero, so every input has the same active program,
  and `R` absorbs it. The layer starts exactly as the plain layer that it replaces, and its programs get gradients from
  the first step on. `M_S` is modest, so `gate * sigma_r` is near one: a large sigma would act like a larger learning
  rate on slots and controller.

`ProgramConfig.start` holds the values that are a choice. Everything is computed in float32 on the CPU, so a seed gives
the same layer on any device and in any dtype.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ..layer.start import full_precision
from . import functional as F
from .config import ProgramConfig
from .controller import ProgramController
from .memory import ProgramMemory

_POOLED_SCALE = 0.1
"""Scale of a globally pooled image of unit variance, for convolution probes."""
_PROBES = 256


def start(
    d_in: int, d_out: int, control_dim: int, program: ProgramConfig, pooled_control: bool
) -> tuple[ProgramMemory, ProgramController]:
    """A memory and a controller with their starting values."""
    memory = ProgramMemory(d_in, d_out, program, device="cpu", dtype=torch.float32)
    controller = ProgramController(control_dim, program, device="cpu", dtype=torch.float32)
    options = program.start
    nn.init.zeros_(controller.input_bias)
    controller.input_weight.mul_(options.input_scale)
    controller.signal_weight.mul_(options.signal_scale)
    nn.init.constant_(controller.signal_bias[3 * program.heads * program.key_dim :], options.gate_bias)
    noise = options.spread * torch.randn(program.slots, 1, device="cpu", dtype=torch.float32)
    if program.residual:
        nn.init.zeros_(controller.signal_weight)
        if controller.integration_weight is not None and controller.integration_bias is not None:
            nn.init.zeros_(controller.integration_weight)
            nn.init.constant_(controller.integration_bias, options.residual_gate_bias)
        _set_modest_values(memory, controller, noise)
    else:
        _match_variance(memory, controller, noise, _POOLED_SCALE if pooled_control else 1.0)
    return memory, controller


def constant_program(memory: ProgramMemory, controller: ProgramController) -> tuple[Tensor, Tensor]:
    """`P_t (d_in, d_out)` and the residual's factor, for a controller whose programs are the same for every input.

    Computed in at least float32, on the slots' device.
    """
    dtype = torch.promote_types(memory.U.dtype, torch.float32)
    with full_precision(memory.U.device):
        memory, controller = copy.deepcopy(memory).to(dtype), copy.deepcopy(controller).to(dtype)
        control = memory.U.new_zeros(1, controller.control_dim)
        u, v, s = controller.attend(control, memory.keys()).weight.flatten(2, 3)
        sigma = F.singular_values(s, memory.S)
        gate = controller.residual_gate(control)
        scale = torch.ones_like(sigma[0, -1]) if gate is None else (gate * sigma[:, -1:]).squeeze()
        return F.active_program(u, v, sigma, memory.U, memory.V)[0], scale


def _set_values(memory: ProgramMemory, mean: float, noise: Tensor) -> None:
    """`M_S` around a mean; `noise` is relative to it."""
    memory.S.copy_(mean + max(1.0, abs(mean)) * noise)


def _set_modest_values(memory: ProgramMemory, controller: ProgramController, noise: Tensor) -> None:
    """Choose `M_S` so that `gate * sigma_r` is near one; `R` makes up the difference."""
    control = torch.zeros(1, controller.control_dim, device="cpu", dtype=torch.float32)
    gate = controller.residual_gate(control)
    wanted = 1.0 if gate is None else 1.0 / float(gate)
    before_softplus = math.log(math.expm1(wanted))
    mean = 1.0
    for _ in range(3):  # the attention to M_S depends slightly on its values
        _set_values(memory, mean, noise)
        attention = controller.attend(control, memory.keys()).weight[2, 0, -1, -1]
        mean = before_softplus / float(attention.sum())
    _set_values(memory, mean, noise)


def _match_variance(memory: ProgramMemory, controller: ProgramController, noise: Tensor, control_scale: float) -> None:
    """Choose `M_S` so that the outputs for probe inputs of unit variance have a plain layer's variance.

    Only the attention to `M_S` and sigma depend on the choice, so the rest is computed once.
    """
    program = controller.program
    x = torch.randn(_PROBES, memory.U.shape[1], device="cpu", dtype=torch.float32)
    control_dim = controller.control_dim
    own_input = control_dim == memory.U.shape[1] and control_scale == 1.0
    control = x if own_input else control_scale * torch.randn(_PROBES, control_dim, device="cpu", dtype=torch.float32)
    queries, interpolation = (tensor[2:] for tensor in controller.queries_and_gates(control))
    u, v, _ = controller.attend(control, memory.keys()).weight.flatten(2, 3)
    strength = (u @ (x @ memory.U.mT).unsqueeze(-1)).squeeze(-1)
    right = v @ memory.V

    def variance(mean: float) -> float:
        _set_values(memory, mean, noise)
        content = F.content_attention(queries, memory.keys()[2:], program.sharpness)
        attention, _ = F.program_attention(content, interpolation, program.least_used)
        sigma = F.singular_values(attention[0].flatten(1, 2), memory.S)
        outputs = torch.matmul((strength * sigma).unsqueeze(1), right)
        return float(outputs.square().mean())

    low, high = -12.0, 16.0  # the mean is sinh of this: from -8e4 to 4e6, finer near zero
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(math.sinh(middle)) < program.start.variance else (low, middle)
    _set_values(memory, math.sinh((low + high) / 2), noise)
