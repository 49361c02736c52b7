"""Which layers the targets of `plan` and `recode` mean, and what each of them becomes."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small
from snapshots import Snapshot
from test_surgery import Net, coded_names, tokens


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("head", ["head"]),
        ("body.2.0", ["body.2.0"]),
        ("0", ["body.0", "body.2.0"]),
        ("2.0", ["body.2.0"]),
        ("body.*", ["body.0", "body.2.0"]),
        ("*.0", ["body.0", "body.2.0"]),
        ("[hc]*", ["conv", "head"]),
        (nn.Conv1d, ["conv"]),
        (nn.Linear, ["body.0", "body.2.0", "twice", "again", "head"]),
        (lambda name, module: isinstance(module, nn.Linear) and module.out_features == 3, ["head"]),
        (lambda name, module: name.startswith("body.2.0"), ["body.2.0"]),
        (["head", nn.Conv1d], ["conv", "head"]),
        (["0", "head"], ["body.0", "body.2.0", "head"]),
        (("head", "body.?", lambda name, module: name == "conv"), ["body.0", "conv", "head"]),
        ((name for name in ("conv", "head")), ["conv", "head"]),
    ],
)
def test_targets(targets, expected):
    model = Net()
    others = {name: module for name, module in model.named_modules() if name not in expected}
    nc.recode(model, targets, small())
    assert coded_names(model) == expected
    for name, module in others.items():
        assert model.get_submodule(name) is module
    model(tokens()).sum().backward()


def test_a_name_with_the_signs_of_a_glob():
    model = nn.ModuleDict({"fc[0]": nn.Linear(4, 4), "fc0": nn.Linear(4, 4)})
    nc.recode(model, "fc[0]", small())
    assert coded_names(model) == ["fc[0]"]


def test_a_full_name_wins_over_suffixes():
    model = nn.ModuleDict({"fc": nn.Linear(4, 4), "block": nn.ModuleDict({"fc": nn.Linear(4, 4)})})
    assert coded_names(nc.recode(model, "fc", small())) == ["fc"]


def test_a_suffix_is_whole_words_of_the_name():
    model = nn.ModuleDict({"block": nn.ModuleDict({"fc": nn.Linear(4, 4), "other_fc": nn.Linear(4, 4)})})
    assert coded_names(nc.recode(model, "fc", small())) == ["block.fc"]


def test_a_suffix_passes_over_what_cannot_be_recoded():
    model = nn.Sequential(*(nn.ModuleDict({"map": layer}) for layer in (nn.Linear(3, 3), nn.Embedding(3, 3))))
    ((name, reason),) = nc.plan(model, "map", small()).skipped
    assert name == "1.map"
    assert reason.startswith("nn.Embedding is of an unknown kind")
    assert coded_names(nc.recode(model, "map", small())) == ["0.map"]


def test_a_type_passes_over_what_cannot_be_recoded():
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 3, groups=4), nn.Conv1d(4, 2, 1))
    (skipped,) = nc.plan(model, nn.Conv1d, small()).skipped
    assert skipped == ("1", "Conv1d: groups must be 1 (a program spans all channels), got 4")
    nc.recode(model, nn.Conv1d, small())
    assert coded_names(model) == ["0", "2"]


def test_layers_learn_their_names():
    model = nc.recode(Net(), ["body.2.0", "again"], small())
    assert model.body[2][0].name == "body.2.0"
    assert model.again.name == "twice", "a layer of two names goes by the first"


def test_one_config_for_each_pattern():
    few, many, rival = small(slots=4), small(slots=8), nc.MixtureConfig(experts=3)

    def thin(name, module):
        return isinstance(module, nn.Conv1d)

    patterns = {"body.*": few, thin: many, "head": rival}
    model = Net()
    plan = nc.plan(model, patterns)
    assert [(item.names[0], item.config) for item in plan.replacements] == [
        ("body.0", few),
        ("body.2.0", few),
        ("conv", many),
        ("head", rival),
    ]
    nc.recode(model, patterns)
    assert plan.total_after == sum(p.numel() for p in model.parameters())
    assert {name: model.get_submodule(name).config for name in coded_names(model)} == {
        "body.0": few,
        "body.2.0": few,
        "conv": many,
        "head": rival,
    }
    model(tokens()).sum().backward()


def test_patterns_share_a_control_width():
    model = nc.recode(Net(), {"head": small(), "conv": small(slots=4)}, control_dim=5)
    assert (model.head.control_dim, model.conv.control_dim) == (5, 5)


def test_patterns_may_overlap_where_they_agree_or_only_one_covers_the_layer():
    model = nc.recode(Net(), {"body.*": small(), "0": small(), nn.Conv1d: small(), "*n?": nc.MixtureConfig()})
    assert coded_names(model) == ["body.0", "body.2.0", "conv"]
    assert isinstance(model.conv, nc.Conv1d)


WRONG = {
    "two configs for one layer": (
        ({"body.*": small(), "body.0": small(slots=4)},),
        r"targets 'body\.\*' and 'body\.0' both match 'body\.0', with different configs: let one pattern match each",
    ),
    "two configs for one layer of two names": (
        ({"twice": small(), "again": small(slots=4)},),
        r"targets 'twice' and 'again' both match 'again', with different configs",
    ),
    "by type and suffix": (
        ({nn.Linear: small(), "0": nc.HyperConfig()},),
        r"targets nn\.Linear and '0' both match 'body\.0', with different configs",
    ),
    "a name that its config does not cover": (
        ({"*": small(), "conv": nc.MixtureConfig()},),
        r"cannot recode 'conv': nn\.Conv1d is of an unknown kind: MixtureConfig covers nn\.Linear;",
    ),
    "a pattern without a match": (
        ({"head": small(), "nope": small()},),
        r"targets matched no layer: 'nope'; the model has embed, body",
    ),
    "no patterns": (({},), "targets must name at least one layer, got none"),
    "dictionary and config": (
        ({"head": small()}, small()),
        r"config must be left out where targets are \{pattern: config\}, got ProgramConfig\(slots=6",
    ),
    "neither dictionary nor config": (
        ("head",),
        r"config must be given: write nc\.recode\(model, targets, config\), or nc\.recode\(model, \{pattern: config\}",
    ),
    "no config in the dictionary": (
        ({"head": small(), nn.Conv1d: "small"},),
        r"targets\[nn\.Conv1d\] must be a ProgramConfig or another neurocoder config, got 'small'",
    ),
    "a list of dictionaries": (
        ([{"head": small()}], small()),
        "targets must be names, suffixes, globs, types or predicates, got a dictionary",
    ),
    "a tensor": (
        (torch.ones(2, 3), small()),
        r"targets must be names, suffixes, globs, types or predicates, got a tensor of shape \(2, 3\)",
    ),
}


@pytest.mark.parametrize("call", [nc.plan, nc.recode])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_patterns_change_nothing(case, call):
    arguments, message = WRONG[case]
    model = Net()
    before = Snapshot(model)
    with pytest.raises(ValueError, match=message):
        call(model, *arguments)
    before.assert_unchanged()


def test_a_long_list_of_what_cannot_be_recoded_is_cut():
    model = nn.Sequential(*(nn.Embedding(2, 2) for _ in range(9)))
    with pytest.raises(ValueError, match=r"can be recoded\. 0, 1, 2 and 6 more: nn\.Embedding is of an unknown kind"):
        nc.recode(model, "*", small())
