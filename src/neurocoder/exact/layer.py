"""The exact linear layer: observed, solved, merged and forgotten, instead of trained."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import linear

from ..layer.checks import require_number
from ..layer.linear import CodedLinear, Options
from ..layer.start import keeping
from .config import ExactConfig
from .memory import ExactMemory
from .solve import Solution, solve
from .sums import Sums, hashes

CHUNK = 8192
"""Samples whose features are in memory at a time."""


class ExactPrograms(NamedTuple):
    """How strongly some inputs use each slot.

    Example:
        >>> head = nc.ExactLinear(8, 3, exact=nc.ExactConfig(slots=5, rank=2))
        >>> head.basis(torch.randn(64, 8))
        >>> head.programs(torch.randn(32, 8)).use.shape  # inputs, slots
        torch.Size([32, 5])
    """

    use: Tensor
    """w / 30 (..., P): 0 to 1 for Gaussians."""

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
    V: Tensor
    """(M, C); zero where it is to be solved for"""
    ridge: Tensor
    """What `solve` was last given (); 0: None; NaN: it was not called"""
    temperature: Tensor
    """Of `probabilities` (); NaN before `calibrate`"""
    origin: Tensor
    """Hashes of the inputs that fixed the basis (n,)"""

    def __init__(
        self,
        in_features: int,
        out_features: int | None,
        bias: bool = True,
        exact: ExactConfig | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.has_constant, self.is_open = bias, out_features is None
        width = 1 if out_features is None else out_features
        super().__init__(in_features, width, bias, exact, **options)

    def create(self, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Create the buffers; R and the bias are there only where an old weight is."""
        self.bias, outputs = None, 0 if self.is_open else self.out_features
        device = torch.get_default_device() if device is None else device
        self.memory = ExactMemory(self.in_features, self.control_width, self.config, device)
        for name in ("ridge", "temperature"):
            self.register_buffer(name, torch.tensor(math.nan, device=device, dtype=torch.float64))
        self.register_buffer("origin", torch.zeros(0, device=device, dtype=torch.int64))
        self.keep(Sums.zero(self.width, outputs, self.config.per_class, device))

    @property
    def sums(self) -> Sums:
        """What was observed; shares memory with the buffers."""
        return Sums(*(self.get_buffer(f"sum_{name}") for name in Sums._fields))

    @torch.inference_mode(False)
    def keep(self, sums: Sums) -> None:
        """Have observed this; a solution is then out of date."""
        for name, tensor in sums._asdict().items():
            self.register_buffer(f"sum_{name}", tensor.clone() if tensor.is_inference() else tensor)
        self.out_features, self.weight_shape = len(sums.square), (len(sums.square), self.in_features)
        self.register_buffer("V", torch.zeros_like(sums.B, dtype=torch.float32))
        self.is_current = False

    is_solved = is_watched = False

    @property
    def prototype(self) -> Tensor:
        return self.V if self.R is None else self.R

    @property
    def width(self) -> int:
        """M: the number of features, with x and the constant."""
        return self.memory.width + self.in_features * self.config.residual + self.has_constant

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Buffers change their device, never their precision: half of the digits of G are no G."""
        return super()._apply(keeping(fn, self.buffers()), recurse)

    def features(self, x: Tensor, z: Tensor) -> Tensor:
        """`[phi(x, z), x, 1]` (N, M), in the precision of x."""
        beside = [x] * self.config.residual + [x.new_ones(x.shape[0], 1)] * self.has_constant
        return torch.cat([self.memory(x, z), *beside], 1)

    def paired(self, x: Tensor, control: Tensor | None, learning: bool = True) -> tuple[Tensor, Tensor, torch.Size]:
        """Inputs (N, d_in), the control of each (N, d_z), and the inputs' leading dimensions; to learn: no NaN."""
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        if control is not None:
            rows = rows.repeat_interleave(math.prod(x.shape[len(leading) : -1]), 0)
        if learning:
            x, rows = x.detach(), rows.detach()
            if not (x.isfinite().all() and rows.isfinite().all()):
                raise ValueError("x and control must be finite, got NaN or infinity")
        return x.reshape(-1, self.in_features), rows, x.shape[:-1]

    def basis(self, x: Tensor, control: Tensor | None = None) -> None:
        """Fix keys and directions by inputs (..., d_in), before anything is observed; a few hundred are enough.

        The features depend on these inputs for good, and `forget` cannot undo that: take data that nobody will ask to
        delete. Random ReLU features need no basis, and Fourier features only take their scale from it.
        """
        if self.sums.samples.any():
            raise ValueError("basis must be called before anything is observed: the sums belong to the present one")
        x, z, _ = self.paired(x, control)
        if self.config.features not in ("relu", "none"):
            self.memory.fix(x.double(), z.double())
            self.origin = hashes(x, z)

    def targets(self, y: Tensor, shape: torch.Size) -> Tensor:
        """Labels (N,), or real targets (N, C) in float64."""
        y, outputs = torch.as_tensor(y).detach().to(self.V.device), math.inf if self.is_open else self.out_features
        if y.is_floating_point() and not (self.is_open or self.config.per_class):
            if y.shape == (*shape, outputs) and y.isfinite().all():
                return y.reshape(-1, self.out_features).double()
        elif not y.is_floating_point() and y.shape == shape and ((y.long() >= 0) & (y.long() < outputs)).all():
            return y.reshape(-1).long()
        got = f"{y.dtype} {tuple(y.shape)}" + (f" from {y.min()} to {y.max()}" if y.numel() else "")
        allowed = f"labels {tuple(shape)} >= 0 and < {outputs}, or, unless classes grow or are kept apart, numbers"
        raise ValueError(f"y must be {allowed} {(*shape, self.out_features)}, got {got}")

    def measured(self, x: Tensor, y: Tensor, weight: Tensor | None, control: Tensor | None) -> Sums:
        """The sums over these samples alone."""
        if self.memory.needs_inputs and not self.memory.bandwidth:
            raise ValueError("the basis is not fixed: call basis(x) with some inputs before observing")
        x, z, shape = self.paired(x, control)
        y = self.targets(y, shape)
        c = (torch.ones(shape) if weight is None else torch.as_tensor(weight).detach()).to(self.sums.B)
        if c.shape != shape or not (c.isfinite() & (c >= 0)).all():
            raise ValueError(f"weight must be finite numbers >= 0, one a sample {tuple(shape)}, got {tuple(c.shape)}")
        c = c.reshape(-1)
        outputs = max(self.out_features, int(y.max()) + 1 if self.is_open and len(y) else 0)
        found = Sums.zero(self.width, outputs, self.config.per_class, self.V.device)
        for rows in torch.arange(len(x), device=x.device).split(CHUNK) if len(x) else ():
            phi = self.features(x[rows].double(), z[rows].double())
            found.add(phi, y[rows], c[rows], self.config.per_class)
        if not (found.G.diagonal(dim1=1, dim2=2).isfinite().all() and found.square.isfinite().all()):
            raise ValueError(f"x, y and weight must have finite sums of squares, got x up to {x.abs().max():.0e}")
        return found._replace(ledger=hashes(x, z, y, c)) if self.config.ledger else found

    def observe(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, control: Tensor | None = None) -> None:
        """Add samples to the sums; nothing else of them is kept.

        Args:
            x: (..., in_features).
            y: labels (...), or targets (..., out_features), as one-hot rows or any real numbers; a list will do.
            weight: of each sample (...), not negative.
            control: z (..., control_dim), as in the forward.
        """
        self.keep(self.sums.plus(self.measured(x, y, weight, control)))

    partial_fit = observe

    def forget(self, x: Tensor, y: Tensor, weight: Tensor | None = None, *, control: Tensor | None = None) -> None:
        """Subtract samples that were observed, with the same y and weight: the sums are then as if never seen.

        Samples that cannot have been observed are an error, and nothing changes: those without which a count or an
        eigenvalue of G would be negative. Only a `ledger` knows each sample. What the samples did to the basis stays,
        and a warning says so. A ridge that was chosen by them, a temperature, or a standardisation of x is yours to
        choose again.
        """
        left = self.sums.minus(self.measured(x, y, weight, control))
        inputs = hashes(*self.paired(x, control)[:2]) if len(self.origin) else self.origin
        self.keep(left)
        if shared := int(torch.isin(inputs, self.origin).sum()):
            warnings.warn(f"{shared} forgotten samples fixed the basis, which still depends on them", stacklevel=2)

    def forget_class(self, label: int) -> None:
        """Subtract all samples with this label, without their data; needs `per_class`, and no `ledger`."""
        known = self.sums.samples.nonzero().flatten().tolist()
        if not self.config.per_class or self.config.ledger or label not in known:
            raise ValueError(f"forget_class needs per_class, no ledger, and an observed label, got {label!r}")
        left = Sums(*(tensor.clone() for tensor in self.sums))
        for tensor in (left.G, left.B.mT, left.square, left.samples):
            tensor[int(label)] = 0
        self.keep(left)

    def merge(self, other: ExactLinear) -> Self:
        """A new layer that has observed what both did. Both must have the same configuration and basis."""
        if not isinstance(other, ExactLinear) or self.form() != other.form():
            raise ValueError(f"other must be a copy from before observing, of the same form and basis, got {other!r}")
        both = copy.deepcopy(self)
        both.keep(self.sums.plus(Sums(*(tensor.to(self.V.device) for tensor in other.sums))))
        return both

    def form(self) -> tuple[Any, ...]:
        """What two layers must share to be merged."""
        numbers = hashes(*(tensor.reshape(1, -1) for tensor in self.memory.state_dict().values()))
        return self.in_features, None if self.is_open else self.out_features, self.describe(), int(numbers)

    def merge_processes(self, group: Any = None) -> Self:
        """`merge` over the processes of a `torch.distributed` group: a new layer, the same in each of them.

        The layers themselves keep their own sums, so another call counts nothing twice.
        """
        layers: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(layers, copy.deepcopy(self).cpu(), group)
        return functools.reduce(type(self).merge, layers).to(self.V.device)

    @torch.inference_mode(False)  # a solution that was found in it could not take part in a backward
    def solve(self, ridge: float | None = None) -> Solution:
        """Solve for V. `ridge` defaults to the configuration's; None there, too, is generalised cross-validation."""
        if not self.sums.samples.any():
            raise ValueError("nothing was observed yet: call observe(x, y) first")
        ridge = self.config.ridge if ridge is None else ridge
        if ridge is not None:
            require_number("ridge", ridge, positive=True)
        self.V, solution = solve(self.sums, ridge)
        self.ridge.fill_(ridge or 0)
        self.is_solved = self.is_current = True
        self.requires_grad_(False)  # an old weight no longer answers
        return solution

    def require_solved(self) -> None:
        """Solve as the last time, if samples came or went since."""
        if not self.is_current:
            self.solve(float(self.ridge) if self.ridge > 0 else None)

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """(..., out_features), in the dtype of x; solves first if samples came or went since."""
        rows, z, shape = self.paired(x, control, learning=False)
        self.record_programs(x, control)
        if self.R is not None and not self.is_solved:
            return linear(x, self.R, self.bias)
        if self.is_watched and not self.sums.samples.any():
            return x.new_zeros(*shape, self.out_features)
        self.require_solved()
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            y = self.features(rows.to(wide), z.to(wide)) @ self.V.to(wide)
        return y.to(x.dtype).reshape(*shape, self.out_features)

    def calibrate(self, x: Tensor, y: Tensor, *, control: Tensor | None = None) -> float:
        """Fit the temperature of `probabilities` on held-out samples with labels (Guo et al., 2017); returns it."""
        scores = self(x, control).detach().double().reshape(-1, self.out_features)
        labels = self.targets(y, x.shape[:-1])
        if labels.is_floating_point() or not len(labels) or labels.max() >= self.out_features:
            raise ValueError(f"calibrate must be given labels < {self.out_features} of at least one sample")
        candidates = torch.logspace(-4, 2, 241).to(scores)
        losses = torch.stack([nn.functional.cross_entropy(scores / one, labels) for one in candidates])
        self.temperature.copy_(candidates[losses.argmin()])
        return float(self.temperature)

    def probabilities(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """Class probabilities (..., out_features): `softmax(y / temperature)`, after `calibrate`."""
        if self.temperature.isnan():
            raise ValueError("probabilities need calibrate(x, y) on held-out samples first")
        return torch.softmax(self(x, control).float() / self.temperature.float(), -1)

    def programs(self, x: Tensor, control: Tensor | None = None) -> ExactPrograms:
        """How strongly these inputs use each slot."""
        _, z, shape = self.paired(x, control, learning=False)
        with torch.autocast(z.device.type, enabled=False):
            return ExactPrograms(self.memory.use(z.float()).reshape(*shape, -1))

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t = R + sum_i w_i A^T V_i` (..., d_in, d_out), the slope in x where what addresses the slots is held.

        Beside it each input has a constant of its own, to which all slots of other features than `local` belong.
        """
        self.require_solved()
        _, z, shape = self.paired(x, control, learning=False)
        steps = torch.eye(self.in_features + 1, dtype=torch.float64, device=self.V.device)[:, 1:]  # zero, unit vectors
        answers = [self.features(steps, one.double().expand(len(steps), -1)) @ self.V.double() for one in z.split(1)]
        slopes = torch.stack([answer[1:] - answer[0] for answer in answers]).float()
        return slopes.reshape(*shape, self.in_features, self.out_features)

    def constant_weight(self) -> Tensor:
        """The old weight, before `solve`; after it no plain layer answers alike."""
        if self.R is None or self.is_solved:
            raise ValueError(f"cannot restore {self.name or 'an exact layer'}: no plain layer answers as it does")
        return self.R.detach()

    @classmethod
    def like(cls, plain: Any, config: Any, **options: Any) -> Self:
        layer = super().like(plain, config, **options)
        for name, old in (("R", plain.weight), ("bias", plain.bias)):
            setattr(layer, name, None if old is None else nn.Parameter(torch.empty_like(old, device=layer.V.device)))
        return layer

    def start_from(self, weight: Tensor) -> None:
        """Keep the old weight."""
        if self.R is not None:
            self.R.copy_(weight)

    def numbers(self) -> dict[str, int]:
        """How many numbers must be stored to `answer`, and to go on to `learn`: of G, which is symmetric, half; of what
        the seed draws again, none."""
        (kinds, width, _), answer = self.sums.G.shape, sum(self.stored().values())
        return {"answer": answer, "learn": answer + kinds * width * (width + 1) // 2 + len(self.sums.ledger)}

    def stored(self) -> dict[str, int]:
        return {"memory": self.memory.numbers(), "main": self.V.numel()}

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: a copy is not watched."""
        return {**super().__getstate__(), "is_watched": False}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but buffers whose size depends on what was observed take the size that was saved."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        V = self.V
        self.keep(self.sums)
        self.V, self.is_solved, self.is_current = V, not self.ridge.isnan(), bool(V.any())
        if self.is_solved:
            self.requires_grad_(False)

    @property
    def resizable(self) -> tuple[str, ...]:
        return "origin", "sum_ledger", *(("V", *(f"sum_{name}" for name in Sums._fields[:-1])) if self.is_open else ())

    def describe(self) -> str:
        return f"bias={self.has_constant}, {super().describe().partition(', ')[2]}"
