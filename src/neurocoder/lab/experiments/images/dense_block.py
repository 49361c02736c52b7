"""A block of DenseNet on a GPU, by Triton kernels: less than a third of the time of torch's operations, little memory.

Layer l reads the C_l channels before it, `y = relu(norm_l(x))`, and adds G channels, a 3 x 3 convolution of y. The
kernels use that G is small and that the layers read the same features:

- A 3 x 3 convolution to G channels is one matrix product per pixel, `y W` with 9 G columns, and a sum of nine shifted
  columns. So is its backward: y is read once, not nine times, and tensor cores are full.
- A channel has the same mean and variance in every layer that reads it: they are computed once.
- y is not kept. Product and normalisation are one kernel, and the backward computes y again.
- Of the gradient of a normalisation, the part through the statistics is linear in x, with coefficients per channel.
  These are summed over layers, and subtracted once.

All features of a block are one tensor, (N, C, H, W) in channels-last layout. Nothing depends on the order in which a
GPU works: the same input gives the same bits. Evaluation, which normalises by running statistics, is the same forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....ops.autograd import refuse_second_derivatives
from ....ops.launch import cdiv, on_device_of, power_of_two
from .triton_dense import (
    backward_kernel,
    combine_kernel,
    complete_kernel,
    expand_kernel,
    fold_kernel,
    gather_kernel,
    moments_kernel,
    pack_kernel,
    unfold_kernel,
)

ALIGNED = 16
"""Rows begin at multiples of so many elements, and kernels read so many at least."""
TILE = 128
"""Pixels of which the moments are taken together."""
FORWARD: dict[str, Any] = {"BM": 128, "BC": 64, "num_warps": 4, "num_stages": 3}
"""Pixels and channels of a tile of `expand_kernel`. All tiles are the best of some tens that were timed on an H200."""
FEW = 16_384
"""Up to so many pixels, its tiles have half as many, so that they still fill a GPU."""
UNFOLD = 16
"""Pixels of a tile of `unfold_kernel`."""
BACKWARD: dict[str, Any] = {"BM": 64, "BC": 32, "STAGES": 3, "num_warps": 4}
"""Of a tile of `backward_kernel`."""
GRID = 528
"""About how many instances of `backward_kernel` run: four for each processor of an H200. Fixed, so that sums over
pixels have a fixed order."""
WIDE: dict[str, dict[str, Any]] = {
    "forward": {"BM": 64, "BC": 32, "num_stages": 2},
    "backward": {"BM": 32, "STAGES": 2},
}
"""What differs with float32 features: tiles that fit into the 99 KB of shared memory that small GPUs have."""


def forward_tile(features: Tensor) -> dict[str, Any]:
    """The tile of `expand_kernel` for features (M, stride)."""
    tile = FORWARD | (WIDE["forward"] if features.dtype == torch.float32 else {})
    return tile if len(features) > FEW else tile | {"BM": tile["BM"] // 2}


def backward_tile(features: Tensor) -> dict[str, Any]:
    """The tile of `backward_kernel`."""
    return BACKWARD | (WIDE["backward"] if features.dtype == torch.float32 else {})


def aligned(channels: int) -> int:
    """The number rounded up to whole `ALIGNED`."""
    return cdiv(channels, ALIGNED) * ALIGNED


class Layer(NamedTuple):
    """Parameters of a layer, float32: gamma and beta (C,) and the weight (G, C, 3, 3)."""

    gamma: Tensor
    beta: Tensor
    weight: Tensor


class Shape(NamedTuple):
    """Of a block's features."""

    rows: int
    """M, the pixels of all images."""
    height: int
    width: int
    stride: int
    """Elements from one pixel to the next."""
    first: int
    """Channels that the block is given."""
    growth: int
    """Channels that each layer adds."""

    @property
    def columns(self) -> int:
        """J, taps and new channels, padded."""
        return power_of_two(9 * self.growth)

    @property
    def padded(self) -> int:
        """`growth`, padded."""
        return power_of_two(self.growth)

    def channels(self, layer: int) -> int:
        """C_l, those that a layer reads."""
        return self.first + layer * self.growth

    @property
    def new(self) -> dict[str, int]:
        """Constants of the kernels of new channels."""
        return {"G": self.growth, "GG": self.padded, "J": self.columns}


class Statistics(NamedTuple):
    """Of each channel (C,), float32; the variance is biased."""

    mean: Tensor
    variance: Tensor
    rstd: Tensor


