"""Steering a model: controls that learn, a model that makes its own, the control of a new task, and its file.

A control is a tensor z (..., control_dim) that decides the weights of the layers that were built with `control_dim`.
One z serves a whole sequence, image or set of points; a batch has as many as it has tasks, users or latents.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import embedding

from .checkpoint import CheckpointError
from .distributed import unwrapped
from .inspect.data import Call, calls
from .layer.checks import require_floating, require_module, require_number, require_scalar, require_whole
from .layer.control import control as steer_by
from .layer.control import steered_layers
from .ops.backend import is_traced
from .ops.torch_private import is_transformed

EVERY = 5
"""Steps between two looks at the held-out data."""
_KEY = "control"


class ControlEmbedding(nn.Module):
    """Controls that learn, a row for each task or user: (...) whole numbers -> z (..., width).

    A negative number is a task that is unknown: it gets the default row, the first of `weight`. In training, `dropout`
    gives a task the default row now and then, so that this row learns what all tasks share; without dropout it stays at
    zero.

    Args:
        tasks: how many rows.
        width: d_z, the `control_dim` of the layers.
        dropout: the probability of the default row in training.
        scale: standard deviation of the rows at the start; the default row starts at zero.
        device: of the rows; None: torch's default.
        dtype: of the rows; None: torch's default.

    Example:
        >>> users = nc.ControlEmbedding(1000, 16)
        >>> users(torch.tensor([3, 3, 999, -1])).shape  # the last one is unknown
        torch.Size([4, 16])
    """

    def __init__(
        self,
        tasks: int,
        width: int,
        *,
        dropout: float = 0.1,
        scale: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("tasks", tasks), ("width", width)):
            require_whole(name, value)
        require_number("scale", scale)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a number >= 0 and below 1, got {dropout!r}")
        self.tasks, self.width, self.dropout, self.scale = int(tasks), int(width), float(dropout), float(scale)
        self.weight = nn.Parameter(torch.empty(self.tasks + 1, self.width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows of the given scale, and a default row of zeros."""
        nn.init.normal_(self.weight, std=self.scale)
        with torch.no_grad():
            self.weight[0] = 0

    @property
    def default(self) -> Tensor:
        """The default row (width,)."""
        return self.weight[0]

    def forward(self, task: Tensor) -> Tensor:
        if not isinstance(task, Tensor) or task.is_floating_point() or task.is_complex() or task.dtype is torch.bool:
            got = task.dtype if isinstance(task, Tensor) else type(task).__name__
            raise ValueError(f"task must be a tensor of whole numbers, got {got}")
        task = task.long()
        # A GPU would have to be waited for: there, torch's own assertion tells.
        if task.device.type == "cpu" and not is_traced() and not is_transformed() and (task >= self.tasks).any():
            raise ValueError(f"task must be below tasks ({self.tasks}), got {task.max().item()}; -1 is an unknown task")
        is_unknown = task < 0
        if self.training and self.dropout > 0:
            is_unknown = is_unknown | (torch.rand(task.shape, device=task.device) < self.dropout)
        return embedding(torch.where(is_unknown, 0, task + 1), self.weight)

    def extra_repr(self) -> str:
        return f"tasks={self.tasks}, width={self.width}, dropout={self.dropout}"


class Steered(nn.Module):
    """A model whose controls another module makes: `steered(x, by=task)`. See `steer`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.CoreConfig(), control_dim=3)
        >>> steered = nc.steer(model, nn.Linear(5, 3))
        >>> isinstance(steered, nc.Steered), steered.model is model
        (True, True)
    """

    def __init__(self, model: nn.Module, controller: nn.Module) -> None:
        super().__init__()
        self.model, self.controller = model, controller

    def forward(self, *args: Any, by: Any, **kwargs: Any) -> Any:
        z = self.controller(*by) if isinstance(by, tuple) else self.controller(by)
        with steer_by(self.model, z):
            return self.model(*args, **kwargs)


