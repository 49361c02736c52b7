"""The programs of a bounded linear layer with a backward by hand: half the operations of autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .functional import EPSILON


class BoundedPrograms(torch.autograd.Function):
    """`V_s^T (a + d^)`: x (N, d_in) -> (N, d_out), as `functional` has it, for full tables in one dtype."""

    @staticmethod
    def forward(ctx: Any, same: Callable[[Tensor], Tensor], s: float, q: Tensor, *inputs: Tensor) -> Tensor:
        """The result for some inputs.

        Args:
            ctx: of autograd.
            same: the same function of x under autograd, for second derivatives.
            s: the factor on V, a number.
            q: `(rho |R|)^-2`, a constant ().
            inputs: x, U, V, C_k, and A and b of the reader.
        """
        x, U, V, cores, A, b = inputs
        K, P = A.shape
        size = torch.linalg.vector_norm(U, dim=1).clamp_min_(EPSILON)
        a = linear(x, U).div_(size)
        r = a.square().mean(-1, keepdim=True).add_(EPSILON).rsqrt_()  # n(a) = r a
        n = r * a
        h = linear(n, A, b).tanh_()
        each = linear(a, cores.view(K * P, P)).view(-1, K, P)
        d = torch.bmm(h.unsqueeze(1), each).squeeze(1)
        bound = d.square().mean(-1, keepdim=True).mul_(r.square()).add_(1).rsqrt_()
        e = torch.addcmul(a, bound, d)
        t = torch.rsqrt(1 / s**2 + V.square().sum() * q)
        ctx.same = same
        ctx.save_for_backward(x, U, V, cores, A, b, size, a, r, n, h, each, d, bound, e, t, q)
        return e @ (t * V)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Names as in `forward`; `g_` is the gradient of what follows."""
        x, U, V, cores, A, b, size, a, r, n, h, each, d, bound, e, t, q = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            wanted, inputs = ctx.needs_input_grad[3:], (x, U, V, cores, A, b)
            leaves = [leaf for leaf, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
            found = iter(torch.autograd.grad(ctx.same(x), leaves, grad, create_graph=True))
            return None, None, None, *(next(found) if is_wanted else None for is_wanted in wanted)
        K, P = A.shape
        g_tV = e.mT @ grad
        g_V = t * g_tV - (t**3 * q * (g_tV * V).sum()) * V
        g_e = grad @ (t * V).mT
        g_bound = (g_e * d).sum(-1, keepdim=True)
        g_d = torch.addcmul(bound * g_e, g_bound * bound**3 * r.square(), d, value=-1 / P)
        g_each = (h.unsqueeze(2) * g_d.unsqueeze(1)).view(-1, K * P)
        g_h = torch.bmm(each, g_d.unsqueeze(2)).squeeze(2)
        g_h -= g_h * h.square()  # of what the tanh reads
        g_n = g_h @ A
        g_r = g_bound * (bound - bound**3) - (g_n * n).sum(-1, keepdim=True)  # over r
        g_a = torch.addmm(g_e, g_each, cores.view(K * P, P)).addcmul_(r, g_n)
        g_a.addcmul_(g_r * r.square(), a, value=1 / P).div_(size)  # of x U
        g_U = g_a.mT @ x
        g_U = torch.addcmul(g_U, (g_U * U).sum(1, keepdim=True) / size.square().unsqueeze(1), U, value=-1)
        g_x = g_a @ U if ctx.needs_input_grad[3] else None
        return None, None, None, g_x, g_U, g_V, (g_each.mT @ a).view_as(cores), g_h.mT @ n, g_h.sum(0)
