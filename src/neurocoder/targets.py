"""Finding one's way in a model: its modules by name, and which of them the user means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import nn

from .base import CodedLayer

Model = TypeVar("Model", bound=nn.Module)
"""A user's model, whose type surgery keeps."""

Predicate = Callable[[str, nn.Module], bool]
Target = str | type[nn.Module] | Predicate
Targets = Target | Iterable[Target]


def require_module(name: str, value: Any) -> None:
    """Require an instance of `nn.Module`."""
    if not isinstance(value, nn.Module):
        raise ValueError(f"{name} must be an nn.Module, got {value!r}")


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by every name they have, without looking inside coded layers."""
    found: dict[str, nn.Module] = {}
    inside: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        found[name] = module
        if isinstance(module, CodedLayer):
            inside.append(f"{name}." if name else "")
    return found


def select(modules: dict[str, nn.Module], targets: Targets) -> dict[str, bool]:
    """The names that the targets mean; True where one was meant explicitly, by name or predicate."""
    if isinstance(targets, str | type) or callable(targets):
        targets = [targets]
    if not isinstance(targets, Iterable):
        raise ValueError(f"targets must be names, globs, types or predicates, got {targets!r}")
    chosen: dict[str, bool] = {}
    for target in targets:
        matched, explicit = _matches(modules, target)
        if not matched:
            shown = target.__name__ if isinstance(target, type) else repr(target)
            raise ValueError(f"targets matched no layer: {shown}; the model has {_overview(modules)}")
        for name in matched:
            chosen[name] = explicit or chosen.get(name, False)
    if not chosen:
        raise ValueError("targets must name at least one layer, got none")
    return chosen


def _matches(modules: dict[str, nn.Module], target: Any) -> tuple[list[str], bool]:
    """The names that one target means, and whether it means them explicitly."""
    if isinstance(target, str):
        if target in modules or not any(mark in target for mark in "*?["):
            return [name for name in modules if name == target], True
        return [name for name in modules if name and fnmatchcase(name, target)], False
    if isinstance(target, type):
        return [name for name, module in modules.items() if isinstance(module, target)], False
    if callable(target) and not isinstance(target, nn.Module):
        return [name for name, module in modules.items() if target(name, module)], True
    raise ValueError(f"targets must be names, globs, types or predicates, got {target!r}")


def _overview(modules: dict[str, nn.Module], limit: int = 12) -> str:
    names = [name for name in modules if name]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more or "no named layers"
