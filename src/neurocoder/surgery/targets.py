"""Finding layers in a model: its modules by name, and which of them the targets match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
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
            raise ValueError(
                f"targets matched no layer: {described(target)}; the model has {overview(modules)}"
                f"{_advice(modules, target) if isinstance(target, str) else ''}"
            )
        found += matches
    if not found:
        raise ValueError("targets must name at least one layer, got none")
    return found


def _matches(modules: dict[str, nn.Module], target: Any) -> list[Match]:
    """How one target matches: a full name wins over a glob or suffix."""
    explicit = named = isinstance(target, str) and target in modules
    if named:
        names = [target]
    elif isinstance(target, str):
        names = _named(modules, target)
    elif isinstance(target, type):
        names = [name for name, module in modules.items() if isinstance(module, target)]
    elif callable(target) and not isinstance(target, nn.Module):
        names, explicit = [name for name, module in modules.items() if target(name, module)], True
    else:
        raise ValueError(f"targets must be {_TARGETS}, got {described(target)}")
    return [Match(name, target, explicit, named) for name in names]


def _named(names: Iterable[str], pattern: str) -> list[str]:
    """The names that a glob matches, or that end in this suffix."""
    if any(mark in pattern for mark in "*?["):
        return [name for name in names if name and fnmatchcase(name, pattern)]
    return [name for name in names if pattern and name.endswith(f".{pattern}")]


def _advice(modules: dict[str, nn.Module], target: str) -> str:
    """What a target that matches nothing may mean: in PEFT, of a parameter, or but for a slip."""
    if target == "all-linear":
        return ". For what PEFT calls 'all-linear', give the type nn.Linear"
    parameters = {f".{name}.{key}": name for name, module in modules.items() for key in module._parameters}
    if found := _named(parameters, target):
        return f". It is a parameter of {overview((parameters[name] for name in found), 3)}, not a layer"
    with suppress(re.error):
        if found := [name for name in modules if re.fullmatch(target, name)]:
            return f". As a regular expression, which PEFT takes, it means {overview(found, 3)}: give globs or suffixes"
    close = get_close_matches(target, {word for name in modules for word in (name, name.rpartition(".")[2])})
    return f". Did you mean {' or '.join(map(repr, close))}?" if close else ""


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
