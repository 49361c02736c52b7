"""Time a training step of DenseNet on a GPU: `python3 results/sweeps/densenet_step.py MODEL BACKEND`.

Batch 128, bfloat16, fused Adam, as one CUDA graph. MODEL: original or neurocoder; BACKEND: auto, the kernels, or torch.
"""

from __future__ import annotations

import sys
import time

import torch

import neurocoder as nc
from neurocoder.lab.capture import WARM_UP, Captured
from neurocoder.lab.experiments.images import loss
from neurocoder.lab.experiments.images_variants import build_model, parse

REPLAYS, STEPS = 20, 390
"""Steps that are timed, steps of an epoch."""


def main(model: str = "original", backend: str = "auto") -> None:
    """Print the milliseconds of a step, the seconds of an epoch, and the peak memory."""
    torch.manual_seed(0)
    network = build_model(parse(f"cifar10-densenet-{model}")).cuda().train()
    optimiser = torch.optim.Adam(network.parameters(), 1e-3, fused=True, capturable=True)
    x = torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(10, (128,), device="cuda")

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            found = loss(network, (x, y))
        found.backward()
        optimiser.step()

    call = Captured(x.device)
    with nc.backend(backend):  # type: ignore[arg-type]
        for _ in range(WARM_UP + 1):
            call(step, before=optimiser.zero_grad)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(REPLAYS):
        call(step)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / REPLAYS
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{model}, {backend}: {1e3 * seconds:.2f} ms a step, {STEPS * seconds:.2f} s an epoch, {peak:.1f} GiB at most"
    )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("error: this needs a GPU")
    main(*sys.argv[1:])
