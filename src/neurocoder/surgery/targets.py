"""Finding layers in a model: its modules by name, and which of them the targets match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from ..layer.base import CodedLayer

Model = TypeVar("Model", bound=nn.Module)
"""A user's model; surgery keeps its type."""

Predicate = Callable[[str, nn.Module], bool]
Target = str | type[nn.Module] | Predicate
Targets = Target | Iterable[Target]

_TARGETS = "names, suffixes, globs, types or predicates"


class Match(NamedTuple):
    """How a target matches a module."""

    name: str
    target: Target
    explicit: bool
    """By its full name or a predicate: an unsuitable module is then an error. Other targets skip it."""
    named: bool
    """By its full name."""


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """All modules, under each of their names, without looking inside coded layers."""
    found: dict[str, nn.Module] = {}
    inside: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        found[name] = module
        if isinstance(module, CodedLayer):
            inside.append(f"{name}." if name else "")
    return found


def names_of(modules: dict[str, nn.Module]) -> dict[nn.Module, tuple[str, ...]]:
    """All names of each module."""
    found: dict[nn.Module, tuple[str, ...]] = {}
    for name, module in modules.items():
        found[module] = (*found.get(module, ()), name)
    return found


def prefixes(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """How the names of everything inside these modules begin."""
    return tuple(f"{name}." if name else "" for one in names for name in one)


def select(modules: dict[str, nn.Module], targets: Targets) -> list[Match]:
    """How the targets match these modules, in the order of the targets."""
    if isinstance(targets, str | type) or callable(targets):
        targets = [targets]
    if isinstance(targets, Tensor | Mapping) or not isinstance(targets, Iterable):
        raise ValueError(f"targets must be {_TARGETS}, got {described(targets)}")
    found: list[Match] = []
    for target in targets:
        matches = _matches(modules, target)
        if not matches:
            raise ValueError(f"targets matched no layer: {described(target)}; the model has {overview(modules)}")
        found += matches
    if not found:
        raise ValueError("targets must name at least one layer, got none")
    return found


def _matches(modules: dict[str, nn.Module], target: Any) -> list[Match]:
    """How one target matches: a full name wins over a glob or suffix."""
    explicit = named = isinstance(target, str) and target in modules
    if named:
        names = [target]
    elif isinstance(target, str) and any(mark in target for mark in "*?["):
        names = [name for name in modules if name and fnmatchcase(name, target)]
    elif isinstance(target, str):
        names = [name for name in modules if target and name.endswith(f".{target}")]
    elif isinstance(target, type):
        names = [name for name, module in modules.items() if isinstance(module, target)]
    elif callable(target) and not isinstance(target, nn.Module):
        names, explicit = [name for name, module in modules.items() if target(name, module)], True
    else:
        raise ValueError(f"targets must be {_TARGETS}, got {described(target)}")
    return [Match(name, target, explicit, named) for name in names]


def shown(name: str) -> str:
    """A module's name in a message."""
    return repr(name) if name else "the model itself"


def described(value: Any) -> str:
    """A value as shown in messages: short, with types as a user writes them."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "a dictionary"
    return type_name(value) if isinstance(value, type) else repr(value)


def type_name(kind: type) -> str:
    """The name as a user would write it."""
    for prefix, package in (("nn", "torch.nn."), ("nc", "neurocoder.")):
        if kind.__module__.startswith(package):
            return f"{prefix}.{kind.__name__}"
    return kind.__name__


def overview(names: Iterable[str], limit: int = 12) -> str:
    """The first few names, and how many more there are."""
    listed = [name for name in names if name]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more or "no named layers"
