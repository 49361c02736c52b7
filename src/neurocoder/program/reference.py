"""The same equations, literal and slow: the oracle for the tests.

It reads like the paper: one input, one step, one head, one slot at a time, and it builds every weight. It shares no
code with the fast path, only the names of a layer's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as tnf

from .config import ProgramConfig

EPSILON = 1e-12
"""Added to the mean square of a control that is normalised."""


class Trace(NamedTuple):
    """Everything composed for one input.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=6, steps=2, heads=1))
        >>> trace = nc.reference.compose(dict(layer.named_parameters()), layer.config, torch.randn(8))
        >>> trace.weight.shape, trace.attention.shape
        (torch.Size([8, 4]), torch.Size([3, 2, 6]))
    """

    weight: Tensor
    """W_t (d_in, d_out)"""
    active: Tensor
    """P_t (d_in, d_out)"""
    sigma: Tensor
    """(r,)"""
    gate: Tensor | None
    """(1,)"""
    attention: Tensor
    """w for u, v, s (3, r, P)"""
    content: Tensor
    """c (3, r, P)"""
    least_used: Tensor
    """l (3, r, P)"""
    interpolation: Tensor
    """sigmoid(g) (3, r, P)"""


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """`a . b / (||a|| ||b||)`

    Example:
        >>> nc.reference.cosine(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
        tensor(1.)
    """
    return torch.dot(a, b) / (a.norm() * b.norm())


def lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor | None, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM for one input, gates in the order input, forget, cell, output.

    Example:
        >>> zero = torch.zeros(6)
        >>> h, c = nc.reference.lstm_cell(torch.randn(8), zero, zero, torch.randn(24, 8), None, torch.randn(24))
        >>> h.shape, c.shape
        (torch.Size([6]), torch.Size([6]))
    """
    gates = w_ih @ x + bias
    if w_hh is not None:
        gates = gates + w_hh @ h
    i, f, g, o = gates.view(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def least_used(usage: Tensor, count: int) -> Tensor:
    """`max(m) - m_i` for the `l_I` slots with the smallest usage, ties included, else 0.

    Example:
        >>> nc.reference.least_used(torch.tensor([0.5, 0.0, 0.2]), 2)
        tensor([0.0000, 0.5000, 0.3000])
    """
    threshold = usage.detach().sort().values[count - 1]
    values = [usage.amax() - m if m.detach() <= threshold else torch.zeros_like(m) for m in usage]
    return torch.stack(values)


def compose(parameters: Mapping[str, Tensor], program: ProgramConfig, z: Tensor) -> Trace:
    """The working program for one control `z (control_dim,)`.

    `parameters` are a program layer's, by name, with `R` in the plain layer's layout.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=6, steps=2, heads=1))
        >>> z = torch.randn(8)
        >>> trace = nc.reference.compose(dict(layer.named_parameters()), layer.config, z)
        >>> torch.allclose(trace.weight, layer.materialize(z), atol=1e-5)
        True
    """
    slots, heads, p = program.slots, program.heads, parameters
    memories = [p["memory.U"], p["memory.V"], p["memory.S"]]
    keys = [
        [p[f"memory.key_{kind}_weight"] @ slot + p[f"memory.key_{kind}_bias"] for slot in memory]
        for kind, memory in zip("uvs", memories, strict=True)
    ]
    w_ih, w_hh, bias = p["controller.input_weight"], p.get("controller.recurrent_weight"), p["controller.input_bias"]
    if program.normalise:
        z = z / torch.sqrt((z * z).mean() + EPSILON)
    h = z.new_zeros(program.hidden)
    cell = z.new_zeros(program.hidden)
    used: dict[tuple[int, int], list[Tensor]] = {}
    collected: dict[str, list[list[Tensor]]] = {name: [[], [], []] for name in ("w", "c", "l", "g")}
    for _ in range(program.steps):
        h, cell = lstm_cell(z, h, cell, w_ih, w_hh, bias)
        signal = p["controller.signal_weight"] @ h + p["controller.signal_bias"]
        queries = signal[: 3 * heads * program.key_dim].view(3, heads, program.key_dim)
        gates = signal[3 * heads * program.key_dim :].view(3, heads, slots)
        for kind in range(3):
            for head in range(heads):
                similarity = torch.stack([cosine(queries[kind, head], keys[kind][i]) for i in range(slots)])
                c = torch.softmax(program.sharpness * similarity, dim=0)
                earlier = used.setdefault((kind, head), [])
                m = z.new_zeros(slots)
                for position, w in enumerate(earlier):
                    m = w if position == 0 else torch.maximum(m, w)
                idle = least_used(m, program.least_used)
                g = torch.sigmoid(gates[kind, head])
                w = g * c + (1 - g) * idle
                earlier.append(w)
                for name, value in zip("wclg", (w, c, idle, g), strict=True):
                    collected[name][kind].append(value)
    w, c, idle, g = (torch.stack([torch.stack(rows) for rows in collected[name]]) for name in "wclg")

    r = program.components
    sigma: list[Tensor] = [z.new_zeros(())] * r
    for n in reversed(range(r)):
        step = tnf.softplus(sum((w[2, n, i] * memories[2][i, 0] for i in range(slots)), z.new_zeros(())))
        sigma[n] = step if n == r - 1 else sigma[n + 1] + step
    active = torch.zeros(memories[0].shape[1], memories[1].shape[1], dtype=z.dtype, device=z.device)
    for n in range(r):
        u = sum((w[0, n, i] * memories[0][i] for i in range(slots)), torch.zeros_like(memories[0][0]))
        v = sum((w[1, n, i] * memories[1][i] for i in range(slots)), torch.zeros_like(memories[1][0]))
        active = active + sigma[n] * torch.outer(u, v)

    weight, gate = active, None
    if program.residual is True:
        signal = p["controller.integration_weight"] @ z + p["controller.integration_bias"]
        gate = torch.sigmoid(signal)
        weight = active + gate * sigma[-1] * p["R"].flatten(1).T
    elif program.residual == "plain":
        weight = active + p["R"].flatten(1).T
    return Trace(weight, active, torch.stack(sigma), gate, w, c, idle, g)


def linear(
    parameters: Mapping[str, Tensor], program: ProgramConfig, x: Tensor, control: Tensor | None = None
) -> Tensor:
    """`y = x W_t + bias` for x (..., d_in), one input at a time.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=6, steps=2, heads=1))
        >>> x = torch.randn(3, 8)
        >>> torch.allclose(nc.reference.linear(dict(layer.named_parameters()), layer.config, x), layer(x), atol=1e-5)
        True
    """
    rows = x.reshape(-1, x.shape[-1])
    controls = rows if control is None else control.reshape(-1, control.shape[-1])
    outputs = [row @ compose(parameters, program, z).weight for row, z in zip(rows, controls, strict=True)]
    d_out = parameters["memory.V"].shape[1]
    y = torch.stack(outputs) if outputs else x.new_zeros(0, d_out)
    if "bias" in parameters:
        y = y + parameters["bias"]
    return y.reshape(*x.shape[:-1], d_out)


def conv(
    parameters: Mapping[str, Tensor],
    program: ProgramConfig,
    x: Tensor,
    kernel_size: tuple[int, ...],
    control: Tensor | None = None,
    **geometry: object,
) -> Tensor:
    """Each image of x (B, C_in, *size) convolved with its own kernel; `geometry` is stride, padding and dilation.

    Example:
        >>> layer = nc.Conv2d(3, 6, kernel_size=3, program=nc.ProgramConfig(slots=6, steps=2, heads=1))
        >>> x = torch.randn(2, 3, 8, 8)
        >>> y = nc.reference.conv(dict(layer.named_parameters()), layer.config, x, (3, 3))
        >>> torch.allclose(y, layer(x), atol=1e-4)
        True
    """
    controls = x.flatten(2).mean(-1) if control is None else control
    convolve: Any = tnf.conv1d if len(kernel_size) == 1 else tnf.conv2d
    outputs = []
    for image, z in zip(x, controls, strict=True):
        weight = compose(parameters, program, z).weight
        kernel = weight.T.reshape(weight.shape[1], x.shape[1], *kernel_size)
        outputs.append(convolve(image.unsqueeze(0), kernel, parameters.get("bias"), **geometry))
    return torch.cat(outputs)
