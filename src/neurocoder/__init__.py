"""Stored neural programs: layers whose weights are composed for each input from a memory of singular programs."""

from . import functional, plot, reference
from .backend import backend
from .base import CodedLayer
from .baselines import HyperLinear, MixtureLinear, StoredProgramLinear
from .checkpoint import CheckpointError, load, save
from .coded_linear import CodedLinear
from .config import Config, HyperConfig, MixtureConfig, ProgramConfig, Start, StoredProgramConfig
from .control import control
from .controller import ProgramController
from .conv import Conv1d, Conv2d
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
from .kinds import register
from .linear import Linear
from .losses import auxiliary_loss, orthogonal_loss
from .memory import ProgramMemory
from .parameters import count_parameters, parameter_groups
from .plan import Plan, plan
from .program import ProgramLayer, Programs
from .surgery import recode, restore
from .trace import Recording, record
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
