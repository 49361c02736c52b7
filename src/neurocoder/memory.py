"""The Program Memory: slots of singular programs and the keys by which they are found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import functional as F
from .backend import fuses_orthogonality
from .config import ProgramConfig


def orthonormal(rows: int, columns: int) -> Tensor:
    """A random matrix with orthonormal rows, or columns where there are more rows; in float32 on the CPU."""
    return nn.init.orthogonal_(torch.empty(rows, columns, device="cpu", dtype=torch.float32))


class ProgramMemory(nn.Module):
    """`M_U (P, d_in)`, `M_V (P, d_out)`, `M_S (P, 1)` and the key networks `f_varphi` that name their slots."""

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
        self.U = nn.Parameter(torch.empty(program.slots, d_in, device=device, dtype=dtype))
        self.V = nn.Parameter(torch.empty(program.slots, d_out, device=device, dtype=dtype))
        self.S = nn.Parameter(torch.empty(program.slots, 1, device=device, dtype=dtype))
        self.key_u = nn.Linear(d_in, program.key_dim, device=device, dtype=dtype)
        self.key_v = nn.Linear(d_out, program.key_dim, device=device, dtype=dtype)
        self.key_s = nn.Linear(1, program.key_dim, device=device, dtype=dtype)
        self.reset_slots()

    def reset_slots(self) -> None:
        """Orthonormal singular vectors (semi-orthonormal for P > d), singular values around one; nothing on meta."""
        if self.U.is_meta:
            return
        with torch.no_grad():
            self.U.copy_(orthonormal(*self.U.shape))
            self.V.copy_(orthonormal(*self.V.shape))
            self.S.normal_(1.0, 0.1)

    def keys(self) -> Tensor:
        """`k = f_varphi(M)`: (3, P, K) for u, v, s, computed anew so that keys follow their slots.

        Made as columns: a CPU multiplies few long rows by many faster than many by few.
        """
        wide = ((self.key_u, self.U), (self.key_v, self.V))
        keys = [torch.addmm(key.bias.unsqueeze(1), key.weight, slots.mT) for key, slots in wide]
        keys.append(torch.addcmul(self.key_s.bias.unsqueeze(1), self.key_s.weight, self.S.mT))
        return torch.stack(keys).mT

    def orthogonal_loss(self) -> Tensor:
        """`L_o` of this memory."""
        return orthogonal_losses([(self, 1.0)])[0]


def orthogonal_losses(weighted: Sequence[tuple[ProgramMemory, float]]) -> list[Tensor]:
    """The terms of `sum_i weight_i L_o(memory_i)`; on a GPU all memories of one device and dtype are one term."""
    terms: list[Tensor] = []
    together: dict[tuple[torch.device, torch.dtype], list[tuple[ProgramMemory, float]]] = {}
    for memory, weight in weighted:
        if fuses_orthogonality(memory.U, memory.V):
            together.setdefault((memory.U.device, memory.U.dtype), []).append((memory, weight))
        else:
            loss = F.orthogonal_loss(memory.U, memory.V)
            terms.append(loss if weight == 1 else weight * loss)
    if together:
        from .kernels.orthogonality import OrthogonalLoss

        for found in together.values():
            slots = [tensor for memory, _ in found for tensor in (memory.U, memory.V)]
            terms.append(OrthogonalLoss.apply([weight for _, weight in found], *slots))
    return terms
