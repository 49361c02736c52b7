"""Stored neural programs: layers whose weights are composed for each input from a memory of singular programs."""

from . import functional, plot, reference
from .baselines import HyperLinear, MixtureLinear, StoredProgramLinear
from .checkpoint import CheckpointError, load, save
from .growing import (
    GrowingConfig,
    GrowingConv1d,
    GrowingConv2d,
    GrowingLinear,
    GrowingMemory,
    GrowingPrograms,
    Growth,
    grow,
    shrink,
)
from .inspect.record import Recording, record
from .layer.base import CodedLayer
from .layer.config import Config, HyperConfig, MixtureConfig, ProgramConfig, Start, StoredProgramConfig
from .layer.control import control
from .layer.conv import Conv1d, Conv2d
from .layer.linear import CodedLinear
from .ops.backend import backend
from .program.controller import ProgramController
from .program.layer import ProgramLayer, Programs
from .program.linear import Linear
from .program.memory import ProgramMemory
from .surgery.plan import Plan, plan
from .surgery.recode import recode, restore
from .surgery.registry import register
from .training import auxiliary_loss, count_parameters, orthogonal_loss, parameter_groups
from .version import __version__

__all__ = [
    "CheckpointError",
    "CodedLayer",
    "CodedLinear",
    "Config",
    "Conv1d",
    "Conv2d",
    "GrowingConfig",
    "GrowingConv1d",
    "GrowingConv2d",
    "GrowingLinear",
    "GrowingMemory",
    "GrowingPrograms",
    "Growth",
    "HyperConfig",
    "HyperLinear",
    "Linear",
    "MixtureConfig",
    "MixtureLinear",
    "Plan",
    "ProgramConfig",
    "ProgramController",
    "ProgramLayer",
    "ProgramMemory",
    "Programs",
    "Recording",
    "Start",
    "StoredProgramConfig",
    "StoredProgramLinear",
    "__version__",
    "auxiliary_loss",
    "backend",
    "control",
    "count_parameters",
    "functional",
    "grow",
    "load",
    "orthogonal_loss",
    "parameter_groups",
    "plan",
    "plot",
    "recode",
    "record",
    "reference",
    "register",
    "restore",
    "save",
    "shrink",
]
