import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from toy import CHAPTER, PLOT, SECTION, TABLE, Toy, record, write

from neurocoder.lab.experiments import load
from neurocoder.lab.records import provenance
from neurocoder.lab.records.record import plain
from neurocoder.lab.report import build as report
from neurocoder.lab.report import cells, html, markdown, text
from neurocoder.lab.report.chapter import draw
from neurocoder.lab.report.figures import curves
from neurocoder.lab.report.sections import Estimate, PairedDifference, Table, UndrawableError
from neurocoder.lab.report.statistics import by_seed, differences, summary
from neurocoder.lab.runner.options import parse_run


def test_summary_of_four_values_by_hand():
    # Mean 5, squared deviations 9 + 1 + 1 + 9 = 20; t(0.975, 3) = 3.182446; half width 3.182446 * sqrt(20/3) / 2.
    found = summary([2.0, 4.0, 6.0, 8.0])
    assert found.n == 4
    assert found.mean == 5
    assert found.std == pytest.approx(2.5819889)
    assert found.interval == pytest.approx((0.8914795, 9.1085205))


def test_summary_of_one_value_has_no_spread():
    assert summary([3.5]) == (1, 3.5, None, None)


def test_differences_pair_by_seed():
    records = [record("linear", seed, error) for seed, error in ((0, 7.0), (1, 8.0), (3, 1.0))]
    records += [record("J5", seed, error) for seed, error in ((2, 9.0), (1, 5.0), (0, 6.5))]
    first, second = by_seed(records, "J5", "error"), by_seed(records, "linear", "error")
    assert list(first) == [0, 1, 2]
    assert differences(first, second) == [-0.5, -3.0]
    assert by_seed(records, "J5", "unknown") == {}


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, "–"),
        ("7.8K", "7.8K"),
        (7850, "7,850"),
        (38.2, "38.2"),
        (52.06 - 50, "2.06"),
        (Estimate([]), "–"),
        (Estimate([5.823]), "5.82 (n=1)"),
        (Estimate([2, 4, 6, 8], 1), "5.0 ± 2.6 (0.9 to 9.1, n=4)"),
        (Estimate([2000, 2100], 0), "2,050 ± 71 (1,415 to 2,685, n=2)"),
        (Estimate([-0.001, 0.001], 1), "0.0 ± 0.0 (0.0 to 0.0, n=2)"),
        (Estimate([2, 4, 12], 1), "6.0 ± 5.3 (-7.1 to 19.1, n=3)"),
        (Estimate([2, 4, 12], 1, lowest=0), "6.0 ± 5.3 (0.0 to 19.1, n=3)"),
        (Estimate([88, 96, 98], 1, highest=100), "94.0 ± 5.3 (80.9 to 100.0, n=3)"),
        (Estimate([5.0, float("nan")]), "not finite (1 of n=2)"),
        (PairedDifference([1.0, 2.0, 3.0], 1), "+2.0 ± 1.0 (-0.5 to +4.5, n=3)"),
    ],
)
def test_cells(cell, shown):
    assert cells.text(cell) == shown


@pytest.mark.parametrize(
    ("values", "clear"),
    [([1.0, 1.1, 0.9], True), ([-1.0, -1.1], True), ([-1.0, 2.0, 0.5], False), ([3.0], False), ([], False)],
)
def test_a_difference_is_clear_if_its_interval_leaves_zero_out(values, clear):
    table = Table("", ["a", "b"], [["x", PairedDifference(values)]])
    assert cells.excludes_zero(PairedDifference(values)) is clear
    assert not cells.excludes_zero(Estimate(values))
    assert ("<strong>" in html.grid(table)) is clear
    assert ("| **" in markdown.grid(table)[1]) is clear


def test_columns_of_numbers_are_told_from_words():
    assert [cells.numeric(TABLE, column) for column in range(5)] == [False, True, True, True, True]
    assert not cells.numeric(Table("", ["a", "b"], [["x", 1], ["y", "up to 5"]]), 1)
    assert not cells.numeric(Table("", ["a", "b"], [[1, 1]]), 0)


