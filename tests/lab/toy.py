"""An experiment without training, and records of it."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from neurocoder.lab.experiments import Experiment
from neurocoder.lab.records.record import Record, plain
from neurocoder.lab.report.chapter import Chapter, draw
from neurocoder.lab.report.sections import Estimate, Plot, Section, Table
from neurocoder.lab.report.statistics import by_seed


def figure() -> Figure:
    made = Figure(figsize=(3, 2), layout="constrained")
    axis = made.subplots()
    axis.plot([1, 2, 3], [3, 1, 2], label="curve")
    axis.legend()
    axis.fill_between([1, 2, 3], [2, 0, 1], [4, 2, 3], alpha=0.2, hatch="/")
    return made


TABLE = Table(
    title="Error <b> & [co]",
    headings=["model", "parameters", "error, %", "paper", "remark"],
    rows=[
        ["linear | plain", 7850, Estimate([7.0, 7.2, 7.4]), 8.4, "x < y [z]"],
        ["H3_J5 *best*", 7176, Estimate([5.5]), None, None],
        ["`mlp`", None, Estimate([]), 93.5, "200-32-10"],
    ],
    caption="Lower is better; 5% < 7%.",
)
PLOT = Plot("curve", 'Test error, "mean" & <spread>', figure)
SECTION = Section("Error against J", ["Falls from J=1 to J=5, `J < 6` & up."], [TABLE], [PLOT])
CHAPTER = Chapter(
    experiment="toy",
    title="Toy",
    preset="best",
    origin="2 runs.",
    commands=["neurocoder run toy --seeds '0,1'"],
    sections=[SECTION],
    pictures={"curve": draw(PLOT, "toy-best-curve")},
)


@dataclass(frozen=True)
class Program:
    slots: int = 6


@dataclass(frozen=True)
class Config:
    epochs: int = 20
    learning_rate: float = 0.005
    validation: bool = False
    widths: tuple[int, ...] = (200, 32)
    program: Program = Program()


class Toy(Experiment):
    name = "toy"
    title = "Toy"
    Config = Config
    presets = {"paper": Config(epochs=3), "best": Config()}
    seeds = {"paper": range(2), "best": range(2)}

    def variants(self, config):
        return ["linear", "J5"]

    def run(self, context):
        raise NotImplementedError

    def sections(self, records, paper):
        row = ["J5", Estimate(list(by_seed(records, "J5", "error").values())), paper["parameters"]["neurocoder"]]
        return [
            Section("Found", [f"{len(records)} records"], [Table("Errors", ["model", "ours", "paper"], [row])], [PLOT])
        ]


def record(
    variant="J5", seed=0, error=5.0, preset="best", commit="a" * 40, hardware="H200", model=None, **changes
) -> Record:
    config = {**plain(Toy.presets[preset]), **changes}
    return Record(
        experiment="toy",
        preset=preset,
        variant=variant,
        seed=seed,
        config=config,
        model=model,
        loop="plain",
        device="cpu",
        precision="32-true",
        processes=1,
        parameters={"total": 10},
        metrics={"error": error},
        history=[{"step": 3, "loss": 1.0, "error": error}],
        observations={},
        seconds=40.0,
        environment={
            "commit": commit,
            "changed": "yes" if commit.endswith("+") else "no",
            "source": "b" * 64,
            "hardware": hardware,
            "torch": "2.13.0",
        },
    )


def write(folder: Path, *records: Record) -> None:
    for one in records:
        one.write(folder / one.experiment / one.preset / one.variant / f"seed{one.seed}.json")
