"""The Triton kernels, through Triton's interpreter where there is no GPU, against the torch path in float64."""

import copy

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from test_reference import CONVOLUTIONS, SIZES, gradients

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_close_to_exact(layer, x, **options):
    """Outputs and every gradient of the kernels within float32's reach of the same layer in float64."""
    exact, x = copy.deepcopy(layer).double(), x.to(DEVICE)
    rough, precise = x.clone().requires_grad_(), x.double().requires_grad_()
    with nc.backend("torch"):
        expected = exact(precise, **{name: value.double() for name, value in options.items()})
        expected_gradients = gradients(expected, exact, precise)
    with nc.backend("triton"):
        y = layer(rough, **options)
        found = gradients(y, layer, rough)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    for name, grad in found.items():
        scale = expected_gradients[name].abs().max().clamp_min(1e-2) if grad.numel() else 1.0
        torch.testing.assert_close(
            grad.double() / scale,
            expected_gradients[name] / scale,
            rtol=0,
            atol=2e-4,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("case", SIZES)
def test_linear(case):
    changes, size, leading = SIZES[case]
    layer = randomised(nc.Linear(*size, program=small(**changes), device=DEVICE))
    assert_close_to_exact(layer, torch.randn(*leading, size[0]))


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(
            {"slots": 50, "key_dim": 5, "steps": 1, "heads": 10, "least_used": 5, "hidden": 32},
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"slots": 30, "key_dim": 5, "steps": 5, "heads": 3, "least_used": 5, "hidden": 32},
            marks=pytest.mark.long,
        ),
        {"slots": 17, "key_dim": 12, "steps": 2, "heads": 3, "least_used": 16, "hidden": 20},
    ],
)
def test_sizes_like_the_papers(sizes):
    layer = nc.Linear(40, 20, program=nc.ProgramConfig(**sizes), device=DEVICE)
    assert_close_to_exact(randomised(layer, 0.5), torch.randn(37 if DEVICE == "cuda" else 17, 40))


