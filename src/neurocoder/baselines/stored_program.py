"""Neural Stored-program Memory (Le, Tran & Venkatesh, 2020): attention by key over whole weight matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from ..config import StoredProgramConfig
from ..functional import unit
from .blend import BlendedLinear


class StoredProgramLinear(BlendedLinear):
    """`W_t = sum_i softmax_i(beta(x) cos(q(x), k_i)) M_i` with free keys `k_i`, executed without building `W_t`."""

    config_type = StoredProgramConfig
    config: StoredProgramConfig
    parts = {"bank": "memory", "keys": "memory", "query": "controller", "bias": "main"}
    undecayed = ("keys",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        stored_program: StoredProgramConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(stored_program, self.set_geometry(in_features, out_features), control_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        width, programs, key_dim = control_dim or in_features, self.config.programs, self.config.key_dim
        self.bank = nn.Parameter(torch.empty(programs, *self.weight_shape, **options))
        self.keys = nn.Parameter(torch.empty(programs, key_dim, **options))
        # The query and, as its last number, the strength beta before softplus.
        self.query = nn.Linear(width, key_dim + 1, **options)
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as a plain layer's, keys from a normal distribution, the query network as torch does."""
        if self.bank.is_meta:
            return
        with torch.no_grad():
            self.reset_bank()
            self.keys.copy_(torch.randn(self.keys.shape, device="cpu", dtype=torch.float32))
            twin = nn.Linear(self.query.in_features, self.query.out_features, device="cpu", dtype=torch.float32)
            self.query.load_state_dict(twin.state_dict())

    def start_from(self, weight: Tensor) -> None:
        """Besides the bank, let every input begin with the same share, so that the start is exact."""
        nn.init.zeros_(self.query.weight)
        super().start_from(weight)

    def control_reads_nothing(self) -> bool:
        return not torch.count_nonzero(self.query.weight)

    def share(self, rows: Tensor) -> Tensor:
        signal = self.query(rows)
        query, strength = signal[..., :-1], softplus(signal[..., -1:])
        return torch.softmax(strength * linear(unit(query), unit(self.keys)), dim=-1)

    def auxiliary_loss(self) -> Tensor:
        return self.bank.new_zeros(())

    def describe(self) -> str:
        return f"bias={self.bias is not None}, programs={self.config.programs}, key_dim={self.config.key_dim}"