def test_markdown_shows_every_cell_as_it_is():
    page = markdown.pages([CHAPTER])["toy"]
    assert "| linear \\| plain | 7,850 | 7.20 ± 0.20 (6.70 to 7.70, n=3) | 8.4 | x \\< y \\[z\\] |" in page
    assert "| H3_J5 \\*best\\* | 7,176 | 5.50 (n=1) | – | – |" in page
    assert "| `mlp` | – | – | 93.5 | 200-32-10 |" in page
    assert "|---|---:|---:|---:|---:|" in page
    assert "Falls from J=1 to J=5, `J < 6` & up." in page
    assert "](images/toy-best-curve.png)\n" in page
    assert "```sh\nneurocoder run toy --seeds '0,1'\n```" in page


def test_markdown_marks_are_escaped_outside_code():
    assert markdown.escape(r"a*b* _c_ M_U `x*_` [l](u) ~5 ~6 \ `") == r"a\*b\* \_c\_ M_U `x*_` \[l\](u) \~5 \~6 \\ \`"


def test_html_escapes_and_embeds():
    page = html.page([CHAPTER], {"commit": "<abc>"})
    assert "Error &lt;b&gt; &amp; [co]" in page
    assert "<b>" not in page
    assert "<dd>&lt;abc&gt;</dd>" in page
    assert "<code>J &lt; 6</code> &amp; up." in page
    assert 'alt="Test error, &quot;mean&quot; &amp; &lt;spread&gt;"' in page
    assert '<td class="number">7.20 ± 0.20<span class="interval">(6.70 to 7.70, n=3)</span></td>' in page
    assert page.count('<td class="number">–</td>') == 4
    assert page.count('src="data:image/svg+xml;base64,') == 1
    assert 'href="#toy-best-1"' in page
    assert page.index("<table>") < page.index("<figure>") < page.index("<details>")  # the result comes first
    assert 'id="toy-best-1"' in page


def test_html_asks_for_nothing_from_elsewhere():
    page = re.sub(r'src="data:[\w/+;]+,[\w/+=]+"', "", html.page([CHAPTER], {}))
    assert set(re.findall(r"""\b(?:src|href)\s*=\s*["']?(.)""", page)) == {"#"}
    assert not re.search(r"https?:|//\w|@import|url\(|<script|<link", page)


def test_figures_are_the_same_bytes_every_time():
    first, again = CHAPTER.pictures["curve"], draw(PLOT, "toy-best-curve")
    assert first == again
    assert b"<dc:date>" not in first.svg
    assert first.png.startswith(b"\x89PNG")


def test_a_figure_that_cannot_be_drawn_is_left_out_and_its_file_stays(toy, tmp_path, monkeypatch, capsys):
    def undrawable():
        raise UndrawableError("there are no pictures")

    write(tmp_path, record())
    options = report.Options(records=tmp_path, target=tmp_path / "out")
    file, page = tmp_path / "out" / "images" / "toy-best-curve.png", tmp_path / "out" / "toy.md"
    report.main(options)
    assert file.name in page.read_text()
    section = replace(SECTION, plots=[replace(PLOT, draw=undrawable)])
    monkeypatch.setattr(Toy, "sections", lambda self, records, paper: [section])
    capsys.readouterr()
    report.main(options)
    assert file.name not in page.read_text()
    assert file.is_file()
    assert "toy, preset best: no figure curve: there are no pictures" in capsys.readouterr().err


def test_a_figure_without_data_is_left_out(toy, tmp_path, monkeypatch, capsys):
    sections = Toy.sections

    def empty(self, records, paper):
        (section,) = sections(self, records, paper)
        made = Figure()
        made.subplots(1, 2)
        return [replace(section, plots=[replace(section.plots[0], draw=lambda: made)])]

    monkeypatch.setattr(Toy, "sections", empty)
    write(tmp_path, record())
    assert report.main(report.Options(tmp_path, tmp_path / "page")) == 0
    assert "no figure curve: the records have nothing to draw in it" in capsys.readouterr().err
    assert "![" not in (tmp_path / "page" / "toy.md").read_text()


