"""The equations of Neurocoder as stateless functions, one each.

Shapes: `P` slots, `K` key size, `J` steps, `H` heads, `r = J * H` components, `N` inputs. The leading 3 is the kind of
singular program, in the order u, v, s. `...` stands for any leading dimensions. Nothing here builds a weight per input
except `active_program`, which is for inspection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops.torch_private import is_exporting as _is_exporting

_EPS = 1e-12
_SHORT_ROW = 64
"""Up to this many slots, compiled code compares each usage with all others."""


def _generated() -> bool:
    """Whether the compiler generates loops for these operations: many simple ones then beat one library call."""
    return torch.compiler.is_compiling() and not _is_exporting()


def unit(vectors: Tensor) -> Tensor:
    """`v / ||v||` over the last dimension (a zero vector stays zero).

    Example:
        >>> nc.functional.unit(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """
    return F.normalize(vectors, dim=-1, eps=_EPS)


def composition_states(signal: Tensor, recurrent: Tensor | None, steps: int) -> Tensor:
    """The hidden states `h_1 .. h_J` of the composition network `f_theta`, an LSTM whose input stays the same.

    Args:
        signal: `x W_ih + b`, computed once, gates in the order input, forget, cell, output (N, 4 * hidden).
        recurrent: `W_hh` (4 * hidden, hidden); not needed for one step, since `h_0 = 0`.
        steps: J.

    Returns:
        (N, J, hidden)

    Example:
        >>> nc.functional.composition_states(torch.randn(32, 4 * 6), torch.randn(4 * 6, 6), steps=3).shape
        torch.Size([32, 3, 6])
    """
    i, _, g, o = signal.chunk(4, dim=-1)
    cell = torch.sigmoid(i) * torch.tanh(g)
    states = [torch.sigmoid(o) * torch.tanh(cell)]
    product = _product if _generated() else F.linear
    for _ in range(1, steps):
        assert recurrent is not None, "more than one step needs the recurrent weight"
        i, f, g, o = (signal + product(states[-1], recurrent)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        states.append(torch.sigmoid(o) * torch.tanh(cell))
    return torch.stack(states, dim=-2)


def _product(state: Tensor, weight: Tensor) -> Tensor:
    """`h W^T` in generated code: for a single input a loop, which is faster than a library call."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import, as only compilers do

    single = statically_known_true(len(state) == 1)
    return (state.unsqueeze(-2) * weight).sum(dim=-1) if single else F.linear(state, weight)


def content_attention(queries: Tensor, keys: Tensor, sharpness: float = 1.0) -> Tensor:
    """`c = softmax_i(beta * cos(q, k_i))`, attention to programs by key.

    Args:
        queries: q (3, N, J, H, K).
        keys: k (3, P, K).
        sharpness: beta.

    Returns:
        (3, N, J, H, P); each row sums to one

    Example:
        >>> queries, keys = torch.randn(3, 32, 2, 4, 5), torch.randn(3, 10, 5)
        >>> nc.functional.content_attention(queries, keys).shape
        torch.Size([3, 32, 2, 4, 10])
    """
    cosine = torch.bmm(unit(queries).flatten(1, -2), unit(keys).mT)
    return torch.softmax(sharpness * cosine, dim=-1).unflatten(1, queries.shape[1:-1])


def least_used_attention(usage: Tensor, least_used: int) -> Tensor:
    """`l_i = max_i(m) - m_i` if `m_i` is among the `l_I` smallest usages (all ties count), else 0.

    Gradients flow through the values; the choice of slots is a constant.

    Args:
        usage: m (..., P).
        least_used: l_I.

    Returns:
        (..., P)

    Example:
        >>> nc.functional.least_used_attention(torch.tensor([0.5, 0.0, 0.2]), 2)
        tensor([0.0000, 0.5000, 0.3000])
    """
    idle = usage.amax(dim=-1, keepdim=True) - usage
    if least_used == usage.shape[-1]:
        return idle
    return idle * _among_smallest(usage.detach(), least_used)


def _among_smallest(usage: Tensor, count: int) -> Tensor:
    """Whether each number is at most the `count`-th smallest of its row (..., P).

    In compiled code, all P * P pairs of a short row are compared: that fuses with the loops around it, while `topk`
    splits them and processes rows one by one.
    """
    if _generated() and usage.shape[-1] <= _SHORT_ROW:
        return (usage.unsqueeze(-1) > usage.unsqueeze(-2)).float().sum(dim=-1) < count
    return usage <= usage.topk(count, dim=-1, largest=False, sorted=True).values[..., -1:]


def program_attention(content: Tensor, interpolation: Tensor, least_used: int) -> tuple[Tensor, Tensor]:
    """`w_j = g_j c_j + (1 - g_j) l_j`, with usage `m_j = max(w_1 .. w_{j-1})` of the same head, `m_1 = 0`.

    Args:
        content: c (..., J, H, P).
        interpolation: g, after the sigmoid (..., J, H, P).
        least_used: l_I.

    Returns:
        w and l, both (..., J, H, P).

    Example:
        >>> content = torch.tensor([[[0.75, 0.25]], [[0.75, 0.25]]])  # two steps, one head, two slots
        >>> w, idle = nc.functional.program_attention(content, torch.full((2, 1, 2), 0.5), least_used=1)
        >>> idle[1]  # the second step looks at the slot that the first one used least
        tensor([[0.0000, 0.2500]])
    """
    share = interpolation * content
    if content.shape[-3] == 1:
        return share, torch.zeros_like(share)
    first = share.select(-3, 0)
    attention, idle, usage = [first], [torch.zeros_like(first)], first
    for j in range(1, content.shape[-3]):
        if j > 1:
            usage = torch.maximum(usage, attention[-1])
        idle.append(least_used_attention(usage, least_used))
        attention.append(share.select(-3, j) + (1 - interpolation.select(-3, j)) * idle[-1])
    return torch.stack(attention, dim=-3), torch.stack(idle, dim=-3)


def singular_values(attention: Tensor, slots: Tensor) -> Tensor:
    """`sigma_n = sigma_{n+1} + softplus(sum_i w_in M_S(i))`, so that `sigma_1 > ... > sigma_r > 0`.

    Args:
        attention: w^s (..., r, P).
        slots: M_S (P, 1).

    Returns:
        (..., r)

    Example:
        >>> sigma = nc.functional.singular_values(torch.rand(32, 6, 10), torch.randn(10, 1))
        >>> bool((sigma.diff() < 0).all())
        True
    """
    if not _generated():
        return F.softplus(torch.matmul(attention, slots)).squeeze(-1).flip(-1).cumsum(-1).flip(-1)
    steps = F.softplus((attention * slots.mT).sum(dim=-1))
    later = torch.ones(steps.shape[-1:] * 2, device=steps.device, dtype=steps.dtype).triu()
    return (steps.unsqueeze(-2) * later).sum(dim=-1)  # products and sums fuse with the loops around them


def execute(read: Tensor, u: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
    """The active program applied to inputs, without building it: `e_i = sum_n sigma_n (sum_k w^u_kn a_k) w^v_in`.

    With `a = x M_U^T` the result is the coefficient of each right singular program: `x P_t = e M_V`.

    Args:
        read: a, for T inputs that share one program (..., T, P).
        u: w^u (..., r, P).
        v: w^v (..., r, P).
        sigma: (..., r).

    Returns:
        e (..., T, P)

    Example:
        >>> x, left, right = torch.randn(7, 8), torch.randn(10, 8), torch.randn(10, 4)  # 7 inputs, one program
        >>> u, v, sigma = torch.rand(6, 10), torch.rand(6, 10), torch.rand(6)
        >>> y = nc.functional.execute(x @ left.T, u, v, sigma) @ right
        >>> torch.allclose(y, x @ nc.functional.active_program(u, v, sigma, left, right), rtol=1e-4, atol=1e-4)
        True
    """
    strength = torch.matmul(read, u.mT) * sigma.unsqueeze(-2)
    return torch.matmul(strength, v)


def active_program(u: Tensor, v: Tensor, sigma: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`P_t = sum_n sigma_n u_n v_n^T` itself, with `u_n = sum_i w^u_in M_U(i)` and `v_n` likewise. For inspection.

    Args:
        u, v: w^u, w^v (..., r, P).
        sigma: (..., r).
        left, right: M_U (P, d_in) and M_V (P, d_out).

    Returns:
        (..., d_in, d_out)

    Example:
        >>> u, v, sigma = torch.rand(6, 10), torch.rand(6, 10), torch.rand(6)
        >>> nc.functional.active_program(u, v, sigma, torch.randn(10, 8), torch.randn(10, 4)).shape
        torch.Size([8, 4])
    """
    return torch.matmul((sigma.unsqueeze(-1) * torch.matmul(u, left)).mT, torch.matmul(v, right))


def orthogonal_loss(left: Tensor, right: Tensor) -> Tensor:
    """`L_o = ||M_U M_U^T - I|| + ||M_V M_V^T - I||`, Frobenius norms.

    For `P > d` the slots cannot be orthonormal: the norm cannot fall below `sqrt(P - d)`.

    Args:
        left, right: M_U (P, d_in) and M_V (P, d_out).

    Returns:
        a scalar

    Example:
        >>> nc.functional.orthogonal_loss(torch.eye(3), 2 * torch.eye(4))
        tensor(6.)
    """

    def distance(slots: Tensor) -> Tensor:
        gram = slots @ slots.mT
        return torch.linalg.matrix_norm(gram - torch.eye(len(slots), device=gram.device, dtype=gram.dtype))

    return distance(left) + distance(right)
