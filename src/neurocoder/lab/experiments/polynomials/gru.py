"""A GRU with any output layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class StackableGRU(nn.GRU):
    """One layer of `nn.GRU`, from a zero state, that `torch.func.vmap` can stack.

    torch's own implementation (cuDNN on a GPU) has no batching rule. Where torch.func has replaced the parameters by
    its own tensors, the same equations run as a loop over time.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(N, T, input_size) -> (N, T, hidden_size)"""
        return super().forward(x)[0] if isinstance(self.weight_hh_l0, nn.Parameter) else self.loop(x)

    def loop(self, x: Tensor) -> Tensor:
        """The equations, one time step at a time."""
        parts = (2 * self.hidden_size, self.hidden_size)  # reset and update gate; proposal
        seen = (part.unbind(1) for part in linear(x, self.weight_ih_l0, self.bias_ih_l0).split(parts, dim=-1))
        states = [x.new_zeros(len(x), self.hidden_size)]
        for seen_gates, seen_proposal in zip(*seen, strict=True):
            gates, proposal = linear(states[-1], self.weight_hh_l0, self.bias_hh_l0).split(parts, dim=-1)
            reset, update = torch.sigmoid(seen_gates + gates).chunk(2, dim=-1)
            proposal = torch.tanh(torch.addcmul(seen_proposal, reset, proposal))
            states.append(torch.lerp(proposal, states[-1], update))
        return torch.stack(states[1:], dim=1)


class Regressor(nn.Module):
    """A GRU whose state goes through an output layer to one number per time step."""

    def __init__(self, inputs: int, hidden: int, output: nn.Module) -> None:
        super().__init__()
        self.gru = StackableGRU(inputs, hidden)
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, inputs) -> (N, T)"""
        return self.output(self.gru(x)).squeeze(-1)
