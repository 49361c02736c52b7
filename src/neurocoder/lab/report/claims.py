"""What the paper claims and what the records say: the table of docs/results/README.md, built from results/claims.toml.

The words of a claim may have fields, which become numbers:

    {paper: images.mlp.cifar10.neurocoder}                  as `paper.toml` has it
    {images/paper: accuracy of cifar10-mlp-neurocoder}      of results/images/paper: mean (95% interval, n)
    {images/paper: accuracy of cifar10-mlp-neurocoder - cifar10-mlp-original}    paired by seed
    {split/best: learned of mnist-task-si-mlp - cpu/split/best: mnist-task-si-mlp-wide}    the other's in another folder
    {images/paper: best accuracy of cifar10-mlp-neurocoder}                      the best seed
    {split/paper: average_accuracy of mnist-task-adam-neurocoder; hidden 21}     of other settings than the preset's
    {polynomials/large: r2@500 of multi}                    of the evaluation after 500 steps; r2@best: of the best one
    {digits/best: parameters of J5}, {...: boundaries.state.either of multi}     of the model, of what was observed
    {polynomials/best: mse of multi!5}                      with five decimals instead of the claim's
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import store
from ..records.record import Record, plain
from .cells import excludes_zero, ours
from .compare import configurations, label
from .sections import Estimate, PairedDifference
from .statistics import differences, summary

NAME = "claims.toml"
VERDICTS = {
    "confirmed": "Confirmed",
    "in part": "In part",
    "not": "**Not**",
    "not affordable here": "Not affordable here",
    "not yet run": "Not yet run",
    "no result": "–",
}
"""What a claim may be; `no result`: there is nothing to measure, as in a table of notation."""
FIELD = re.compile(r"\{([^{}]+)\}")
OURS = re.compile(
    r"(?P<best>best )?(?P<metric>\S+) of (?P<one>[^\s;!]+)(?: - (?:(?P<place>\S+): )?(?P<other>[^\s;!]+))?"
    r"(?:; (?P<settings>[^!]+))?(?:!(?P<digits>\d))?"
)


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    where: str
    """Section, table or figure."""
    says: str
    """What the paper says, with its numbers."""
    ours: str
    """What we found, in fields."""
    verdict: str
    page: str
    """Where more is said, a link from the results' folder."""
    reading: str = ""
    """What was assumed where the paper is silent, and what else the verdict rests on."""
    digits: int = 1
    """Decimals of our numbers."""
    evidence: tuple[str, ...] = ()
    """Differences (fields without braces): above zero in a claim that is confirmed; one that is not has none above."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be among {', '.join(VERDICTS)}, got {self.verdict!r} in: {self.says}")


def anchor(heading: str) -> str:
    """A heading's address on its page, as Git hosts and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Claims:
    """The claims of a folder of records.

    Args:
        records: the folder, with `claims.toml`.
        paper: the content of `paper.toml`.
        experiments: by name, for their presets and what has an effect.
    """

    def __init__(self, records: Path, paper: Mapping[str, Any], experiments: Mapping[str, Any]) -> None:
        self.records, self.paper, self.experiments = records, paper, experiments
        content = tomllib.loads((records / NAME).read_text())
        self.summary: str = content.get("summary", "")
        self.parts = {
            part["title"]: [Claim(**claim | {"evidence": tuple(claim.get("evidence", ()))}) for claim in part["claim"]]
            for part in content["part"]
        }
        self._found: dict[str, list[Record]] = {}

    def page(self) -> list[str]:
        """Blocks of Markdown: the verdicts counted, then a table for each part."""
        every = [claim for claims in self.parts.values() for claim in claims]
        names = [name for name in VERDICTS if name != "no result"]
        counted = [
            "| | " + " | ".join(VERDICTS[name].strip("*") for name in names) + " |",
            "|---" + "|---:" * len(names) + "|",
        ]
        for title, claims in [*self.parts.items(), ("**all**", every)]:
            numbers = [sum(claim.verdict == name for claim in claims) for name in names]
            shown = title if claims is every else f"[{title}](#{anchor(title)})"
            counted.append(f"| {' | '.join((shown, *map(str, numbers)))} |")
        blocks = [self.summary.strip()] if self.summary else []
        blocks += [
            "\n".join(counted),
            "In part: under one reading of several, for one half of it, or by less. Not: under no reading that we ran, "
            "as far as our seeds can tell. –: no run could tell. Ours: the mean over seeds, in brackets its 95% "
            "interval and n; differences are paired by seed, bold if the interval excludes zero. The pages behind "
            "the verdicts have the commands that make the records.",
        ]
        for title, claims in self.parts.items():
            rows = ["| Where | Verdict | The paper | Ours | Reading |", "|---|---|---|---|---|"]
            rows += [f"| {' | '.join(self.row(claim))} |" for claim in claims]
            blocks += [f"## {title}", "\n".join(rows)]
        return blocks

    def row(self, claim: Claim) -> list[str]:
        """Its cells."""
        self.check(claim)
        says, found, reading = (
            FIELD.sub(lambda field: self.field(field[1], claim.digits), words)
            for words in (claim.says, claim.ours, claim.reading)
        )
        return [claim.where, f"[{VERDICTS[claim.verdict]}]({claim.page})", says, found, reading]

    def check(self, claim: Claim) -> None:
        """That its verdict agrees with its evidence."""
        cells = [self.cell(field, claim.digits) for field in claim.evidence]
        above = [excludes_zero(cell) and summary(cell.values).mean > 0 for cell in cells]
        if (claim.verdict == "confirmed" and not all(above)) or (claim.verdict == "not" and any(above)):
            shown = "; ".join(f"{field}: {short(cell)}" for field, cell in zip(claim.evidence, cells, strict=True))
            raise ValueError(f"verdict {claim.verdict!r} disagrees with its evidence ({shown}) in: {claim.says}")

    def field(self, field: str, digits: int) -> str:
        """A field as text."""
        folder, _, words = field.partition(": ")
        if folder == "paper":
            number = follow(self.paper, words)
            return f"{number:,}" if isinstance(number, int) else f"{number:g}"
        return short(self.cell(field, digits))

    def cell(self, field: str, digits: int) -> Estimate:
        """The records' numbers of a field."""
        folder, _, words = field.partition(": ")
        found = OURS.fullmatch(words)
        if not found:
            raise ValueError(f"a field must be FOLDER: METRIC of VARIANT, got {field!r}")
        one, other = (
            {run.seed: value(run, found["metric"]) for run in self.runs(place, variant, found["settings"] or "")}
            for place, variant in ((folder, found["one"]), (found["place"] or folder, found["other"]))
        )
        digits = 0 if found["metric"] == "parameters" else int(found["digits"] or digits)
        if found["best"]:
            return Estimate([max(one.values())], digits)
        return PairedDifference(differences(one, other), digits) if other else Estimate([*one.values()], digits)

    def runs(self, folder: str, variant: str | None, settings: str) -> list[Record]:
        """Those of a variant with these settings beside the preset's."""
        if variant is None:
            return []
        place = self.records / folder
        preset, name = place.name, place.parent.name
        if folder not in self._found:
            every = store.records(place.parents[1], name, lambda line: None)
            self._found[folder] = [record for record in every if record.preset == preset]
        own = [record for record in self._found[folder] if record.variant == variant]
        experiment, asked = self.experiments[name], set(filter(None, settings.split(", ")))
        rows: dict[int, list[list[Record]]] = {}
        for differing, runs in configurations(own, plain(experiment.presets[preset]), experiment.effective):
            words = {label({key: value}) for key, value in differing.items() if key != "precision"}
            if asked <= words and (asked or not words):
                rows.setdefault(len(words), []).append(runs)
        nearest = rows[min(rows)] if rows else []
        if len(nearest) != 1:
            what = settings or "the settings of the preset"
            raise ValueError(f"a field must name one configuration, {len(nearest)} of {variant} in {place} have {what}")
        return nearest[0]


def value(record: Record, metric: str) -> float:
    """A number of a record; of a list, its length."""
    if metric == "parameters":
        return record.parameters["total"]
    if "@" in metric:
        name, _, step = metric.partition("@")
        if step == "best":
            return max(entry[name] for entry in record.history if name in entry)
        return next(entry[name] for entry in record.history if entry["step"] == int(step))
    if metric in record.metrics:
        return record.metrics[metric]
    found = follow(record.observations, metric)
    return float(len(found) if isinstance(found, list) else found)


def follow(content: Any, path: str) -> Any:
    """What lies at a path of names and places, such as `components.0.count`."""
    for part in path.split("."):
        content = content[int(part)] if isinstance(content, list) else content[part]
    return content


def short(cell: Estimate) -> str:
    """Mean and interval, without the standard deviation; the same for all seeds, the number alone."""
    if len(set(cell.values)) == 1:
        sign = "+" if isinstance(cell, PairedDifference) else ""
        return f"{cell.values[0]:{sign},.{cell.digits}f}"
    number, brackets = ours(cell)
    words = f"{number.partition(' ± ')[0]} {brackets}"
    return f"**{words}**" if excludes_zero(cell) else words
