"""Models that other libraries wrap or split: tensor parallelism, DDP, `nn.DataParallel`, compiled models."""

import pytest
import torch
from client_helpers import moved
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import neurocoder as nc
from conftest import small


@pytest.fixture
def alone(tmp_path):
    """A group of one process."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("target", ["0", "2", nn.Linear])
def test_a_layer_that_is_split_over_processes_is_refused(target):
    model = parallelize_module(mlp(), init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with pytest.raises(ValueError, match=r"its weight is split over processes, as ColwiseParallel does: nc"):
        nc.recode(model, target, small())
    assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh, nn.Linear]


@pytest.mark.usefixtures("alone")
def test_a_coded_layer_is_left_out_of_the_parallel_plan():
    """Torch's own error, if it is not; left out, the rest is split as ever."""
    model, mesh, x = moved(nc.recode(mlp(), "0", small())), init_device_mesh("cpu", (1,)), torch.randn(3, 4)
    expected = model(x)
    with pytest.raises(NotImplementedError, match=r"ColwiseParallel currently only support nn"):
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
    parallelize_module(model, mesh, {"2": ColwiseParallel()})
    torch.testing.assert_close(model(x), expected)


def restored(model, x):
    """What the same model gives, restored without any wrapper."""
    return nc.restore(moved(nc.recode(mlp(), "*", small())), data=x)(x)


WRAPPERS = {
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "nn.DataParallel": nn.DataParallel,
    "a compiled part": lambda model: nn.Sequential(torch.compile(model, backend="eager")),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_model_is_restored(wrap):
    model, x = wrap(moved(nc.recode(mlp(), "*", small()))), torch.randn(9, 4)
    assert nc.restore(model, data=x) is model
    assert not nc.coded_layers(model)
    torch.testing.assert_close(model(x), restored(model, x))


DDP = {
    "DDP": DistributedDataParallel,
    "DDP of a compiled model": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
    "a compiled DDP": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrap", DDP.values(), ids=DDP)
def test_the_inner_model_of_a_ddp_is_restored_as_the_error_says(wrap):
    inner, x = moved(nc.recode(mlp(), "*", small())), torch.randn(9, 4)
    with pytest.raises(ValueError, match=r"in sync by DistributedDataParallel: give nc.restore the inner"):
        nc.restore(wrap(inner), data=x)
    assert len(nc.coded_layers(inner)) == 2
    nc.restore(inner, data=x)
    torch.testing.assert_close(DistributedDataParallel(inner)(x), restored(inner, x))
