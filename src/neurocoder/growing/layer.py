"""The base of linear and convolutional growing layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layer.base import CodedLayer
from ..layer.start import full_precision, plain_weight
from ..ops.backend import is_exporting, is_transformed
from .capacity import set_capacity
from .config import GrowingConfig
from .functional import blended, has_kernel
from .memory import GrowingMemory, Reading
from .notes import Note, note_of


class GrowingPrograms(NamedTuple):
    """Which slots some inputs use, the nearest first.

    Example:
        >>> layer = nc.GrowingLinear(8, 4, growing=nc.GrowingConfig(slots=16, top_k=2))
        >>> layer.programs(torch.randn(32, 8)).slots.shape  # inputs, slots that each uses
        torch.Size([32, 2])
    """

    slots: Tensor
    """Their indices (..., top_k)."""
    share: Tensor
    """w, how strongly each is used (..., top_k); zero for slots that are not written."""
    similarity: Tensor
    """cos(k_i, z) (..., top_k); -1 for slots that are not written."""
    born: Tensor
    """The optimiser step that wrote each of them (..., top_k), from 0; -1 for slots that are not written."""
    written: Tensor
    """How many slots of the memory are written ()."""

    def detach(self) -> GrowingPrograms:
        """The same without gradients; there are none."""
        return self


class GrowingLayer(CodedLayer):
    """A layer whose weight is `W_t = sum_r (w.U_r)^T (w.V_r)`, plus `R` with a residual.

    `w = softmax(beta cos(k_i, z))` over the `top_k` nearest written slots. `z` is the control or, without one, what the
    layer reads of its own input minus its mean over the features. Slots have no bias: append a constant 1 to the input
    to give them one. The layer's own bias is shared by all slots, and is not consolidated.

    Example:
        >>> from neurocoder.growing import GrowingLayer
        >>> isinstance(nc.GrowingLinear(8, 4), GrowingLayer), isinstance(nc.GrowingConv2d(3, 6, 3), GrowingLayer)
        (True, True)
    """

    config_type = GrowingConfig
    config: GrowingConfig
    parts = {"memory": "memory", "R": "residual", "bias": "main"}
    undecayed = ("memory",)
    memory: GrowingMemory
    R: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        own_width: int,
        *,
        bias: bool,
        growing: GrowingConfig | None,
        control_dim: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(growing, weight_shape, control_dim, bias=bias, dtype=dtype)
        if control_dim is None and own_width < 2:
            raise ValueError(
                f"{type(self).__name__}: control_dim must be given where an input has one feature or channel, got None"
            )
        d_out, d_in = weight_shape[0], math.prod(weight_shape[1:])
        # Built without values, so that all random numbers are drawn in one place, whatever the dtype and device.
        options: Any = {"device": "meta", "dtype": dtype}
        self.memory = GrowingMemory(d_in, d_out, self.control_dim or own_width, self.config, **options)
        self.R = nn.Parameter(torch.empty(weight_shape, **options)) if self.config.residual else None
        self.bias = nn.Parameter(torch.empty(d_out, **options)) if bias else None
        self.to_empty(device=torch.get_default_device() if device is None else device)
        self.reset_parameters()
        self._freeze()

    @property
    def prototype(self) -> Tensor:
        return self.memory.U

    def reset_parameters(self) -> None:
        """Set the starting values, with nothing written; a no-op on the meta device."""
        if self.memory.U.is_meta:
            return
        with full_precision(self.memory.U.device):
            self.memory.reset()
            self.start_from(plain_weight(self.weight_shape))
            if self.bias is not None:
                fan_in = math.prod(self.weight_shape[1:])
                self.bias.copy_(plain_weight((len(self.bias), fan_in))[:, 0])

    def start_from(self, weight: Tensor) -> None:
        """`R = W`: nothing is written, so the layer is the plain one. Without a residual it cannot hold a weight."""
        if self.R is not None:
            self.R.copy_(weight)

    def _freeze(self) -> None:
        if self.config.residual == "frozen":
            for parameter in (self.R, self.bias):
                if parameter is not None:
                    parameter.requires_grad_(False)

    def adopt(self, plain: Any) -> None:
        super().adopt(plain)
        self._freeze()

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        if self.R is not None and self.config.residual != "frozen":
            yield self.R

    def stored(self) -> dict[str, int]:
        """Numbers that the layer keeps besides its parameters, by part: the keys."""
        return {"memory": self.memory.keys.numel()}

    def written_numbers(self) -> int:
        """How many numbers the written slots hold: programs and keys."""
        each = sum(tensor[0].numel() for tensor in (self.memory.U, self.memory.V, self.memory.keys))
        return 0 if self.memory.written.is_meta else int(self.memory.written) * each

    def read(self, x: Tensor, control: Tensor | None) -> tuple[Reading, Tensor, torch.Size]:
        """Which slots the inputs use, the controls z (N, d_z), and the leading dimensions."""
        rows, leading = self.rows(x, control)
        z, length = rows.detach(), None
        if control is None:
            if has_kernel(z, self.memory.capacity, self.config.rank, self.config.top_k):
                from .kernels import centred

                z, length = centred(z)
            else:
                z = z - z.mean(dim=-1, keepdim=True)
        return self.memory(z, length), z, leading

    def noting(self, reading: Reading, z: Tensor) -> Callable[[], Note] | None:
        """In training: makes what the backward of this call notes for `nc.grow`."""
        learns = self.memory.U.requires_grad or self.memory.V.requires_grad
        if not (self.training and learns and torch.is_grad_enabled()) or is_exporting():
            return None
        return None if is_transformed() or z.is_meta or len(z) == 0 else partial(note_of, self.memory, reading, z)

    def programs(self, x: Tensor, control: Tensor | None = None) -> GrowingPrograms:
        """Which slots these inputs use; leading dimensions are the control's (or the input's)."""
        reading, _, leading = self.read(x, self.resolve_control(control))
        return self._described(reading, leading)

    def _described(self, reading: Reading, leading: torch.Size) -> GrowingPrograms:
        memory = self.memory
        born = memory.born[reading.slots].masked_fill(reading.slots >= memory.written, -1)
        shape = (*leading, self.config.top_k)
        slots, share, similarity, when = (part.reshape(shape) for part in (*reading[:3], born))
        return GrowingPrograms(slots, share, similarity, when, memory.written.clone())

    def record_programs(self, reading: Reading, leading: torch.Size) -> None:
        """Keep which slots this call uses if `nc.record` asked for it."""
        if self.recorded is not None:
            self.recorded.append(self._described(reading, leading))

    def working_programs(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        """`W_t` (N, d_in, d_out) of each input, and the leading dimensions. For inspection."""
        reading, _, leading = self.read(x, self.resolve_control(control))
        weight = torch.matmul(blended(self.memory.U, reading).mT, blended(self.memory.V, reading))
        return weight if self.R is None else weight + self.R.flatten(1).mT, leading

    def constant_weight(self) -> Tensor | None:
        if int(self.memory.written):
            return None
        return self.memory.U.new_zeros(self.weight_shape) if self.R is None else self.R.detach()

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        reading, z, _ = self.read(x, self.resolve_control(control))
        u, v = blended(self.memory.U, reading), blended(self.memory.V, reading)
        weight = (torch.einsum("nri,nro->oi", u, v) / max(len(z), 1)).reshape(self.weight_shape)
        return (weight if self.R is None else weight + self.R).detach(), len(z)

    def auxiliary_loss(self) -> Tensor:
        return self.memory.U.new_zeros(())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but the memory first takes the capacity that was saved."""
        saved = state_dict.get(f"{prefix}memory.U")
        if isinstance(saved, Tensor) and saved.dim() == 3 and saved.shape[1:] == self.memory.U.shape[1:]:
            if len(saved) != self.memory.capacity:
                set_capacity(self, len(saved))
            self.memory.at_most = len(saved)
            self.memory.notes.clear()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def describe(self) -> str:
        fields = {"bias": self.bias is not None, **dataclasses.asdict(self.config)}
        if self.control_dim is not None:
            fields["control_dim"] = self.control_dim
        return ", ".join(f"{name}={value}" for name, value in fields.items())
