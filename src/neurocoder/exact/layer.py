"""The exact linear layer: observed, solved, merged and forgotten, instead of trained."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import linear, one_hot

from ..layer.linear import CodedLinear
from ..layer.start import full_precision
from .config import ExactConfig
from .memory import SCALE, ExactMemory
from .solve import Solution, solve
from .sums import Sums, hashes, without

CHUNK = 8192
"""Samples whose features are in memory at a time."""
UNSOLVED, STALE, CURRENT = range(3)
"""Whether V was ever solved for, and whether it still is the solution."""


class ExactPrograms(NamedTuple):
    """How strongly some inputs use each slot.

    Example:
        >>> head = nc.ExactLinear(8, 3, exact=nc.ExactConfig(slots=5, rank=2))
        >>> head.basis(torch.randn(64, 8))
        >>> head.programs(torch.randn(32, 8)).use.shape  # inputs, slots
        torch.Size([32, 5])
    """

    use: Tensor
    """w over its scale (..., P): 0 to 1 for Gaussians."""

    @property
    def grows(self) -> bool:
        """Whether the memory may have more slots later."""
        return False

    def reads(self) -> dict[str, Tensor]:
        """The use of the slots as one component (..., 1, P)."""
        return {"u": self.use.abs().unsqueeze(-2)}

    def title(self, memory: str) -> str:
        """What the columns of `reads` are."""
        return "slot"

    def detach(self) -> ExactPrograms:
        """The same values, detached from the graph."""
        return ExactPrograms(self.use.detach())


class ExactLinear(CodedLinear):
    """An `nn.Linear` on fixed features whose weight is solved, not trained: (..., in_features) -> (..., out_features).

    `y = V^T phi`, where phi are the features of `ExactConfig` (see `ExactMemory`), with x and 1 beside them. The ridge
    solution `V = (G + ridge I)^-1 B` needs only `G = sum phi phi^T` and `B = sum phi y^T`. So it does not depend on the
    order of the samples, two layers merge by adding their sums, and subtracting samples forgets them. This is analytic
    learning (ACIL, Zhuang et al., 2022) with the features of a local model network (Takagi & Sugeno, 1985).

    Sums are float64 and answers float32, whatever `to(dtype)` the model is given. A layer that `recode` puts in the
    place of an `nn.Linear` answers with the old weight until `solve`.

    Args:
        in_features: d_in.
        out_features: d_out, the classes or targets; None: as many classes as were observed.
        bias: add a constant to the features.
        exact: the features, and what is kept of the samples.
        control_dim: width of another tensor z that addresses the slots, `layer(x, control=z)`; None: x itself does.
        device: of the buffers; None: torch's default.
        dtype: of an old weight, where there is one; answers have the dtype of x.

    Example:
        >>> x, y = torch.randn(500, 8), torch.randint(3, (500,))
        >>> head = nc.ExactLinear(8, 3, exact=nc.ExactConfig(slots=10, rank=4))
        >>> head.basis(torch.randn(128, 8))  # fixed before learning, best from other data
        >>> head.observe(x[:300], y[:300])
        >>> head.observe(x[300:], y[300:])  # in any order, in any batches
        >>> head(x).shape  # solves first
        torch.Size([500, 3])
        >>> head.forget(x[:100], y[:100])  # as if never seen
    """

    config_type = ExactConfig
    config: ExactConfig
    parts = {"R": "main", "bias": "main"}
    V: Tensor
    """(M, C)"""
    ridge: Tensor
    """What `solve` was last given (); NaN: None"""
    temperature: Tensor
    """Of `probabilities` (); NaN before `calibrate`"""
    ledger: Tensor
    """Hashes of the samples (n,), if they are kept"""
    status: Tensor
    """One of UNSOLVED, STALE, CURRENT ()"""

    def __init__(
        self,
        in_features: int,
        out_features: int | None,
        bias: bool = True,
        exact: ExactConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.has_constant, self.is_open = bias, out_features is None
        width = 1 if out_features is None else out_features
        super().__init__(in_features, width, bias, exact, control_dim=control_dim, device=device, dtype=dtype)

    def create(self, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Create the buffers; R and the bias are there only where an old weight is."""
        device = torch.get_default_device() if device is None else device
        self.bias, outputs = None, 0 if self.is_open else self.out_features
        self.memory = ExactMemory(self.in_features, self.control_width, self.config, device)
        for name, value in {"ridge": math.nan, "temperature": math.nan, "ledger": [], "status": UNSOLVED}.items():
            dtype = torch.float64 if value is math.nan else torch.int64
            self.register_buffer(name, torch.tensor(value, device=device, dtype=dtype))
        self.register_buffer("V", torch.zeros(self.width, outputs, device=device))
        for name, tensor in self.no_sums(outputs)._asdict().items():
            self.register_buffer(f"sum_{name}", tensor)
        self.resize(outputs)
        self.mark(UNSOLVED)

    @property
    def sums(self) -> Sums:
        """What was observed; shares memory with the buffers."""
        return Sums(*(getattr(self, f"sum_{name}") for name in Sums._fields))

    @sums.setter
    def sums(self, value: Sums) -> None:
        for name, tensor in value._asdict().items():
            setattr(self, f"sum_{name}", tensor)

    def no_sums(self, outputs: int) -> Sums:
        """The sums over no samples."""
        return Sums.zero(self.width, outputs, outputs if self.config.per_class else 1, self.V.device)

    def resize(self, outputs: int) -> None:
        """Have so many outputs from now on."""
        self.out_features, self.weight_shape = outputs, (outputs, self.in_features)

    def mark(self, status: int) -> None:
        """Set the status, which a forward reads without waiting for the device."""
        self.status.fill_(status)
        self.is_solved, self.is_current = status != UNSOLVED, status == CURRENT

    @property
    def prototype(self) -> Tensor:
        return self.V

    @property
    def width(self) -> int:
        """M: the number of features, with x and the constant."""
        return self.memory.width + self.in_features * self.config.residual + self.has_constant

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Buffers change their device, never their precision: half of the digits of G are no G."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, new in list(self.named_buffers()):
            if new.dtype != before[name].dtype:
                owner, _, own = name.rpartition(".")
                setattr(self.get_submodule(owner), own, before[name].to(new.device))
        return self

    def features(self, x: Tensor, z: Tensor) -> Tensor:
        """`[phi(x, z), x, 1]` (N, M), in the precision of x."""
        beside = [x] * self.config.residual + [x.new_ones(x.shape[0], 1)] * self.has_constant
        return torch.cat([self.memory(x, z), *beside], 1)

    def paired(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, Tensor, torch.Size]:
        """Inputs (N, d_in), the control of each (N, d_z), and the inputs' leading dimensions."""
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        if control is not None:
            rows = rows.repeat_interleave(math.prod(x.shape[len(leading) : -1]), 0)
        return x.reshape(-1, self.in_features), rows, x.shape[:-1]

    def finite(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, Tensor, torch.Size]:
        """The same in float64, detached, without NaN."""
        x, z, shape = self.paired(x, control)
        x, z = x.detach().double(), z.detach().double()
        if not (x.isfinite().all() and z.isfinite().all()):
            raise ValueError("x and control must be finite, got NaN or infinity")
        return x, z, shape

    def basis(self, x: Tensor, control: Tensor | None = None) -> None:
        """Fix keys and directions by inputs (..., d_in), before anything is observed; a few hundred are enough.

        The features depend on these inputs for good, and `forget` cannot undo that: take data that nobody will ask to
        delete.
        """
        if int(self.sums.samples):
            raise ValueError("basis must be called before anything is observed: the sums belong to the present one")
        x, z, _ = self.finite(x, control)
        with full_precision(x.device):
            self.memory.fix(x, z, hashes(x, z).to(x.device))

    def targets(self, y: Tensor, shape: torch.Size) -> tuple[Tensor, int | None]:
        """Labels (N,) and how many outputs these need, or real targets (N, C) and None."""
        y = y.detach().to(self.V.device)
        if y.is_floating_point():
            if self.is_open or self.config.per_class:
                raise ValueError("y must be labels where out_features is None or per_class is set, got real numbers")
            if y.shape != (*shape, self.out_features) or not y.isfinite().all():
                raise ValueError(f"y must be finite and {(*shape, self.out_features)}, or labels, got {tuple(y.shape)}")
            return y.reshape(-1, self.out_features).double(), None
        y, high = y.long(), math.inf if self.is_open else self.out_features - 1
        if y.shape != shape:
            raise ValueError(f"labels y must have shape {tuple(shape)}, got {tuple(y.shape)}")
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) <= high:
            raise ValueError(f"labels y must be in 0..{high}, got {int(y.min())}..{int(y.max())}")
        return y.reshape(-1), max(self.out_features, int(y.max()) + 1 if y.numel() else 0)

    def measured(
        self, x: Tensor, y: Tensor, weight: Tensor | None, control: Tensor | None
    ) -> tuple[Sums, Tensor, Tensor]:
        """The sums over these samples alone, the hash of each sample, and that of its inputs alone."""
        if not self.memory.ready:
            raise ValueError("the basis is not fixed: call basis(x) with some inputs before observing")
        x, z, shape = self.finite(x, control)
        y, outputs = self.targets(y, shape)
        c = x.new_ones(len(x)) if weight is None else weight.detach().reshape(-1).to(x)
        if len(c) != len(x) or not bool((c.isfinite() & (c >= 0)).all()):
            raise ValueError(f"weight must be {len(x)} finite numbers >= 0, one a sample, got {tuple(c.shape)}")
        found = self.no_sums(self.out_features if outputs is None else outputs)
        with full_precision(x.device):
            for part in torch.arange(len(x), device=x.device).split(CHUNK):
                phi, weights = self.features(x[part], z[part]), c[part].unsqueeze(1)
                target = y[part] if outputs is None else one_hot(y[part], outputs).double()
                for kind in y[part].unique().tolist() if self.config.per_class else [0]:
                    rows = y[part] == kind if self.config.per_class else slice(None)
                    found.G[kind].addmm_((phi[rows] * weights[rows]).mT, phi[rows])
                    found.weight[kind].add_(weights[rows].sum())
                found.B.addmm_((phi * weights).mT, target)
                found.square.add_((target.square() * weights).sum(0))
                if outputs is not None:
                    found.labels.add_(torch.bincount(y[part], minlength=outputs))
        found.samples.add_(len(x))
        inputs = hashes(x, z) if len(self.memory.origin) else self.ledger[:0]
        return found, hashes(x, z, y, c) if self.config.ledger else self.ledger[:0], inputs

    def keep(self, sums: Sums, ledger: Tensor | None = None) -> None:
        """Have observed this; a solution is then out of date."""
        self.resize(len(sums.square))
        self.sums = sums if int(sums.samples) else self.no_sums(self.out_features)  # without the rounding
        if ledger is not None:
            self.ledger = ledger.to(self.V.device)
        self.mark(STALE if self.is_solved else UNSOLVED)

    def observe(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, control: Tensor | None = None) -> None:
        """Add samples to the sums; nothing else of them is kept.

        Args:
            x: (..., in_features).
            y: labels (...), or targets (..., out_features), as one-hot rows or any real numbers.
            weight: of each sample (...), not negative.
            control: z (..., control_dim), as in the forward.
        """
        found, ledger, _ = self.measured(x, y, weight, control)
        before = self.sums.widened(len(found.square), self.config.per_class)
        self.keep(before.plus(found), torch.cat([self.ledger.cpu(), ledger.cpu()]) if self.config.ledger else None)

    partial_fit = observe

    def forget(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, control: Tensor | None = None) -> None:
        """Subtract samples that were observed, with the same y and weight: the sums are then as if never seen.

        Samples that cannot have been observed are an error, and nothing changes: those without which a count or an
        eigenvalue of G would be negative. Only a `ledger` knows each sample. What the samples did to the basis stays,
        and a warning says so.
        """
        found, gone, inputs = self.measured(x, y, weight, control)
        ledger = without(self.ledger.cpu(), gone) if self.config.ledger else None
        if self.config.ledger and ledger is None:
            raise ValueError("not all of these samples were observed with this y and weight: nothing was forgotten")
        if len(found.square) > self.out_features or not self.sums.covers(found):
            raise ValueError("these samples cannot all have been observed: G or a count would become negative")
        self.keep(self.sums.plus(found, -1), ledger)
        shared = int(torch.isin(inputs, self.memory.origin.cpu()).sum())
        if shared:
            warnings.warn(
                f"{shared} of the forgotten samples helped to fix the basis, which still depends on them: for exact "
                "unlearning, fix the basis from other data",
                stacklevel=2,
            )

    def forget_class(self, label: int) -> None:
        """Subtract all samples with this label, without their data; needs `per_class`, and no `ledger`."""
        if not self.config.per_class or self.config.ledger:
            raise ValueError("forget_class needs exact.per_class=True and exact.ledger=False: use forget(x, y)")
        if not isinstance(label, int) or not 0 <= label < self.out_features:
            raise ValueError(f"label must be in 0..{self.out_features - 1}, got {label!r}")
        left = Sums(*(tensor.clone() for tensor in self.sums))
        left.samples.sub_(left.labels[label])
        for tensor in (left.G, left.B.mT, left.square, left.weight, left.labels):
            tensor[label] = 0
        self.keep(left)

    def merge(self, other: ExactLinear) -> Self:
        """A new layer that has observed what both did. Both must have the same configuration and basis."""
        if not isinstance(other, ExactLinear) or self.shape() != other.shape():
            raise ValueError(f"other must be an ExactLinear of the same configuration and widths, got {other!r}")
        theirs = other.memory.state_dict()
        if not all(torch.equal(mine, theirs[name].to(mine)) for name, mine in self.memory.state_dict().items()):
            raise ValueError("other must have the same basis: fix it once, and copy the layer before it observes")
        outputs, per_class = max(self.out_features, other.out_features), self.config.per_class
        added = Sums(*(tensor.to(self.V.device) for tensor in other.sums)).widened(outputs, per_class)
        both = copy.deepcopy(self)
        both.keep(
            self.sums.widened(outputs, per_class).plus(added), torch.cat([self.ledger, other.ledger.to(self.ledger)])
        )
        return both

    def shape(self) -> tuple[Any, ...]:
        """What two layers must share to be merged."""
        return self.config, self.in_features, self.control_dim, self.has_constant, self.is_open

    def merge_processes(self, group: Any = None) -> Self:
        """`merge` over the processes of a `torch.distributed` group: a new layer, the same in each of them.

        The layers themselves keep their own sums, so another call counts nothing twice.
        """
        layers: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(layers, copy.deepcopy(self).cpu(), group)
        total = layers[0]
        for layer in layers[1:]:
            total = total.merge(layer)
        return total.to(self.V.device)

    def solve(self, ridge: float | None = None) -> Solution:
        """Solve for V. `ridge` defaults to the configuration's; None there, too, is generalised cross-validation."""
        if not int(self.sums.samples):
            raise ValueError("nothing was observed yet: call observe(x, y) first")
        ridge = self.config.ridge if ridge is None else ridge
        if ridge is not None and not (isinstance(ridge, int | float) and 0 < ridge < math.inf):
            raise ValueError(f"ridge must be None or a finite number > 0, got {ridge!r}")
        with full_precision(self.V.device):
            V, solution = solve(self.sums, ridge)
        self.V = V.float()
        self.ridge.fill_(math.nan if ridge is None else ridge)
        self.mark(CURRENT)
        for parameter in self.parameters():
            parameter.requires_grad_(False)  # an old weight, which no longer answers
        return solution

    def require_solved(self) -> None:
        """Solve as the last time, if samples came or went since."""
        if not self.is_current:
            self.solve(None if self.ridge.isnan() else float(self.ridge))

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """(..., out_features), in the dtype of x; solves first if samples came or went since."""
        rows, z, shape = self.paired(x, control)
        self.record_programs(x, control)
        if self.R is not None and not self.is_solved:
            return linear(x, self.R, self.bias)
        self.require_solved()
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            y = self.features(rows.to(wide), z.to(wide)) @ self.V.to(wide)
        return y.to(x.dtype).reshape(*shape, self.out_features)

    def calibrate(self, x: Tensor, y: Tensor, *, control: Tensor | None = None) -> float:
        """Fit the temperature of `probabilities` on held-out samples with labels (Guo et al., 2017); returns it."""
        scores = self(x, control).detach().double().reshape(-1, self.out_features)
        labels, outputs = self.targets(y, x.shape[:-1])
        if outputs is None or not len(labels):
            raise ValueError("calibrate must be given labels of at least one sample")
        candidates = torch.logspace(-4, 2, 241, dtype=torch.float64, device=scores.device)
        losses = [nn.functional.cross_entropy(scores / temperature, labels) for temperature in candidates]
        self.temperature.copy_(candidates[int(torch.stack(losses).argmin())])
        return float(self.temperature)

    def probabilities(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """Class probabilities (..., out_features): `softmax(y / temperature)`, after `calibrate`."""
        if self.temperature.isnan():
            raise ValueError("probabilities need calibrate(x, y) on held-out samples first")
        return torch.softmax(self(x, control).float() / self.temperature.float(), -1)

    def programs(self, x: Tensor, control: Tensor | None = None) -> ExactPrograms:
        """How strongly these inputs use each slot."""
        _, z, shape = self.paired(x, control)
        use = self.memory.use(z.float())
        return ExactPrograms((use if self.config.features == "relu" else use / SCALE).reshape(*shape, -1))

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t = R + sum_i w_i A^T V_i` (..., d_in, d_out) of local programs, or R alone. Beside it each input has a
        constant of its own, `sum_i w_i (c_i - V_i A m)`. Other features give no weight."""
        if self.config.features not in ("local", "none"):
            raise ValueError(f"only 'local' features give each input a weight, got features={self.config.features!r}")
        self.require_solved()
        x, z, shape = self.paired(x, control)
        local, beside = self.V[: self.memory.width], self.V[self.memory.width :]
        weight = self.V.new_zeros(len(x), self.in_features, self.out_features)
        if self.config.residual:
            weight = weight + beside[: self.in_features]
        if len(local):
            per_slot = local.view(len(self.memory.keys), -1, self.out_features)[:, 1:]
            mixed = torch.einsum("np,pro->nro", self.memory.use(z.float()), per_slot)
            weight = weight + self.memory.directions.mT @ mixed
        return weight.reshape(*shape, self.in_features, self.out_features)

    def constant_weight(self) -> Tensor:
        """The old weight, before `solve`; after it no plain layer answers alike."""
        if self.R is None or self.is_solved:
            raise ValueError(
                f"{self.name or 'an exact layer'} answers from features, so that no plain layer answers alike: it can "
                "be restored only where it replaced one, before solve"
            )
        return self.R.detach()

    def to_plain(self) -> nn.Linear:
        like = self.V if self.R is None else self.R
        options = {"device": like.device, "dtype": like.dtype}
        return nn.utils.skip_init(nn.Linear, self.in_features, self.out_features, self.bias is not None, **options)

    @classmethod
    def like(
        cls, plain: Any, config: Any, *, control_dim: int | None = None, device: torch.device | str | None = None
    ) -> Self:
        layer = super().like(plain, config, control_dim=control_dim, device=device)
        for name, old in (("R", plain.weight), ("bias", plain.bias)):
            if old is not None:
                setattr(layer, name, nn.Parameter(torch.empty_like(old, device=layer.V.device)))
        return layer

    @classmethod
    def from_plain(cls, plain: Any, config: Any, *, control_dim: int | None = None) -> Self:
        layer = cls.like(plain, config, control_dim=control_dim)
        with torch.no_grad():
            for own, old in ((layer.R, plain.weight), (layer.bias, plain.bias)):
                if own is not None:
                    own.copy_(old)
        layer.adopt(plain)
        return layer

    def numbers(self) -> dict[str, int]:
        """How many numbers must be stored to `answer`, and to go on to `learn`: of G, which is symmetric, half; of what
        the seed draws again, none."""
        kinds, width = self.sums.G.shape[:2]
        answer = self.memory.numbers() + self.V.numel()
        return {"answer": answer, "learn": answer + kinds * width * (width + 1) // 2 + len(self.ledger)}

    def stored(self) -> dict[str, int]:
        return {"memory": self.memory.numbers(), "main": self.V.numel()}

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        if self.R is not None:
            yield self.R

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but buffers whose size depends on what was observed take the size that was saved."""
        for name in self.resizable:
            owner, _, own = name.rpartition(".")
            old, saved = self.get_buffer(name), state_dict.get(prefix + name)
            if saved is not None:
                setattr(self.get_submodule(owner), own, old.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.resize(len(self.sums.square))
        self.mark(int(self.status))

    @property
    def resizable(self) -> tuple[str, ...]:
        outputs = ("V", *(f"sum_{name}" for name in Sums._fields)) if self.is_open else ()
        return "ledger", "memory.origin", *outputs

    def describe(self) -> str:
        fields = {"bias": self.has_constant, **dataclasses.asdict(self.config)}
        control = {} if self.control_dim is None else {"control_dim": self.control_dim}
        return ", ".join(f"{name}={value}" for name, value in (fields | control).items())