def precision(dtype: torch.dtype) -> str:
    """Of products: as exact as torch's convolutions."""
    return "tf32" if dtype != torch.float32 or torch.backends.cudnn.allow_tf32 else "tf32x3"


def packed(weight: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    """A layer's weight as a matrix (C, J) in the order of the columns, with C padded."""
    channels = weight.shape[1]
    matrix = weight.new_empty(aligned(channels), shape.columns, dtype=dtype)
    pack_kernel[aligned(channels) // ALIGNED,](weight, matrix, channels, G=shape.growth, J=shape.columns, BC=ALIGNED)
    return matrix


def combine(partial: Tensor, found: Statistics, shape: Shape, begin: int, count: int, eps: float) -> None:
    """Statistics of `count` channels from `begin` on, from those of tiles (T, 2, width)."""
    tiles, _, width = partial.shape
    views = (values[begin:] for values in found)
    block = min(ALIGNED, power_of_two(count))
    combine_kernel[cdiv(count, block),](
        *(partial, *views, shape.rows, tiles, width, count, eps),
        BM=TILE,
        BT=min(512, power_of_two(tiles)),
        BC=block,
        num_warps=8,
    )


class ForwardPass:
    """Fills in a block's channels, features (M, stride), layer by layer."""

    def __init__(self, features: Tensor, shape: Shape) -> None:
        self.features, self.shape, self.tiles = features, shape, cdiv(shape.rows, TILE)
        self._columns = features.new_empty(shape.rows, shape.columns)
        self._partial = features.new_empty(self.tiles, 2, shape.padded, dtype=torch.float32)

    def add(self, index: int, layer: Layer, matrix: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
        """The channels of a layer that normalises by `mean` and `rstd`; their moments, by tiles (T, 2, width), until
        the next layer is added."""
        shape, channels = self.shape, self.shape.channels(index)
        tile = forward_tile(self.features)
        expand_kernel[cdiv(shape.rows, tile["BM"]),](
            *(self.features, matrix, mean, rstd, layer.gamma, layer.beta),
            *(self._columns, shape.rows, channels, aligned(channels), shape.stride),
            **{"J": shape.columns, "PRECISION": precision(self.features.dtype)},
            **tile,
        )
        fold_kernel[self.tiles,](
            *(self._columns, self.features, self._partial, shape.rows, channels // 4, shape.stride),
            *(shape.height, shape.width),
            **shape.new,
            BM=TILE,
        )
        return self._partial


def forward(
    features: Tensor, layers: Sequence[Layer], matrices: Sequence[Tensor], shape: Shape, eps: float
) -> Statistics:
    """Fill in the channels of all layers, features (M, stride); statistics of all channels."""
    forward_pass = ForwardPass(features, shape)
    found = Statistics(*(features.new_empty(shape.stride, dtype=torch.float32) for _ in range(3)))
    partial = features.new_empty(forward_pass.tiles, 2, shape.first, dtype=torch.float32)
    moments_kernel[forward_pass.tiles, cdiv(shape.first, ALIGNED)](
        features, partial, shape.rows, shape.first, shape.stride, BM=TILE, BC=ALIGNED
    )
    combine(partial, found, shape, 0, shape.first, eps)
    for index, (layer, matrix) in enumerate(zip(layers, matrices, strict=True)):
        moments = forward_pass.add(index, layer, matrix, found.mean, found.rstd)
        combine(moments, found, shape, shape.channels(index), shape.growth, eps)
    return found


def backward(
    grad: Tensor,
    features: Tensor,
    layers: Sequence[Layer],
    matrices: Sequence[Tensor],
    found: Statistics,
    shape: Shape,
) -> tuple[Tensor, list[Layer]]:
    """The gradients of the given channels (M, C_0) and of the layers; changes the features' gradient (M, stride)."""
    tile = backward_tile(features)
    rows, tiles = shape.rows, cdiv(shape.rows, tile["BM"])
    sums = grad.new_zeros(2, shape.stride, dtype=torch.float32)
    complete, columns = grad.new_empty(rows, shape.padded), grad.new_empty(rows, shape.columns)
    grads = []
    for index in reversed(range(len(layers))):
        layer, channels = layers[index], shape.channels(index)
        padded, blocks = aligned(channels), cdiv(channels, tile["BC"])
        complete_kernel[cdiv(rows, TILE),](
            *(grad, features, found.mean, found.rstd, sums, complete, rows, channels // 4, shape.stride),
            **{"G": shape.growth, "GG": shape.padded, "BM": TILE},
        )
        unfold_kernel[cdiv(rows, UNFOLD),](
            *(complete, columns, rows, shape.height, shape.width), **shape.new, BM=UNFOLD
        )
        each = cdiv(tiles, min(tiles, max(1, GRID // blocks)))
        splits = cdiv(tiles, each)
        weights = sums.new_empty(splits, shape.columns, padded)
        parts = sums.new_empty(splits, 2, padded)
        backward_kernel[blocks, splits](
            *(features, grad, columns, matrices[index], found.mean, found.rstd),
            *(layer.gamma, layer.beta, weights, parts, rows, channels, padded, shape.stride, tiles, each),
            **{"J": shape.columns, "PRECISION": precision(grad.dtype)},
            **tile,
        )
        own = Layer(*(torch.empty_like(parameter) for parameter in layer))
        gather_kernel[9 * shape.growth + 1, cdiv(channels, 64)](
            *(weights, parts, layer.gamma, own.weight, own.gamma, own.beta, sums, splits, channels, padded),
            shape.stride,
            **{"G": shape.growth, "J": shape.columns, "BS": 32, "BC": 64},
        )
        grads.append(own)
    level, slope = (found.rstd / rows * values for values in sums)
    slope = slope * found.rstd
    level = level - slope * found.mean
    given = slice(shape.first)
    return torch.addcmul(grad[:, given] - level[given], features[:, given], slope[given], value=-1), grads[::-1]


def new_features(x: Tensor, layers: Sequence[Layer], dtype: torch.dtype) -> tuple[Tensor, Shape]:
    """Features (N, H, W, stride) that hold x (N, C_0, H, W), and their shape."""
    count, first, height, width = x.shape
    growth = len(layers[0].weight)
    stride = aligned(first + growth * len(layers))
    features = x.new_zeros(count, height, width, stride, dtype=dtype)
    features[..., :first] = x.permute(0, 2, 3, 1)
    return features, Shape(count * height * width, height, width, stride, first, growth)


def evaluate(
    x: Tensor, dtype: torch.dtype, eps: float, layers: Sequence[Layer], running: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Features x (N, C_0, H, W) -> (N, C, H, W), normalised by each layer's running mean and variance (C,)."""
    layers = [Layer(*(p.contiguous() for p in layer)) for layer in layers]
    features, shape = new_features(x, layers, dtype)
    with on_device_of(x):
        forward_pass = ForwardPass(features.view(shape.rows, shape.stride), shape)
        for index, (layer, (mean, variance)) in enumerate(zip(layers, running, strict=True)):
            forward_pass.add(index, layer, packed(layer.weight, shape, dtype), mean, (variance + eps).rsqrt())
    return features.permute(0, 3, 1, 2)[:, : shape.channels(len(layers))]


class DenseBlock(torch.autograd.Function):
    """Features x (N, C_0, H, W) -> (N, C, H, W), and the mean and the biased variance of each of the C channels.

    Args:
        x: what the block is given.
        dtype: of the features.
        eps: of the normalisations.
        parameters: gamma, beta and weight of each layer, one layer after the other, float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, eps: float, *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        layers = [Layer(*(p.contiguous() for p in parameters[at : at + 3])) for at in range(0, len(parameters), 3)]
        features, shape = new_features(x, layers, dtype)
        total = shape.channels(len(layers))
        with on_device_of(x):
            matrices = [packed(layer.weight, shape, dtype) for layer in layers]
            found = forward(features.view(shape.rows, shape.stride), layers, matrices, shape, eps)
        ctx.save_for_backward(features, *found, *matrices, *(tensor for layer in layers for tensor in layer))
        ctx.shape, ctx.count, ctx.dtype = shape, len(layers), x.dtype
        mean, variance = found.mean[:total], found.variance[:total]
        ctx.mark_non_differentiable(mean, variance)
        return features.permute(0, 3, 1, 2)[:, :total], mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives()
        shape: Shape = ctx.shape
        features, mean, variance, rstd, *rest = ctx.saved_tensors
        matrices, parameters = rest[: ctx.count], rest[ctx.count :]
        layers = [Layer(*parameters[at : at + 3]) for at in range(0, len(parameters), 3)]
        changed = torch.zeros_like(features)
        changed[..., : grad.shape[1]] = grad.permute(0, 2, 3, 1)
        size = shape.rows, shape.stride
        with on_device_of(grad):
            found = Statistics(mean, variance, rstd)
            given, grads = backward(changed.view(size), features.view(size), layers, matrices, found, shape)
        given = given.view(*features.shape[:3], shape.first).permute(0, 3, 1, 2)
        return given.to(ctx.dtype), None, None, *(tensor for layer in grads for tensor in layer)
