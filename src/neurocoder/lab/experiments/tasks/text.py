"""Kinds of text through a frozen language model, SmolLM2-135M, whose MLPs have an adapter that the kind steers.

    y = R x + V^T (C_0 + sum_k z_k C_k) U x [+ V^T sum_k z_k s_k]        R frozen, V zero at the start

With nothing of z it is LoRA; with the shifts s_k alone, a shift of what LoRA reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import neurocoder as nc

from .kinds import pretrained
from .learning import LATENT_RATES, Found, decay, looks
from .samples import Tasks

TARGETS = ("gate_proj", "up_proj", "down_proj")
RATES = (1e-3, 3e-3, 1e-2)
"""Of the adapters and the latents."""
BATCH = 16
"""Sequences a step."""
CONTENDERS: Mapping[str, tuple[nc.CoreConfig, Sequence[str]]] = {
    "core": (nc.CoreConfig(slots=14, residual="frozen"), ()),
    "core-shift": (nc.CoreConfig(slots=14, shift=True, residual="frozen"), ()),
    "diagonal": (nc.CoreConfig(slots=16, diagonal=True, residual="frozen"), ()),
    "shift": (nc.CoreConfig(slots=16, diagonal=True, shift=True, residual="frozen"), ("cores",)),
    "unsteered": (nc.CoreConfig(slots=16, diagonal=True, residual="frozen"), ("cores",)),
    "own": (nc.CoreConfig(slots=16, diagonal=True, residual="frozen"), ("cores",)),
}
"""Adapters of about equal size, and which of their tensors stay zero. `own`: LoRA for each kind."""


class Adapted:
    """A language model with an adapter in its MLPs, and how it is trained.

    Args:
        contender: by name.
        model: a causal language model of transformers.
        latent: width of z.
    """

    def __init__(self, contender: str, model: nn.Module, latent: int) -> None:
        config, zero = CONTENDERS[contender]
        self.model = model.requires_grad_(False).eval()
        nc.recode(self.model, list(TARGETS), config, control_dim=latent)
        self.latent = latent
        for layer in nc.coded_layers(self.model).values():
            memory: Any = layer.memory
            memory.requires_grad_(True)
            for name in zero:
                nn.init.zeros_(getattr(memory, name).requires_grad_(False))
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.device = next(iter(self.trained.values())).device

    def loss(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Nats a token, of each sequence (n,): tokens (n, T), z (n, latent) or (latent,)."""
        with nc.control(self.model, z), torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            logits = self.model(x).logits
        return cross_entropy(logits.float().transpose(1, 2), y, reduction="none").mean(1)

    def measure(self, data: Tasks, z: Tensor) -> Tensor:
        """The mean loss of each kind (kinds,), with z (kinds, latent)."""
        with torch.no_grad():
            return torch.stack(
                [
                    torch.cat(
                        [self.loss(*part, own) for part in zip(x.split(BATCH), y.split(BATCH), strict=True)]
                    ).mean()
                    for x, y, own in zip(*data, z, strict=True)
                ]
            )

    def state(self) -> dict[str, Tensor]:
        """A copy of what is trained."""
        return {name: parameter.detach().clone() for name, parameter in self.trained.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put a copy back."""
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(state[name])

    def train(
        self, data: Tasks, latents: Tensor, rate: float, steps: int, generator: Generator, test: Tasks
    ) -> list[tuple[float, Tensor, dict[str, Tensor], Tensor]]:
        """Adam with cosine decay on the adapters and the latents (kinds, latent); at some moments the share of the
        steps, the losses of `test` (kinds,), what is trained, and the latents."""
        z = latents.clone().requires_grad_()
        optimiser = torch.optim.Adam([*self.trained.values(), z], lr=rate)
        found = []
        for step in range(steps):
            kinds = torch.randint(len(data.x), (BATCH,), generator=generator).to(self.device)
            rows = torch.randint(data.x.shape[1], (BATCH,), generator=generator).to(self.device)
            optimiser.param_groups[0]["lr"] = rate * decay(step, steps)
            optimiser.zero_grad()
            self.loss(data.x[kinds, rows], data.y[kinds, rows], z[kinds]).mean().backward()
            optimiser.step()
            if looks(step, steps):
                now = z.detach().clone()
                found.append(((step + 1) / steps, self.measure(test, now[: len(test.x)]), self.state(), now))
        return found


def learn(
    adapted: Adapted,
    data: Tasks,
    held_out: Tasks,
    test: Tasks,
    generator: Generator,
    steps: int,
) -> tuple[Found, Tensor]:
    """Adapters and latents of all kinds, at the rate and moment that are best on held-out sequences; z's mean."""
    start = adapted.state()
    latents = 0.1 * torch.randn(len(data.x), adapted.latent, generator=generator).to(adapted.device)
    best: Any = None
    for rate in RATES:
        adapted.restore(start)
        for share, error, state, z in adapted.train(data, latents, rate, steps, generator, held_out):
            least = float(error.mean().nan_to_num(math.inf))
            if best is None or least < best[0]:
                best = least, share, state, z, rate
    _, share, state, z, rate = best
    adapted.restore(state)
    return Found(adapted.measure(test, z[: len(test.x)]), rate, share=share), z.mean(0)


def by_latents(adapted: Adapted, z: Tensor, chosen: tuple[Tasks, Tasks], new: tuple[Tasks, Tasks], steps: int) -> Found:
    """New kinds by z alone, at the rate that is best for the chosen kinds."""
    found: list[tuple[Tensor, Tensor, float]] = []
    for rate in LATENT_RATES:
        errors: list[Tensor] = []
        for data, test in (chosen, new):
            fitted = [
                nc.fit_control(
                    adapted.model,
                    [(x, y) for x, y in zip(one.split(BATCH), two.split(BATCH), strict=True)],
                    lambda output, y: cross_entropy(output.logits.float().transpose(1, 2), y),
                    lr=rate,
                    steps=steps,
                    start=z,
                )
                for one, two in zip(data.x, data.y, strict=True)
            ]
            errors.append(adapted.measure(test, torch.stack(fitted)))
        found.append((errors[0], errors[1], rate))
    best = min(found, key=lambda tried: float(tried[0].mean().nan_to_num(math.inf)))
    return Found(best[1], best[2])


def by_parameters(
    adapted: Adapted,
    z: Tensor,
    chosen: tuple[Tasks, Tasks],
    new: tuple[Tasks, Tasks],
    steps: int,
    generator: Generator,
) -> Found:
    """New kinds by all of the adapter, from where it is; rate and moment are the best for the chosen kinds."""
    start, moments = adapted.state(), []
    for rate in RATES:
        errors = []
        for data, test in (chosen, new):
            for kind in range(len(data.x)):
                one, seen = (Tasks(*(part[kind : kind + 1] for part in both)) for both in (data, test))
                adapted.restore(start)
                found = adapted.train(one, z.unsqueeze(0), rate, steps, generator, seen)
                errors.append(torch.cat([error for _, error, _, _ in found]))
        shares = [share for share, *_ in found]
        moments += [(error, rate, share) for share, error in zip(shares, torch.stack(errors, 1), strict=True)]
    adapted.restore(start)
    first = len(chosen[0].x)
    error, rate, share = min(moments, key=lambda moment: float(moment[0][:first].mean().nan_to_num(math.inf)))
    return Found(error[first:], rate, share=share)


def run(
    contender: str,
    latent: int,
    parts: tuple[Tasks, Tasks, Tasks],
    chosen: tuple[Tasks, Tasks],
    new: tuple[Tasks, Tasks],
    lengths: tuple[int, int],
    generator: Generator,
) -> tuple[dict[str, Found], int]:
    """The results of one contender, and how many numbers its adapters have.

    Args:
        contender: by name.
        latent: width of z.
        parts: training, held-out and test sequences of the kinds to learn.
        chosen, new: sequences of kinds to choose rates by, and of new ones, to fit and to measure on.
        lengths: steps for all kinds, and for a new one.
        generator: draws batches and latents.
    """
    steps, tuning = lengths
    adapted = Adapted(contender, pretrained().to(parts[0].x.device), latent)
    count = sum(parameter.numel() for parameter in adapted.trained.values())
    if contender == "own":
        z = torch.zeros(latent, device=adapted.device)
        found = by_parameters(adapted, z, chosen, new, 4 * tuning, generator)
        return {"new": found}, count
    error, z = learn(adapted, *parts, generator, steps)
    if contender == "unsteered":
        own = Found(adapted.measure(new[1], z.expand(len(new[1].x), -1)), 0.0)
    else:
        own = by_latents(adapted, z, chosen, new, tuning)
    return {"error": error, "new": own, "tuned": by_parameters(adapted, z, chosen, new, tuning, generator)}, count