def test_a_curve_of_one_point_can_be_seen():
    axis = Figure().subplots()
    for points in ([[1.0, 2.0]], [[1.0, 2.0], [2.0, 3.0]]):
        curves(axis, (), np.array(points), "black")
    assert [line.get_marker() for line in axis.lines] == ["o", "None"]


def test_reports_say_which_numbers_mean_nothing_and_which_cannot_be_checked(toy, tmp_path, capsys):
    old = record(preset="best", seed=1)
    del old.environment["source"]
    write(tmp_path, record(), old, replace(record(), preset="smoke"))
    assert report.main(report.Options(tmp_path, tmp_path / "page")) == 0
    pages = capsys.readouterr().out, *((tmp_path / "page" / name).read_text() for name in ("toy.md", "report.html"))
    for shown in pages:
        words = " ".join(shown.split())
        assert words.count("its numbers mean nothing") == 1
        assert words.count("1 of these 2 runs are older than the hash of the source in a record") == 1
        assert words.index("1 of these 2") < words.index("Errors")


def test_terminal_shows_markup_as_it_is(capsys):
    from rich.console import Console

    wide = Console(width=160)
    wide.print(*text.chapter(CHAPTER, wide), sep="\n")
    shown = capsys.readouterr().out
    assert "Error <b> & [co]" in shown
    assert "x < y [z]" in shown
    assert "7.20 ± 0.20 (6.70 to 7.70, n=3)" in shown
    assert "neurocoder run toy --seeds '0,1'" in shown


def test_a_narrow_terminal_shows_numbers_whole_and_leaves_intervals_out(capsys):
    from rich.console import Console

    narrow = Console(width=80)
    narrow.print(*text.chapter(CHAPTER, narrow), sep="\n")
    shown = capsys.readouterr().out
    assert "7.20 ± 0.20" in shown
    assert "6.70" not in shown
    assert "…" not in shown


def test_commands_repeat_the_records():
    records = [record(variant, seed) for seed in (2, 1, 0) for variant in ("J5", "linear")]
    assert provenance.commands(Toy(), "best", records, "toy") == ["neurocoder run toy --preset best --seeds 0-2"]
    odd = record(seed=5, learning_rate=0.1, validation=True, widths=[8, 4], program={"slots": 9})
    assert provenance.commands(Toy(), "best", [*records[:5], odd], "toy") == [
        "neurocoder run toy --preset best --seeds 1-2 --variants linear",
        "neurocoder run toy --preset best --seeds 0-2 --variants J5",
        "neurocoder run toy --preset best --seeds 5 --variants J5 --learning-rate 0.1 --validation --widths 8 4"
        " --slots 9",
    ]
    ways = [{"device": "cuda", "precision": "bf16-mixed"}, {"loop": "stacked"}, {"processes": 2}]
    found = provenance.commands(
        Toy(), "best", [replace(record(seed=seed), **way) for seed, way in enumerate(ways)], "toy"
    )
    assert [line.partition("J5 ")[2] for line in found] == [
        "--precision bf16-mixed --loop plain",
        "",  # seeds 1 and 2: ways of an older version
    ]


def test_commands_are_understood_by_the_command_line():
    experiment = load("digits")
    config = replace(experiment.presets["smoke"], batch=64, learning_rate=0.25, validation=True, train_images=None)
    made = replace(record("linear", 3), experiment="digits", preset="smoke", config=plain(config), loop="graph")
    (line,) = provenance.commands(experiment, "smoke", [made], "digits")
    options, found, parsed = parse_run(shlex.split(line)[2:])
    assert (found.name, options.preset, options.seeds, options.variants) == ("digits", "smoke", "3", "linear")
    assert options.loop == "graph"
    assert parsed == config


