"""LeNet's gain over rates and augmentations, from the records, as the rows of a Markdown table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from neurocoder.lab.report.statistics import summary

RECORDS = Path(__file__).parents[1] / "selection" / "images" / "paper.jsonl.gz"
PAPER = {"cifar10": 75.7, "cifar100": 42.7}
"""The original's accuracy."""
KINDS = {"none": "no augmentation", "flip": "mirrored", "reflect": "reflected crops"}
EPOCHS = 30


def cell(gains: np.ndarray) -> str:
    """The mean; bold, with its 95% interval, if that leaves out zero."""
    found = summary(gains.tolist())
    low, high = found.interval or (found.mean, found.mean)
    words = f"{found.mean:+.1f}"
    return f"**{words}** ({low:.1f} to {high:.1f})" if low > 0 or high < 0 else words


def main() -> None:
    """Print a row for each augmentation and rate, then the gains where the original first passes the paper's."""
    passing = []
    curves: dict[tuple[str, float, str, str], dict[int, list[float]]] = {}
    with gzip.open(RECORDS, "rt") as lines:
        for record in map(json.loads, lines):
            data, network, model = record["variant"].split("-", 2)
            config = record["config"]
            if network == "lenet" and config["epochs_lenet"] == EPOCHS and config["validation"]:
                key = config["augmentation_lenet"], config["learning_rate"], data, model
                found = [entry["validation_accuracy"] for entry in record["history"][:EPOCHS]]
                curves.setdefault(key, {})[record["seed"]] = found
    for kind, words in KINDS.items():
        for rate in sorted({key[1] for key in curves if key[0] == kind}):
            row = [words, f"{rate:g}"]
            for data, theirs in PAPER.items():
                pair = [curves[kind, rate, data, model] for model in ("original", "neurocoder")]
                seeds = sorted(set.intersection(*map(set, pair)))
                first, second = (np.array([own[seed] for seed in seeds]) for own in pair)  # (seeds, epochs)
                row += [f"{first.max(1).mean():.1f}", cell(second.max(1) - first.max(1))]
                row += [f"{first[:, -1].mean():.1f}", cell(second[:, -1] - first[:, -1])]
                if (passed := first.mean(0) >= theirs).any():
                    gain = cell((second - first)[:, passed.argmax()])
                    passing.append(f"{words}, {rate:g}, {data}: {gain} at {theirs} (epoch {passed.argmax() + 1})")
            print(f"| {' | '.join(row)} |")
    print("", *passing, sep="\n")


if __name__ == "__main__":
    main()
