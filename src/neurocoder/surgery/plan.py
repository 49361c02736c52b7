"""`plan`: which layers `recode` replaces, and why it leaves others alone. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from ..distributed import wrapper_conflict
from ..layer.base import CodedLayer
from ..layer.checks import require_module
from ..layer.config import Config
from ..ops.compiled import uncompiled
from .clients import alteration, container, hooks, is_in_adapter
from .registry import LayerSpec, kind_for, plain_types_for
from .targets import (
    Match,
    Target,
    Targets,
    described,
    modules_by_name,
    names_of,
    overview,
    prefixes,
    select,
    shown,
    type_name,
)


@dataclass(frozen=True)
class Replacement:
    """One layer that `recode` replaces."""

    names: tuple[str, ...]
    """All names of the layer; more than one if a module is used twice."""
    plain: nn.Module
    kind: LayerSpec
    config: Config
    before: int
    after: int
    ties: tuple[tuple[str, str], ...] = ()
    """Its parameters that are tied, and what they are tied to; the ties end."""

    @property
    def coded_type(self) -> type[CodedLayer]:
        """The type that replaces it."""
        return self.kind.coded_type


@dataclass(frozen=True, repr=False)
class Plan:
    """What `recode` would do; prints as a table.

    Example:
        >>> plan = nc.plan(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> plan.replacements[0].names, plan.total_before
        (('0',), 36)
    """

    replacements: tuple[Replacement, ...]
    skipped: tuple[tuple[str, str], ...]
    """Layers that a glob, suffix or type matched but that are left alone, with the reason."""
    total_before: int
    total_after: int

    def __str__(self) -> str:
        rows = [("layer", "from", "to", "parameters", "after")]
        for item in self.replacements:
            kinds = type_name(type(item.plain)), type_name(item.coded_type)
            rows.append((" = ".join(item.names), *kinds, f"{item.before:,}", f"{item.after:,}"))
        rows.append(("whole model", "", "", f"{self.total_before:,}", f"{self.total_after:,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        styles = [f"{side}{width}" for side, width in zip("<<<>>", widths, strict=True)]
        lines = ["  ".join(map(format, row, styles)) for row in rows]
        for place in (1, -1):
            lines.insert(place, "  ".join("-" * width for width in widths))
        for own, other in (tie for item in self.replacements for tie in item.ties):
            lines.append(f"no longer tied: {own} becomes a copy of its own, {other} stays as it is")
        for reason, names in _by_reason(dict(self.skipped)).items():
            lines.append(f"left as it is: {', '.join(names)} ({reason})")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def plan(
    model: nn.Module,
    targets: Targets | Mapping[Any, Config],
    config: Config | None = None,
    *,
    control_dim: int | None = None,
) -> Plan:
    """A dry run of `recode`: which layers would be replaced, and the parameters before and after.

    It takes the arguments of `recode`. Printed, it also lists the layers that a glob, suffix or type matched but that
    are left alone, with the reason, and the ties that end.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        >>> print(nc.plan(model, "*", nc.ProgramConfig(slots=10)))
        layer        from       to         parameters   after
        -----------  ---------  ---------  ----------  ------
        0            nn.Linear  nc.Linear          72  10,054
        2            nn.Linear  nc.Linear          36   9,958
        -----------  ---------  ---------  ----------  ------
        whole model                               108  20,012
    """
    require_module("model", model)
    config_of = _configs(targets, config)
    model = uncompiled(model)
    survey = _Survey(model, control_dim)
    matched = select(survey.modules, list(targets) if isinstance(targets, Mapping) else targets)
    replacements, skipped = _choose(survey, matched, config_of)
    replaced = prefixes(item.names for item in replacements)
    kept = {id(p): p.numel() for name, p in survey.parameters if not name.startswith(replaced)}
    total_after = sum(kept.values()) + sum(item.after for item in replacements)
    return Plan(replacements, skipped, _count(model), total_after)


def _configs(targets: Any, config: Any) -> Callable[[Target], Config]:
    """Which configuration each target asks for."""
    several = isinstance(targets, Mapping)
    if not several and config is None:
        raise ValueError(
            "config must be given: write nc.recode(model, targets, config), or nc.recode(model, {pattern: config})"
        )
    if several and config is not None:
        raise ValueError(f"config must be left out where targets are {{pattern: config}}, got {config!r}")
    given = {f"targets[{described(key)}]": one for key, one in targets.items()} if several else {"config": config}
    for name, one in given.items():
        if not isinstance(one, Config):
            raise ValueError(f"{name} must be a ProgramConfig or another neurocoder config, got {one!r}")
    return targets.__getitem__ if several else lambda _: config


class _Survey:
    """A model as `plan` sees it: every module and parameter under all of its names."""

    def __init__(self, model: nn.Module, control_dim: int | None) -> None:
        self.control_dim = control_dim
        self.modules = modules_by_name(model)
        self.names = names_of(self.modules)
        self.parameters = list(model.named_parameters(remove_duplicate=False))
        self._owners: dict[int, list[str]] = {}
        for name, parameter in self.parameters:
            self._owners.setdefault(id(parameter), []).append(name)

    def ties(self, module: nn.Module) -> tuple[tuple[str, str], ...]:
        """The parameters of this layer that the model also uses outside it, and where."""
        names = self.names[module]
        inside = prefixes([names])
        found = []
        for key, parameter in module.named_parameters():
            others = [other for other in self._owners[id(parameter)] if not other.startswith(inside)]
            found += [(f"{names[0]}.{key}", other) for other in others[:1]]
        return tuple(found)

    def replacement(self, name: str, config: Config) -> Replacement | str:
        """The replacement of the layer with this name, or why there is none."""
        plain = self.modules[name]
        names = self.names[plain]
        if isinstance(plain, CodedLayer):
            return "it is already coded: nc.restore it first"
        if any(isinstance(self.modules.get(one.rpartition(".")[0]), nn.MultiheadAttention) for one in names):
            return "nn.MultiheadAttention multiplies by its out_proj.weight itself and would never call a coded layer"
        if parametrize.is_parametrized(plain):
            return "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
        if reason := wrapper_conflict(self.modules, name, "recode") or alteration(plain):
            return reason
        if (kind := kind_for(plain, config)) is None:
            if reason := container(plain):
                return reason
            asked, covered = type(config).__name__, ", ".join(sorted(map(type_name, plain_types_for(config))))
            known = f"{asked} covers {covered}" if covered else f"no kind takes {asked}"
            return f"{type_name(type(plain))} is of an unknown kind: {known}; see nc.register"
        if reason := hooks(plain):
            return reason
        if "" in names:
            instead = "" if kind.transposed else f", or use {type_name(kind.coded_type)}.from_plain"
            return f"it is the whole model and cannot be replaced in place: put it into a container{instead}"
        try:
            twin = kind.like(plain, config, control_dim=self.control_dim)
        except ValueError as error:
            return str(error)
        after = _count(twin) + sum(twin.stored().values())
        return Replacement(names, plain, kind, config, _count(plain), after, self.ties(plain))

    def reservation(self, item: Replacement) -> str | None:
        """Why this layer is replaced only if it is given by its full name."""
        if item.ties:
            own, other = item.ties[0]
            what = own.removeprefix(f"{item.names[0]}.")
            return f"its {what} is tied to {other}: to recode it anyway, and end the tie, give its full name"
        if is_in_adapter(self.modules, item.names[0]):
            return "it is a part of an adapter of PEFT: to recode it anyway, give its full name"
        return None


def _choose(
    survey: _Survey, matched: list[Match], config_of: Callable[[Target], Config]
) -> tuple[tuple[Replacement, ...], tuple[tuple[str, str], ...]]:
    """The layers to replace, and those that are skipped, with the reason."""
    meant: dict[nn.Module, list[Match]] = {}
    for match in matched:
        meant.setdefault(survey.modules[match.name], []).append(match)
    verdicts = {module: _judge(survey, matches, config_of) for module, matches in meant.items()}
    replaced = prefixes(item.names for item in verdicts.values() if isinstance(item, Replacement))
    for module, matches in meant.items():
        outer = [one for name in survey.names[module] for one in replaced if name.startswith(one)]
        if outer and isinstance(verdicts[module], Replacement):
            verdicts[module] = _skip(matches, f"it lies inside {outer[0][:-1]!r}, which is recoded as a whole")
    chosen = tuple(item for item in verdicts.values() if isinstance(item, Replacement))
    names = dict.fromkeys(match.name for match in matched)
    left = {name: reason for name in names if isinstance(reason := verdicts[survey.modules[name]], str)}
    skipped = {name or "the model itself": why for name, why in left.items() if _has_parameters(survey.modules[name])}
    if not chosen:
        listed = "; ".join(f"{overview(names, 3)}: {reason}" for reason, names in _by_reason(skipped or left).items())
        raise ValueError(f"targets matched no layer that can be recoded. {listed}")
    return chosen, tuple(skipped.items())


def _judge(survey: _Survey, meant: list[Match], config_of: Callable[[Target], Config]) -> Replacement | str:
    """What these matches of one layer make of it, or why it is left alone."""
    accepted: list[tuple[Match, Replacement]] = []
    reasons: list[str] = []
    for match in meant:
        found = survey.replacement(match.name, config_of(match.target))
        if isinstance(found, Replacement):
            accepted.append((match, found))
        else:
            reasons.append(_skip([match], found))
    if not accepted:
        return reasons[0]
    first, item = accepted[0]
    reservation = survey.reservation(item)
    if reservation and not any(match.named for match, _ in accepted):
        return _skip([match for match, _ in accepted], reservation)
    for match, other_item in accepted[1:]:
        if other_item.config != item.config:
            raise ValueError(
                f"targets {described(first.target)} and {described(match.target)} both match {match.name!r}, with "
                "different configs: let one pattern match each layer"
            )
    return item


def _skip(meant: list[Match], reason: str) -> str:
    """The reason; an error if the layer was matched explicitly."""
    for match in meant:
        if match.explicit:
            raise ValueError(f"cannot recode {shown(match.name)}: {reason}")
    return reason


def _by_reason(skipped: Mapping[str, str]) -> dict[str, list[str]]:
    """The names for each reason."""
    return {one: [name for name, reason in skipped.items() if reason == one] for one in dict.fromkeys(skipped.values())}


def _has_parameters(module: nn.Module) -> bool:
    """Whether it has parameters of its own, not of its children; a coded layer counts as a whole."""
    return any(True for _ in module.parameters(recurse=isinstance(module, CodedLayer)))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
