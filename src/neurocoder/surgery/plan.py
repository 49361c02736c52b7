"""`plan`: which layers `recode` replaces, and why it leaves others alone. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from ..distributed import wrapper_conflict
from ..layer.base import CodedLayer
from ..layer.checks import require_module
from ..layer.config import Config
from ..ops.compiled import uncompiled
from ..ops.torch_private import all_hooks
from .registry import LayerSpec, kind_for, plain_types_for
from .targets import Match, Target, Targets, described, modules_by_name, overview, select, type_name


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
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        rule = "  ".join("-" * w for w in widths)
        lines = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
        for own, other in (tie for item in self.replacements for tie in item.ties):
            lines.append(f"no longer tied: {own} becomes a copy of its own, {other} stays as it is")
        for reason, names in _by_reason(self.skipped).items():
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
    chosen, skipped = _choose(survey, matched, config_of)
    replacements = tuple(survey.replacement(names, one) for names, one in chosen.items())
    replaced = tuple(f"{name}." for names in chosen for name in names)
    kept = {id(p): p.numel() for name, p in survey.parameters if not name.startswith(replaced)}
    total_after = sum(kept.values()) + sum(item.after for item in replacements)
    return Plan(replacements, tuple(skipped), _count(model), total_after)


def _configs(targets: Targets | Mapping[Any, Config], config: Config | None) -> Callable[[Target], Config]:
    """Which configuration each target asks for."""
    if not isinstance(targets, Mapping):
        if config is None:
            raise ValueError(
                "config must be given: write nc.recode(model, targets, config), or nc.recode(model, {pattern: config})"
            )
        given = config
        _require_config("config", given)
        return lambda _: given
    if config is not None:
        raise ValueError(f"config must be left out where targets are {{pattern: config}}, got {config!r}")
    for target, one in targets.items():
        _require_config(f"targets[{described(target)}]", one)
    return targets.__getitem__


def _require_config(name: str, value: object) -> None:
    if not isinstance(value, Config):
        raise ValueError(f"{name} must be a ProgramConfig or another neurocoder config, got {value!r}")


class _Survey:
    """A model as `plan` sees it: every module and parameter under all of its names."""

    def __init__(self, model: nn.Module, control_dim: int | None) -> None:
        self.control_dim = control_dim
        self.modules = modules_by_name(model)
        self.parameters = list(model.named_parameters(remove_duplicate=False))
        self._names: dict[int, list[str]] = {}
        for name, module in self.modules.items():
            self._names.setdefault(id(module), []).append(name)
        self._owners: dict[int, list[str]] = {}
        for name, parameter in self.parameters:
            self._owners.setdefault(id(parameter), []).append(name)

    def names(self, name: str) -> tuple[str, ...]:
        """All names of the module with this name."""
        return tuple(self._names[id(self.modules[name])])

    def ties(self, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The parameters of this layer that the model also uses outside it, and where."""
        inside = tuple(f"{name}." if name else "" for name in names)
        found = []
        for key, parameter in self.modules[names[0]].named_parameters():
            others = [other for other in self._owners[id(parameter)] if not other.startswith(inside)]
            found += [(f"{names[0]}.{key}", other) for other in others[:1]]
        return tuple(found)

    def refusal(self, name: str, config: Config) -> str | None:
        """Why the layer with this name cannot be recoded, or None."""
        module, names = self.modules[name], self.names(name)
        if isinstance(module, CodedLayer):
            return "it is already coded: nc.restore it first"
        if any(isinstance(self.modules.get(one.rpartition(".")[0]), nn.MultiheadAttention) for one in names):
            return "nn.MultiheadAttention multiplies by its out_proj.weight itself and would never call a coded layer"
        if parametrize.is_parametrized(module):
            return "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
        reason = wrapper_conflict(self.modules, name, "recode")
        if reason and any(True for _ in _own_parameters(module)):
            return reason
        kind = kind_for(module, config)
        if kind is None:
            asked, covered = type(config).__name__, ", ".join(sorted(map(type_name, plain_types_for(config))))
            known = f"{asked} covers {covered}" if covered else f"no kind takes {asked}"
            return f"{type_name(type(module))} is of an unknown kind: {known}; see nc.register"
        if has_hooks(module):
            return "it has hooks, which would be lost: remove them first and register them again on the new layer"
        if "" in names:
            instead = "" if kind.transposed else f", or use {type_name(kind.coded_type)}.from_plain"
            return f"it is the whole model and cannot be replaced in place: put it into a container{instead}"
        try:
            kind.like(module, config, control_dim=self.control_dim)
        except ValueError as error:
            return str(error)
        return None

    def replacement(self, names: tuple[str, ...], config: Config) -> Replacement:
        """The replacement of this layer, counted on the meta device."""
        plain = self.modules[names[0]]
        kind = kind_for(plain, config)
        assert kind is not None
        twin = kind.like(plain, config, control_dim=self.control_dim)
        after = _count(twin) + sum(twin.stored().values())
        return Replacement(names, plain, kind, config, _count(plain), after, self.ties(names))


