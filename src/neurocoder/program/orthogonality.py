"""`L_o` of several memories: on a GPU, all of one device and dtype form one term."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..training import layers_of, total
from .dispatch import fuses_orthogonality
from .memory import ProgramMemory, unsharded


def orthogonal_losses(weighted: Sequence[tuple[ProgramMemory, float]]) -> list[Tensor]:
    """The terms of `sum_i weight_i L_o(memory_i)`."""
    terms: list[Tensor] = []
    together: dict[tuple[torch.device, torch.dtype], list[tuple[ProgramMemory, float]]] = {}
    for memory, weight in weighted:
        is_ours = type(memory).orthogonal_loss is ProgramMemory.orthogonal_loss
        if is_ours and fuses_orthogonality(memory.U, memory.V):
            together.setdefault((memory.U.device, memory.U.dtype), []).append((memory, weight))
        else:
            loss = memory.orthogonal_loss()
            terms.append(loss if weight == 1 else weight * loss)
    for group in together.values():
        from .kernels.orthogonality import OrthogonalLoss  # needs Triton

        slots = [unsharded(tensor) for memory, _ in group for tensor in (memory.U, memory.V)]
        terms.append(OrthogonalLoss.apply([weight for _, weight in group], *slots))
    return terms


def orthogonal_loss(*modules: nn.Module) -> Tensor:
    """`L_o` itself, summed over the program layers, each once.

    Example:
        >>> layer = nc.Linear(8, 8, program=nc.ProgramConfig(slots=4, least_used=2))
        >>> bool(nc.orthogonal_loss(layer) < 1e-4)  # slots start orthonormal
        True
    """
    memories = [getattr(layer, "memory", None) for layer in layers_of(modules)]
    ours = [memory for memory in memories if isinstance(memory, ProgramMemory)]
    return total(orthogonal_losses([(memory, 1.0) for memory in ours]), ours or modules)
