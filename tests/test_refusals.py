"""What `recode` refuses, and that a refusal leaves the model as it was."""

import pytest
from torch import nn

import neurocoder as nc
from conftest import small
from snapshots import Snapshot
from test_surgery import Net, coded_names

REFUSALS = {
    "no such name": (Net, "heads", r"targets matched no layer: 'heads'; the model has embed, body, body.0"),
    "no such glob": (Net, "*.weight", r"targets matched no layer: '\*\.weight'"),
    "no such type": (Net, nn.Conv2d, "targets matched no layer: nn.Conv2d"),
    "no such suffix": (Net, "ead", r"targets matched no layer: 'ead'; the model has embed, body, body.0"),
    "predicate without a match": (Net, lambda name, module: False, "targets matched no layer: <function"),
    "one of several": (Net, ["head", "nope"], "targets matched no layer: 'nope'"),
    "by name and by glob": (Net, ["embed", "*"], "cannot recode 'embed'"),
    "empty list": (Net, [], "targets must name at least one layer, got none"),
    "not a target": (Net, 3, "targets must be names, suffixes, globs, types or predicates, got 3"),
    "not a target inside a list": (
        Net,
        ["head", None],
        "targets must be names, suffixes, globs, types or predicates, got None",
    ),
    "module instead of its name": (
        Net,
        nn.Linear(2, 2),
        "targets must be names, suffixes, globs, types or predicates, got Linear",
    ),
    "unknown kind": (Net, "embed", r"cannot recode 'embed': nn\.Embedding is of an unknown kind: .*nc\.register"),
    "container": (Net, ["head", "body"], r"cannot recode 'body': nn\.Sequential is of an unknown kind"),
    "type without a known kind": (
        lambda: nn.Sequential(nn.Embedding(3, 2)),
        nn.Embedding,
        "targets matched no layer that can be recoded. 0: nn.Embedding is of an unknown kind",
    ),
    "subclass": (
        lambda: nn.Sequential(nn.MultiheadAttention(4, 2).out_proj),
        "0",
        r"nn\.NonDynamicallyQuantizableLinear is of an unknown kind",
    ),
    "grouped convolution": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3, groups=2)),
        ["0", "1"],
        r"cannot recode '1': Conv1d: groups must be 1 .*, got 2",
    ),
    "model itself by type": (
        lambda: nn.Linear(3, 2),
        nn.Linear,
        "the model itself: it is the whole model and cannot be",
    ),
    "model itself by name": (lambda: nn.Linear(3, 2), "", "cannot recode the model itself: .*nc.Linear.from_plain"),
    "coded model": (
        lambda: nc.Linear(3, 2, program=small()),
        "",
        "cannot recode the model itself: it is already coded",
    ),
    "attention's projection": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        ["linear1", "self_attn.out_proj"],
        r"cannot recode 'self_attn.out_proj': nn\.MultiheadAttention multiplies by its out_proj\.weight itself",
    ),
    "attention's projection by glob": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        "*out_proj",
        "no layer that can be",
    ),
    "parametrized": (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))),
        "0",
        "cannot recode '0': it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_leave_the_model_untouched(case):
    build, targets, message = REFUSALS[case]
    model = build()
    before = Snapshot(model)
    for call in (nc.plan, nc.recode):
        with pytest.raises(ValueError, match=message):
            call(model, targets, small())
    before.assert_unchanged()


@pytest.mark.parametrize("targets", ["head", "*", [lambda name, module: name == "head"]])
def test_recoding_twice_is_refused(targets):
    model = nc.recode(Net(), "*", small())
    before = Snapshot(model)
    with pytest.raises(ValueError, match=r"it is already coded: nc.restore it first"):
        nc.recode(model, targets, small())
    before.assert_unchanged()


def replace_forward(layer):
    layer.forward = lambda x, method=layer.forward: method(x)


@pytest.mark.parametrize(
    "hang",
    [
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_pre_hook(lambda *_: None),
        lambda layer: layer.register_state_dict_post_hook(lambda *_: None),
        lambda layer: layer.register_load_state_dict_pre_hook(lambda *_: None),
        lambda layer: layer.weight.register_hook(lambda grad: None),
        lambda layer: layer.bias.register_post_accumulate_grad_hook(lambda p: None),
        replace_forward,
    ],
)
def test_layers_with_hooks_are_refused(hang):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    hang(model[1])
    before = Snapshot(model)
    with pytest.raises(ValueError, match="cannot recode '1': it has hooks, which would be lost"):
        nc.recode(model, ["0", "1"], small())
    before.assert_unchanged()
    nc.recode(model, "*", small())
    assert coded_names(model) == ["0"]


def test_the_method_of_the_class_on_an_instance_replaces_nothing():
    """As it stays behind where a library puts back what it replaced."""
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].forward = model[0].forward
    assert coded_names(nc.recode(model, "0", small())) == ["0"]


ADVICE = {
    "a slip": ("haed", r"Did you mean 'head'\?"),
    "a parameter": ("head.weight", "It is a parameter of head, not a layer"),
    "parameters": ("*.weight", r"It is a parameter of embed, body\.0, body\.2\.0 and 5 more, not a layer"),
    "a regular expression": (
        r".*\.(0|1)",
        r"which PEFT takes, it means body\.0, body\.1, body\.2\.0 and 1 more: give",
    ),
    "PEFT's word": ("all-linear", r"For what PEFT calls 'all-linear', give the type nn\.Linear"),
    "nothing like it": ("[zz", r"the model has embed, body, body\.0, .*again, head$"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_a_target_without_a_match_says_what_it_may_mean(case):
    target, advice = ADVICE[case]
    with pytest.raises(ValueError, match=f"targets matched no layer: .*{advice}"):
        nc.recode(Net(), target, small())


def test_a_shared_layer_that_attention_reads_is_refused_under_its_other_name():
    attention = nn.MultiheadAttention(4, 2)
    attention.out_proj = nn.Linear(4, 4)
    model = nn.ModuleDict({"shared": attention.out_proj, "attention": attention})
    with pytest.raises(ValueError, match=r"cannot recode 'shared': nn.MultiheadAttention multiplies"):
        nc.recode(model, "shared", small())
