"""Checks a contender's results before it is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from .cases import Dtype
from .contenders import Exact

BOUNDS: dict[Dtype, float] = {"float32": 1e-3, "bfloat16": 3e-2}
"""Bounds on ||found - exact|| / ||exact|| of outputs."""
GRADIENTS = 10.0
"""Factor on the bound, for the input's gradient and for all parameters' gradients together. Rounding can change which
slot is most used, and in which step; outputs are continuous there, gradients are not."""
STACKED_GRADIENTS = 100.0
"""The same for several layers with ReLUs: TF32 rounding turns units near zero on and off. The plain MLP is off by
2.4% on an H200."""
ONE_GRADIENT, NEGLIGIBLE = 0.5, 1e-3
"""Bound for each parameter's gradient in float32, relative to its norm or to this share of all, whichever is larger.
Some are small differences of large numbers, so only gross errors show."""


class Refused(Exception):
    """A contender whose result is wrong."""


def difference(found: Tensor | None, exact: Tensor) -> float:
    """||found - exact||; infinite for a missing tensor or a different shape."""
    if found is None or found.shape != exact.shape:
        return math.inf
    return float((found.double() - exact.double()).norm())


def error(found: Tensor | None, exact: Tensor) -> float:
    """||found - exact|| / ||exact||."""
    off, size = difference(found, exact), float(exact.double().norm())
    return off / size if size else (0.0 if off == 0 else math.inf)


def require(errors: Mapping[str, float], bound: float) -> None:
    """Raise `Refused` for the first error that is not within the bound; a NaN never is."""
    for name, value in errors.items():
        if not value <= bound:
            raise Refused(f"relative error of {name} is {value:.2g}, over the bound of {bound:g}")


def compare_gradients(
    found: Mapping[str, Tensor | None], exact: Mapping[str, Tensor], dtype: Dtype, factor: float = GRADIENTS
) -> float:
    """The error of all parameters' gradients together, as one vector, within `factor` times the bound of outputs;
    raises `Refused`."""
    off = {name: difference(found.get(name), target) for name, target in exact.items()}
    size = {name: float(target.double().norm()) for name, target in exact.items()}
    all_off, all_size = math.hypot(*off.values()), math.hypot(*size.values())
    together = all_off / all_size if all_size else math.inf
    require({"the parameters' gradient": together}, factor * BOUNDS[dtype])
    if dtype == "float32":
        each = {f"the gradient of {name}": off[name] / max(size[name], NEGLIGIBLE * all_size) for name in exact}
        require(each, ONE_GRADIENT)
    return together


def compare(
    exact: Exact,
    dtype: Dtype,
    y: Tensor,
    x_grad: Tensor | None = None,
    grads: Mapping[str, Tensor | None] | None = None,
) -> dict[str, float]:
    """The errors of a layer's results for a whole batch; raises `Refused` for wrong ones.

    Args:
        exact: the expected results for some rows.
        dtype: of the computation.
        y: outputs (N, d_out).
        x_grad, grads: after a backward in which only the rows of `exact` had a gradient.
    """
    if not bool(y.isfinite().all()):
        raise Refused("outputs are not finite")
    errors = {"outputs": error(y[exact.rows], exact.y)}
    require(errors, BOUNDS[dtype])
    if grads is None:
        return errors
    inputs = {"the input's gradient": error(None if x_grad is None else x_grad[exact.rows], exact.x_grad)}
    require(inputs, GRADIENTS * BOUNDS[dtype])
    return {**errors, **inputs, "the parameters' gradient": compare_gradients(grads, exact.grads, dtype)}
