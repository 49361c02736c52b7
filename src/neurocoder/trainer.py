"""Training with the `Trainer` of transformers, which is not imported here: `TrainerMixin` goes before it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from .distributed import unwrapped
from .growing import grow, mask
from .layer.base import each_coded_layer
from .surgery.clients import warn_of_peft
from .training import auxiliary_loss


class TrainerMixin:
    """What coded layers need of `transformers.Trainer`, as a class that goes before it: `Mine(TrainerMixin, Trainer)`.

    - The auxiliary loss counts once a step, however many micro-batches make it: the gradients are those of one large
      batch. Evaluation reports the task loss alone.
    - `weight_decay` spares slots, keys and the other parameters that `parameter_groups` spares. An optimiser of your
      own (`optimizers=`) is left as it is: make it with `parameter_groups`.
    - Growing layers grow: `grow` is called before the first step, with the DDP wrapper, so that all processes write the
      same slots. A call of your own before `train` would give it the inner model. Padding neither visits slots nor
      writes them: see `counted_tokens`.

    Example:
        >>> from transformers import Trainer
        >>> class ProgramTrainer(nc.TrainerMixin, Trainer):
        ...     pass
    """

    optimizer: Any
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any
    current_gradient_accumulation_steps: int
    _trained: tuple[Any, Any] = (None, None)
    """The model and the optimiser of the step before."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task loss and, in training, the auxiliary loss."""
        trainer: Any = super()
        loss, outputs = trainer.compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            loss = loss + auxiliary_loss(model) / self._shares(num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _shares(self, num_items_in_batch: Any) -> int:
        """How many micro-batches of a step Trainer just adds up: 1 where it divides each loss by their number itself.

        It adds them up where the loss is divided by the number of targets in all of them already.
        """
        adds = getattr(self, "loss_is_scaled_for_ga", None)
        if adds is None:
            by_model = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            adds = by_model or self.compute_loss_func is not None
        return self.current_gradient_accumulation_steps if adds else 1

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """The parameters that decay: those that Trainer names, without what coded layers spare."""
        warn_of_peft(model)
        trainer: Any = super()
        spared = {
            id(parameter)
            for layer in each_coded_layer(model)
            for name, parameter in layer.named_parameters()
            if parameter.dim() < 2 or not layer.decays(name)
        }
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return [name for name in trainer.get_decay_parameter_names(model) if id(parameters.get(name)) not in spared]

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch, forward and backward; before the first one, `grow`."""
        if self._trained[0] is not model or self._trained[1] is not self.optimizer:
            self._trained = model, self.optimizer
            if any(layer.grows and layer.prototype.requires_grad for layer in each_coded_layer(model)):
                grow(model, self.optimizer)
        trainer: Any = super()
        keep = self.counted_tokens(model, inputs)
        with nullcontext() if keep is None else mask(model, keep):  # the backward too: checkpointing reruns the forward
            return trainer.training_step(model, inputs, *args, **kwargs)

    def counted_tokens(self, model: nn.Module, inputs: Any) -> Tensor | None:
        """Which tokens growing layers count, for `mask`: the batch's `attention_mask`, (B, T); None: all of them.

        None too in an encoder and decoder, whose sequences have different lengths. Override it to leave out the prompt,
        say: `return inputs["labels"] != -100`.
        """
        config = getattr(unwrapped(model), "config", None)
        found = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        is_one = isinstance(found, Tensor) and found.dim() == 2 and not found.is_floating_point()
        return found if is_one and not getattr(config, "is_encoder_decoder", False) else None
