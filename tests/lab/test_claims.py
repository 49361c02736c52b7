"""The table of verdicts: fields become numbers of records; the committed page is the one that the command builds."""

from dataclasses import replace
from pathlib import Path

import pytest
from toy import Toy, record, write

from neurocoder.lab.report import markdown
from neurocoder.lab.report.build import claimed, paper_numbers
from neurocoder.lab.report.claims import NAME, Claims

ROOT = Path(__file__).parents[2]
PAPER = {"toy": {"error": 8.4, "count": 7_850, "pair": [1.5, 2.0]}}
CLAIM = """
[[part]]
title = "Errors"

[[part.claim]]
where = "Table 1"
says = "less than {paper: toy.error}"
ours = "%s"
verdict = "%s"
page = "toy.md"
digits = 2
evidence = [%s]
"""


def claims(folder, ours="", verdict="in part", evidence=""):
    """A page of one claim, over three seeds of two variants, and two of another configuration."""
    for seed, (one, other) in enumerate(((5.0, 7.0), (6.0, 7.0), (7.0, 10.0))):
        write(folder, record("linear", seed, other))
        run = replace(record("J5", seed, one), observations={"found": [{"count": seed}]})
        write(folder, replace(run, history=[{"step": 1, "loss": 1.0, "error": one + 1}, *run.history]))
    write(folder, record("J5", 10, 3.0, epochs=40), record("J5", 11, 4.0, epochs=40))
    write(folder / "more", record("linear", 0, 8.0))
    (folder / NAME).write_text(CLAIM % (ours, verdict, evidence))
    return Claims(folder, PAPER, {"toy": Toy()})


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("paper: toy.error", "8.4"),
        ("paper: toy.count", "7,850"),
        ("paper: toy.pair.1", "2"),
        # The mean 6 of 5, 6, 7; t(0.975, 2) = 4.302653 times 1 / sqrt(3) = 2.48.
        ("toy/best: error of J5", "6.00 (3.52 to 8.48, n=3)"),
        ("toy/best: best error of linear", "10.00"),
        ("toy/best: error of linear - J5!1", "+2.0 (-0.5 to +4.5, n=3)"),
        ("toy/best: error@1 of J5!0", "7 (5 to 9, n=3)"),
        ("toy/best: error@best of J5", "7.00 (4.52 to 9.48, n=3)"),
        ("toy/best: found.0.count of J5!0", "1 (-1 to 3, n=3)"),
        ("toy/best: parameters of J5", "10"),
        ("toy/best: error of J5; epochs 40!1", "3.5 (-2.9 to 9.9, n=2)"),
        ("toy/best: error of linear - more/toy/best: linear", "-1.00"),
    ],
)
def test_fields_become_numbers(tmp_path, field, shown):
    found = claims(tmp_path, f"{{{field}}}")
    (row,) = (found.row(claim) for claim in found.parts["Errors"])
    assert row == ["Table 1", "[In part](toy.md)", "less than 8.4", shown, ""]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("toy/best: error", "a field must be FOLDER: METRIC of VARIANT, got 'toy/best: error'"),
        ("toy/best: error of J6", "a field must name one configuration, 0 of J6 in .* have the settings of the preset"),
        ("toy/best: error of J5; epochs 50", "a field must name one configuration, 0 of J5 in .* have epochs 50"),
    ],
)
def test_fields_without_a_number_stop_the_report(tmp_path, field, message):
    with pytest.raises(ValueError, match=message):
        claims(tmp_path, f"{{{field}}}").page()


@pytest.mark.parametrize(
    ("verdict", "evidence", "agrees"),
    [
        ("confirmed", "toy/best: error of sure - J5", True),
        ("confirmed", "toy/best: error of linear - J5", False),  # its interval includes zero
        ("not", "toy/best: error of linear - J5", True),
        ("not", "toy/best: error of J5 - sure", True),
        ("not", "toy/best: error of sure - J5", False),
        ("in part", "toy/best: error of sure - J5", True),
    ],
)
def test_a_verdict_that_disagrees_with_its_evidence_stops_the_report(tmp_path, verdict, evidence, agrees):
    found = claims(tmp_path, "", verdict, f'"{evidence}"')
    write(tmp_path, *(record("sure", seed, error) for seed, error in enumerate((9.0, 10.1, 11.0))))
    if agrees:
        assert found.page()
    else:
        with pytest.raises(ValueError, match=f"verdict '{verdict}' disagrees with its evidence .*: .*n=3"):
            found.page()


def test_an_unknown_verdict_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"verdict must be among confirmed, in part, not, .*, got 'maybe'"):
        claims(tmp_path, "", "maybe")


def test_the_index_begins_with_the_verdicts(tmp_path):
    found = claims(tmp_path, "{toy/best: error of J5}")
    page = markdown.index("Results", {Path("toy.md"): "# Toy"}, found.page())
    assert page.index("| **all** | 0 | 1 | 0 | 0 | 0 |") < page.index("## Errors") < page.index("[Toy](toy.md)")
    assert markdown.index("Results", {}).count("#") == 1, "without claims it is a list"
    (tmp_path / NAME).unlink()
    assert claimed(tmp_path, PAPER) == []


@pytest.mark.slow
def test_the_committed_page_is_the_one_that_the_command_builds():
    """`neurocoder report` writes it; every number in it is a record's."""
    page = (ROOT / "docs" / "results" / "README.md").read_text()
    for block in claimed(ROOT / "results", paper_numbers()):
        assert block in page, "run `neurocoder report`"
