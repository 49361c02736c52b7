"""A tiny experiment for the engine's tests: lines through noisy points, by a linear and by a program layer."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.cli import main
from neurocoder.lab.experiments import Task, TaskExperiment

FEATURES = 4


@dataclass(frozen=True)
class Config:
    """How to fit."""

    steps: int = 40
    """Steps."""
    batch: int = 8
    """Examples per step."""
    learning_rate: float = 0.02
    """At the start."""
    optimiser: str = "adam"
    """adam or sgd."""
    clip: float | None = None
    """The longest gradient."""
    pause: float = 0.0
    """Seconds that a step sleeps."""

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


class Points:
    """Random points and their targets."""

    steps = 16

    def __init__(self, config, seed, device):
        self.config, self.seed, self.taken = config, seed, 0
        self.x = torch.empty(self.steps, config.batch, FEATURES, device=device)
        self.y = torch.empty(self.steps, config.batch, 1, device=device)

    def fill(self, block):
        generator = torch.Generator().manual_seed(1000 * self.seed + block)
        x = torch.randn(self.x.shape, generator=generator)
        noise = 0.1 * torch.randn(self.y.shape, generator=generator)
        self.x.copy_(x)
        self.y.copy_(x.sum(-1, keepdim=True) + (x[..., :1] * x[..., 1:2]) + noise)

    def batch(self, step):
        time.sleep(self.config.pause)
        return tuple(tensor.index_select(0, step.view(1)).squeeze(0) for tensor in (self.x, self.y))


def loss(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y) + nc.auxiliary_loss(model)


def broken_loss(model, batch):
    raise RuntimeError("no loss today")


def killing_loss(model, batch):
    os.kill(os.getpid(), 9)


def mortal(stream):
    """A loss that kills the process in step 20, once."""

    def mortal_loss(model, batch):
        mark = Path(os.environ["NEUROCODER_DATA"], "died")
        stream.taken += 1
        if stream.taken == 20 and not mark.exists():
            mark.write_text(f"at step {stream.taken}")
            os.kill(os.getpid(), 9)
        return loss(model, batch)

    return mortal_loss


def metrics(variant, error):
    return {"own": {"loss": error.item()}, "tensor": {"error": error}}.get(variant, {"error": error.item()})


class Lines(TaskExperiment):
    """The experiment."""

    name = "lines"
    title = "Lines"
    Config = Config
    presets = {"best": Config(), "smoke": Config(steps=4)}
    seeds = {"best": (0, 1), "smoke": (0,)}

    def variants(self, config):
        return ["linear", "program", "dropout", "broken", "diverging", "killed", "mortal", "wordless", "tensor", "own"]

    def build(self, config, variant, seed, device):
        torch.manual_seed(seed)
        program = nc.ProgramConfig(slots=5, key_dim=2, steps=2, heads=2, least_used=2, hidden=4, residual=False)
        model = nc.Linear(FEATURES, 1, program=program) if variant == "program" else nn.Linear(FEATURES, 1)
        model = nn.Sequential(model, nn.Dropout(0.2)) if variant == "dropout" else model
        stream = Points(config, seed, device)
        stream.fill(99)
        x, y = stream.x.flatten(0, 1).clone(), stream.y.flatten(0, 1).clone()
        kinds = {"adam": torch.optim.Adam, "sgd": lambda *a: torch.optim.SGD(*a, momentum=0.9)}
        return Task(
            model=model.to(device),
            stream=stream,
            loss={"broken": broken_loss, "killed": killing_loss, "mortal": mortal(stream)}.get(variant, loss),
            optimiser=kinds[config.optimiser],
            learning_rate=1e30 if variant == "diverging" else config.learning_rate,
            schedule=lambda step: 1 - step / config.steps,
            steps=config.steps,
            evaluate_every=10,
            evaluate=lambda model: metrics(variant, nn.functional.mse_loss(model(x), y)),
            observe=lambda model: (
                {"wordless": 1j}
                if variant == "wordless"
                else {"first": model(x[:1]).tolist(), "training": model.training}
            ),
            clip=config.clip,
        )

    def sections(self, records, paper):
        return []


def settings():
    """The environment of another process that finds this experiment."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(*arguments):
    """A command of the lab in another process."""
    words = [sys.executable, "-m", "neurocoder.lab", *map(str, arguments)]
    return subprocess.Popen(words, env=settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments):
    """`neurocoder run` of this experiment, in this process; the exit status."""
    return main(["run", "lines:Lines", *map(str, arguments)])


def outcome(output, variant="linear", seed=0, preset="best"):
    """A record without what differs from one time to the next."""
    record = json.loads((output / "lines" / preset / variant / f"seed{seed}.json").read_text())
    return {name: value for name, value in record.items() if name not in ("seconds", "environment", "digest")}
