"""Methods against forgetting: plug-ins of the trainer."""

from .base import Method, Plain
from .ewc import EWC, OnlineEWC
from .lwf import LwF
from .mas import MAS
from .quadratic import L2
from .replay import Offline, Rehearsal
from .si import SI

__all__ = ["EWC", "L2", "MAS", "SI", "LwF", "Method", "Offline", "OnlineEWC", "Plain", "Rehearsal"]
