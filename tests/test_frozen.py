"""Programs over a frozen base, as adapters are trained."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small


def moved_by(model, dtype, lr=1e-4, steps=10):
    """How far M_S moves in training, relative to `lr * steps`, under autocast to `dtype` if that is given."""
    values = model[0].memory.S
    before = values.detach().float().clone()
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    x, target = torch.randn(64, 8), torch.randn(64, 4)
    for _ in range(steps):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = (model(x.to(model[0].R.dtype)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float((values.detach().float() - before).abs().mean()) / (lr * steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_programs_of_a_narrow_base_learn_as_the_warning_says(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4)).to(dtype).requires_grad_(False)
    with pytest.warns(UserWarning, match=f"programs in {dtype} hardly learn") as caught:
        nc.recode(model, "0", small(orthogonality=0))
    assert caught[0].filename == __file__
    if dtype == torch.bfloat16:
        assert moved_by(model, None) < 0.05
    for layer in nc.coded_layers(model).values():  # what the warning says
        layer.memory.float(), layer.controller.float()
    assert model[0].R.dtype == dtype
    assert moved_by(model, dtype) > 0.9


@pytest.mark.filterwarnings("ignore:programs in torch.bfloat16")
def test_programs_kept_in_float32_are_loaded_so(tmp_path):
    def base():
        return nn.Sequential(nn.Linear(8, 4)).bfloat16().requires_grad_(False)

    model = nc.recode(base(), "0", small())
    for part in (model[0].memory, model[0].controller):
        part.float()
    randomised(model, 0.3)  # numbers that bfloat16 does not hold
    nc.save(model, tmp_path)
    other = nc.recode(base(), "0", small())
    other.load_state_dict(model.state_dict())
    for loaded in (nc.load(tmp_path, base()), other):
        assert loaded[0].R.dtype is torch.bfloat16
        for (name, own), (_, saved) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
            assert own.dtype == saved.dtype, name
            assert torch.equal(own, saved), name


def test_one_warning_for_all_layers_and_none_in_float32(recwarn):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    nc.recode(model, "0", small())
    assert not recwarn
    with pytest.warns(UserWarning, match="hardly learn") as caught:
        nc.recode(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).bfloat16(), nn.Linear, small())
    assert len(caught) == 1


@pytest.mark.parametrize("control_dim", [None, 3])
def test_another_dtype_than_the_slots_is_an_error_that_names_the_argument(control_dim):
    layer = nc.Linear(8, 4, control_dim=control_dim)
    name = "x" if control_dim is None else "control"
    message = f"{name} must be torch.float32, as the slots of this layer are, got torch.float64: cast it, or run"
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(2, 8, dtype=torch.float64), *([] if control_dim is None else [torch.randn(2, 3).double()]))


@pytest.mark.parametrize("weight", [0.1, 0.01])
def test_gradient_of_the_orthogonal_loss_does_not_vanish_near_orthonormal_slots(weight):
    """As docs/equations.md says: 2a for each matrix, however close its rows are to orthonormal ones."""
    layer = nc.Linear(32, 16, program=nc.ProgramConfig(slots=8, orthogonality=weight))
    nc.auxiliary_loss(layer).backward()
    for slots in (layer.memory.U, layer.memory.V):
        assert float(slots.grad.norm()) == pytest.approx(2 * weight, rel=1e-2)
    assert nc.orthogonal_loss(layer).item() == pytest.approx(0, abs=1e-4)


def test_diagnose_says_where_the_orthogonal_loss_outweighs_the_task_on_a_frozen_base():
    """A base that already does nearly what is asked leaves small gradients; `a * L_o` pulls as ever."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(64, 8)
    goal = model(x).detach() + 0.01 * torch.randn(64, 4)
    model.requires_grad_(False)

    def told(weight):
        nc.recode(model, "2", nc.ProgramConfig(slots=4, steps=1, heads=4, orthogonality=weight))
        found = nc.diagnose(model, x, loss=lambda output: (output - goal).square().mean())["2"]
        nc.restore(model)
        return found

    assert told(0.1).auxiliary > 0.9
    assert "lower that loss's weight" in told(0.1).advice
    assert told(1e-5).auxiliary < 0.5
