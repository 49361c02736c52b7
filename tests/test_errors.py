"""A table of wrong inputs: each error names the argument, what it was and what it may be."""

import numpy as np
import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small

P = nc.ProgramConfig


def linear(**options):
    return nc.Linear(4, 3, program=small(), **options)


def conv(*args, **options):
    return nc.Conv2d(*(args or (2, 3, 3)), program=small(), **options)


def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3), nn.Embedding(5, 4))


def groups(**options):
    return nc.parameter_groups(plain(), **({"lr": 0.1} | options))


def enter(context):
    with context:
        pass


x, z = torch.randn(5, 4), torch.randn(5, 2)
image = torch.randn(5, 2, 6, 6)
whole = torch.ones(5, 4, dtype=torch.int64)

CONFIGS = [
    (lambda: P(slots=0), r"program\.slots must be a whole number >= 1, got 0"),
    (lambda: P(slots=2.5), r"program\.slots must be a whole number >= 1, got 2\.5"),
    (lambda: P(steps=True), r"program\.steps must be a whole number >= 1, got True"),
    (lambda: P(steps=np.True_), r"program\.steps must be a whole number >= 1, got np\.True_"),
    (lambda: P(slots=np.float64(3)), r"program\.slots must be a whole number >= 1, got np\.float64\(3\.0\)"),
    (lambda: P(slots=np.int64(0)), r"program\.slots must be a whole number >= 1, got np\.int64\(0\)"),
    (lambda: P(heads=-1), r"program\.heads must be a whole number >= 1, got -1"),
    (lambda: P(key_dim=None), r"program\.key_dim must be a whole number >= 1, got None"),
    (lambda: P(hidden="8"), r"program\.hidden must be a whole number >= 1, got '8'"),
    (lambda: P(least_used=31), r"program\.least_used must be in 1\.\.slots \(30\), got 31"),
    (lambda: P(least_used=0), r"program\.least_used must be in 1\.\.slots \(30\), got 0"),
    (lambda: P(orthogonality=-0.1), r"program\.orthogonality must be a finite number >= 0, got -0\.1"),
    (lambda: P(orthogonality=float("nan")), r"program\.orthogonality must be a finite number >= 0, got nan"),
    (lambda: P(orthogonality=True), r"program\.orthogonality must be a finite number >= 0, got True"),
    (lambda: P(sharpness=np.float32("nan")), r"program\.sharpness must be a finite number > 0, got np\.float32\(nan\)"),
    (lambda: P(start=0.5), r"program\.start must be a neurocoder\.Start, got 0\.5"),
    (lambda: nc.Start(variance=0), r"program\.start\.variance must be a finite number > 0, got 0"),
    (lambda: nc.Start(spread=-1), r"program\.start\.spread must be a finite number >= 0, got -1"),
    (lambda: nc.Start(gate_bias="low"), r"program\.start\.gate_bias must be a finite number, got 'low'"),
    (lambda: P(start={"gate": 1}), r"Start has no field 'gate'"),
    (lambda: P(sharpness=0), r"program\.sharpness must be a finite number > 0, got 0"),
    (lambda: P(sharpness=float("inf")), r"program\.sharpness must be a finite number > 0, got inf"),
    (lambda: P(residual="gated"), r"program\.residual must be True, False or 'plain', got 'gated'"),
    (lambda: P(normalise=1), r"program\.normalise must be True or False, got 1"),
    (lambda: P(residual=1), r"program\.residual must be True, False or 'plain', got 1"),
    (lambda: P.from_dict({"kind": "HyperConfig"}), r"program\.kind must be 'ProgramConfig', got 'HyperConfig'"),
    (lambda: P.from_dict({"slot": 3}), r"ProgramConfig has no field 'slot'"),
    (lambda: nc.MixtureConfig(experts=0), r"mixture\.experts must be a whole number >= 1, got 0"),
    (lambda: nc.MixtureConfig(active=11), r"mixture\.active must be in 1\.\.experts \(10\), got 11"),
    (lambda: nc.MixtureConfig(balance="much"), r"mixture\.balance must be a finite number >= 0, got 'much'"),
    (lambda: nc.StoredProgramConfig(programs=0), r"stored_program\.programs must be a whole number >= 1, got 0"),
    (lambda: nc.StoredProgramConfig(key_dim=1.0), r"stored_program\.key_dim must be a whole number >= 1, got 1\.0"),
    (lambda: nc.HyperConfig(hidden=-3), r"hyper\.hidden must be a whole number >= 1, got -3"),
]

