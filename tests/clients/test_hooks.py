"""Hooks on, overrides of, and parametrizations of a layer's memory and controller: `layer(x)` honours each of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

import neurocoder as nc
from conftest import randomised, small


class Linear:
    """A linear layer that reads its own input."""

    name = "linear"

    def build(self, config):
        return nc.Linear(6, 4, program=config), torch.randn(5, 6), {}

    def by_weights(self, layer, x, **options):
        """The layer's output, from the weights that it composes for these inputs."""
        return (x.unsqueeze(-2) @ layer.materialize(x, **options)).squeeze(-2) + layer.bias


class Steered(Linear):
    """A linear layer with a control."""

    name = "steered"

    def build(self, config):
        return nc.Linear(6, 4, program=config, control_dim=3), torch.randn(5, 6), {"control": torch.randn(5, 3)}


class Convolution:
    """A convolution."""

    name = "convolution"

    def build(self, config):
        return nc.Conv2d(3, 4, 2, program=config), torch.randn(5, 3, 4, 4), {}

    def by_weights(self, layer, x, **options):
        kernels = layer.materialize(x, **options)
        return torch.cat([F.conv2d(x[i : i + 1], kernels[i], layer.bias) for i in range(len(x))])


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, tensor):
        return 2 * tensor


class OwnAttend(nc.ProgramController):
    """Attention to the slots in the other order."""

    def attend(self, control, keys):
        attention = super().attend(control, keys)
        return attention._replace(weight=attention.weight.flip(-1))


class OwnGate(nc.ProgramController):
    """A gate that stays half open."""

    def residual_gate(self, control):
        return torch.full((len(control), 1), 0.5, dtype=control.dtype)


class OwnSignals(nc.ProgramController):
    """Queries of the opposite sign."""

    def queries_and_gates(self, *args):
        queries, gates = super().queries_and_gates(*args)
        return -queries, gates


class OwnForward(nc.ProgramController):
    """A controller that sees its control mirrored."""

    def forward(self, control, keys):
        return super().forward(-control, keys)


class OwnKeys(nc.ProgramMemory):
    """The keys of other slots."""

    def keys(self):
        return super().keys().flip(1)


class OwnSlots(nc.ProgramMemory):
    """Larger singular vectors."""

    def forward(self):
        slots = super().forward()
        return slots._replace(V=2 * slots.V)


def subclass(part, kind):
    def change(layer):
        getattr(layer, part).__class__ = kind

    return change


def on_instance(part, name, result):
    """Put a function of one's own over a method of this memory or controller."""

    def change(layer):
        method = getattr(getattr(layer, part), name)
        setattr(getattr(layer, part), name, lambda *args: result(method(*args)))

    return change


def flipped(output):
    attention, gate = output
    return attention._replace(weight=attention.weight.flip(-1)), gate


CHANGES = {
    "forward hook on the controller": lambda layer: layer.controller.register_forward_hook(
        lambda module, args, output: flipped(output)
    ),
    "forward pre-hook on the controller": lambda layer: layer.controller.register_forward_pre_hook(
        lambda module, args: (-args[0], *args[1:])
    ),
    "forward hook on the memory": lambda layer: layer.memory.register_forward_hook(
        lambda module, args, slots: slots._replace(U=2 * slots.U)
    ),
    "subclass with its own attend": subclass("controller", OwnAttend),
    "subclass with its own residual_gate": subclass("controller", OwnGate),
    "subclass with its own queries_and_gates": subclass("controller", OwnSignals),
    "subclass with its own forward": subclass("controller", OwnForward),
    "subclass with its own keys": subclass("memory", OwnKeys),
    "subclass with its own slots": subclass("memory", OwnSlots),
    "attend of one instance": on_instance("controller", "attend", lambda a: a._replace(weight=a.weight.flip(-1))),
    "residual_gate of one instance": on_instance("controller", "residual_gate", lambda gate: 0.5 * gate),
    "forward of one instance": on_instance("controller", "forward", flipped),
    "keys of one instance": on_instance("memory", "keys", lambda keys: keys.flip(1)),
    "forward of one memory": on_instance("memory", "forward", lambda slots: slots._replace(S=2 * slots.S)),
    "parametrized U": lambda layer: parametrize.register_parametrization(layer.memory, "U", Doubled()),
    "parametrized V": lambda layer: parametrize.register_parametrization(layer.memory, "V", Doubled()),
    "parametrized key map": lambda layer: parametrize.register_parametrization(layer.memory, "key_u_weight", Doubled()),
    "parametrized input map": lambda layer: parametrize.register_parametrization(
        layer.controller, "input_weight", Doubled()
    ),
    "parametrized R": lambda layer: parametrize.register_parametrization(layer, "R", Doubled()),
    "weight norm of U": lambda layer: nn.utils.parametrizations.weight_norm(layer.memory, "U").U.sum(),
    "pruned U": lambda layer: prune.l1_unstructured(layer.memory, "U", amount=0.5),
    "pruned key map": lambda layer: prune.l1_unstructured(layer.memory, "key_v_weight", amount=0.5),
    "pruned signal map": lambda layer: prune.l1_unstructured(layer.controller, "signal_weight", amount=0.5),
    "pruned R": lambda layer: prune.l1_unstructured(layer, "R", amount=0.5),
}
SAME_VALUE = {"weight norm of U"}
"""Changes that only write the same value in another way."""

