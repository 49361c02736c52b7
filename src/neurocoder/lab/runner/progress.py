"""The progress of a sweep: bars on a terminal, else a line for each run that ends and for each minute of one."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Task as Row
from rich.text import Text

from ..records.record import Record
from .job import Job

NAMED = 5
"""Failed runs that the last line names; each already had its own line."""

EVERY = 60.0
"""Seconds between the lines of a run."""


def summary(record: Record) -> str:
    """A finished run in one line."""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(record.metrics.items())[:5])
    loss = f", loss {record.history[-1]['loss']:.4g}" if "loss" in record.history[-1] else ""
    return f"{record.variant} seed {record.seed}: {metrics}{loss}, {record.seconds:.1f} s"


class Display:
    """Plain output: a line for each run that ended, one a minute for those that go on, and a summary. Counts the
    outcomes."""

    def __init__(self, total: int, skipped: int) -> None:
        self.total, self.skipped, self.finished, self.others = total, skipped, 0, 0
        """Jobs to do; runs skipped, finished, and left to other processes."""
        self.failures: dict[str, str] = {}
        self.begun = time.monotonic()
        self._said: dict[str, float] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def running(self, job: Job, step: int, steps: int, shown: str) -> None:
        """A job has reached this step; `shown` is text to show beside it."""
        name, now = str(job), time.monotonic()
        if now - self._said.setdefault(name, now) >= EVERY:
            self._said[name] = now
            self.line(", ".join(filter(None, [f"{name}: {step:,} of {steps:,}", shown])))

    def done(self, job: Job, record: Record) -> None:
        """A job has ended."""
        self.close(job)
        self.finished += 1
        self.line(summary(record))

    def elsewhere(self, job: Job) -> None:
        """A job is trained by another process."""
        self.close(job)
        self.others += 1

    def failed(self, job: Job, reason: str) -> None:
        """A job has failed."""
        self.close(job)
        name = str(job)
        alike = next((other for other, known in self.failures.items() if known == reason), None)
        self.failures[name] = reason
        self.line(f"{name} failed: {reason if alike is None else f'as {alike}'}")

    def close(self, job: Job) -> None:
        """No more is to be shown of a job."""

    def conclude(self) -> str:
        """The sweep in one line."""
        counts = [f"{self.finished} finished"]
        counts += [f"{self.skipped} finished before"] if self.skipped else []
        counts += [f"{self.others} left to another process"] if self.others else []
        names = list(self.failures)
        names = names if len(names) <= NAMED else [*names[:NAMED], f"and {len(names) - NAMED} more"]
        counts += [f"{len(self.failures)} failed ({', '.join(names)})"] if names else []
        return f"{', '.join(counts)}, {time.monotonic() - self.begun:.1f} s"


class _Speed(ProgressColumn):
    """Steps per second."""

    def render(self, task: Row) -> Text:
        """The text, as rich expects it."""
        return Text(f"{task.speed:.0f} steps/s" if task.fields["steps"] and task.speed else "", "dim")


class Bars(Display):
    """On a terminal: a bar for each running job, and one for the sweep."""

    def __init__(self, total: int, skipped: int) -> None:
        super().__init__(total, skipped)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[shown]}"),
            _Speed(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(),
            speed_estimate_period=120,
        )
        self._rows: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}
        self._ended = 0
        self._sweep = self._bars.add_task("sweep", total=total, count="", shown="", steps=False)

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        for row in (*self._rows.values(), self._sweep):
            self._bars.remove_task(row)
        self._bars.stop()

    def line(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def running(self, job: Job, step: int, steps: int, shown: str) -> None:
        name = str(job)
        if name not in self._rows:
            self._rows[name] = self._bars.add_task(name, total=steps, count="", shown="", steps=True)
        self._bars.update(self._rows[name], completed=step, count=f"{step:,}/{steps:,}", shown=shown)
        self._shares[name] = step / steps
        self._advance()

    def close(self, job: Job) -> None:
        if (row := self._rows.pop(str(job), None)) is not None:
            self._bars.remove_task(row)
        self._shares.pop(str(job), None)
        self._ended += 1
        self._advance()

    def _advance(self) -> None:
        completed = self._ended + sum(self._shares.values())
        self._bars.update(self._sweep, completed=completed, count=f"{self._ended}/{self.total}")


def display(total: int, skipped: int) -> Display:
    """The display that suits the output."""
    return (Bars if sys.stdout.isatty() else Display)(total, skipped)
