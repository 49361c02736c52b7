"""The configuration of the growing layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ..layer.checks import whole
from ..layer.config import Config

ROOM = 8
"""`max_slots` by default: this many times `slots`."""
SHORTEST = 1e-12
"""The least length that a control is divided by."""
USED = 1e-3
"""The inputs of a step must use a slot as much as this, summed, for the step to move it, if steps are counted."""
BEFORE_COUNT = {"count": "inputs", "consolidation": 30.0}
"""What a file from before there was a choice means."""


@dataclass(frozen=True)
class GrowingConfig(Config):
    """A layer whose programs are allocated by novelty: new inputs get new slots, and slots that are used settle.

    For tasks in sequence set `residual=False`, and the layer's `bias=False`: these are shared by all inputs and do not
    settle.

    Example:
        >>> config = nc.GrowingConfig(slots=64, rank=2)
        >>> config.max_slots
        512
        >>> nc.GrowingLinear(8, 4, growing=config)(torch.randn(32, 8)).shape
        torch.Size([32, 4])
    """

    slots: int = 512
    """P: capacity, written or free. It changes when the memory grows or shrinks."""
    rank: int = 4
    """r: rank of each slot's program."""
    top_k: int = 4
    """Slots that one input uses."""
    max_similarity: float = 0.85
    """An input becomes a new key if its cosine to every key is below this."""
    sharpness: float = 50.0
    """beta: factor on the cosine in the attention."""
    consolidation: float | None = 300.0
    """c: a slot's step is scaled by 1/(1 + visits/c); None: never scaled."""
    residual: bool | Literal["frozen"] = True
    """True: W = P_t + R; False: W = P_t; "frozen": W = P_t + R, with R and the bias as they start."""
    writes: int = 1
    """Slots that one optimiser step may write."""
    growth: float = 2.0
    """Factor on the capacity when it is full."""
    max_slots: int | None = None
    """The capacity never exceeds this; None: 8 times `slots`."""
    reuse_below: float = 0.0
    """b: at `max_slots`, a new input overwrites the least visited slot that had b steps and yet fewer than b visits; 0:
    none."""

    count: Literal["steps", "inputs"] = "steps"
    """What a visit is: a step of the optimiser whose inputs used the slot, whatever the batch; or each input that did,
    as in layers saved without this field."""

    owner: ClassVar[str] = "growing"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; without `count`, as it was before there was a choice."""
        return super().from_dict(data if "count" in data else BEFORE_COUNT | data)

    def __post_init__(self) -> None:
        self._keep_whole("slots", "rank", "writes")
        self._keep_whole("top_k", at_most="slots")
        self._keep_number("max_similarity", signed=True)
        if not -1 < self.max_similarity <= 1:
            raise ValueError(f"growing.max_similarity must be above -1 and at most 1, got {self.max_similarity!r}")
        self._keep_number("sharpness", positive=True)
        if self.consolidation is not None:
            self._keep_number("consolidation", positive=True)
        self._keep_choice("residual", among=(True, False, "frozen"))
        self._keep_choice("count", among=("steps", "inputs"))
        self._keep_number("growth")
        self._keep_number("reuse_below")
        if self.growth <= 1:
            raise ValueError(f"growing.growth must be above 1, got {self.growth!r}")
        limit = ROOM * self.slots if self.max_slots is None else whole(self.max_slots, self.slots)
        if limit is None:
            raise ValueError(f"growing.max_slots must be at least slots ({self.slots}), got {self.max_slots!r}")
        object.__setattr__(self, "max_slots", limit)

    @property
    def limit(self) -> int:
        """`max_slots`, which is never None after construction."""
        assert self.max_slots is not None
        return self.max_slots
