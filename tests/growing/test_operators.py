"""The kernels as operators in compiled code, through Triton's interpreter where there is no GPU."""

import copy

import pytest
import torch
from growing_helpers import fill, small
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow

pytest.importorskip("triton")
from neurocoder.growing import operators
from neurocoder.growing.kernels import paired

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"  # dynamo
)


def compiled(layer):
    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, backend="aot_eager")


def gradients(layer, call, x):
    """The output and the gradients of x and of what is trained."""
    x = x.detach().clone().requires_grad_()
    y = call(x)
    wanted = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    return [y, *torch.autograd.grad(y.sin().sum(), wanted)]


LAYERS = {
    "residual": {},
    "no residual": {"growing": {"residual": False}},
    "no bias": {"bias": False, "growing": {"residual": False}},
    "control": {"control_dim": 4},
    "frozen U": {"frozen": "U"},
    "frozen V": {"frozen": "V"},
}


@pytest.mark.parametrize("case", LAYERS)
def test_compiled_through_the_operators(case):
    options = dict(LAYERS[case])
    frozen, changes = options.pop("frozen", None), options.pop("growing", {})
    layer = fill(GrowingLinear(7, 3, growing=small(**changes), **options)).to(DEVICE)
    if frozen:
        getattr(layer.memory, frozen).requires_grad_(False)
    x = torch.randn(5, 7, device=DEVICE)
    given = {"control": torch.randn(5, 4, device=DEVICE)} if layer.control_dim else {}
    expected = gradients(layer, lambda x: layer(x, **given), x)  # by torch operations
    with nc.backend("triton"):
        code = compiled(layer)
        found = gradients(layer, lambda x: code(x, **given), x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_compiled_graph_has_the_operators_and_builds_no_program():
    seen = []

    def keep(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    layer = fill(GrowingLinear(7, 3, growing=small())).to(DEVICE)
    with nc.backend("triton"):
        torch._dynamo.reset()
        torch.compile(layer, fullgraph=True, backend=keep)(torch.randn(5, 7, device=DEVICE))
    assert any("run_slots" in name for name in seen)
    assert not any("embedding_bag" in name or "topk" in name for name in seen)


def test_training_compiled_writes_what_eager_kernels_write():
    layer = fill(GrowingLinear(7, 3, growing=small(slots=12, writes=2)), 2).to(DEVICE)
    twin = copy.deepcopy(layer)
    xs = [torch.randn(6, 7, device=DEVICE) for _ in range(3)]
    with nc.backend("triton"):
        for model, call in ((layer, layer), (twin, compiled(twin))):
            optimiser = torch.optim.Adam(model.parameters(), 0.01)
            grow(model, optimiser)
            for x in xs:
                optimiser.zero_grad()
                call(x).square().sum().backward()
                optimiser.step()
    assert int(layer.memory.written) > 3
    for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_under_autocast_outputs_are_narrow():
    layer = fill(GrowingLinear(7, 3, growing=small())).to(DEVICE)
    x = torch.randn(5, 7, device=DEVICE)
    with nc.backend("triton"), torch.autocast(DEVICE, dtype=torch.bfloat16):
        y, expected = compiled(layer)(x), layer(x)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("compile", [False, True])
def test_under_autocast_gradients_of_narrow_slots_are_wide(compile):
    layer = fill(GrowingLinear(7, 3, growing=small())).to(DEVICE)
    x = torch.randn(5, 7, device=DEVICE)
    expected = gradients(layer, layer, x)
    with nc.backend("triton"), torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = gradients(layer, compiled(layer) if compile else layer, x)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.03 * other.norm()


def test_exported_layers_have_torch_operations_alone():
    layer = fill(GrowingLinear(7, 3, growing=small())).to(DEVICE).eval()
    with nc.backend("triton"):
        program = torch.export.export(layer, (torch.randn(4, 7, device=DEVICE),))
    assert "run_slots" not in str(program)


@pytest.mark.parametrize("wants", [[True, True, True], [False, True, False], [True, False, True]])
def test_the_operators_keep_the_rules_of_torchs_library(wants):
    layer = fill(GrowingLinear(7, 3, growing=small())).to(DEVICE)
    memory, x = layer.memory, torch.randn(5, 7, device=DEVICE)
    z = nn.functional.normalize(x, dim=-1)
    find = (z @ memory.keys.mT, z.norm(dim=-1), memory.written, 3, 3.0)
    slots, share, _ = operators.nearest_slots(*find)
    U, V = memory.U.detach(), memory.V.detach()
    run = (x, U, V, U, V, slots, share, torch.float32)
    y, c = operators.run_slots(*run)
    pairs = paired(slots, share, len(U))
    back = (torch.randn_like(y), x, U, V, *pairs, slots, share, c, torch.float32, wants)
    for operation, arguments in (
        (operators.nearest_slots, find),
        (operators.run_slots, run),
        (operators.run_slots_backward, back),
    ):
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))
