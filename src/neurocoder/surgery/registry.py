"""Which coded layer replaces which plain one: `register`, and the kinds that come with the library."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import nn

from ..layer.base import CodedLayer
from ..layer.checks import require_choice
from ..layer.config import Config, kind_of, may_mean
from ..layer.linear import CodedLinear
from .targets import described


class LayerSpec(NamedTuple):
    """How plain layers of one type become coded ones."""

    coded_type: type[CodedLayer]
    transposed: bool
    """Whether the plain layer stores its weight as (in_features, out_features)."""

    def like(self, plain: nn.Module, config: Config, *, control_dim: int | None = None) -> CodedLayer:
        """A coded layer with the geometry of `plain`, on the meta device."""
        return self.coded_type.like(self._read(plain), config, control_dim=control_dim, device="meta")

    def from_plain(self, plain: nn.Module, config: Config, *, control_dim: int | None = None) -> CodedLayer:
        """A coded layer to replace `plain`, started from its weight."""
        return self._remember(plain, self.coded_type.from_plain(self._read(plain), config, control_dim=control_dim))

    def empty(self, plain: nn.Module, config: Config, *, control_dim: int | None = None) -> CodedLayer:
        """A coded layer to replace `plain`, with values still to be loaded."""
        layer = self.like(plain, config, control_dim=control_dim)
        layer.to_empty(device=next(plain.parameters()).device)
        layer.adopt(self._read(plain))
        return self._remember(plain, layer)

    def _read(self, plain: nn.Module) -> nn.Module:
        """The plain layer as the coded type reads it: weights are (out_features, in_features)."""
        return _as_linear(plain) if self.transposed else plain

    def _remember(self, plain: nn.Module, layer: CodedLayer) -> CodedLayer:
        """Let `restore` find the original type of a transposed layer."""
        if self.transposed:
            object.__setattr__(layer, "template", _template(plain))  # bypasses nn.Module: it is not a submodule
        return layer


_registry: dict[tuple[type[nn.Module], type[Config]], LayerSpec] = {}


def register(plain_type: type[nn.Module], coded_type: type[CodedLayer], *, transposed: bool = False) -> None:
    """Teach `recode` a layer kind: `coded_type` replaces `plain_type` when the config is its `config_type`.

    Args:
        plain_type: the exact type of the plain layers; subclasses are registered separately.
        coded_type: the layer that takes their place, such as `nc.Linear`.
        transposed: the plain layer computes `x W + b` from a weight (in_features, out_features), as transformers'
            `Conv1D` does. It has no parameters besides weight and bias, and `coded_type` is a `CodedLinear`, which sees
            the weight as (out_features, in_features) throughout. `restore` returns a layer of `plain_type`.

    Example:
        >>> class Projection(nn.Linear):
        ...     pass
        >>> nc.register(Projection, nc.Linear)
        >>> model = nc.recode(nn.Sequential(Projection(8, 4)), "0", nc.ProgramConfig())
        >>> isinstance(model[0], nc.Linear)
        True
    """
    if not (isinstance(plain_type, type) and issubclass(plain_type, nn.Module)):
        raise ValueError(f"plain_type must be a subclass of nn.Module, got {plain_type!r}")
    if not (isinstance(coded_type, type) and issubclass(coded_type, CodedLayer)):
        raise ValueError(f"coded_type must be a subclass of neurocoder.CodedLayer, got {coded_type!r}")
    config_type = getattr(coded_type, "config_type", None)
    if not (isinstance(config_type, type) and issubclass(config_type, Config)):
        raise ValueError(
            f"coded_type must have a config_type that is a subclass of neurocoder.Config, got {config_type!r}"
        )
    require_choice("transposed", transposed)
    if transposed and not issubclass(coded_type, CodedLinear):
        raise ValueError(f"coded_type must be a subclass of neurocoder.CodedLinear if transposed, got {coded_type!r}")
    _registry[plain_type, config_type] = LayerSpec(coded_type, transposed)


def kind_for(plain: nn.Module, config: Config) -> LayerSpec | None:
    """The kind that replaces `plain` for this config, or None."""
    return _registry.get((type(plain), type(config)))


def plain_types_for(config: Config) -> list[type[nn.Module]]:
    """The plain layers that this kind of configuration covers."""
    return [plain for plain, config_type in _registry if config_type is type(config)]


def configs_named(kind: str) -> list[type[Config]]:
    """The registered configurations that a file may mean by `kind`: more than one if only the class name is known."""
    known = {kind_of(config_type): config_type for _, config_type in _registry}
    if kind in known:
        return [known[kind]]
    return [config_type for config_type in known.values() if may_mean(kind, config_type)]


def _as_linear(plain: Any) -> nn.Linear:
    """A transposed layer as an `nn.Linear` over the same values."""
    weight, bias = getattr(plain, "weight", None), getattr(plain, "bias", None)
    others = [name for name, _ in plain.named_parameters() if name not in ("weight", "bias")]
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2 or others:
        raise ValueError(
            f"{type(plain).__name__}: a transposed layer must have a weight (in_features, out_features), perhaps a "
            f"bias, and no other parameters, got {', '.join(others) or described(weight)}"
        )
    d_in, d_out = weight.shape
    linear: Any = nn.Linear(d_in, d_out, bias=False, device="meta", dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().mT, requires_grad=weight.requires_grad)
    linear.bias = bias
    return linear.train(plain.training)


def _template(plain: nn.Module) -> nn.Module:
    """A copy of a plain layer without values."""
    values = {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad) for p in plain.parameters()}
    return copy.deepcopy(plain, values)


def as_template(layer: CodedLayer, plain: Any) -> nn.Module:
    """`plain`, converted to the transposed type that `layer` replaced, if it replaced one."""
    if layer.template is None:
        return plain
    own: Any = copy.deepcopy(layer.template).train(plain.training)
    own.weight = nn.Parameter(plain.weight.detach().mT.contiguous(), requires_grad=plain.weight.requires_grad)
    if plain.bias is not None:
        own.bias = plain.bias
    return own