CONSTRUCTION = [
    (lambda: nc.Linear(0, 3), r"Linear: in_features must be a whole number >= 1, got 0"),
    (lambda: nc.Linear(3, 2.0), r"Linear: out_features must be a whole number >= 1, got 2\.0"),
    (lambda: nc.Linear(3, 2, program=nc.HyperConfig()), r"Linear: program must be a ProgramConfig, got HyperConfig"),
    (lambda: nc.Linear(3, 2, program={"slots": 3}), r"Linear: program must be a ProgramConfig, got dict"),
    (lambda: nc.Linear(3, 2, control_dim=0), r"Linear: control_dim must be a whole number >= 1, got 0"),
    (lambda: nc.Linear(np.True_, 3), r"Linear: in_features must be a whole number >= 1, got np\.True_"),
    (lambda: nc.Linear(3, 2, small()), r"Linear: bias must be True or False, got ProgramConfig\(slots=6"),
    (lambda: nc.Linear(3, 2, bias=None), r"Linear: bias must be True or False, got None"),
    (lambda: linear(dtype=torch.int64), r"Linear: dtype must be a floating-point dtype, got torch\.int64"),
    (lambda: linear(dtype=torch.complex64), r"Linear: dtype must be a floating-point dtype, got torch\.complex64"),
    (lambda: linear(dtype="float32"), r"Linear: dtype must be a floating-point dtype, got 'float32'"),
    (lambda: nc.MixtureLinear(3, 2, nc.MixtureConfig()), r"MixtureLinear: bias must be True or False, got MixtureConf"),
    (lambda: nc.StoredProgramLinear(3, 2, 1), r"StoredProgramLinear: bias must be True or False, got 1"),
    (lambda: nc.HyperLinear(3, 2, dtype=torch.int8), r"HyperLinear: dtype must be a floating-point dtype, got torch"),
    (lambda: nc.MixtureLinear(3, 2, mixture=P()), r"MixtureLinear: mixture must be a MixtureConfig, got ProgramConfig"),
    (lambda: nc.HyperLinear(3, -2), r"HyperLinear: out_features must be a whole number >= 1, got -2"),
    (lambda: nc.StoredProgramLinear(3, 2, control_dim="x"), r"control_dim must be a whole number >= 1, got 'x'"),
    (lambda: nc.Conv1d(0, 3, 3), r"Conv1d: in_channels must be a whole number >= 1, got 0"),
    (lambda: nc.Conv1d(3, 3, 0), r"Conv1d: kernel_size must be a whole number >= 1 .*, got 0"),
    (lambda: nc.Conv1d(3, 3, (3, 3)), r"Conv1d: kernel_size must be .*, got \(3, 3\)"),
    (lambda: conv(2, 3, 3, 0), r"Conv2d: stride must be a whole number >= 1 .*, got 0"),
    (lambda: conv(padding=-1), r"Conv2d: padding must be a whole number >= 0 .*, got -1"),
    (lambda: conv(padding="full"), r"Conv2d: padding must be 'same', 'valid' or whole numbers, got 'full'"),
    (lambda: conv(padding="same", stride=2), r"Conv2d: padding='same' needs stride 1, got \(2, 2\)"),
    (lambda: conv(dilation=(1, 0)), r"Conv2d: dilation must be a whole number >= 1 .*, got \(1, 0\)"),
    (lambda: conv(groups=2), r"Conv2d: groups must be 1 .*, got 2"),
    (lambda: conv(groups=True), r"Conv2d: groups must be 1 .*, got True"),
    (lambda: conv(bias="yes"), r"Conv2d: bias must be True or False, got 'yes'"),
    (lambda: conv(dtype=torch.complex64), r"Conv2d: dtype must be a floating-point dtype, got torch\.complex64"),
    (lambda: conv(padding_mode="mirror"), r"Conv2d: padding_mode must be 'zeros', 'reflect', .*, got 'mirror'"),
]

