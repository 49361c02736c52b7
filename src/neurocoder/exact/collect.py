"""Observing an exact layer inside a model while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from .layer import ExactLinear


class Collector:
    """What `exact` returns: it keeps the inputs of the layer's last call until `observe` or `forget` takes them."""

    def __init__(self, layer: ExactLinear) -> None:
        self.layer, layer.is_watched = layer, True
        self._inputs: dict[str, Any] | None = None
        self._handle: Any = layer.register_forward_pre_hook(
            lambda _, args, kwargs: self._keep(*args, **kwargs), with_kwargs=True
        )

    def _keep(self, x: Tensor, control: Tensor | None = None) -> None:
        z = self.layer.resolve_control(control)
        self._inputs = {"x": x.detach().clone(), "control": None if z is None else z.detach().clone()}

    def _give(self, method: Callable[..., None], **targets: Tensor | None) -> None:
        """Call a method of the layer with the inputs, once; they stay where it raises an error."""
        if self._inputs is None:
            raise ValueError("the model has not been called since the last observe or forget: call model(x) first")
        method(**self._inputs, **targets)
        self._inputs = None

    def basis(self) -> None:
        """`layer.basis` of the last call's inputs."""
        self._give(self.layer.basis)

    def observe(self, y: Tensor, weight: Tensor | None = None) -> None:
        """`layer.observe` of the last call's inputs, with these labels or targets."""
        self._give(self.layer.observe, y=y, weight=weight)

    def forget(self, y: Tensor, weight: Tensor | None = None) -> None:
        """`layer.forget` of the last call's inputs."""
        self._give(self.layer.forget, y=y, weight=weight)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()
        self.layer.is_watched = False


def exact(model: nn.Module, name: str) -> Collector:
    """Watch the exact layer of this name while the model runs, to observe what reaches it.

    A layer that has observed nothing, and has no old weight, answers zeros meanwhile.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> model = nc.recode(model, "2", nc.ExactConfig(slots=5, rank=2))
        >>> x, y = torch.randn(64, 8), torch.randint(3, (64,))
        >>> with nc.exact(model, "2") as head, torch.no_grad():
        ...     _ = model(x)
        ...     head.basis()
        ...     _ = model(x)
        ...     head.observe(y)
        >>> _ = model[2].solve()
        >>> model(x).shape
        torch.Size([64, 3])
    """
    layer = dict(model.named_modules()).get(name) if isinstance(model, nn.Module) else None
    if not isinstance(layer, ExactLinear):
        raise ValueError(f"name must be that of an ExactLinear in the model, got {name!r}: nc.recode it first")
    return Collector(layer)
