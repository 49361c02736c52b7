"""The best rates of each contender of `fields`: `python3 results/sweeps/fields_rates.py [FOLDER]`.

Reads the validation runs of `neurocoder run fields` under results/selection (or FOLDER) and writes, for each data set,
features and contender, the rates with the highest mean of trained and new images' PSNR into
src/neurocoder/lab/experiments/fields/rates.py. Best rates at the edge of what was tried are named. With SMOKE set, as
`queue.sh smoke` does, nothing is written.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from neurocoder.lab import store
from neurocoder.lab.records.files import atomic_write

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "src/neurocoder/lab/experiments/fields/rates.py"
BLOCK = re.compile(r"(?<=^RATES: dict\[str, tuple\[float, float\]\] = \{)[^}]*(?=\})", re.M)


def main(folder: Path) -> None:
    """Choose, write and tell."""
    found: dict[str, dict[tuple[float, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for place in [folder, *folder.glob("*/")]:
        for record in store.records(place, "fields", print):
            if record.config["validation"] and record.config["learn"] == "table":
                rates = record.observations["rates"]
                name = record.variant.rpartition("-")[0]
                found[name][rates[0], rates[1]].append(record.metrics["psnr"])
    lines = []
    for name, tried in found.items():
        means = {rates: fmean(values) for rates, values in tried.items()}
        best = max(means, key=lambda rates: means[rates])
        edges = [
            f"{kind} rate {best[place]:g} is the {word}"
            for place, kind in enumerate(("network", "latent"))
            for word, end in (("lowest", min), ("highest", max))
            if best[place] == end(rates[place] for rates in means)
        ]
        print(f"{name}: {best[0]:g} / {best[1]:g}, {means[best]:.2f} dB of {len(means)}", *edges, sep="; ")
        lines.append(f'\n    "{name}": ({best[0]:g}, {best[1]:g}),')
    if not found:
        raise SystemExit(f"{folder} has no validation runs of fields: run the groups fields-* first")
    if os.environ.get("SMOKE"):
        return
    with atomic_write(TARGET) as temporary:
        temporary.write_text(BLOCK.sub("".join(lines) + "\n", TARGET.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results/selection")
