"""Stored neural programs: layers whose weights are composed for each input from a memory of singular programs."""

from . import functional, reference
from .backend import backend
from .baselines import HyperLinear, MixtureLinear, StoredProgramLinear
from .checkpoint import CheckpointError, load, save
from .coded import CodedLayer
from .config import Config, HyperConfig, MixtureConfig, ProgramConfig, StoredProgramConfig
from .controller import ProgramController
from .conv import Conv1d, Conv2d
from .geometry import LinearGeometry
from .linear import Linear
from .losses import auxiliary_loss, count_parameters, orthogonal_loss, parameter_groups
from .memory import ProgramMemory
from .program import ProgramLayer, Programs
from .surgery import Plan, plan, recode, register, restore
from .trace import Recording, control, record
from .version import __version__

__all__ = [
    "CheckpointError",
    "CodedLayer",
    "Config",
    "Conv1d",
    "Conv2d",
    "HyperConfig",
    "HyperLinear",
    "Linear",
    "LinearGeometry",
    "MixtureConfig",
    "MixtureLinear",
    "Plan",
    "ProgramConfig",
    "ProgramController",
    "ProgramLayer",
    "ProgramMemory",
    "Programs",
    "Recording",
    "StoredProgramConfig",
    "StoredProgramLinear",
    "__version__",
    "auxiliary_loss",
    "backend",
    "control",
    "count_parameters",
    "functional",
    "load",
    "orthogonal_loss",
    "parameter_groups",
    "plan",
    "recode",
    "record",
    "reference",
    "register",
    "restore",
    "save",
]
