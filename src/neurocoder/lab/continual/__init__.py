"""Continual learning: a sequence of tasks, a trainer, the methods that plug into it, and the metrics.

from neurocoder.lab import continual as cl

tasks = cl.split(train, test, classes=[(0, 1), (2, 3)], scenario="domain")
trainer = cl.Trainer(model, cl.EWC(100.0), optimiser=lambda p: torch.optim.Adam(p, lr=1e-3))
for task in tasks:
    trainer.learn(task)
cl.average_accuracy(trainer.matrix)
"""

from .evaluation import accuracy
from .methods import EWC, L2, MAS, SI, LwF, Method, Offline, OnlineEWC, Plain, Rehearsal
from .metrics import average_accuracy, backward_transfer, forgetting, forward_transfer
from .stream import FeCAM, Learner, NearestMean, NearestNeighbours, Streamed, StreamingLDA, stream
from .tasks import SCENARIOS, Task, split
from .trainer import Trainer

__all__ = [
    "EWC",
    "L2",
    "MAS",
    "SCENARIOS",
    "SI",
    "FeCAM",
    "Learner",
    "LwF",
    "Method",
    "NearestMean",
    "NearestNeighbours",
    "Offline",
    "OnlineEWC",
    "Plain",
    "Rehearsal",
    "Streamed",
    "StreamingLDA",
    "Task",
    "Trainer",
    "accuracy",
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
    "split",
    "stream",
]