def steer(model: nn.Module, controller: nn.Module) -> Steered:
    """The model with a module that makes its controls; both are trained, saved and moved as one.

    Args:
        model: has layers that were built with `control_dim`.
        controller: what it returns, z (..., control_dim), steers all these layers: a `ControlEmbedding` of tasks or
            users, an encoder of a condition, any module.

    Returns:
        A module that is called as the model is, with what the controller reads as `by`: one argument, or a tuple.

    Activation checkpointing inside the model computes the forward again in the backward, where no control applies:
    there, run forward and backward inside `with nc.control(model, controller(task)):`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> model = nc.recode(model, "*", nc.CoreConfig(), control_dim=6)
        >>> steered = nc.steer(model, nc.ControlEmbedding(100, 6))
        >>> x, user = torch.randn(32, 8), torch.randint(100, (32,))
        >>> steered(x, by=user).shape
        torch.Size([32, 4])
    """
    require_module("model", model)
    require_module("controller", controller)
    steered_layers(model)
    width = getattr(controller, "width", None) if isinstance(controller, ControlEmbedding) else None
    for layer in steered_layers(model) if width is not None else ():
        if layer.control_dim != width:
            raise ValueError(f"controller must make controls of width {layer.control_dim}, got {width}")
    return Steered(model, controller)