@pytest.mark.parametrize("residual", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("outputs", [pytest.param(130, marks=pytest.mark.long), 700])
def test_outputs_whose_gradients_come_in_shares(outputs, residual):
    program = small(slots=19, key_dim=12, least_used=3, residual=residual)
    layer = randomised(nc.Linear(6, outputs, program=program, device=DEVICE), 0.5)
    assert_close_to_exact(layer, torch.randn(21, 6))


@pytest.mark.parametrize("case", ["1d", "2d, uneven"])
def test_convolution(case, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which torch allows convolutions on a GPU
    kind, kernel, geometry = CONVOLUTIONS[case]
    layer = randomised(kind(2, 3, kernel, program=small(), device=DEVICE, **geometry))
    assert_close_to_exact(layer, torch.randn(4, 2, *(7, 6)[: len(kernel)]))


def test_one_control_for_a_sequence():
    layer = randomised(nc.Linear(7, 3, program=small(), control_dim=4, device=DEVICE))
    assert_close_to_exact(layer, torch.randn(3, 5, 7), control=torch.randn(3, 4, device=DEVICE))


def test_layouts_that_are_not_contiguous():
    layer = randomised(nc.Linear(7, 3, program=small(), device=DEVICE))
    with torch.no_grad():
        for parameter in (layer.memory.U, layer.R, layer.controller.recurrent_weight):
            parameter.data = parameter.data.mT.contiguous().mT
    assert_close_to_exact(layer, torch.randn(7, 10).mT)


def test_ties_take_the_gradient_of_the_torch_path():
    """A recoded layer starts with steps that attend alike, so that usages tie; bit by bit on every machine, since
    queries along one axis have cosines of one term."""
    layer = nc.Linear(7, 3, program=small(steps=4), device=DEVICE)
    with torch.no_grad():
        layer.controller.signal_bias[:12].view(6, 2).copy_(torch.tensor([1.0, 0.0]))
    x = torch.randn(5, 7, device=DEVICE)
    found = {}
    for path in ("torch", "cpu", "triton"):
        with nc.backend(path):
            found[path] = gradients(layer(x), layer, x.clone().requires_grad_())
    for path in ("cpu", "triton"):
        for name, grad in found[path].items():
            torch.testing.assert_close(
                grad, found["torch"][name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name, p=path: f"{p} {n}: {m}"
            )


def test_the_same_input_gives_the_same_bits():
    layer = randomised(nc.Linear(7, 3, program=small(), device=DEVICE))
    x = torch.randn(50 if DEVICE == "cuda" else 17, 7, device=DEVICE)  # the interpreter always does the same
    runs = []
    with nc.backend("triton"):
        for _ in range(2):
            layer.zero_grad()
            y = layer(x)
            y.sin().sum().backward()
            runs.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


OPERATED = {
    "all": lambda: nc.Linear(7, 3, program=small()),
    "one step": lambda: nc.Linear(7, 3, program=small(steps=1)),
    "plain residual": lambda: nc.Linear(7, 3, program=small(residual="plain")),
    "no residual, no bias": lambda: nc.Linear(7, 3, bias=False, program=small(residual=False)),
    "control": lambda: nc.Linear(7, 3, program=small(), control_dim=4),
    "control, no residual": lambda: nc.Linear(7, 3, program=small(residual=False), control_dim=4),
}


@pytest.mark.parametrize(
    ("case", "frozen"),
    [
        *((case, "nothing") for case in OPERATED),
        *(
            pytest.param(case, frozen, marks=() if case in ("all", "no residual, no bias") else pytest.mark.long)
            for case in OPERATED
            for frozen in ("all but the residual", "residual")
        ),
    ],
)
def test_compiled_through_the_operator(case, frozen):
    torch._dynamo.reset()
    layer = randomised(OPERATED[case]()).to(DEVICE)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(not FROZEN[frozen](name))
    options = {"control": torch.randn(5, 4, device=DEVICE)} if layer.control_dim else {}
    x = torch.randn(5, 7, device=DEVICE, requires_grad=True)
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    with nc.backend("triton"):
        y = layer(x, **options)
        expected = torch.autograd.grad(y.sin().sum(), wanted)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, **options), y)
        found = torch.autograd.grad(compiled(x, **options).sin().sum(), wanted)
    for grad, target in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, target)


@pytest.mark.parametrize("case", OPERATED)
def test_operators_keep_the_rules_of_torchs_library(case):
    """Results share no storage with each other or the inputs, and their shapes are those that tracing expects."""
    from neurocoder.program.kernels import operator
    from neurocoder.program.tensors import CallSpec

    layer = randomised(OPERATED[case]()).to(DEVICE)
    spec = CallSpec("operator", layer.config, torch.float32, fused=layer.control_dim is None)
    tensors = layer.tensors(spec.fused)
    present = [place for place, tensor in enumerate(tensors) if tensor is not None]
    given = [tensor.detach() for tensor in tensors if tensor is not None]
    settings = (given, present, layer.config.sharpness, torch.float32, operator._numbers(spec))
    x = torch.randn(5, layer.control_dim or 7, device=DEVICE)
    made = operator.run(x, *settings)
    grads = [torch.randn_like(output) for output in made[: operator._outputs(spec)]]
    kept = made[1:] if spec.fused else made  # all but y
    backward = (grads, kept, [True] * (1 + len(given)), x, *settings)
    for operation, arguments in ((operator.run, (x, *settings)), (operator.run_backward, backward)):
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))
        results = [tensor for tensor in operation(*arguments) if tensor.numel()]
        storages = [tensor.untyped_storage().data_ptr() for tensor in (*results, x, *given)]
        assert len(set(storages[: len(results)])) == len(results)
        assert not set(storages[: len(results)]) & set(storages[len(results) :])


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_exported_through_the_operator(kind):
    layer = nc.Linear(7, 3, program=small()) if kind == "linear" else nc.Conv2d(2, 3, 3, program=small())
    layer = randomised(layer).to(DEVICE).eval()
    shape = (7,) if kind == "linear" else (2, 5, 5)
    x = torch.randn(4, *shape, device=DEVICE)
    with nc.backend("triton"):
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        assert "neurocoder.run" in str(program)
        other = torch.randn(6, *shape, device=DEVICE)
        torch.testing.assert_close(program.module()(other), layer(other))


