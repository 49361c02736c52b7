"""One training step, on a GPU as a captured graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

import neurocoder as nc

from ..train.capture import Captured
from .methods import Method
from .pool import Pool


def prepare(optimiser: torch.optim.Optimizer) -> bool:
    """Make the optimiser's step one that can be captured; returns whether it can.

    Most of torch's have the option `capturable`, which keeps their counters on the device. SGD has none; Adagrad reads
    its own only if its rate decays. Others (Adafactor, your own) take their steps outside the graph.
    """
    found = True
    for group in optimiser.param_groups:
        if "capturable" in group:
            group["capturable"] = True
            if "fused" in group:
                group |= {"fused": True, "foreach": False}
        elif not (type(optimiser) is SGD or (type(optimiser) is Adagrad and group["lr_decay"] == 0)):
            found = False
    optimiser.load_state_dict(optimiser.state_dict())  # moves counters that exist already
    return found


class Step:
    """Takes the steps of one task.

    Samples are gathered on the device, so nothing in a step depends on values on the host. On a GPU, steps with a full
    batch replay one graph; the epoch's last, smaller one runs eagerly. On a CPU the same operations run uncaptured.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        optimiser: torch.optim.Optimizer,
        pool: Pool,
        batch: int,
        capture: bool,
    ) -> None:
        self._model, self._method, self._optimiser, self._pool = model, method, optimiser, pool
        self._parameters = [entry for entry in model.parameters() if entry.requires_grad]
        self._layers = [module for module in model.modules() if isinstance(module, nc.CodedLayer)]
        device = pool.y.device
        self._order = torch.zeros(len(pool), dtype=torch.int64, device=device)
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._offsets = torch.arange(batch, device=device)
        capture = capture and device.type == "cuda"
        self._whole = capture and prepare(optimiser)
        self._captured = Captured(device, capture)
        self._gradients: list[Tensor | None] = []

    def start(self, order: Tensor, position: int) -> None:
        """Continue at this position of an epoch's order (N,)."""
        self._order.copy_(order)
        self._position.fill_(position)

    def take(self, size: int) -> None:
        """A step on the next `size` samples."""
        if size < len(self._offsets):
            self._differentiate(size)
            self._update()
            return
        self._captured(self._full_batch, before=self._forget_gradients)
        if not self._whole:
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient  # an eager step in between has left its own
            self._update()

    def _full_batch(self) -> None:
        """What is captured: all of a step, or without the optimiser's if that has to stay outside."""
        self._differentiate(len(self._offsets))
        if self._whole:
            self._update()
        else:
            self._gradients = [entry.grad for entry in self._parameters]

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _differentiate(self, size: int) -> None:
        """Gradients of loss, auxiliary loss and penalty; those of parameters that are not in use stay None.

        A parameter is in use if the loss reaches it, or if it belongs to a coded layer that the loss reaches. Idle
        heads are not: neither their auxiliary loss nor a penalty may move them, nor may an optimiser's momentum.
        """
        self._forget_gradients()
        rows = self._order.index_select(0, self._position + self._offsets[:size])
        self._position += size
        batch = self._pool.batch(rows)
        self._method.before_step(batch)
        loss = self._pool.loss(self._model, batch)
        if self._method.reads_inputs:
            loss = loss + self._method.penalty(self._model)
        loss.backward(retain_graph=True)  # a mixture's auxiliary loss shares the forward pass
        self._method.after_backward(self._model)
        reached = [layer for layer in self._layers if any(entry.grad is not None for entry in layer.parameters())]
        if reached:
            _backward(nc.auxiliary_loss(*reached))
        if not self._method.reads_inputs:
            in_use = [entry for entry in self._parameters if entry.grad is not None]
            _backward(self._method.penalty(self._model), in_use)

    def _update(self) -> None:
        self._optimiser.step()
        self._method.after_step(self._model)


def _backward(term: Tensor, inputs: list[nn.Parameter] | None = None) -> None:
    """Add the gradients of a term, which may be constant."""
    if term.requires_grad:
        term.backward(inputs=inputs)
