"""The configuration of core layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..layer.config import Config

STEERED_SLOTS = 16
"""P of a layer with a control, by default; a multiple of 8, which fast matrix products in bfloat16 need."""
OWN_SLOTS, OWN_PROGRAMS = 16, 8
"""P and K, at most, of a layer that reads its own input, by default."""
RELATIVE_SIZE = 4
"""A layer that reads its own input has at most so many times fewer numbers in U and V than in R: more cost accuracy on
small layers."""


@dataclass(frozen=True)
class CoreConfig(Config):
    """A layer whose programs are small tables over shared slots: `C = C_0 + sum_k h_k C_k`, with signed h.

    Example:
        >>> config = nc.CoreConfig(slots=6, diagonal=True)
        >>> layer = nc.CoreLinear(8, 4, core=config, control_dim=3)
        >>> layer(torch.randn(32, 8), control=torch.randn(32, 3)).shape
        torch.Size([32, 4])
    """

    slots: int | None = None
    """P: rows of U and V; None: 16 with a control, else by the layer's size."""
    programs: int | None = None
    """K: tables; None: one for each number of the control, or at most 8 without a control."""
    diagonal: bool = False
    """The tables are vectors (P,): each row of V takes only from its row of U."""
    shift: bool = False
    """Each program also adds an offset to what the slots read; with a control only."""
    normalise: bool = False
    """The control is divided by its root mean square; with a control only (without, what is read always is)."""
    residual: bool | Literal["frozen"] = True
    """True: W = P_t + R; False: W = P_t, with a control only; "frozen": W = P_t + R, with R and the bias as they
    start."""

    owner: ClassVar[str] = "core"

    def __post_init__(self) -> None:
        self._keep_whole(*(name for name in ("slots", "programs") if getattr(self, name) is not None))
        self._keep_choice("diagonal", "shift", "normalise")
        self._keep_choice("residual", among=(True, False, "frozen"))

    def sizes(self, d_in: int, d_out: int, control_dim: int | None) -> tuple[int, int]:
        """P and K of a layer of this size; P = 0 where it is too small for programs."""
        if control_dim is not None:
            return self.slots or STEERED_SLOTS, self.programs or control_dim
        fitting = min(OWN_SLOTS, d_in, d_out, d_in * d_out // (RELATIVE_SIZE * (d_in + d_out)))
        slots = self.slots or (fitting if fitting >= 2 else 0)
        return slots, self.programs or min(OWN_PROGRAMS, slots)
