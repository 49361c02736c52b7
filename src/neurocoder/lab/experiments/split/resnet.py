"""ResNet-18 (He et al., 2016) without its classifier, under torchvision's parameter names."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import relu

FEATURES = 512
"""Width of the features."""


class BasicBlock(nn.Module):
    """`relu(x' + bn(conv(relu(bn(conv(x))))))`; x' is x, or a strided 1x1 convolution of it if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H / stride, W / stride)"""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """The features that torchvision's `resnet18` gives to its classifier `fc`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, FEATURES, 2), BasicBlock(FEATURES, FEATURES, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images (N, 3, H, W) -> features (N, 512)"""
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """A frozen ResNet-18 in eval mode, float32 on the CPU, with weights from a file; `fc` is left out.

    The file has torchvision's names: safetensors, or the `.pth` that torchvision publishes. A `.pth` is a pickle, so
    it is read with `weights_only=True`: torch's own reader, which builds tensors and plain containers and refuses
    everything else, so nothing in the file can run. Random generators are left as they were.
    """
    file = Path(path)
    stored = _tensors(file)
    with torch.device("meta"):
        network = ResNet18()
    state = network.state_dict()
    for name in state:  # counts of training batches, which older files do not have and features do not need
        if name.endswith("num_batches_tracked"):
            stored[name] = torch.tensor(0)
    wrong = [f"lacks {name}" for name in state if name not in stored]
    wrong += [f"has {name}" for name in stored if name not in state and not name.startswith("fc.")]
    for name, tensor in state.items():
        found = stored.get(name, tensor)
        if found.shape != tensor.shape or (tensor.is_floating_point() and not found.is_floating_point()):
            wrong += [f"has {name} as {found.dtype} {tuple(found.shape)}, not float {tuple(tensor.shape)}"]
    if wrong:
        raise ValueError(f"{file} must hold a ResNet-18 with torchvision's names, but it {', '.join(wrong[:3])}")
    network.load_state_dict({name: stored[name].to(tensor.dtype) for name, tensor in state.items()}, assign=True)
    return network.requires_grad_(False).eval()


def _tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a file by name."""
    if not file.is_file():
        raise FileNotFoundError(
            f"there are no ResNet-18 weights at {file}: give the file that torchvision publishes "
            "(resnet18-f37072fd.pth), or safetensors with the same names"
        )
    if file.suffix not in (".safetensors", ".pth", ".pt"):
        raise ValueError(f"the weights of a ResNet-18 must be a .safetensors or .pth file, got {file}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{file} is damaged, or holds more than tensors, which is never loaded") from error
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError(f"{file} must hold tensors by name (a state_dict), got {type(content).__name__}")
    return dict(content)
