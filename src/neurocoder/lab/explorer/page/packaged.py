"""What the page brings along: tensors with facts in a safetensors file, and numbers as text for the scripts."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...records.files import atomic_write

Content = TypeVar("Content")


def write(target: Path, key: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Atomic write, as safetensors; the facts are in the metadata."""
    content = {name: value.detach().contiguous() for name, value in tensors.items()}
    with atomic_write(target) as temporary:
        temporary.write_bytes(save(content, {key: json.dumps(dict(facts), sort_keys=True)}))


def read(source: Path, key: str, what: str, build: Callable[[dict[str, Tensor], dict[str, Any]], Content]) -> Content:
    """What is built from the tensors and facts of a file; one clear error if it is not `what` it should be."""
    try:
        with safe_open(source, framework="pt") as content:
            facts = json.loads((content.metadata() or {})[key])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  # it is no mapping
        return build(tensors, facts)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{source} is no {what}: {error}") from None


def encoded(values: Tensor) -> str:
    """Numbers in base64: bytes as they are, others as little-endian float32."""
    numbers = values.detach().cpu().contiguous().numpy()
    return b64encode(numbers.astype("u1" if values.dtype == torch.uint8 else "<f4").tobytes()).decode()


def packed(tensor: Tensor) -> dict[str, Any]:
    """Shape and content of a tensor."""
    return {"shape": list(tensor.shape), "data": encoded(tensor)}
