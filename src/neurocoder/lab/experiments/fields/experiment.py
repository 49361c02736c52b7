"""Images as functions (x, y) -> colour: one network for all of them, and a latent for each.

Every contender has the same number of parameters, and differs only in how the latent steers it. Latents are trained
with the network; those of new images are fitted afterwards, the network as it is. Or, `learn meta`, latents are never
kept: the network learns to be fitted in a few steps from zero (COIN++).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ...data import cifar, mnist
from ...records.record import Record
from ...report.sections import Section
from ...train.context import Context
from ...train.loop import train
from ...train.spec import Batch, TrainSpec
from ...validate import Count, Positive, validate
from ..experiment import TaskExperiment
from ..supervised import adam, schedule, starting_values
from . import data, fitting, pictures, report
from .models import CONTENDERS, DEPTHS, FEATURES, FieldNetwork, awaken, hidden_widths, parameters
from .rates import Settings
from .rates import of as best_settings

LENGTHS = (700, 2_100, 6_300)
META_LENGTH = 10_000
FITS = (3, 10, 100)
"""Steps of new images' latents."""
LOOKS = 7
"""Evaluations in a run."""
SEEN = 64
"""Trained images that are looked at on the way."""
AT_ONCE = 32


@dataclass(frozen=True)
class FieldsConfig:
    """How large the networks are, on what and how they are trained."""

    parameters: Count = 12_000
    """Numbers in every network, within 3%; its hidden layers are as wide as that."""
    latent: Count = 24
    """Numbers in the latent of an image."""
    depth: Count | None = None
    """Hidden layers; None: 2 with Fourier features, 3 in a SIREN."""
    frequency: Positive = 30.0
    """w0 of a SIREN."""
    images: Count | None = None
    """Images to learn; None: 512 digits, 256 of CIFAR-10."""
    new: Count = 128
    """New images, whose latents alone are fitted."""
    batch: Count = 64
    """Images in a training step."""
    part: Count = 8
    """A training step sees one of so many pixels, drawn at random."""
    steps: Count | None = None
    """Training steps; None: as the variant says."""
    rate: Positive | None = None
    """Adam's learning rate of the network; None: each contender's own best."""
    latent_rate: Positive | None = None
    """Adam's learning rate of the latents; None: each contender's own best."""
    size: Count | None = None
    """Slots of core and attention layers, rank of low-rank hypernetworks and patterns, members of a basis; None: each
    contender's own best."""
    warm_up: Count = 20
    """Steps in which the rates rise, before they fall by a cosine."""
    learn: Literal["table", "meta"] = "table"
    """table: a latent for each image, trained; meta: latents start at zero and take `inner_steps`, and the network
    learns through these."""
    inner_steps: Count = 3
    """Steps of the latent within a training step, if `learn` is meta."""
    inner_rate: Positive = 1e-2
    """Rate of the latent's gradient descent, if `learn` is meta."""
    validation: bool = False
    """Other images, to choose settings: training images alone."""

    def __post_init__(self) -> None:
        validate(self)


class Variant(NamedTuple):
    """What a variant's name says."""

    dataset: str
    features: str
    contender: str
    steps: int

    @classmethod
    def of(cls, name: str) -> Variant:
        """`mnist-fourier-core-shift-700` -> mnist, fourier, core-shift, 700."""
        dataset, features, rest = name.split("-", 2)
        contender, _, steps = rest.rpartition("-")
        return cls(dataset, features, contender, int(steps))


def settings_of(config: FieldsConfig, variant: str) -> Settings:
    """Those of the configuration, else the contender's best ones."""
    best, contender = best_settings(variant), CONTENDERS[Variant.of(variant).contender]
    size = contender.size and (config.size or best.size or contender.size)
    return Settings(config.rate or best.network, config.latent_rate or best.latents, size)


