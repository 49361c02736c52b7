"""Growing layers in GPT blocks, eager and compiled: `python3 results/sweeps/growing_compiled.py --help`.

Six blocks of 768 over 8 x 1024 tokens, bfloat16 autocast, forward and backward; up and down projections have 256 slots,
all written, and a frozen residual. Milliseconds, and the ratio to plain blocks in the same mode.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

import neurocoder as nc


class Block(nn.Module):
    """A pre-norm block of GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)"""
        parts = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        read = scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        x = x + self.out(read.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


def blocks(options: argparse.Namespace, kind: str) -> nn.Module:
    """The blocks, plain or with growing layers whose slots are all written."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(options.width, options.heads) for _ in range(options.blocks)))
    if kind == "growing":
        config = nc.GrowingConfig(slots=options.slots, max_slots=options.slots, residual="frozen")
        nc.recode(model, ["up", "down"], config)
        for layer in nc.coded_layers(model).values():
            memory = layer.get_submodule("memory")
            assert isinstance(memory, nc.GrowingMemory)
            memory.keys.copy_(normalize(torch.randn_like(memory.keys), dim=-1))
            memory.written.fill_(options.slots)
            nn.init.normal_(memory.V, std=0.01)
    return model.to(options.device).train(options.train)


def milliseconds(step: Callable[[], None], options: argparse.Namespace) -> float:
    """The median time of a step."""
    times = []
    for index in range(options.warm_up + options.repeats):
        begun = time.perf_counter()
        step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        if index >= options.warm_up:
            times.append(time.perf_counter() - begun)
    return 1e3 * median(times)


def main() -> None:
    """Print a row for each mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    sizes = {"blocks": 6, "width": 768, "heads": 12, "batch": 8, "tokens": 1024} if cuda else {}
    for name, small in {"blocks": 2, "width": 64, "heads": 4, "batch": 4, "tokens": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=sizes.get(name, small))
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--train", action="store_true", help="also note which slots are used, as for nc.grow")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["eager", "default", "reduce-overhead"])
    options = parser.parse_args()
    x = torch.randn(options.batch, options.tokens, options.width, device=options.device)
    print("| mode | plain | growing | ratio |\n|---|---|---|---|")
    for mode in options.modes:
        found = {}
        for kind in ("plain", "growing"):
            torch._dynamo.reset()
            model = blocks(options, kind)
            call = model if mode == "eager" else torch.compile(model, mode=mode)

            def step(model: nn.Module = model, call: Callable[[Tensor], Tensor] = call) -> None:
                model.zero_grad()
                with torch.autocast(options.device, torch.bfloat16):
                    loss = call(x).float().square().mean()
                loss.backward()

            found[kind] = milliseconds(step, options)
        ratio = found["growing"] / found["plain"]
        print(f"| {mode} | {found['plain']:.2f} | {found['growing']:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
