"""The base of linear and convolutional growing layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layer.active import ActiveProgram
from ..layer.base import CodedLayer
from ..layer.config import Config
from ..ops.torch_private import is_exporting, is_transformed
from .capacity import set_capacity
from .config import GrowingConfig
from .functional import Reading, blended, has_kernel, uses_operators
from .mask import kept
from .memory import GrowingMemory
from .notes import BackwardStats, attach_stats


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

    @property
    def grows(self) -> bool:
        """Whether the memory may have more slots later."""
        return True

    def reads(self) -> dict[str, Tensor]:
        """The one attention over the written slots (..., 1, P), on the CPU; NaN for inputs that are not finite."""
        written = max(1, int(self.written))
        lost = self.similarity.isnan().any(-1, keepdim=True).cpu()
        share = self.share.detach().to("cpu", torch.float32).masked_fill(lost, math.nan)
        dense = share.new_zeros(*share.shape[:-1], written)
        dense.scatter_add_(-1, self.slots.cpu().clamp(max=written - 1), share)
        return {"u": dense.unsqueeze(-2)}

    def title(self, memory: str) -> str:
        """What the columns of `reads` are."""
        return "written slot"

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
    grows = True
    memory: GrowingMemory
    ambient_mask: Any = None
    """See `mask`."""

    def build(self, options: dict[str, Any]) -> None:
        if self.control_width < 2 and self.control_dim is None:
            raise ValueError(
                f"{type(self).__name__}: control_dim must be given where an input has one feature or channel, got None"
            )
        self.memory = GrowingMemory(self.d_in, self.d_out, self.control_width, self.config, **options)

    @property
    def prototype(self) -> Tensor:
        return self.memory.U

    def start(self) -> None:
        """Nothing is written, so the layer starts as the plain one."""
        self.memory.reset()

    def constant_program(self) -> tuple[Tensor, Tensor | float] | None:
        wide = torch.promote_types(self.memory.U.dtype, torch.float32)
        return None if int(self.memory.written) else (self.memory.U.new_zeros(self.d_out, self.d_in, dtype=wide), 1.0)

    def stored(self) -> dict[str, int]:
        """Numbers that the layer keeps besides its parameters, by part: the keys."""
        return {"memory": self.memory.keys.numel()}

    def written_numbers(self) -> int:
        """How many numbers the written slots hold: programs and keys."""
        each = sum(tensor[0].numel() for tensor in (self.memory.U, self.memory.V, self.memory.keys))
        return 0 if self.memory.written.is_meta else int(self.memory.written) * each

    def find(self, rows: Tensor) -> tuple[Reading, Tensor]:
        """Which slots the inputs use, and the controls z (N, d_z); without a control, z is the input minus its mean."""
        z, length = rows.detach(), None
        uses_kernels = has_kernel(z, self.memory.U, self.config.top_k)
        if self.control_dim is None:
            if uses_kernels and not uses_operators():
                from .kernels import centred

                z, length = centred(z)
            else:
                z = z - z.mean(dim=-1, keepdim=True)
        return self.memory(z, length, uses_kernels), z

    def compose(self, rows: Tensor) -> ActiveProgram:
        return self.active(*self.find(rows), rows.shape[:1])

    def active(self, reading: Reading, z: Tensor, leading: torch.Size) -> ActiveProgram:
        """`w.U` and `w.V` of each input, whose backward adds what it saw to the memory's notes."""
        u, v = blended(self.memory.U, reading), blended(self.memory.V, reading)
        return ActiveProgram(u, v, finish=partial(attach_stats, make_stats=self.make_stats(reading, z, leading)))

    def make_stats(self, reading: Reading, z: Tensor, leading: torch.Size) -> Callable[[], BackwardStats] | None:
        """In training: makes what the backward of this call adds to the notes for `nc.grow`.

        Args:
            reading: of the controls.
            z: (N, d_z).
            leading: the controls' dimensions before they were flattened to N.
        """
        learns = self.memory.U.requires_grad or self.memory.V.requires_grad
        if not (self.training and learns) or is_exporting():
            return None
        if is_transformed() or z.is_meta or len(z) == 0:
            return None
        counts = kept(self, leading, z.device)
        return partial(self.memory.backward_stats, reading, z, counts) if torch.is_grad_enabled() else None

    def programs(self, x: Tensor, control: Tensor | None = None) -> GrowingPrograms:
        """Which slots these inputs use; leading dimensions are the control's (or the input's)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        memory, (reading, _) = self.memory, self.find(rows)
        born = memory.born[reading.slots].masked_fill(reading.slots >= memory.written, -1)
        shape = (*leading, self.config.top_k)
        slots, share, similarity, when = (part.reshape(shape) for part in (*reading[:3], born))
        return GrowingPrograms(slots, share, similarity, when, memory.written.clone())

    @property
    def resizable(self) -> tuple[str, ...]:
        return tuple(f"memory.{name}" for name in ("U", "V", "keys", "visits", "born"))

    def takes(self, config: Config) -> bool:
        """Also one of another capacity, which the memory then has too."""
        if not isinstance(config, GrowingConfig):
            return False
        c = config
        return dataclasses.replace(self.config, slots=c.slots, top_k=c.top_k, max_slots=c.max_slots) == config

    def resume(self, config: Config) -> None:
        super().resume(config)
        self.memory.config = self.config

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not what `nc.mask` sets temporarily."""
        return {**super().__getstate__(), "ambient_mask": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but the memory first takes the capacity that was saved, and the state of the optimiser that
        grows it too; and slots without their keys, which are buffers, are an error, strict or not."""
        *_, errors = rest
        slots, state = (
            [f"{prefix}memory.{name}" for name, _ in found]
            for found in (self.memory.named_parameters(), self.memory.named_buffers())
        )
        lost = [name for name in state if name not in state_dict]
        if lost and any(name in state_dict for name in slots):
            errors.append(
                f"{', '.join(lost)} missing: no input finds a slot without its key. Keys are buffers, not parameters: "
                "save all tensors of the layer, as nc.save does, not those alone that require gradients"
            )
        saved: Any = state_dict.get(f"{prefix}memory.U")
        fits = isinstance(saved, Tensor) and saved.dim() == 3 and saved.shape[1:] == self.memory.U.shape[1:]
        if fits and len(saved) != self.memory.capacity:
            set_capacity(self, len(saved), self.memory.guard.allowed)
        super()._load_from_state_dict(state_dict, prefix, *rest)