def test_time_of_seeds_that_trained_together_counts_once():
    together = [replace(record(seed=seed), loop="stacked") for seed in range(3)]
    assert provenance.runs([*together, record("linear")]) == "4 runs, 80 s in all"


def test_origin_tells_different_commits_and_machines_apart():
    same = provenance.origin([record(seed=0), record(seed=1)])
    assert (
        same == "2 runs, 80 s in all; commit aaaaaaaaaaaa; hardware H200; torch 2.13.0; precision 32-true; loop plain."
    )
    mixed = provenance.origin([record(), record(seed=1), record(seed=2, commit="b" * 40 + "+", hardware="CPU")])
    assert "commit mixed: aaaaaaaaaaaa (2 runs), bbbbbbbbbbbb+ (1 run)" in mixed
    assert "hardware mixed: H200 (2 runs), CPU (1 run)" in mixed
    assert "torch 2.13.0;" in mixed
    assert mixed.endswith(". A commit with + had changes on top.")


def test_origin_tells_of_different_configurations():
    assert provenance.origin([record(), record(seed=1, epochs=9)]).endswith(
        " Not all runs have the same configuration."
    )


def test_report_writes_pages_and_figures(toy, tmp_path, capsys):
    write(tmp_path / "in", record(seed=0), record(seed=1, error=6.0), record(seed=10, error=7.0, preset="paper"))
    options = report.Options(records=tmp_path / "in", target=tmp_path / "out")
    report.main(options)
    written = {str(path.relative_to(options.target)): path for path in options.target.rglob("*") if path.is_file()}
    images = {f"images/toy-{preset}-curve.png" for preset in ("paper", "best")}
    assert set(written) == {"README.md", "toy.md", "report.html"} | images
    page = written["toy.md"].read_text()
    assert page.index("## Preset paper") < page.index("## Preset best")
    assert "| J5 | 5.50 ± 0.71 (-0.85 to 11.85, n=2) | 7,300 |" in page
    assert "neurocoder run toy --preset paper --seeds 10 --variants J5" in page
    assert "[Toy](toy.md)" in written["README.md"].read_text()
    assert "3 runs, 2 min in all" in written["report.html"].read_text()
    assert "5.50 ± 0.71 (-0.85 to 11.85, n=2)" in capsys.readouterr().out
    before = {name: path.read_bytes() for name, path in written.items() if name != "report.html"}
    report.main(options)
    assert before == {name: written[name].read_bytes() for name in before}
    own = options.target / "images" / "own.png"
    own.write_bytes(b"not the report's")
    report.main(replace(options, presets=("paper",)))
    assert "Preset best" not in written["toy.md"].read_text()
    assert {path.name for path in own.parent.iterdir()} == {"toy-paper-curve.png", "own.png"}


def test_a_part_with_a_page_of_its_own_has_all_presets_there(toy, tmp_path, monkeypatch, capsys):
    sections = Toy.sections

    def apart(self, records, paper):
        (found,) = sections(self, records, paper)
        apart = [
            replace(found, title=f"Task {one}", page=one, plots=found.plots if one == "b" else []) for one in parts
        ]
        return [replace(found, plots=[]), *apart]

    monkeypatch.setattr(Toy, "sections", apart)
    write(tmp_path / "in", record(), record(preset="paper"))
    folder = tmp_path / "out"
    folder.mkdir()
    options = report.Options(tmp_path / "in", folder)
    (folder / "toy-own.md").write_text("# Not the report's\n")
    parts = ["a", "b"]
    report.main(options)
    own, page = (folder / "toy.md").read_text(), (folder / "toy-b.md").read_text()
    assert "- [Task a](toy-a.md): paper, best\n- [Task b](toy-b.md): paper, best\n\n" in own
    assert (own.count("### Found"), own.count("Task a")) == (2, 1)
    assert page.startswith("# Task b\n")
    assert page.index("## Preset paper") < page.index("| J5 |") < page.index("![") < page.index("## Preset best")
    index = (folder / "README.md").read_text()
    assert re.findall(r"\]\((.*)\)", index) == ["toy-own.md", "toy.md"]  # parts are reached from their page
    parts = ["a"]
    report.main(options)
    assert {path.name for path in folder.glob("*.md")} == {"README.md", "toy.md", "toy-a.md", "toy-own.md"}