def test_bfloat16_and_autocast():
    layer = randomised(nc.Linear(7, 3, program=small(), device=DEVICE), 0.5)
    x = torch.randn(50, 7, device=DEVICE)
    exact = layer(x)
    with nc.backend("triton"):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            mixed = layer(x)
        low = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    for y in (mixed, low):
        assert y.dtype is torch.bfloat16
        assert (y.float() - exact).norm() / exact.norm() < 0.1


@pytest.mark.parametrize("path", ["cpu", "triton"])
def test_gradients_under_autocast_are_near_the_exact_ones(path):
    layer = randomised(nc.Linear(30, 20, program=small(), device=DEVICE), 0.3)
    x = torch.randn(64, 30, device=DEVICE, requires_grad=True)
    with nc.backend("torch"):
        expected = gradients(layer(x), layer, x)
    with nc.backend(path), torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = layer(x)
        found = gradients(y.float(), layer, x)
    assert y.dtype is torch.bfloat16
    for name, grad in found.items():
        assert grad.dtype is torch.float32
        assert (grad - expected[name]).norm() < 0.05 * expected[name].norm() + 1e-4, name


def test_backend_is_chosen_and_undone():
    layer, x = randomised(nc.Linear(7, 3, program=small())), torch.randn(5, 7)
    with nc.backend("torch"):
        assert "ProgramFunction" not in graph_of(layer(x))
        with nc.backend("auto"):
            assert "ProgramFunction" in graph_of(layer(x))
        assert "ProgramFunction" not in graph_of(layer(x))
    assert "ProgramFunction" in graph_of(layer(x))


def graph_of(tensor):
    """The names of all autograd nodes behind a tensor."""
    names, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            names.add(type(node).__name__.removesuffix("Backward"))
            todo += [parent for parent, _ in node.next_functions]
    return names


