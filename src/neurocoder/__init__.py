"""Stored neural programs: layers whose weights are composed for each input from a memory of singular programs."""

from . import functional, inspect, plot, reference
from .baselines.hyper import HyperConfig, HyperLinear
from .baselines.mixture import MixtureConfig, MixtureLinear
from .baselines.stored_program import StoredProgramConfig, StoredProgramLinear
from .checkpoint import load, save
from .checkpoint_files import CheckpointError
from .core import CoreConfig, CoreConv1d, CoreConv2d, CoreLinear, CorePrograms
from .exact import ExactConfig, ExactLinear, ExactPrograms, exact
from .growing import (
    GrowingConfig,
    GrowingConv1d,
    GrowingConv2d,
    GrowingLinear,
    GrowingMemory,
    GrowingPrograms,
    Growth,
    grow,
    mask,
    shrink,
)
from .inspect.diagnose import Diagnosis, LayerDiagnosis, diagnose
from .inspect.record import Recording, record
from .layer.active import ActiveProgram
from .layer.base import CodedLayer, coded_layers
from .layer.config import Config
from .layer.control import control
from .layer.conv import CodedConv, CodedConv1d, CodedConv2d
from .layer.linear import CodedLinear
from .ops.backend import backend
from .program.config import ProgramConfig, Start
from .program.controller import ProgramController
from .program.conv import Conv1d, Conv2d
from .program.layer import ProgramLayer, Programs
from .program.linear import Linear
from .program.memory import ProgramMemory
from .program.orthogonality import orthogonal_loss
from .steering import ControlEmbedding, Steered, fit_control, load_control, save_control, steer
from .surgery.plan import Plan, plan
from .surgery.recode import recode
from .surgery.registry import register
from .surgery.restore import restore
from .trainer import TrainerMixin
from .training import auxiliary_loss, count_parameters, parameter_groups
from .version import __version__

__all__ = [
    "ActiveProgram",
    "CheckpointError",
    "CodedConv",
    "CodedConv1d",
    "CodedConv2d",
    "CodedLayer",
    "CodedLinear",
    "Config",
    "ControlEmbedding",
    "Conv1d",
    "Conv2d",
    "CoreConfig",
    "CoreConv1d",
    "CoreConv2d",
    "CoreLinear",
    "CorePrograms",
    "Diagnosis",
    "ExactConfig",
    "ExactLinear",
    "ExactPrograms",
    "GrowingConfig",
    "GrowingConv1d",
    "GrowingConv2d",
    "GrowingLinear",
    "GrowingMemory",
    "GrowingPrograms",
    "Growth",
    "HyperConfig",
    "HyperLinear",
    "LayerDiagnosis",
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
    "Steered",
    "StoredProgramConfig",
    "StoredProgramLinear",
    "TrainerMixin",
    "__version__",
    "auxiliary_loss",
    "backend",
    "coded_layers",
    "control",
    "count_parameters",
    "diagnose",
    "exact",
    "fit_control",
    "functional",
    "grow",
    "inspect",
    "load",
    "load_control",
    "mask",
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
    "save_control",
    "shrink",
    "steer",
]