each_change = pytest.mark.parametrize("change", CHANGES)
each_kind = pytest.mark.parametrize("kind", [Linear(), Steered(), Convolution()], ids=lambda kind: kind.name)


def built(kind, change, config=None):
    layer, x, options = kind.build(config or small())
    randomised(layer, 0.7)
    before = layer(x, **options).detach()
    CHANGES[change](layer)
    return layer, x, options, before


def gradients(layer, loss):
    parameters = dict(layer.named_parameters())
    # A pruned R is masked when the layer is called, so that materialize reads what the last call left.
    found = torch.autograd.grad(loss, parameters.values(), allow_unused=True, retain_graph=True)
    return dict(zip(parameters, found, strict=True))


@each_kind
@each_change
def test_a_change_of_memory_or_controller_is_honoured(kind, change):
    layer, x, options, before = built(kind, change)
    y, expected = layer(x, **options), kind.by_weights(layer, x, **options)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    if change not in SAME_VALUE:
        assert (y - before).abs().max() > 0.01 * before.abs().max()
    found, wanted = gradients(layer, y.square().sum()), gradients(layer, expected.square().sum())
    for name, gradient in found.items():
        assert (gradient is None) == (wanted[name] is None), name
        if gradient is not None:
            scale = wanted[name].abs().max().item()
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4 * scale, msg=name)


@each_change
def test_a_change_of_memory_or_controller_is_honoured_without_gradients(change):
    layer, x, _, _ = built(Linear(), change)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), Linear().by_weights(layer, x), rtol=1e-4, atol=1e-4)


SOME = ["forward hook on the controller", "forward hook on the memory", "keys of one instance", "parametrized U"]
COMPILED = [(Linear(), change) for change in CHANGES if not change.startswith(("parametrized", "weight norm"))]
COMPILED += [(kind, change) for kind in (Steered(), Convolution()) for change in SOME[::2]]
COMPILED += [(Linear(), "parametrized U"), (Linear(), "parametrized R")]


# torch's compiler asks a pruned tensor, which is no leaf, for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("kind", "change"), COMPILED, ids=lambda value: getattr(value, "name", value))
def test_a_change_of_memory_or_controller_is_honoured_when_compiled(kind, change):
    layer, x, options, _ = built(kind, change)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager")
    expected = kind.by_weights(layer, x, **options)
    torch.testing.assert_close(compiled(x, **options), expected, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


@pytest.mark.parametrize("change", SOME)
@pytest.mark.parametrize("name", ["cpu", "triton", "reference"])
def test_a_change_of_memory_or_controller_is_honoured_whatever_the_backend(name, change):
    layer, x, _, _ = built(Linear(), change)
    with nc.backend(name):
        torch.testing.assert_close(layer(x), Linear().by_weights(layer, x), rtol=1e-4, atol=1e-4)


@each_change
def test_a_change_of_memory_or_controller_is_recorded(change):
    """`record` shows the programs that the layer ran."""
    layer, x, _, _ = built(Linear(), change)
    model = nn.Sequential(layer)
    with nc.record(model) as trace:
        y = model(x)
    programs = trace["0"]
    torch.testing.assert_close(programs.u, layer.programs(x).u)
    slots = layer.memory()
    weight = nc.functional.active_program(programs.u, programs.v, programs.sigma, slots.U, slots.V)
    weight = weight + (programs.gate * programs.sigma[:, -1:]).unsqueeze(-1) * layer.R.mT
    torch.testing.assert_close((x.unsqueeze(-2) @ weight).squeeze(-2) + layer.bias, y, rtol=1e-4, atol=1e-4)


HOOKS = [(part, f"register_forward_{kind}") for part in ("memory", "controller") for kind in ("hook", "pre_hook")]
HOOKS += [("controller", "register_full_backward_hook")]  # a memory takes no input that could have a gradient


@each_kind
@pytest.mark.parametrize(("part", "register"), HOOKS)
def test_a_hook_is_called_once_for_each_call_of_the_layer(kind, part, register):
    layer, x, options = kind.build(small())
    calls = []
    handle = getattr(getattr(layer, part), register)(lambda module, *_: calls.append(module))
    for count in (1, 2):
        layer(x.requires_grad_(), **options).sum().backward()
        assert calls == count * [getattr(layer, part)]
    handle.remove()
    layer(x, **options).sum().backward()
    assert len(calls) == 2


@each_kind
def test_a_hook_on_every_module_is_called_for_memory_and_controller(kind):
    """How profilers and counters of operations find their way in a model."""
    layer, x, options = kind.build(small())
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: calls.append(module))
    try:
        layer(x, **options)
    finally:
        handle.remove()
    assert calls == [layer.memory, layer.controller, layer]


