"""LeNet's gain over rates and augmentations, from the records: `python3 results/sweeps/images_rates.py`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

RECORDS = Path(__file__).parents[1] / "selection" / "images" / "paper.jsonl.gz"
PAPER = {"cifar10": 75.7, "cifar100": 42.7}
EPOCHS = 30


def main() -> None:
    """Print a line for each augmentation, rate and data set."""
    curves: dict[tuple[str, float, str, str], dict[int, list[float]]] = {}
    with gzip.open(RECORDS, "rt") as lines:
        for record in map(json.loads, lines):
            data, network, model = record["variant"].split("-", 2)
            config = record["config"]
            if network == "lenet" and config["epochs_lenet"] == EPOCHS and config["validation"]:
                key = config["augmentation_lenet"], config["learning_rate"], data, model
                found = [entry["validation_accuracy"] for entry in record["history"]]
                curves.setdefault(key, {})[record["seed"]] = found
    for kind, rate, data, _ in sorted(key for key in curves if key[-1] == "original"):
        pair = (curves[kind, rate, data, model] for model in ("original", "neurocoder"))
        first, second = (np.array([own[seed] for seed in sorted(own)]) for own in pair)  # (seeds, epochs)
        gains = np.sort(second.max(1) - first.max(1))
        best = first.max(1).mean()
        words = f"{kind}, {rate:g}, {data}: original {best:.1f}, gain {gains.mean():+.1f} {gains.round(1)}"
        if (passed := first.mean(0) >= PAPER[data]).any():
            epoch = int(passed.argmax())
            words += f"; {(second - first)[:, epoch].mean():+.1f} at {PAPER[data]} (epoch {epoch + 1})"
        print(words)


if __name__ == "__main__":
    main()
