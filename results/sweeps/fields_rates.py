"""The best rates and sizes of each contender of `fields`, by hill climbing on validation images.

    python3 results/sweeps/fields_rates.py climb OUTPUT [--data mnist-fourier ...] [--steps 700] [--jobs 2]
    python3 results/sweeps/fields_rates.py write OUTPUT

`climb` runs each contender at its present settings and at all their neighbours (the network's rate, the latents' rate
and the size, one step up or down), moves to the best, and goes on until no neighbour is better. So the best settings
have neighbours on all sides that were tried. Runs are those of `neurocoder run fields --validation`, with two seeds;
finished ones are not repeated. `write` puts the best settings into src/neurocoder/lab/experiments/fields/rates.py.
The measure is the mean of trained and new images' PSNR. With SMOKE set, as `queue.sh smoke` does, one tiny run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from neurocoder.lab import store
from neurocoder.lab.experiments.fields.models import CONTENDERS
from neurocoder.lab.experiments.fields.rates import Settings, of
from neurocoder.lab.records.files import atomic_write

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "src/neurocoder/lab/experiments/fields/rates.py"
BLOCK = re.compile(r"(?<=^SETTINGS: dict\[str, Settings\] = \{)[^}]*(?=\})", re.M)
SMOKE = bool(os.environ.get("SMOKE"))
SEEDS = "100" if SMOKE else "100-101"
RATES = tuple(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 3))
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Found = dict[Settings, list[float]]


def measured(folder: Path) -> dict[str, Found]:
    """What was found, by variant and settings."""
    found: dict[str, Found] = defaultdict(lambda: defaultdict(list))
    for place in [folder, *folder.glob("*/")]:
        for record in store.records(place, "fields", print):
            if record.config["validation"] and record.config["learn"] == "table":
                settings = Settings(*record.observations["rates"], record.observations["size"])
                value = record.metrics["psnr"]
                found[record.variant][settings].append(value if math.isfinite(value) else -math.inf)
    return found


def neighbours(settings: Settings) -> list[Settings]:
    """The settings, and one step in each direction."""
    found = [settings]
    for field, grid in (("network", RATES), ("latents", RATES), ("size", SIZES)):
        value = getattr(settings, field)
        if value is not None:
            place = grid.index(value)
            found += [settings._replace(**{field: other}) for other in grid[max(0, place - 1) : place + 2]]
    return [settings] if SMOKE else list(dict.fromkeys(found))


def climb(variant: str, output: Path, options: list[str]) -> str:
    """Find the best settings of one variant; a line about them."""
    contender = variant.split("-", 2)[2].rpartition("-")[0]
    best = of(variant)._replace(size=of(variant).size or CONTENDERS[contender].size)
    done: set[Settings] = set()
    while True:
        done |= measured_of(output, variant).keys()
        for settings in neighbours(best):
            if settings in done:
                continue
            done.add(settings)  # also if it diverges
            name = "-".join(f"{value:g}" for value in settings if value is not None)
            given = ["--rate", f"{settings.network:g}", "--latent-rate", f"{settings.latents:g}"]
            given += [] if settings.size is None else ["--size", str(settings.size)]
            where = ["--variants", variant, "--seeds", SEEDS, "--output", str(output / f"{variant}-{name}")]
            preset = ["--preset", "smoke"] if SMOKE else ["--preset", "equal", "--new", "32"]
            command = [sys.executable, "-m", "neurocoder.lab", "run", "fields", "--resume", "--no-report"]
            command += ["--validation", *preset, *given, *where, *options]
            with (output / "log.txt").open("a") as log:  # a run that diverges fails, and has no record
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        tried = measured_of(output, variant)
        better = max(neighbours(best), key=lambda settings: tried.get(settings, -math.inf))
        if tried.get(better, -math.inf) <= tried.get(best, -math.inf):
            return f"{variant}: {best}, {tried.get(best, -math.inf):.2f} dB; {len(tried)} settings"
        best = better


def measured_of(output: Path, variant: str) -> dict[Settings, float]:
    """The mean over seeds of one variant, by settings."""
    found: Found = defaultdict(list)
    for place in output.glob(f"{variant}-*/"):
        for other, values in measured(place).items():
            if other == variant:
                for settings, each in values.items():
                    found[settings] += each
    return {settings: fmean(values) for settings, values in found.items()}


def write(folder: Path) -> None:
    """The best settings of each variant into the experiment; those after 700 steps serve every length without own."""
    lines = []
    for variant, found in sorted(measured(folder).items()):
        means = {settings: fmean(values) for settings, values in found.items()}
        best = max(means, key=lambda settings: means[settings])
        name, _, steps = variant.rpartition("-")
        print(f"{variant}: {tuple(best)}, {means[best]:.2f} dB of {len(means)}", end="")
        print("" if set(neighbours(best)) <= set(means) else "; not all neighbours have a record")
        rates = f"{best.network:g}, {best.latents:g}" + ("" if best.size is None else f", {best.size}")
        lines.append(f'\n    "{name if steps == "700" else variant}": Settings({rates}),')
    if not lines:
        raise SystemExit(f"{folder} has no validation runs of fields: climb first")
    with atomic_write(TARGET) as temporary:
        temporary.write_text(BLOCK.sub("".join(lines) + "\n", TARGET.read_text()))


def main() -> None:
    """Climb or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["climb", "write"])
    parser.add_argument("output", type=Path, nargs="?", default=os.environ.get("OUT"), help="default: $OUT")
    parser.add_argument("--data", nargs="+", default=["mnist-fourier"])
    parser.add_argument("--contenders", nargs="+", default=[n for n, c in CONTENDERS.items() if not c.constant])
    parser.add_argument("--steps", default="700")
    parser.add_argument("--jobs", type=int, default=2)
    given, others = parser.parse_known_args()
    if given.output is None:
        parser.error("output must be a folder, or OUT must be set")
    if given.what == "write":
        return write(given.output)
    given.output.mkdir(parents=True, exist_ok=True)
    variants = [f"{data}-{contender}-{given.steps}" for data in given.data for contender in given.contenders]
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(lambda variant: climb(variant, given.output, others), variants):
            print(line, flush=True)


if __name__ == "__main__":
    main()
