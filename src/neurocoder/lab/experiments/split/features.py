"""Features of CIFAR images from a frozen ResNet-18, computed once and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ...data import cifar
from ...data.sources import cache_folder
from ...records.files import atomic_write
from . import resnet

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours, which the published weights expect."""
RECIPE = "1"
"""Version of `extract`: change it with the numbers that come out, so that older cache files are left unread."""

Progress = Callable[[int, int], None]
"""Told how many images are done, and of how many."""


def extract(network: nn.Module, images: Tensor, size: int, progress: Progress | None = None) -> Tensor:
    """Features (N, 512), float32 on the network's device, of images (N, 3, 32, 32), bytes.

    Images are normalised as ImageNet's and resized to `size` pixels a side, bilinear. No TF32: a GPU's features are a
    CPU's up to rounding.
    """
    device = next(network.parameters()).device
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    batch = 512 if device.type == "cuda" or size <= 64 else 64  # beyond, a CPU's caches and memory suffer
    result = torch.empty(len(images), resnet.FEATURES, device=device)
    with (
        torch.inference_mode(),
        torch.autocast(device.type, enabled=False),
        torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False),
    ):
        for start in range(0, len(images), batch):
            x = (images[start : start + batch].to(device).float() / 255 - mean) / std
            if x.shape[-1] != size:
                x = interpolate(x, (size, size), mode="bilinear", align_corners=False)
            result[start : start + batch] = network(x.contiguous(memory_format=torch.channels_last))
            if progress:
                progress(min(start + batch, len(images)), len(images))
    return result


def features(
    name: str, train: bool, size: int, backbone: Path, device: torch.device | str, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """Raw features x (N, 512), float32, and labels y (N,) of `cifar10` or `cifar100`, both on the device.

    `size`: pixels a side that the network sees; 32: the images as they are. `backbone`: see `resnet.load`. `progress`
    is called only if there is something to compute. The cache's file names carry a checksum of weights and images.
    """
    if size < 32:
        raise ValueError(f"size must be at least 32 pixels, got {size}")
    images, labels = cifar.load(name, train)
    network = resnet.load(backbone)
    key = "".join([RECIPE, _digest(images), *map(_digest, network.state_dict().values())])
    checksum = hashlib.sha256(key.encode()).hexdigest()[:16]
    file = cache_folder() / "features" / f"{name}-{'train' if train else 'test'}-{size}px-{checksum}.safetensors"
    x = kept(file, len(images), resnet.FEATURES)
    if x is None:
        x = extract(network.to(device), images, size, progress)
        keep(file, x)
    return x.to(device), labels.to(device)


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both (N, F) with mean 0 and standard deviation 1 of each feature over the training images.

    A feature that is constant there is only centred.
    """
    std, mean = torch.std_mean(train, 0, correction=0)
    std = torch.where(std > 1e-6, std, 1.0)
    return (train - mean) / std, (test - mean) / std


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().data).hexdigest()


def kept(file: Path, count: int, width: int) -> Tensor | None:
    """Cached features (count, width), or None; warns if the file is damaged."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as content:
            x = content.get_tensor("features")
            digest = (content.metadata() or {}).get("sha256")
        if x.shape == (count, width) and x.dtype == torch.float32 and _digest(x) == digest:
            return x
        reason = "its content does not match its checksum"
    except (SafetensorError, OSError) as error:
        reason = str(error)
    warnings.warn(f"{file} is damaged ({reason}): its features are computed again", stacklevel=3)
    return None


def keep(file: Path, x: Tensor) -> None:
    """Write features to the cache, or warn that they could not be kept."""
    x = x.cpu()
    try:
        with atomic_write(file) as temporary:
            temporary.write_bytes(save({"features": x}, {"sha256": _digest(x)}))
    except OSError as error:
        warnings.warn(f"{error}; the features are not kept for the next run (NEUROCODER_CACHE)", stacklevel=3)
