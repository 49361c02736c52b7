"""Neural Stored-program Memory (Le, Tran & Venkatesh, 2020): attention by key over whole weight matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, softplus

from ..layer.config import Config
from ..layer.linear import Options
from ..layer.start import affine, affine_start
from .blend import BlendedLinear


@dataclass(frozen=True)
class StoredProgramConfig(Config):
    """Neural Stored-program Memory (Le, Tran & Venkatesh, 2020): attention over whole weight matrices.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.StoredProgramConfig(programs=5))
        >>> type(model[0]).__name__
        'StoredProgramLinear'
    """

    programs: int = 10
    """Number of stored weight matrices."""
    key_dim: int = 5
    """Size of the program keys and queries."""

    owner: ClassVar[str] = "stored_program"

    def __post_init__(self) -> None:
        self._keep_whole("programs", "key_dim")


class StoredProgramLinear(BlendedLinear):
    """`W_t = sum_i softmax_i(beta(x) cos(q(x), k_i)) M_i` with free keys `k_i`, executed without building `W_t`.

    Example:
        >>> layer = nc.StoredProgramLinear(8, 4, stored_program=nc.StoredProgramConfig(programs=5))
        >>> layer(torch.randn(32, 8)).shape
        torch.Size([32, 4])
    """

    config_type = StoredProgramConfig
    config: StoredProgramConfig
    parts = {"bank": "memory", "keys": "memory", "query_weight": "controller", "query_bias": "controller"}
    undecayed = ("keys",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        stored_program: StoredProgramConfig | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(in_features, out_features, bias, stored_program, **options)

    def build(self, options: dict[str, Any]) -> None:
        programs, key_dim = self.config.programs, self.config.key_dim
        self.bank = nn.Parameter(torch.empty(programs, *self.weight_shape, **options))
        self.keys = nn.Parameter(torch.empty(programs, key_dim, **options))
        # The query, followed by the strength beta before the softplus.
        self.query_weight, self.query_bias = affine(self.control_width, key_dim + 1, **options)

    def start(self) -> None:
        """Keys from a normal distribution, the query network like `nn.Linear`, then the bank."""
        self.keys.copy_(torch.randn(self.keys.shape, device="cpu", dtype=torch.float32))
        affine_start(self.query_weight, self.query_bias)
        self.start_bank()

    def start_from(self, weight: Tensor) -> None:
        """Also give every input the same shares at first, so that the start is exact."""
        nn.init.zeros_(self.query_weight)
        super().start_from(weight)

    def reader(self) -> Tensor:
        return self.query_weight

    def code(self, rows: Tensor) -> Tensor:
        """The attention (N, programs)."""
        signal = linear(rows, self.query_weight, self.query_bias)
        query, strength = signal[..., :-1], softplus(signal[..., -1:])
        return torch.softmax(strength * linear(normalize(query, dim=-1), normalize(self.keys, dim=-1)), dim=-1)
