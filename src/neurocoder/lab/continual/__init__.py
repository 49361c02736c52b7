"""Continual learning: a sequence of tasks, a trainer, the methods that plug into it, and the metrics.

from neurocoder.lab import continual as cl

tasks = cl.split(train, test, classes=[(0, 1), (2, 3)], scenario="domain")
trainer = cl.Trainer(model, cl.EWC(100.0), optimiser=lambda p: torch.optim.Adam(p, lr=1e-3))
for task in tasks:
    trainer.learn(task)
cl.average_accuracy(trainer.matrix)
"""

from .analytic import AIR, acil, gkeal, ranpac, ridge
from .discriminants import FeCAM, NearestMean, RanDumb, StreamingLDA
from .evaluation import accuracy
from .methods import EWC, L2, MAS, SI, LwF, Method, Offline, OnlineEWC, Plain, Rehearsal
from .metrics import average_accuracy, backward_transfer, forgetting, forward_transfer
from .stored import DERpp, GDumb, NearestNeighbours, Replay, Reservoir
from .stream import Learner, Streamed, stream
from .tasks import SCENARIOS, Task, split
from .trainer import Trainer

__all__ = [
    "AIR",
    "EWC",
    "L2",
    "MAS",
    "SCENARIOS",
    "SI",
    "DERpp",
    "FeCAM",
    "GDumb",
    "Learner",
    "LwF",
    "Method",
    "NearestMean",
    "NearestNeighbours",
    "Offline",
    "OnlineEWC",
    "Plain",
    "RanDumb",
    "Rehearsal",
    "Replay",
    "Reservoir",
    "Streamed",
    "StreamingLDA",
    "Task",
    "Trainer",
    "accuracy",
    "acil",
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
    "gkeal",
    "ranpac",
    "ridge",
    "split",
    "stream",
]