def test_an_own_experiment_is_run_by_the_name_it_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "load", lambda name: Toy())
    monkeypatch.setattr(report, "paper_numbers", lambda: {"toy": {"parameters": {"neurocoder": 7300}}})
    write(tmp_path, record())
    report.main(report.Options(records=tmp_path, target=tmp_path / "out", experiments=("toys:Toy",)))
    assert "neurocoder run toys:Toy --preset best" in (tmp_path / "out" / "toy.md").read_text()


def test_damaged_and_misplaced_records_are_warned_of_and_left_out(toy, tmp_path, capsys):
    write(tmp_path, record(seed=0), record(seed=1))
    folder = tmp_path / "toy/best/J5"
    (folder / "seed2.json").write_text('{"format": 1, "seed"')
    (folder / "seed3.json").write_text((folder / "seed0.json").read_text())
    (folder / "seed4.checkpoint.json").write_text("{}")
    (folder / "seed5.json").write_text((folder / "seed0.json").read_text().replace('"seed": 0', '"seed": 5'))
    report.main(report.Options(records=tmp_path, target=tmp_path / "out"))
    shown = capsys.readouterr()
    warnings = shown.err.splitlines()
    assert len(warnings) == 3
    assert "seed2.json is not a record" in warnings[0]
    assert "seed3.json says that it is toy/best/J5/seed0" in warnings[1]
    assert "seed5.json does not match its digest" in warnings[2]
    assert "2 records" in shown.out


def test_no_records_is_an_error_that_names_the_command(toy, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no records of toy under .*: make some with `neurocoder run toy`"):
        report.main(report.Options(records=tmp_path))


def test_a_target_that_cannot_be_written_is_an_error(toy, tmp_path):
    write(tmp_path, record())
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--target must be a folder that can be written to, got .*/file: File exists"):
        report.main(report.Options(records=tmp_path, target=tmp_path / "file"))


def test_unknown_experiment_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"experiment must be among digits.*got 'digit'"):
        report.main(report.Options(records=tmp_path, experiments=("digit",)))


def test_the_papers_numbers():
    paper = report.paper_numbers()
    assert set(paper) == {"digits", "polynomials", "images", "atari", "split"}
    assert paper["digits"]["parameters"] == {"original": 7800, "neurocoder": 7300}
    assert paper["digits"]["hyperparameters"]["slots"] == 5
    assert paper["digits"]["slots"] == 6
    assert paper["polynomials"]["hyperparameters"]["multi_step"]["slots"] == 20
    assert paper["polynomials"]["parameters"]["single_step"] == 3600
    assert paper["polynomials"]["hidden"] == {"original": 32, "hypernet": 28, "single_step": 16, "multi_step": 8}
    assert paper["images"]["lenet"]["cifar100"]["neurocoder"] == 47.21
    assert paper["images"]["densenet"]["cifar100"]["moe"] == 38.2
    assert paper["images"]["parameters"]["lenet"]["nsm"] == 27_100_000
    assert paper["split"]["mnist"]["task"]["adam"]["nsm"] == [87.55, 4.38]
    assert paper["split"]["mnist"]["domain"]["online_ewc"]["neurocoder"] == [73.97, 1.5]
    assert paper["split"]["hyperparameters"]["mnist"]["orthogonality"] == 10
    assert paper["atari"]["hard"]["neurocoder"] == [1500, 3000]
    assert paper["split"]["cifar10"]["task"]["adam"] == {"mlp": [55.0], "neurocoder": [70.0]}


@pytest.mark.parametrize(
    ("output", "folder"),
    [("results", "docs/results"), ("results/selection", "docs/results/selection"), ("runs", "runs/report")],
)
def test_reports_of_published_records_are_documentation(output, folder):
    assert report.Options(records=Path(output)).folder == Path(folder)
