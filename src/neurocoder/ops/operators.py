"""Custom operators: what `torch.compile` and `torch.export` treat as one opaque operation."""

from __future__ import annotations

from typing import Any

import torch

library = torch.library.Library(__name__.partition(".")[0], "FRAGMENT")
"""Named after the package, so that two versions can be loaded side by side."""


def operator(function: Any) -> Any:
    """`torch.library.custom_op` without its checks at each call, which take as long as a layer; tests make them."""
    name = function.__name__
    library.define(name + torch.library.infer_schema(function, mutates_args=()))
    library.impl(name, function, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, library.ns), name).default