def test_double_backward_needs_the_torch_path():
    layer, x = randomised(nc.Linear(7, 3, program=small())), torch.randn(5, 7, requires_grad=True)
    with nc.backend("torch"):
        (grad,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        grad.square().sum().backward()
    assert layer.memory.U.grad.abs().max() > 0
    with pytest.raises(RuntimeError, match="cannot itself be differentiated"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


def test_sizes_beyond_the_limits():
    layer = nc.Linear(7, 3, program=small(key_dim=17))
    with nc.backend("triton"), pytest.raises(ValueError, match="takes at most 256 slots, keys of 16"):
        layer(torch.randn(5, 7))


@pytest.mark.parametrize("shape", [(5, 7, 3), (17, 200, 130), (30, 64, 10)])
def test_orthogonal_loss(shape):
    slots, d_in, d_out = shape
    layer = randomised(nc.Linear(d_in, d_out, program=small(slots=slots), device=DEVICE))
    exact = copy.deepcopy(layer).double()
    with nc.backend("torch"):
        expected = nc.auxiliary_loss(exact)
        expected.backward()
    with nc.backend("triton"):
        found = nc.auxiliary_loss(layer)
        found.backward()
    assert "OrthogonalLoss" in graph_of(found)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
    for name in ("U", "V"):
        grad, target = getattr(layer.memory, name).grad, getattr(exact.memory, name).grad
        torch.testing.assert_close(grad.double(), target, rtol=1e-4, atol=1e-5)


def test_orthogonal_losses_of_a_model_are_one_operation():
    layers = [
        nc.Linear(*size, program=small(slots=slots, orthogonality=weight), device=DEVICE)
        for size, slots, weight in (((7, 3), 5, 0.1), ((3, 130), 6, 2.0), ((130, 9), 17, 1.0))
    ]
    model = randomised(nn.Sequential(*layers))
    exact = copy.deepcopy(model).double()
    with nc.backend("torch"):
        (3 * nc.auxiliary_loss(exact)).backward()
        expected = nc.auxiliary_loss(exact), nc.orthogonal_loss(exact)
    with nc.backend("triton"):
        (3 * nc.auxiliary_loss(model)).backward()
        found = nc.auxiliary_loss(model), nc.orthogonal_loss(model)
    for loss, target in zip(found, expected, strict=True):
        assert type(loss.grad_fn).__name__ == "OrthogonalLossBackward"
        torch.testing.assert_close(loss.double(), target, rtol=1e-5, atol=0)
    for layer, twin in zip(model, exact, strict=True):
        for name in ("U", "V"):
            grad, target = getattr(layer.memory, name).grad, getattr(twin.memory, name).grad
            torch.testing.assert_close(grad.double(), target, rtol=1e-4, atol=1e-5)


def test_orthogonal_loss_of_orthonormal_slots_pulls_nowhere():
    layer = nc.Linear(4, 4, program=small(slots=4), device=DEVICE)
    with torch.no_grad():
        layer.memory.U.copy_(torch.eye(4))
        layer.memory.V.copy_(torch.eye(4))
    with nc.backend("triton"):
        loss = nc.auxiliary_loss(layer)
        loss.backward()
    assert loss == 0
    assert not layer.memory.U.grad.any()


FROZEN = {
    "all but the input": lambda name: True,
    "residual": lambda name: name == "R",
    "all but the residual": lambda name: name != "R",
    "all but the bias": lambda name: name != "bias",
    "memory": lambda name: name.startswith("memory"),
    "nothing": lambda name: False,
}


@pytest.mark.parametrize("path", ["cpu", "triton"])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("residual", [True, "plain", False])
def test_frozen_parameters_get_no_gradient_and_change_no_other(path, frozen, residual):
    layer = randomised(nc.Linear(7, 3, program=small(residual=residual), device=DEVICE))
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(not FROZEN[frozen](name))
    wanted = [p for p in layer.parameters() if p.requires_grad]
    x = torch.randn(5, 7, device=DEVICE, requires_grad=True)
    found = {}
    for backend in ("torch", path):
        with nc.backend(backend):
            found[backend] = torch.autograd.grad(layer(x).sin().sum(), [x, *wanted])
    for grad, expected in zip(found[path], found["torch"], strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("path", ["cpu", "triton"])
@pytest.mark.parametrize("slots", range(4, 12))
@pytest.mark.parametrize("residual", [True, False])
def test_padding_of_the_projection_reaches_no_gradient(monkeypatch, path, slots, residual):
    """On a GPU the projection has columns that only pad; here they are put there by hand, and new memory is spoilt."""
    from neurocoder.program.kernels import autograd as kernel

    readers = kernel._readers

    def padded(form, tensors):
        rows = readers(form, tensors)
        return torch.cat([rows, tensors.input_weight[: -len(rows) % 8]])

    layer = randomised(nc.Linear(7, 3, program=small(slots=slots, residual=residual), device=DEVICE))
    x = torch.randn(5, 7, device=DEVICE, requires_grad=True)
    with nc.backend("torch"):
        expected = gradients(layer(x), layer, x)
    monkeypatch.setattr(kernel, "_readers", padded)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        with nc.backend(path):
            found = gradients(layer(x), layer, x)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_a_traced_layer_chooses_anew_for_each_input():
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = randomised(nc.Linear(7, 3, program=small(steps=4, least_used=2)))
    x, other = torch.randn(5, 7), torch.randn(5, 7)
    with torch.no_grad():
        traced = make_fx(layer)(x)
        torch.testing.assert_close(traced(other), layer(other))


def test_float64_is_not_for_triton():
    layer = nc.Linear(7, 3, program=small(), dtype=torch.float64)
    with nc.backend("triton"), pytest.raises(ValueError, match="takes float32 and narrower types"):
        layer(torch.randn(5, 7, dtype=torch.float64))