class Fields(TaskExperiment):
    """Images as functions of the place."""

    name: ClassVar[str] = "fields"
    title: ClassVar[str] = "Images as functions: one network, a latent for each image"
    Config: ClassVar[type] = FieldsConfig
    metric: ClassVar[str | None] = "psnr"
    presets: ClassVar[Mapping[str, FieldsConfig]] = {
        "quick": FieldsConfig(),
        "equal": FieldsConfig(),
        "best": FieldsConfig(  # COIN++ on CIFAR-10: a SIREN 10 x 512 with shifts has so many parameters
            parameters=2_694_147,
            latent=128,
            depth=9,
            frequency=50.0,
            images=50_000,
            new=10_000,
            part=1,
            rate=3e-5,
            learn="meta",
        ),
        "smoke": FieldsConfig(parameters=6_000, latent=8, images=16, new=4, batch=8, steps=4, warm_up=1),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {
        "quick": range(1),
        "equal": range(5),
        "best": range(1),
        "smoke": range(1),
    }
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {
        "quick": (3, 1),
        "equal": (600, 60),
        "best": (50_000, 50),
        "smoke": (1, 1),
    }
    selections: ClassVar[Mapping[str, str]] = {
        "quick": "mnist-fourier-*-700",
        "equal": "mnist-fourier-*",
        "best": "cifar10-siren-shift-10000,cifar10-siren-core-10000",
        "smoke": "mnist-*-700",
    }

    def variants(self, config: FieldsConfig) -> list[str]:
        lengths = LENGTHS if config.learn == "table" else (META_LENGTH,)
        return [
            f"{dataset}-{features}-{contender}-{steps}"
            for dataset in data.CHANNELS
            for features in FEATURES
            for contender in CONTENDERS
            for steps in lengths
        ]

    def naming(self, config: FieldsConfig) -> str:
        return (
            f"DATA-FEATURES-CONTENDER-STEPS with data {' or '.join(data.CHANNELS)}, features "
            f"{' or '.join(FEATURES)}, contender {', '.join(CONTENDERS)}, steps "
            f"{', '.join(map(str, LENGTHS if config.learn == 'table' else (META_LENGTH,)))}"
        )

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        idle = {"inner_steps", "inner_rate"} if config["learn"] == "table" else {"latent_rate"}
        _, features, contender, _ = Variant.of(variant)
        idle |= {"frequency"} if features == "fourier" else set()
        idle |= set() if CONTENDERS[contender].size else {"size"}
        return {name: value for name, value in config.items() if name not in idle}

    def chosen(self, config: FieldsConfig, variant: str) -> Mapping[str, Any]:
        network, latents, size = settings_of(config, variant)
        return {"rates": [network, latents], "size": size}

    def prepare(self, config: FieldsConfig, variants: Sequence[str]) -> None:
        for dataset in {Variant.of(variant).dataset for variant in variants}:
            if dataset == "mnist":
                mnist.folder()
            else:
                cifar.prepare(dataset)

    def build(self, config: FieldsConfig, variant: str, seed: int, device: torch.device) -> TrainSpec:
        return Run(config, variant, seed, device).spec

    def run(self, context: Context) -> None:
        run = Run(context.config, context.variant, context.seed, context.device)
        train(context, run.spec)
        context.describe(run.model.network)  # the latents are the images', not the network's
        context.log(run.spec.steps, **run.results())
        context.observe(run.observations())

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records)


class Model(nn.Module):
    """A network and the latents of its images."""

    def __init__(self, network: FieldNetwork, latents: Tensor | None) -> None:
        super().__init__()
        self.network = network
        self.latents = None if latents is None else nn.Parameter(latents)

    def latents_of(self, rows: Tensor) -> Tensor:
        """(N, L); the same for all where there is only one."""
        assert self.latents is not None
        return self.latents.index_select(0, rows % len(self.latents))


