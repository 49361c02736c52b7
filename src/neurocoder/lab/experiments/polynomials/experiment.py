"""Auto-regression over polynomials that change (paper, section 4.2, Figures 5 and 6).

At each time a GRU is fed `(x_t, y_{t-1})` and its output layer predicts `y_t`. The output layer is linear, a HyperNet,
or a Neurocoder without residual. The network sees x / 5, at which the polynomials are evaluated unless `reach` says
otherwise. Preset `large` gives y in another unit, times 1,000, at a constant rate of 1e-3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import neurocoder as nc

from ...records.record import Record
from ...report.sections import Section
from ...train.spec import Batch, Task
from ...validate import Count, Positive, Range, validate
from ..experiment import TaskExperiment
from ..supervised import adam, schedule, starting_values
from . import report as polynomials_sections
from .data import PolynomialStream
from .evaluation import HeldOut
from .models import ALL, MODELS, SETTINGS, family, join, split

BLOCK = 100
"""Batches of training data drawn at once."""


@dataclass(frozen=True)
class Rates:
    """A learning rate for each kind of model; GRUs of all sizes share theirs."""

    rate_gru: Positive
    """Rate of GRUs of any size with a linear output layer."""
    rate_hyper: Positive
    """Rate of the HyperNet."""
    rate_single_2: Positive
    """Rate of the single-step Neurocoder with an LSTM of 2."""
    rate_single_3: Positive
    """Rate of the single-step Neurocoder with an LSTM of 3."""
    rate_multi: Positive
    """Rate of the multi-step Neurocoder."""

    @classmethod
    def same(cls, rate: float) -> Rates:
        """The same for all."""
        return cls(**{entry.name: rate for entry in fields(cls)})

    def of(self, model: str) -> float:
        """Of a model, by its name; with one program for all inputs, that of the model itself."""
        model = model.removesuffix("-constant")
        return self.rate_gru if model.startswith("gru") else getattr(self, f"rate_{model.replace('-', '_')}")


@dataclass(frozen=True)
class PolynomialsConfig:
    """How to train, and on which sequences."""

    iterations: Count = 10_000
    """Training steps, each on fresh sequences."""
    batch: Count = 128
    """Sequences per training step."""
    rates: Rates = field(default_factory=lambda: Rates.same(2e-2))
    """Adam's initial learning rate for each model. The paper gives none."""
    decay: Literal["none", "cosine"] = "cosine"
    """Learning-rate schedule: constant, or cosine decay to zero."""
    clip: Positive | None = None
    """Clip gradients to this norm; None: no clipping."""
    chunks: Annotated[int, Range(2)] = 5
    """Polynomials per sequence; the `doubled` variants have twice as many, in sequences twice as long."""
    points: Annotated[int, Range(4)] = 20
    """Points per polynomial."""
    noise: Positive = 0.1
    """Standard deviation of the Gaussian noise in the `noise` variants, before `scale`; that of y itself is 0.81."""
    scale: Positive = 1.0
    """y and its noise are multiplied by it, in the inputs and in the targets."""
    reach: Positive = 1.0
    """Polynomials are evaluated from -reach to reach. 5 is the appendix's, where |y| reaches 10^7."""
    evaluate_every: Count = 100
    """Training steps between evaluations."""
    held_out: Count = 1024
    """Held-out sequences to evaluate on."""
    sharpness: Positive = 1.0
    """Sharpness of the Neurocoders' content attention."""
    orthogonality: float = 0.1
    """Weight of the Neurocoders' orthogonal loss, a."""
    start: nc.Start = field(default_factory=nc.Start)
    """Starting values of the Neurocoders."""
    validation: bool = False
    """Evaluate on a separate validation set, to choose settings without the report's sequences."""

    def __post_init__(self) -> None:
        validate(self)


BEST = PolynomialsConfig(rates=replace(Rates.same(2e-2), rate_hyper=5e-3), clip=0.1)


class Polynomials(TaskExperiment):
    """Predicting sequences of polynomial chunks with a GRU."""

    name: ClassVar[str] = "polynomials"
    title: ClassVar[str] = "Auto-regression over polynomials that change"
    Config: ClassVar[type] = PolynomialsConfig
    metric: ClassVar[str | None] = "above_floor"
    presets: ClassVar[Mapping[str, PolynomialsConfig]] = {
        "quick": replace(BEST, iterations=1_000, batch=32, held_out=256),
        "best": BEST,
        "paper": PolynomialsConfig(),
        "large": PolynomialsConfig(rates=Rates.same(1e-3), decay="none", points=10, scale=1_000.0),
        "smoke": PolynomialsConfig(
            iterations=40, batch=16, rates=Rates.same(1e-2), chunks=3, points=8, evaluate_every=10, held_out=64
        ),
    }
    seeds: ClassVar = {"quick": range(1), "best": range(5), "paper": range(5), "large": range(5), "smoke": range(1)}
    minutes: ClassVar = {"quick": (3, 1), "best": (1_000, 5), "paper": (1_000, 5), "large": (1_000, 5), "smoke": (1, 1)}
    selections: ClassVar[Mapping[str, str]] = {"quick": "gru,hyper,single-3,multi"}

    def variants(self, config: PolynomialsConfig) -> list[str]:
        """Every model in every setting; at another scale than 1 also the controls."""
        models = MODELS if config.scale == 1 else ALL
        return [join(model, setting) for setting in SETTINGS for model in models]

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        return {"scale": 1.0, "reach": 1.0, **config}  # older records have neither

    def build(self, config: PolynomialsConfig, variant: str, seed: int, device: torch.device) -> Task:
        """A network of one seed, on sequences of the same seed."""
        name, setting = split(variant)
        sequences = family(setting, config.chunks, config.points, config.noise, config.scale, config.reach)
        chosen = ALL[name]
        with starting_values(seed):
            model = chosen.build(
                scale=config.scale, sharpness=config.sharpness, orthogonality=config.orthogonality, start=config.start
            )
        faster = {name for name, _ in model.named_parameters() if name.startswith("output.")}
        faster = faster if chosen.output_rate != 1 else set()
        held_out = HeldOut(sequences, config.held_out, config.validation, device)

        def optimiser(parameters: Iterable[tuple[str, Tensor]], rate: float) -> torch.optim.Optimizer:
            return adam(parameters, rate, faster, chosen.output_rate, capturable=device.type == "cuda")

        return Task(
            model=model.to(device),
            stream=PolynomialStream(sequences, config.batch, min(BLOCK, config.iterations), seed, device),
            loss=loss,
            optimiser=optimiser,
            learning_rate=config.rates.of(name),
            schedule=schedule(config.decay, config.iterations),
            steps=config.iterations,
            evaluate_every=config.evaluate_every,
            evaluate=held_out.evaluate,
            observe=held_out.observe,
            clip=config.clip,
        )

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        """Figures 5 and 6, with their numbers."""
        return polynomials_sections.sections(records, paper)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean square error over all time steps, plus `a * L_o`."""
    inputs, y = batch
    return mse_loss(model(inputs), y) + nc.auxiliary_loss(model)
