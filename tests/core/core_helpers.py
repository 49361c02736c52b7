"""Helpers for the tests of core layers."""

import torch

import neurocoder as nc
from neurocoder.core import reference

OPTIONS = {
    "": {},
    "diagonal": {"diagonal": True},
    "shift": {"shift": True},
    "normalise": {"normalise": True},
    "reader": {"programs": 4},
    "no residual": {"residual": False},
    "all": {"diagonal": True, "shift": True, "normalise": True, "programs": 2, "residual": False},
}
OWN = {"": {}, "diagonal": {"diagonal": True}, "programs": {"programs": 3}}
"""Options of layers that read their own input."""
CONTROL = 3


def build(kind, steered=True, bias=True, dtype=torch.float64, d_out=5, device=None, **options):
    """A layer of odd sizes, and the shape of one input."""
    config = nc.CoreConfig(**({"slots": 4} | options))
    given = {"core": config, "control_dim": CONTROL if steered else None, "bias": bias, "dtype": dtype}
    given["device"] = device
    if kind == "linear":
        return nc.CoreLinear(7, d_out, **given), (7,)
    if kind == "conv1d":
        return nc.CoreConv1d(3, d_out, 3, stride=2, padding=1, **given), (3, 9)
    return nc.CoreConv2d(3, d_out, (3, 2), padding="same", padding_mode="reflect", **given), (3, 5, 6)


def randomised(layer, scale=0.5):
    """Random values everywhere, so that nothing hides behind a start at zero."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape))
    return layer


def literal(layer, row):
    """The weight and the offset of one control, or of one input without one, from the literal equations."""
    memory, reader = layer.memory, layer.reader
    R = None if layer.R is None else layer.R.flatten(1)
    tensors = {"U": memory.U, "V": memory.V, "cores": memory.cores, "C_0": memory.C_0, "weight": reader.weight}
    if layer.control_dim is not None:
        options = {"shifts": memory.shifts, "normalise": layer.config.normalise}
        return reference.steered_weight(row, R=R, **tensors, **options)
    many = isinstance(layer, nc.CodedConv)
    own = {"bias": reader.bias, "gate": reader.gate, "serves_many": many}
    return reference.bounded_weight(row, R=R, **tensors, **own), R.new_zeros(len(R))


def literal_outputs(layer, x, rows):
    """The layer's outputs for inputs x (N, ...) of which each has its own control, or reads itself."""
    plain, outputs = layer.to_plain().to(x.dtype), []
    for one, row in zip(x, rows, strict=True):
        W, offset = literal(layer, row)
        tensors = {"weight": W.view(layer.weight_shape)} | ({} if layer.bias is None else {"bias": layer.bias})
        y = torch.func.functional_call(plain, tensors, (one,))
        outputs.append(y + offset.view(-1, *[1] * (y.dim() - 1)))
    return torch.stack(outputs)


def reads(layer, x):
    """What a layer without a control reads of inputs (N, ...)."""
    return x if isinstance(layer, nc.CodedLinear) else x.flatten(2).mean(-1)