CALLS = [
    (lambda: linear()(torch.randn(5, 3)), r"Linear: x must have shape \(\.\.\., 4\), got \(5, 3\)"),
    (lambda: linear()(torch.tensor(1.0)), r"Linear: x must have shape \(\.\.\., 4\), got \(\)"),
    (lambda: linear()(whole), r"Linear: x must be a floating-point tensor, got torch\.int64"),
    (lambda: linear()([[1.0] * 4]), r"Linear: x must be a floating-point tensor, got list"),
    (lambda: linear().programs(np.ones((5, 4))), r"Linear: x must be a floating-point tensor, got ndarray"),
    (lambda: linear().programs(torch.randn(3)), r"Linear: x must have shape \(\.\.\., 4\), got \(3,\)"),
    (lambda: linear().materialize(torch.randn(2, 5)), r"Linear: x must have shape \(\.\.\., 4\), got \(2, 5\)"),
    (lambda: conv()(torch.randn(5, 3, 6, 6)), r"Conv2d: x must have shape \(\[B,\] 2, H, W\), got \(5, 3, 6, 6\)"),
    (lambda: conv()(torch.randn(6, 6)), r"Conv2d: x must have shape \(\[B,\] 2, H, W\), got \(6, 6\)"),
    (lambda: conv().materialize(image.int()), r"Conv2d: x must be a floating-point tensor, got torch\.int32"),
    (lambda: conv()(None), r"Conv2d: x must be a floating-point tensor, got NoneType"),
    (lambda: nc.MixtureLinear(3, 2)(1.0), r"MixtureLinear: x must be a floating-point tensor, got float"),
    (lambda: nc.MixtureLinear(3, 2)(x), r"MixtureLinear: x must have shape \(\.\.\., 3\), got \(5, 4\)"),
    (lambda: nc.HyperLinear(4, 2)(whole), r"HyperLinear: x must be a floating-point tensor, got torch\.int64"),
    (
        lambda: linear(control_dim=2)(x),
        r"control must be given: this Linear has control_dim=2; call layer\(x, control=z\)",
    ),
    (lambda: linear()(x, control=z), r"control was given, but this Linear reads its own input: .* control_dim=2"),
    (lambda: linear()(x, torch.tensor(1.0)), r"control was given, but this Linear reads its own .* with control_dim$"),
    (lambda: linear()(x, [1.0]), r"^control must be a floating-point tensor, got list"),
    (lambda: linear(control_dim=2)(x, [[1.0, 2.0]]), r"^control must be a floating-point tensor, got list"),
    (lambda: linear(control_dim=4)(x, whole), r"^control must be a floating-point tensor, got torch\.int64"),
    (lambda: linear(control_dim=2).programs(x, 1), r"^control must be a floating-point tensor, got int"),
    (lambda: linear(control_dim=2)(x, torch.tensor(1.0)), r"control must have shape \(\.\.\., 2\), got \(\)"),
    (lambda: conv(control_dim=2)(image, torch.tensor(1.0)), r"control must have shape \(\.\.\., 2\), got \(\)"),
    (lambda: nc.HyperLinear(4, 3, control_dim=4)(x, whole), r"^control must be a floating-point tensor, got torch\.in"),
    (lambda: linear(control_dim=3)(x, z), r"control must have shape \(\.\.\., 3\), got \(5, 2\)"),
    (lambda: linear(control_dim=2)(x, z[:4]), r"control's leading dimensions must be .* \(5,\), got \(4,\)"),
    (lambda: linear(control_dim=2)(x, torch.randn(5, 1, 2)), r"control's leading dimensions must be .*, got \(5, 1\)"),
    (lambda: conv(control_dim=2)(image, z[:4]), r"control's leading dimensions must be .* \(5,\), got \(4,\)"),
    (lambda: nc.HyperLinear(4, 3, control_dim=2).materialize(x), r"control must be given: this HyperLinear"),
]