class Run:
    """One run: its images, its model, how it is trained, and what it came to."""

    def __init__(self, config: FieldsConfig, variant: str, seed: int, device: torch.device) -> None:
        dataset, features, contender, steps = Variant.of(variant)
        self.config, self.seed, self.device = config, seed, device
        self.constant = CONTENDERS[contender].constant
        images = config.images or data.TRAINED[dataset]
        self.trained, self.new, self.spare = data.load(dataset, images, config.new, config.validation, seed, device)
        if config.learn == "table" and not len(self.spare.colours):
            raise ValueError(f"images must leave some of {dataset}'s training images, got {images}")
        self.places = data.places(self.trained.size, device)
        sizes = data.CHANNELS[dataset], config.latent
        depth, settings = config.depth or DEPTHS[features], settings_of(config, variant)
        with starting_values(seed):
            hidden = hidden_widths(contender, features, depth, *sizes, config.parameters, settings.size)
            network = FieldNetwork(contender, features, hidden, *sizes, config.frequency, settings.size)
            if config.learn == "meta":
                awaken(network)
            latents = 0.1 * torch.randn(1 if self.constant else images, config.latent)
        self.model = Model(network, latents if config.learn == "table" else None).to(device)
        self.hidden, self.settings = hidden, settings
        self.pace = Pace(device)
        count = config.steps or steps
        fall = schedule("cosine", count)
        self.spec = TrainSpec(
            model=self.model,
            stream=data.PointStream(self.trained, config.batch, config.part, seed),
            loss=self.table_loss if config.learn == "table" else self.meta_loss,
            optimiser=self.optimiser,
            learning_rate=settings.network,
            schedule=lambda step: min(1.0, (step + 1) / config.warm_up) * fall(step),
            steps=count,
            evaluate_every=max(1, count // LOOKS),
            evaluate=self.look,
            observe=lambda model: {},
        )

    def table_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean square error of the colours."""
        assert isinstance(model, Model)
        rows, places, colours = batch
        return mse_loss(model.network(places, model.latents_of(rows)), colours)

    def meta_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean square error after a few steps of the latents, which are differentiated too."""
        assert isinstance(model, Model)
        _, places, colours = batch
        z = torch.zeros(len(colours), self.config.latent, device=colours.device, requires_grad=True)
        for _ in range(self.config.inner_steps):
            z = z - self.config.inner_rate * fitting.gradient(model.network, places, colours, z, keep=True)
        return mse_loss(model.network(places, z), colours)

    def optimiser(self, named: Iterable[tuple[str, Tensor]], rate: float) -> torch.optim.Optimizer:
        """Adam, with a rate for the network and one for the latents."""
        capturable = self.device.type == "cuda"
        ratio = self.settings.latents / self.settings.network
        self.adam = adam(named, rate, {"latents"}, ratio, capturable=capturable)
        return self.adam

    def look(self, model: nn.Module) -> dict[str, float]:
        """How well some trained images are known."""
        taken = int(next(iter(self.adam.state.values()))["step"])
        self.pace.stop(taken)
        found = {"trained": float(self.seen(SEEN).mean())}
        self.pace.go(taken)
        return found

    def seen(self, count: int) -> Tensor:
        """PSNR of the first trained images (N,); if `learn` is meta, of latents that were fitted anew."""
        if self.config.learn == "meta":
            return self.fitted(data.colours_of(self.trained.colours[:count]), self.config.inner_steps, 0.0)[1]
        found, network = [], self.model.network
        with torch.no_grad():
            for rows in torch.arange(min(count, len(self.trained.colours)), device=self.device).split(AT_ONCE):
                wanted = data.colours_of(self.trained.colours[rows])
                found.append(data.psnr(network(self.places, self.model.latents_of(rows)), wanted))
        return torch.cat(found)

    def start(self) -> Tensor:
        """Where new latents start (L,): the mean of the trained ones, or zero."""
        latents = self.model.latents
        return torch.zeros(self.config.latent, device=self.device) if latents is None else latents.detach().mean(0)

    def fitted(self, colours: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """Latents (N, L) and PSNR (N,) of images that were fitted."""
        network, adam = self.model.network, self.config.learn == "table"
        if self.constant:
            z = self.start().expand(len(colours), -1)
        else:
            rate = rate if adam else self.config.inner_rate
            z = fitting.fit(network, self.places, colours, self.start(), steps, rate, adam)
        with torch.no_grad():
            pairs = zip(colours.split(AT_ONCE), z.split(AT_ONCE), strict=True)
            return z, torch.cat([data.psnr(network(self.places, each), part) for part, each in pairs])

    def results(self) -> dict[str, float]:
        """The metrics of the run."""
        self.model.eval()
        colours, network = data.colours_of(self.new.colours), self.model.network
        some = data.colours_of(self.spare.colours)[:, ::4]
        self.fit_rates: dict[int, float] = {}
        found = {}
        for steps in FITS:
            self.fit_rates[steps] = self.config.inner_rate
            if self.config.learn == "table" and not self.constant:
                self.fit_rates[steps] = fitting.best_rate(network, self.places[::4], some, self.start(), steps)
            self.latents, each = self.fitted(colours, steps, self.fit_rates[steps])
            found[f"new_{steps}"] = float(each.mean())
        trained = self.seen(len(self.trained.colours) if self.config.learn == "table" else len(self.new.colours))
        return {
            "psnr": (float(trained.mean()) + found[f"new_{FITS[-1]}"]) / 2,
            "trained": float(trained.mean()),
            "trained_pooled": data.pooled(trained),
            **found,
            f"new_{FITS[-1]}_pooled": data.pooled(each),
            "network_parameters": float(parameters(network)),
            "training_seconds": self.spec.steps / self.pace.steps_per_second,
            "steps_per_second": self.pace.steps_per_second,
        }

    def observations(self) -> dict[str, Any]:
        """Sizes and rates; of the first seed also pictures."""
        told: dict[str, Any] = {
            "hidden": self.hidden,
            "rates": [self.settings.network, self.settings.latents],
            "size": self.settings.size,
            "fit_rates": {str(steps): rate for steps, rate in self.fit_rates.items()},
        }
        if self.seed == 0 and not self.constant:
            told["pictures"] = pictures.made(
                self.model.network, self.trained, self.new, self.model.latents, self.latents
            )
        return told


class Pace:
    """Training steps a second: in CPU time on a CPU, since other programs run beside."""

    def __init__(self, device: torch.device) -> None:
        self.clock = time.process_time if device.type == "cpu" else time.perf_counter
        self.begun, self.first = self.clock(), 0
        self.steps_per_second = 0.0
        """Of the fastest stretch between two looks; the first steps, which prepare, only count where they are all."""
        self.prepared = False

    def go(self, taken: int) -> None:
        """Steps follow; so many were taken."""
        self.begun, self.first = self.clock(), taken

    def stop(self, taken: int) -> None:
        """So many steps were taken."""
        found = (taken - self.first) / max(self.clock() - self.begun, 1e-9)
        self.steps_per_second = max(self.steps_per_second, found) if self.prepared else found
        self.prepared = True
