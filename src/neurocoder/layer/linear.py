"""The geometry of a linear layer, shared by the coded layers that replace `nn.Linear`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..ops.backend import is_traced
from .active import ActiveProgram
from .base import CodedLayer
from .checks import require_floating, require_whole
from .config import Config


def scaled(x: Tensor, R: Tensor, bias: Tensor | None, g: Tensor) -> Tensor:
    """`g R x + bias`: x (..., d_in) and g (..., 1) -> (..., d_out). Of x and R x, the narrower is multiplied."""
    if R.shape[1] <= R.shape[0]:
        return linear((g * x).to(x.dtype), R, bias)
    y = linear(x, R)
    y = (g * y).to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype)


def joins(x: Tensor, R: Tensor, slots: int) -> bool:
    """Whether `joined` serves x: compiled on a GPU, where R trains too (else its gradient would be computed in vain).

    Six GPT blocks of 768 on an H200, bfloat16, steered: 9.8 ms for 10.4 apart, plain 8.5. A square layer gains nothing:
    with P more features its products fill the tiles of a GPU badly. Rows must stay aligned to 16 bytes.
    """
    if not is_traced() or x.device.type != "cuda":
        return False
    narrow, wide = sorted(R.shape)
    trains = R.requires_grad or not torch.is_grad_enabled()
    return trains and slots > 0 and wide >= 2 * narrow and (narrow + slots) % 8 == 0


def joined(
    x: Tensor,
    R: Tensor,
    bias: Tensor | None,
    U: Tensor,
    V: Tensor,
    coefficients: Callable[[Tensor], Tensor],
    g: Tensor | None = None,
) -> Tensor:
    """`g R x + V^T e + bias`, with e the coefficients of `a = U x`, in two large products instead of three.

    The slots join R on the wider side of the layer, so that its tensors are read and written once:

        d_in <= d_out:  y = [R, V^T] [g x; e] + bias          else  [r; a] = [R; U] x,  y = g r + V^T e + bias

    Args:
        x: (..., d_in).
        R: (d_out, d_in).
        bias: (d_out,), or None.
        U: (P, d_in).
        V: (P, d_out).
        coefficients: what x reads of U -> what it writes of V, (..., P) -> (..., P).
        g: (..., 1), or None: 1.

    Returns:
        (..., d_out)
    """
    kind, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(kind):  # narrow before they are copied
        dtype = torch.get_autocast_dtype(kind)
    if R.shape[1] <= R.shape[0]:
        inputs = torch.cat([(x if g is None else g * x).to(dtype), coefficients(linear(x, U)).to(dtype)], -1)
        return linear(inputs, torch.cat([R.to(dtype), V.mT.to(dtype)], 1), bias)
    r, a = linear(x, torch.cat([R.to(dtype), U.to(dtype)])).split([len(R), len(U)], -1)
    y = linear(coefficients(a), V.mT, bias)
    return y + (r if g is None else (g * r).to(r.dtype))


class Options(TypedDict, total=False):
    """Arguments of every layer besides its sizes, its bias and its configuration."""

    control_dim: int | None
    """Width of another tensor that steers the layer, `layer(x, control=z)`; None: its own input does."""
    device: torch.device | str | None
    dtype: torch.dtype | None


class CodedLinear(CodedLayer):
    """Maps (..., in_features) to (..., out_features); built as `cls(in_features, out_features, bias, config, ...)`.

    Example:
        >>> isinstance(nc.Linear(8, 4), nc.CodedLinear), isinstance(nc.MixtureLinear(8, 4), nc.CodedLinear)
        (True, True)
    """

    plain_type, required = nn.Linear, ("in_features", "out_features")
    in_features: int
    out_features: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        config: Config | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.in_features = require_whole(f"{type(self).__name__}: in_features", in_features)
        self.out_features = require_whole(f"{type(self).__name__}: out_features", out_features)
        super().__init__(config, (self.out_features, self.in_features), control_dim, bias=bias, dtype=dtype)
        self.create(bias, device, dtype)

    @staticmethod
    def arguments(layer: Any) -> tuple[Any, ...]:
        """The arguments of `nn.Linear`."""
        return layer.in_features, layer.out_features, layer.bias is not None

    def rows(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        """What the controller reads, flattened (N, control width), and its leading dimensions."""
        name = type(self).__name__
        require_floating(f"{name}: x", x)
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"{name}: x must have shape (..., {self.in_features}), got {tuple(x.shape)}")
        if control is None:
            return x.reshape(-1, self.in_features), x.shape[:-1]
        self.match_control(control, x.shape[:-1])
        return control.reshape(-1, control.shape[-1]), control.shape[:-1]

    def grouped(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        """The inputs as (N, T, in_features): T inputs share the weight of one row; T is 1 without a control."""
        return x.reshape(rows.shape[0], math.prod(x.shape[len(leading) : -1]), self.in_features)

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`y = g R x + V^T M U x + bias`.

        Args:
            x: (..., in_features).
            control: z (..., control_dim); its leading dimensions are the first of x's, so one program can serve a whole
                sequence.

        Returns:
            (..., out_features)
        """
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        self.record_programs(x, control)
        y = self.outputs(x, rows, leading)
        shape = (*x.shape[:-1], self.out_features)
        return y if y.shape == shape else y.reshape(shape)

    def outputs(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        """The outputs for x (..., in_features), in any shape; N controls, with these leading dimensions, as rows."""
        return self.execute(self.grouped(x, rows, leading), self.compose(rows))

    def execute(self, x: Tensor, active: ActiveProgram) -> Tensor:
        """The active programs of N controls, applied to T inputs each: (N, T, in_features) -> (N, T, out_features)."""
        bias, R = self.bias, self.R
        if R is not None and self._builds(x, active, R):
            y = torch.matmul(x, active.weight(R))
            if active.shift is not None:
                y = y + (active.shift @ active.V).unsqueeze(1)
            return active.finish(y if bias is None else y + bias)
        if R is not None and active.U.dim() == 2 and joins(x, R, len(active.U)):
            g = None if active.scale is None else active.scale.unsqueeze(-1)
            return active.finish(joined(x, R, bias, active.U, active.V, active.coefficients, g))
        if active.U.dim() == 2:
            y, bias = linear(active.coefficients(linear(x, active.U)), active.V.mT, bias), None
        else:
            y = torch.matmul(active.coefficients(torch.matmul(x, active.U.mT)), active.V)
        if R is not None:
            g = active.scale
            y = y + (linear(x, R, bias) if g is None else scaled(x, R, bias, g.unsqueeze(-1)))
            bias = None
        return active.finish(y if bias is None else y + bias.to(y.dtype))

    def _builds(self, x: Tensor, active: ActiveProgram, R: Tensor) -> bool:
        """Whether `W_t` is built for each control: where many inputs (N, T, in_features) share one, on a CPU in full
        precision. A small program would be lost in the rounding of a narrow R; a frozen R needs no gradient.

        32 controls of 784 inputs through layers of 18 x 45 and 45 x 45, forward and backward: 16 ms instead of 23.
        """
        if is_traced() or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return False  # traced, T may be a symbol
        many = x.shape[1] * (self.in_features + self.out_features) > 2 * self.in_features * self.out_features
        trains = R.requires_grad or not torch.is_grad_enabled()
        is_plain = active.U.dim() == 2 and active.scale is None
        return many and trains and is_plain and not torch.is_autocast_enabled("cpu")

    def materialized(self, weight: Tensor, leading: torch.Size) -> Tensor:
        """(..., in_features, out_features)"""
        return weight.expand(math.prod(leading), -1, -1).reshape(*leading, self.in_features, self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.describe()}"