def fit_control(
    model: nn.Module,
    data: Any,
    loss: Callable[[Any, Any], Tensor],
    *,
    lr: float = 0.1,
    steps: int = 100,
    start: Tensor | None = None,
    held_out: Any = None,
    patience: int = 20,
) -> Tensor:
    """The control of a new task: z alone is fitted, by Adam with cosine decay; the model stays as it is.

    The model runs in eval mode, and neither its parameters nor their gradients change. A control has few numbers, so a
    few examples do; with `held_out`, the best z on these is returned, the start among them, and fitting stops where
    they no longer gain.

    Args:
        model: has layers that were built with `control_dim`; of a `Steered` model, in a wrapper or not, the model
            inside is fitted.
        data: (inputs, target), or several inputs before the target; a dictionary; or a loader of these, a batch a step.
        loss: of the model's output and the target (of a dictionary: the dictionary), to a tensor ().
        lr: of Adam at the start.
        steps: of Adam.
        start: the first z (control_dim,); None: zeros, or the default row of a `ControlEmbedding`.
        held_out: other data, to find the best z and to stop early; None: the last z is returned.
        patience: steps without a better z on `held_out` before fitting stops.

    Returns:
        z (control_dim,), for `nc.control(model, z)` and `nc.restore(model, control=z)`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.CoreConfig(residual=False), control_dim=3)
        >>> x, y = torch.randn(20, 8), torch.randn(20, 4)
        >>> z = nc.fit_control(model, (x, y), nn.functional.mse_loss, steps=10)
        >>> z.shape
        torch.Size([3])
    """
    require_module("model", model)
    inner = unwrapped(model)
    if isinstance(inner, Steered):
        model = inner
        if start is None and isinstance(model.controller, ControlEmbedding):
            start = model.controller.default
        model = model.model
    layer = steered_layers(model)[0]
    if start is not None:
        require_floating("start", start)
    for name, count in (("steps", steps), ("patience", patience)):
        require_whole(name, count)
    require_number("lr", lr, positive=True)
    data, held_out = (list(given) if isinstance(given, Iterator) else given for given in (data, held_out))
    with _frozen(model), torch.inference_mode(False), torch.enable_grad():
        like = layer.prototype
        z = like.new_zeros(layer.control_dim) if start is None else start.detach().to(like, copy=True)
        if z.shape != (layer.control_dim,):
            raise ValueError(f"start must have shape ({layer.control_dim},), got {tuple(z.shape)}")
        best, least, best_step = z.clone(), math.inf if held_out is None else _mean_loss(model, z, held_out, loss), 0
        optimiser = torch.optim.Adam([z.requires_grad_()], lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for step, call in zip(range(steps), _forever(data), strict=False):
            value = _loss_of(model, z, call, loss)
            if not value.isfinite():
                remedy = f"take a smaller lr than {lr}" if step else "look at the data, the start and the model"
                raise ValueError(f"loss must stay finite, got {value.item()} at step {step}: {remedy}")
            (z.grad,) = torch.autograd.grad(value, z, allow_unused=True) if value.requires_grad else (None,)
            if z.grad is None:
                raise ValueError(
                    "loss must have a gradient to the control, got none: growing layers look their slots up, without "
                    "one, and a loss must not detach the output"
                )
            if step == 0 and value and not z.grad.any():
                warnings.warn(
                    "fit_control: the control does not change the loss, so z stays as it starts; train the model with "
                    "several controls first",
                    UserWarning,
                    stacklevel=2,
                )
            optimiser.step()
            schedule.step()
            if held_out is not None and ((step + 1) % EVERY == 0 or step + 1 == steps):
                mean = _mean_loss(model, z, held_out, loss)
                if mean < least:
                    best, least, best_step = z.detach().clone(), mean, step
                elif step - best_step >= patience:
                    break
    return z.detach() if held_out is None else best


def _forever(data: Any) -> Iterator[Call]:
    """The batches of data, over and over."""
    while True:
        count = 0
        for count, call in enumerate(calls(data), 1):  # noqa: B007 - how many there were is asked below
            yield call
        if count == 0:
            raise ValueError("data must have at least one batch each time it is read, got none")


def _mean_loss(model: nn.Module, z: Tensor, data: Any, loss: Callable[[Any, Any], Tensor]) -> float:
    """The mean over held-out batches."""
    with torch.no_grad():
        found = [float(_loss_of(model, z, call, loss)) for call in calls(data)]
    mean = sum(found) / len(found) if found else math.nan
    if not math.isfinite(mean):
        got = f"a loss of {mean}" if found else "no batch"
        raise ValueError(f"held_out must have batches with a finite loss each time it is read, got {got}")
    return mean


def _loss_of(model: nn.Module, z: Tensor, call: Call, loss: Callable[[Any, Any], Tensor]) -> Tensor:
    """The loss of one batch under a control."""
    if not call.kwargs and len(call.args) < 2:
        raise ValueError("data must be (inputs, target), a dictionary, or batches of these, got inputs alone")
    inputs, target = (call.args[:-1], call.args[-1]) if call.args else ((), call.kwargs)
    with steer_by(model, z):
        value = loss(model(*inputs, **call.kwargs), target)
    require_scalar("loss", value)
    return value


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter takes gradients, and the model is in eval mode; both are put back."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval().requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode


def save_control(z: Tensor, path: str | os.PathLike[str]) -> None:
    """Write one control, or several (N, control_dim), to a safetensors file, atomically: a task or user in K numbers.

    Example:
        >>> nc.save_control(torch.randn(16), "user-7.safetensors")
        >>> nc.load_control("user-7.safetensors").shape
        torch.Size([16])
    """
    require_floating("z", z)
    if z.dim() == 0 or z.is_meta:
        raise ValueError(f"z must have shape (..., control_dim) and values, got {tuple(z.shape)} on {z.device}")
    target = Path(path)
    if not target.name:
        raise CheckpointError(f"path must be that of a file, got {str(target)!r}")
    content = save({_KEY: z.detach().cpu().contiguous()}, {"neurocoder": _KEY})
    temporary = target.with_name(f".{target.name}-{uuid4().hex}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"cannot write the control {target}: {error}") from error


def load_control(path: str | os.PathLike[str]) -> Tensor:
    """The control, or controls, that `save_control` wrote, on the CPU.

    Example:
        >>> nc.save_control(torch.ones(2, 3), "controls.safetensors")
        >>> nc.load_control("controls.safetensors")
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """
    try:
        with safe_open(path, framework="pt") as content:
            if (content.metadata() or {}).get("neurocoder") != _KEY:
                raise CheckpointError(f"{path} is not a control: give a file that nc.save_control wrote")
            found: Tensor = content.get_tensor(_KEY)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read the control {path}: {error}") from error
    return found
