"""Pictures that a network makes, kept in its record as PNG files in base64."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image  # comes with matplotlib
from torch import Tensor

from . import data
from .data import Pictures
from .models import FieldNetwork

SHOWN, BETWEEN, PAIRS, SWITCHED, OFF = 10, 9, 2, 3, 8
"""Images; pictures between two latents, and how many such pairs; images with programs switched off, and how many."""
Grid = NDArray[np.uint8]
"""Pictures in rows: (rows H, columns W, C)."""


def made(
    network: FieldNetwork, trained: Pictures, new: Pictures, latents: Tensor | None, fitted: Tensor
) -> dict[str, Any]:
    """New images above what the network makes of them; what lies between latents; and what each number of a latent
    adds: in a core layer it is the weight of a program, which is switched off at zero."""
    count = min(SHOWN, len(new.colours))
    where = data.places(new.size, fitted.device)
    known = fitted if latents is None else latents.detach()

    def grid(rows: list[Tensor]) -> str:
        """Latents (n, L) or images (n, T, C), a row each."""
        with torch.no_grad():
            colours = [row if row.dim() == 3 else network(where, row) for row in rows]
        return packed(arranged(torch.stack(colours), new.size))

    share = torch.linspace(0, 1, BETWEEN, device=known.device).unsqueeze(1)
    pairs = [(known[2 * pair % len(known)], known[(2 * pair + 1) % len(known)]) for pair in range(PAIRS)]
    found = {
        "new": grid([data.colours_of(new.colours[:count]), fitted[:count]]),
        "between": grid([(1 - share) * one + share * other for one, other in pairs]),
    }
    rows, order = [], []
    with torch.no_grad():
        for z in known[: min(SWITCHED, len(known))]:
            without = z * (1 - torch.eye(len(z), device=z.device))
            change = (network(where, without) - network(where, z.unsqueeze(0))).square().mean((1, 2))
            strongest = change.argsort(descending=True, stable=True)[:OFF]
            rows.append(torch.cat([z.unsqueeze(0), without[strongest]]))
            order.append(strongest.tolist())
    return found | {"off": grid(rows), "programs": order}


def arranged(colours: Tensor, size: tuple[int, int]) -> Grid:
    """Colours (rows, columns, T, C) -> one picture."""
    rows, columns, _, channels = colours.shape
    height, width = size
    bytes_of = (colours.clamp(0, 1) * 255).round().to(torch.uint8)
    whole = bytes_of.view(rows, columns, height, width, channels).permute(0, 2, 1, 3, 4)
    return whole.reshape(rows * height, columns * width, channels).cpu().numpy()


def packed(grid: Grid) -> str:
    """As a PNG file in base64."""
    target = io.BytesIO()
    Image.fromarray(grid.squeeze(-1) if grid.shape[-1] == 1 else grid).save(target, "png", optimize=True)
    return base64.b64encode(target.getvalue()).decode("ascii")


def unpacked(text: str) -> Grid:
    """The picture (H, W) or (H, W, C)."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        return np.asarray(image)
