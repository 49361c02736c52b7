"""The growing layer's equations, literal and slow: the oracle for the tests.

One input and one slot at a time; every weight is built. It shares no code with the layer, only the names of its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as tnf

from .config import GrowingConfig

State = Mapping[str, Tensor]
"""A growing layer's `state_dict`, or its parameters and buffers by name."""

__all__ = ["attention", "control_of", "conv", "cosine", "linear", "settle", "weight"]


def cosine(key: Tensor, z: Tensor) -> float:
    """`k . z / (||k|| ||z||)`; 0 if z is zero"""
    length = float(key.norm() * z.norm())
    return float(torch.dot(key, z)) / length if length else 0.0


def attention(state: State, config: GrowingConfig, z: Tensor) -> Tensor:
    """w (P,): the softmax of beta cos(k_i, z) over the top_k written slots, elsewhere 0."""
    keys = state["memory.keys"]
    w = z.new_zeros(len(keys))
    nearest = sorted(range(int(state["memory.written"])), key=lambda i: -cosine(keys[i], z))[: config.top_k]
    powers = [torch.exp(z.new_tensor(config.sharpness * (cosine(keys[i], z) - 1))) for i in nearest]
    for i, power in zip(nearest, powers, strict=True):
        w[i] = power / sum(powers)
    return w


def weight(state: State, config: GrowingConfig, z: Tensor) -> Tensor:
    """`W_t = sum_r (sum_i w_i U_ir)^T (sum_i w_i V_ir) [+ R^T]` (d_in, d_out) for the control z (d_z,)."""
    U, V, w = state["memory.U"], state["memory.V"], attention(state, config, z)
    total = U.new_zeros(U.shape[2], V.shape[2])
    for r in range(config.rank):
        u = sum((w[i] * U[i, r] for i in range(len(U))), torch.zeros_like(U[0, r]))
        v = sum((w[i] * V[i, r] for i in range(len(V))), torch.zeros_like(V[0, r]))
        total = total + torch.outer(u, v)
    return total + state["R"].flatten(1).T if "R" in state else total


def control_of(x: Tensor) -> Tensor:
    """The control that an input (d,) is to itself: minus its mean."""
    return (x - x.sum() / len(x)).detach()


def linear(state: State, config: GrowingConfig, x: Tensor, control: Tensor | None = None) -> Tensor:
    """`y = x W_t + bias` for inputs x (N, d_in), with controls (N, d_z) or their own."""
    outputs = []
    for n, row in enumerate(x):
        z = control_of(row) if control is None else control[n]
        y = row @ weight(state, config, z)
        outputs.append(y + state["bias"] if "bias" in state else y)
    return torch.stack(outputs)


def conv(
    state: State,
    config: GrowingConfig,
    x: Tensor,
    kernel_size: tuple[int, ...],
    control: Tensor | None = None,
    **geometry: object,
) -> Tensor:
    """Each image of x (B, C_in, *size) with its own kernel; `geometry` is stride, padding and dilation."""
    convolve: Any = tnf.conv1d if len(kernel_size) == 1 else tnf.conv2d
    outputs = []
    for n, image in enumerate(x):
        z = control_of(image.flatten(1).mean(1)) if control is None else control[n]
        built = weight(state, config, z)
        kernel = built.T.reshape(built.shape[1], x.shape[1], *kernel_size)
        outputs.append(convolve(image.unsqueeze(0), kernel, state.get("bias"), **geometry))
    return torch.cat(outputs)


def settle(before: State, after: State, config: GrowingConfig, controls: Sequence[Tensor]) -> dict[str, Tensor]:
    """What a step leaves: consolidated slots, more visits, perhaps new keys.

    Args:
        before: the state before the optimiser's step.
        after: the state that the optimiser left.
        controls: z (d_z,) of every input since the step before.
    """
    state = {name: tensor.clone() for name, tensor in after.items()}
    keys, written = state["memory.keys"], int(before["memory.written"])
    use = torch.zeros_like(state["memory.visits"])
    for z in controls:
        use += attention(before, config, z)
    by_step = config.count == "steps"
    state["memory.visits"] += use.clamp(max=1.0) if by_step else use
    for i in range(len(keys)):
        scale = 0.0
        if i < written and not (by_step and float(use[i]) < 0.001):
            c = config.consolidation
            scale = 1.0 if c is None else 1 / (1 + float(state["memory.visits"][i]) / c)
        for bank in ("memory.U", "memory.V"):
            state[bank][i] = before[bank][i] + scale * (after[bank][i] - before[bank][i])
    best = [max([cosine(keys[i], z) for i in range(written)], default=-1.0) for z in controls]
    now, fresh = int(before["memory.steps"]), list[int]()
    for n in sorted(range(len(controls)), key=lambda n: best[n])[: config.writes]:
        z = controls[n]
        near = max([best[n], *(cosine(keys[i], z) for i in fresh)])
        if float(z.norm()) == 0 or near >= config.max_similarity:
            continue
        if written < len(keys):
            i, written = written, written + 1
        else:
            b, visits = config.reuse_below, state["memory.visits"].tolist()
            young = [i for i in range(len(keys)) if visits[i] < b and now - int(state["memory.born"][i]) >= b]
            if len(keys) < config.limit or not young:
                continue
            i = min(young, key=lambda i: visits[i])
            state["memory.visits"][i] = 0
            state["memory.V"][i] = 0
        keys[i] = z / z.norm()
        state["memory.born"][i] = now
        fresh.append(i)
    state["memory.written"].fill_(written)
    state["memory.steps"] += 1
    return state