MODELS = [
    (lambda: nc.plan(plain(), "fc", small()), r"targets matched no layer: 'fc'; the model has 0, 1, 2"),
    (lambda: nc.recode(plain(), 7, small()), r"targets must be names, suffixes, globs, types or predicates, got 7"),
    (lambda: nc.recode(plain(), "2", small()), r"cannot recode '2': nn\.Embedding is of an unknown kind"),
    (lambda: nc.recode(plain(), "0", P), r"config must be a ProgramConfig or another neurocoder config, got <class"),
    (lambda: nc.recode(plain(), "0", {"slots": 3}), r"config must be a ProgramConfig .*, got \{'slots': 3\}"),
    (
        lambda: nc.recode(plain(), "1", nc.HyperConfig()),
        r"cannot recode '1': nn\.Conv1d .*HyperConfig covers nn\.Linear",
    ),
    (lambda: nc.recode(plain(), "0", nc.Config()), r"cannot recode '0': .*no kind takes Config; see nc\.register"),
    (lambda: nc.recode(plain(), "0", small(), control_dim=-1), r"'0': Linear: control_dim must be .*, got -1"),
    (lambda: nc.recode([nn.Linear(3, 2)], "0", small()), r"model must be an nn\.Module, got \[Linear"),
    (lambda: nc.restore(plain()), r"model must have coded layers to restore, found none"),
    (lambda: nc.restore("model"), r"model must be an nn\.Module, got 'model'"),
    (lambda: nc.register("Linear", nc.Linear), r"plain_type must be a subclass of nn\.Module, got 'Linear'"),
    (
        lambda: nc.register(nn.Bilinear, nn.Linear),
        r"coded_type must be a subclass of neurocoder\.CodedLayer, got <class",
    ),
    (lambda: nc.register(nn.Bilinear, nc.CodedLayer), r"coded_type must have a config_type .*, got None"),
    (lambda: nc.register(nn.Bilinear, nc.Linear, transposed=1), r"transposed must be True or False, got 1"),
    (
        lambda: nc.register(nn.Bilinear, nc.Conv2d, transposed=True),
        r"coded_type must be a subclass of neurocoder\.CodedLinear if transposed, got <class",
    ),
    (lambda: nc.auxiliary_loss([linear()]), r"each of modules must be an nn\.Module, got \[Linear"),
    (lambda: nc.orthogonal_loss(None), r"each of modules must be an nn\.Module, got None"),
    (lambda: nc.count_parameters(3), r"model must be an nn\.Module, got 3"),
    (lambda: groups(lr=-1), r"lr must be a finite number >= 0, got -1"),
    (lambda: groups(lr="fast"), r"lr must be a finite number >= 0, got 'fast'"),
    (lambda: groups(controller_lr=float("nan")), r"controller_lr must be a finite number >= 0, got nan"),
    (lambda: groups(weight_decay=None), r"weight_decay must be a finite number >= 0, got None"),
    (lambda: enter(nc.record(plain())), r"model must have a program layer to record, found none: use nc\.recode"),
    (lambda: enter(nc.record([linear()])), r"model must be an nn\.Module, got \[Linear"),
    (lambda: enter(nc.control(linear(), z)), r"model must have a layer that was built with control_dim, found none"),
    (lambda: enter(nc.control(linear(control_dim=3), z)), r"control must have shape \(\.\.\., 3\), got \(5, 2\)"),
    (lambda: enter(nc.control(linear(control_dim=2), [1.0])), r"control must be a floating-point tensor, got list"),
    (
        lambda: enter(nc.control(linear(control_dim=4), whole)),
        r"control must be a floating-point tensor, got torch\.int",
    ),
    (lambda: nc.save({"a": x}, "never"), r"model must be an nn\.Module, got \{'a'"),
    (lambda: nc.load("never", None), r"model must be an nn\.Module, got None"),
    (lambda: nc.load("never", plain()), r"no checkpoint at never, it has no neurocoder\.safetensors: give a folder"),
]

TABLE = CONFIGS + CONSTRUCTION + CALLS + MODELS


@pytest.mark.parametrize(("wrong", "message"), TABLE, ids=[message.replace("\\", "") for _, message in TABLE])
def test_wrong_input(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
