"""The Program Memory: slots of singular programs, and the keys that address them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..distributed import is_sharded
from ..layer.start import affine, orthonormal
from . import functional as F
from .config import ProgramConfig
from .part import Part


class Slots(NamedTuple):
    """What a memory holds, and the keys that address it."""

    U: Tensor
    """M_U (P, d_in)"""
    V: Tensor
    """M_V (P, d_out)"""
    S: Tensor
    """M_S (P, 1)"""
    keys: Tensor
    """k for u, v, s (3, P, K)"""


class ProgramMemory(Part):
    """`M_U (P, d_in)`, `M_V (P, d_out)`, `M_S (P, 1)` and the key networks `f_varphi` of their slots.

    The layer calls `memory()`, unless a kernel serves it. A hook, a subclass or a parametrization of the memory rules
    out kernels, so it is always honoured.

    Example:
        >>> memory = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, key_dim=5)).memory
        >>> memory.U.shape, memory.V.shape, memory.S.shape
        (torch.Size([10, 8]), torch.Size([10, 4]), torch.Size([10, 1]))
        >>> memory.keys().shape
        torch.Size([3, 10, 5])
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        program: ProgramConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.U = nn.Parameter(torch.empty(program.slots, d_in, **options))
        self.V = nn.Parameter(torch.empty(program.slots, d_out, **options))
        self.S = nn.Parameter(torch.empty(program.slots, 1, **options))
        self.key_u_weight, self.key_u_bias = affine(d_in, program.key_dim, **options)
        self.key_v_weight, self.key_v_bias = affine(d_out, program.key_dim, **options)
        self.key_s_weight, self.key_s_bias = affine(1, program.key_dim, **options)
        self.reset_slots()

    def reset_slots(self) -> None:
        """Orthonormal singular vectors (semi-orthonormal for P > d), singular values near one; a no-op on meta."""
        if self.U.is_meta:
            return
        with torch.no_grad():
            self.U.copy_(orthonormal(*self.U.shape))
            self.V.copy_(orthonormal(*self.V.shape))
            self.S.normal_(1.0, 0.1)

    def keys(self) -> Tensor:
        """`k = f_varphi(M)`: (3, P, K) for u, v, s, recomputed at each call so that keys follow their slots.

        Computed as columns: a CPU multiplies few long rows by many faster than many by few.
        """
        keys_u = torch.addmm(self.key_u_bias.unsqueeze(1), self.key_u_weight, self.U.mT)
        keys_v = torch.addmm(self.key_v_bias.unsqueeze(1), self.key_v_weight, self.V.mT)
        keys_s = torch.addcmul(self.key_s_bias.unsqueeze(1), self.key_s_weight, self.S.mT)
        return torch.stack([keys_u, keys_v, keys_s]).mT

    def forward(self) -> Slots:
        """The slots and their keys."""
        return Slots(self.U, self.V, self.S, self.keys())

    def orthogonal_loss(self) -> Tensor:
        """`L_o` of this memory."""
        return F.orthogonal_loss(unsharded(self.U), unsharded(self.V))


def unsharded(slots: Any) -> Tensor:
    """A slot matrix, gathered if FSDP has sharded it."""
    return slots.full_tensor() if is_sharded(slots) else slots