Chosen = dict[tuple[str, ...], Config]
"""The layers to replace, each as the tuple of its names, and their configurations."""
Meant = tuple[str, Match]
"""A name of a layer, and how a target matches it."""


def _choose(
    survey: _Survey, matched: dict[str, list[Match]], config_of: Callable[[Target], Config]
) -> tuple[Chosen, list[tuple[str, str]]]:
    """The layers to replace, and those that are skipped, with the reason."""
    meant: dict[tuple[str, ...], list[Meant]] = {}
    for name, matches in matched.items():
        meant.setdefault(survey.names(name), []).extend((name, match) for match in matches)
    chosen: Chosen = {}
    reasons: dict[tuple[str, ...], str] = {}
    for names, found in meant.items():
        verdict = _judge(survey, names, found, config_of)
        if isinstance(verdict, str):
            reasons[names] = verdict
        else:
            chosen[names] = verdict
    replaced = tuple(f"{name}." for names in chosen for name in names)
    for names in list(chosen):
        outer = [one for name in names for one in replaced if name.startswith(one)]
        if outer:
            reasons[names] = f"it lies inside {outer[0][:-1]!r}, which is recoded as a whole"
            del chosen[names]
            _refuse_explicit(meant[names], reasons[names])
    left = [(name, reasons[survey.names(name)]) for name in matched if survey.names(name) in reasons]
    skipped = [
        (name or "the model itself", reason)
        for name, reason in left
        if any(True for _ in _own_parameters(survey.modules[name]))
    ]
    if not chosen:
        listed = "; ".join(f"{overview(names, 3)}: {reason}" for reason, names in _by_reason(skipped or left).items())
        raise ValueError(f"targets matched no layer that can be recoded. {listed}")
    return chosen, skipped


def _judge(
    survey: _Survey, names: tuple[str, ...], meant: list[Meant], config_of: Callable[[Target], Config]
) -> Config | str:
    """The configuration for this layer, or why it is left alone."""
    accepted: list[Meant] = []
    reasons: list[str] = []
    for name, match in meant:
        reason = survey.refusal(name, config_of(match.target))
        if reason is None:
            accepted.append((name, match))
        else:
            _refuse_explicit([(name, match)], reason)
            reasons.append(reason)
    if not accepted:
        return reasons[0]
    ties = survey.ties(names)
    if ties and not any(match.named for _, match in accepted):
        own, other = ties[0]
        what = own.removeprefix(f"{names[0]}.")
        reason = f"its {what} is tied to {other}: to recode it anyway, and end the tie, give its full name"
        _refuse_explicit(accepted, reason)
        return reason
    first = accepted[0][1].target
    for name, match in accepted[1:]:
        if config_of(match.target) != config_of(first):
            raise ValueError(
                f"targets {described(first)} and {described(match.target)} both match {name!r}, with different "
                "configs: let one pattern match each layer"
            )
    return config_of(first)


def _refuse_explicit(meant: list[Meant], reason: str) -> None:
    """Raise an error if the layer was matched explicitly."""
    for name, match in meant:
        if match.explicit:
            raise ValueError(f"cannot recode {repr(name) if name else 'the model itself'}: {reason}")


def _by_reason(skipped: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names for each reason."""
    found: dict[str, list[str]] = {}
    for name, reason in skipped:
        found.setdefault(reason, []).append(name)
    return found


def has_hooks(module: nn.Module) -> bool:
    """Whether this module has hooks, or a replaced `forward`, that its replacement would lose."""
    return any(all_hooks(module)) or "forward" in vars(module)


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """A module's parameters without those of its children; a coded layer counts as a whole."""
    return module.parameters(recurse=isinstance(module, CodedLayer))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