@each_kind
def test_once_a_hook_is_removed_the_layer_computes_as_before(kind):
    layer, x, options = kind.build(small())
    randomised(layer, 0.7)
    before = layer(x, **options)
    handle = layer.controller.register_forward_hook(lambda module, args, output: flipped(output))
    assert not torch.allclose(layer(x, **options), before)
    handle.remove()
    assert torch.equal(layer(x, **options), before)


@pytest.mark.parametrize("residual", [False, "plain"])
@pytest.mark.parametrize("change", ["forward hook on the memory", "subclass with its own attend", "pruned U"])
def test_changes_are_honoured_whatever_the_residual(residual, change):
    layer, x, _, _ = built(Linear(), change, small(residual=residual))
    torch.testing.assert_close(layer(x), Linear().by_weights(layer, x), rtol=1e-4, atol=1e-4)


def test_the_orthogonal_loss_is_that_of_parametrized_slots():
    layer = nc.Linear(6, 4, program=small())
    with torch.no_grad():
        layer.memory.U.div_(2)
    halved = nc.orthogonal_loss(layer)
    parametrize.register_parametrization(layer.memory, "U", Doubled())
    assert nc.orthogonal_loss(layer) < 0.5 * halved
    nc.orthogonal_loss(layer).backward()
    assert layer.memory.parametrizations.U.original.grad is not None


OWN = ["subclass with its own attend", "subclass with its own residual_gate", "subclass with its own slots"]


@pytest.mark.parametrize("change", OWN)
def test_restore_takes_the_mean_over_data_of_what_runs(change):
    """An override may read anything: that the controller's maps are still zero does not make its programs constant."""
    model, x = nn.Sequential(nc.Linear(6, 4, program=small())), torch.randn(7, 6)
    CHANGES[change](model[0])
    mean = model[0].materialize(x).mean(0).mT
    with pytest.raises(ValueError, match="data must be given"):
        nc.restore(model)
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, mean)


@pytest.mark.parametrize(
    ("kind", "name", "result"),
    [
        (nc.ProgramController, "attend", lambda a: a._replace(weight=a.weight.flip(-1))),
        (nc.ProgramController, "residual_gate", lambda gate: 0.5 * gate),
        (nc.ProgramMemory, "keys", lambda keys: keys.flip(1)),
        (nc.ProgramMemory, "forward", lambda slots: slots._replace(S=2 * slots.S)),
    ],
)
def test_a_method_replaced_on_the_class_is_honoured_until_it_is_put_back(kind, name, result):
    layer, x = randomised(nc.Linear(7, 5, program=small())), torch.randn(4, 7)
    before, method = layer(x), getattr(kind, name)
    try:
        setattr(kind, name, lambda *args: result(method(*args)))
        changed = layer(x)
        assert not torch.allclose(changed, before, atol=1e-3)
        torch.testing.assert_close(changed, (x.unsqueeze(1) @ layer.materialize(x)).squeeze(1) + layer.bias)
        assert layer.is_customised()
    finally:
        setattr(kind, name, method)
    assert not layer.is_customised()
    assert torch.equal(layer(x), before)
