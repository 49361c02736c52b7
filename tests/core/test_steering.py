"""Controls that learn, models that make their own, controls of new tasks, and their files."""

import copy
import threading

import pytest
import torch
from core_helpers import randomised
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import neurocoder as nc
from conftest import small

Z = 3
CONFIGS = {
    "core": nc.CoreConfig(slots=4, shift=True),
    "program": small(),
    "growing": nc.GrowingConfig(slots=8, rank=2),
    "mixture": nc.MixtureConfig(experts=3, active=2),
    "stored program": nc.StoredProgramConfig(programs=3, key_dim=2),
    "hyper": nc.HyperConfig(hidden=4),
}
KINDS = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def network(config=None, *, sizes=(4, 6, 2)):
    """Two steered layers with random values."""
    model = nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:]))
    model = randomised(nc.recode(model, "*", config or nc.CoreConfig(), control_dim=Z))
    for layer in nc.coded_layers(model).values():
        if layer.grows:  # written slots, as training leaves them
            layer.memory.keys.copy_(nn.functional.normalize(torch.randn_like(layer.memory.keys)))
            layer.memory.written.fill_(6)
    return model.eval()


# One control for many inputs, in every kind.


@KINDS
def test_one_control_serves_a_sequence_and_a_batch_has_several(config):
    model, x, z = network(config), torch.randn(5, 7, 4), torch.randn(5, Z)
    with nc.control(model, z.unsqueeze(1).expand(5, 7, Z)):
        expected = model(x)
    with nc.control(model, z):
        torch.testing.assert_close(model(x), expected)
    with nc.control(model, z[2]):
        torch.testing.assert_close(model(x[2]), expected[2])
    assert (expected[0] - model_of(model, z[1], x[0])).abs().max() > 1e-4


def model_of(model, z, x):
    with nc.control(model, z):
        return model(x)


@pytest.mark.parametrize("config", [CONFIGS["core"], CONFIGS["program"], CONFIGS["growing"]])
def test_one_control_serves_an_image(config):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(2), nn.Linear(9, 3))
    randomised(nc.recode(model, ["0", "3"], config, control_dim=Z))
    x, z = torch.randn(6, 2, 5, 5), torch.randn(6, Z)
    y = model_of(model, z, x)
    torch.testing.assert_close(y[4:5], model_of(model, z[4:5], x[4:5]))
    torch.testing.assert_close(y[4:5], model_of(model, z[4], x[4:5]))


@KINDS
def test_restore_with_a_control_is_the_network_of_that_control(config):
    model, x, z = network(config), torch.randn(7, 4), torch.randn(Z)
    expected = model_of(model, z, x)
    torch.testing.assert_close(nc.restore(model, control=z)(x), expected)
    assert all(type(layer) in (nn.Linear, nn.Tanh) for layer in model)


# Controls that learn.


def test_an_embedding_of_tasks():
    tasks = nc.ControlEmbedding(5, Z, dropout=0.25)
    assert tasks.weight.shape == (6, Z)
    assert not tasks.default.any()
    nn.init.normal_(tasks.weight)
    index = torch.tensor([[0, 4], [-1, 2]])
    tasks.eval()
    expected = torch.stack([tasks.weight[1], tasks.weight[5], tasks.default, tasks.weight[3]]).view(2, 2, Z)
    assert torch.equal(tasks(index), expected)
    for dtype in (torch.int8, torch.int16, torch.int32):
        assert torch.equal(tasks(index.to(dtype)), expected)
    many = nc.ControlEmbedding(256, Z).eval()
    assert torch.equal(many(torch.tensor([255], dtype=torch.uint8)), many.weight[256:])
    tasks.train()
    z = tasks(torch.full((4000,), 3))
    is_default = (z == tasks.default).all(1)
    assert ((z == tasks.weight[4]).all(1) | is_default).all()
    assert 0.2 < is_default.float().mean() < 0.3
    z.sum().backward()
    assert (tasks.weight.grad.abs().sum(1) > 0).tolist() == [True, False, False, False, True, False]
    with pytest.raises(ValueError, match=r"task must be below tasks \(5\), got 5; -1 is an unknown task"):
        tasks.eval()(torch.tensor([0, 5]))
    assert torch.compile(tasks.eval(), backend="eager", fullgraph=True)(index).equal(expected_of(tasks, index))
    assert torch.equal(torch.func.vmap(tasks)(index), tasks(index))
    assert tasks.to("meta")(index.to("meta")).shape == (2, 2, Z)


def expected_of(tasks, index):
    return tasks.weight[index.clamp(min=-1) + 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": 0}, "tasks must be a whole number >= 1, got 0"),
        ({"width": 1.5}, r"width must be a whole number >= 1, got 1\.5"),
        ({"dropout": 1}, "dropout must be a number >= 0 and below 1, got 1"),
        ({"scale": -1.0}, r"scale must be a finite number >= 0, got -1\.0"),
    ],
)
def test_wrong_embeddings(fields, message):
    with pytest.raises(ValueError, match=message):
        nc.ControlEmbedding(**({"tasks": 5, "width": Z} | fields))
    with pytest.raises(ValueError, match=r"task must be a tensor of whole numbers, got torch\.float32"):
        nc.ControlEmbedding(5, Z)(torch.zeros(2))


# Models that make their own controls.


def test_a_steered_model_takes_what_its_controller_reads():
    model, users = network(), nc.ControlEmbedding(5, Z).eval()
    steered = nc.steer(model, users)
    x, user = torch.randn(6, 4), torch.randint(5, (6,))
    expected = model_of(model, users(user), x)
    assert torch.equal(steered(x, by=user), expected)
    assert torch.equal(steered(input=x, by=user), expected)
    steered(x, by=user).sum().backward()
    assert users.weight.grad.any()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(TypeError, match="by"):
        steered(x)
    with pytest.raises(ValueError, match="control must be given"):
        model(x)
    twin = copy.deepcopy(steered)
    assert torch.equal(twin(x, by=user), expected)
    names = set(steered.state_dict())
    assert {"controller.weight", "model.0.R"} < names


class Product(nn.Module):
    """A controller of two arguments."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(2, Z)

    def forward(self, a, b):
        return self.map(a * b)


def test_a_controller_of_several_arguments():
    controller, model = Product(), network()
    a, b, x = torch.randn(6, 2), torch.randn(6, 2), torch.randn(6, 8, 4)
    found = nc.steer(model, controller)(x, by=(a, b))
    torch.testing.assert_close(found, model_of(model, controller(a, b), x))


@pytest.mark.slow
def test_a_steered_model_compiles_and_exports():
    steered = nc.steer(network(), nc.ControlEmbedding(5, Z)).eval()
    compiled = torch.compile(steered, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x, user = torch.randn(6, 4), torch.randint(5, (6,))
        torch.testing.assert_close(compiled(x, by=user), steered(x, by=user))
    assert steered.model[0].ambient_control is None
    sizes = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(steered, (x,), {"by": user}, dynamic_shapes=((sizes,), sizes), strict=False)
    torch.testing.assert_close(program.module()(x[:3], by=user[:3]), steered(x[:3], by=user[:3]))


def test_two_threads_run_one_steered_model():
    steered = nc.steer(network(), nc.ControlEmbedding(5, Z)).eval()
    x, found = torch.randn(6, 4), {}
    expected = {user: steered(x, by=torch.tensor(user)) for user in range(5)}

    def serve(user):
        found[user] = [steered(x, by=torch.tensor(user)) for _ in range(20)]

    threads = [threading.Thread(target=serve, args=(user,)) for user in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for user, outputs in found.items():
        assert all(torch.equal(y, expected[user]) for y in outputs)


def test_what_cannot_be_steered_is_refused():
    with pytest.raises(ValueError, match="model must have a layer that was built with control_dim, found none"):
        nc.steer(nn.Sequential(nn.Linear(4, 2)), nc.ControlEmbedding(5, Z))
    with pytest.raises(ValueError, match=r"controller must be an nn\.Module, got "):
        nc.steer(network(), torch.zeros(Z))
    with pytest.raises(ValueError, match="controller must make controls of width 3, got 4"):
        nc.steer(network(), nc.ControlEmbedding(5, 4))


# The control of a new task.


def states(model):
    values = [tensor.clone() for tensor in model.state_dict().values()]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return values, grads, [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]


def assert_same_states(now, then):
    for a, b in zip(now[0] + now[1], then[0] + then[1], strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)
    assert now[2:] == then[2:]


@KINDS
def test_fit_control_finds_the_control_of_the_task_and_leaves_the_model_alone(config):
    model, x = network(config).train(), torch.randn(60, 4)
    model[1].eval()
    model[0].bias.requires_grad_(False)
    with torch.no_grad():
        y = model_of(copy.deepcopy(model).eval(), torch.tensor([0.7, -0.5, 0.4]), x)
    model[2].bias.grad = torch.ones(2)
    before = states(model)
    if isinstance(config, nc.GrowingConfig):
        with pytest.raises(ValueError, match="loss must have a gradient to the control, got none: growing layers look"):
            nc.fit_control(model, (x, y), mse_loss)
        assert_same_states(states(model), before)
        return
    z = nc.fit_control(model, (x, y), mse_loss, steps=60)
    assert_same_states(states(model), before)
    assert z.shape == (Z,)
    assert not z.requires_grad
    fitted, start = (mse_loss(model_of(copy.deepcopy(model).eval(), one, x), y) for one in (z, torch.zeros(Z)))
    assert fitted < start
    if isinstance(config, nc.CoreConfig):
        torch.testing.assert_close(z, torch.tensor([0.7, -0.5, 0.4]), rtol=0.05, atol=0.05)


def test_fit_control_takes_loaders_dictionaries_and_a_start():
    model, x, y = network(), torch.randn(40, 4), torch.randint(2, (40,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    expected = nc.fit_control(model, loader, cross_entropy, steps=7)
    for data in ([(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)], ((a, b) for a, b in loader)):
        assert torch.equal(nc.fit_control(model, data, cross_entropy, steps=7), expected)
    named = {"input": x}
    found = nc.fit_control(model, named, lambda output, batch: (output * batch["input"][:, :2]).mean(), steps=3)
    assert found.abs().sum() > 0
    start = torch.full((Z,), 5.0)
    near = nc.fit_control(model, (x, y), cross_entropy, steps=1, start=start, lr=1e-3)
    torch.testing.assert_close(near, start, atol=1e-2, rtol=0)
    assert torch.equal(start, torch.full((Z,), 5.0))


def test_fit_control_of_a_steered_model_starts_at_the_default_row():
    steered = nc.steer(network(), nc.ControlEmbedding(5, Z))
    with torch.no_grad():
        steered.controller.weight[0] = torch.tensor([1.0, 2.0, 3.0])
    z = nc.fit_control(steered, (torch.randn(8, 4), torch.randn(8, 2)), mse_loss, steps=1, lr=1e-4)
    torch.testing.assert_close(z, steered.controller.default.detach(), atol=1e-3, rtol=0)


def test_fit_control_stops_early_at_the_best_on_held_out_data():
    model, x = network(sizes=(4, 16, 2)), torch.randn(6, 4)
    seen, y = [], torch.randn(6, 2)
    other = model_of(model, torch.zeros(Z), torch.randn(50, 4)).detach()  # the start is best there
    held = torch.randn(50, 4), other

    def loss(output, target):
        if len(target) == 6:
            seen.append(1)
        return mse_loss(output, target)

    def held_loss(z):
        return mse_loss(model_of(model, z, held[0]), held[1]).item()

    best = nc.fit_control(model, (x, y), loss, steps=100, lr=0.3, held_out=held, patience=20)
    assert len(seen) < 60
    assert held_loss(best) <= held_loss(nc.fit_control(model, (x, y), mse_loss, steps=100, lr=0.3))


def test_fit_control_returns_the_start_where_it_is_best_on_held_out_data():
    model, x, z = network(), torch.randn(40, 4), torch.randn(Z)
    y = model_of(model, z, x).detach()
    misleading = torch.randn(3, 4), torch.randn(3, 2)
    assert torch.equal(nc.fit_control(model, misleading, mse_loss, start=z, held_out=(x, y)), z)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_fit_control_of_a_wrapped_steered_model(wrap):
    steered = nc.steer(network(), nc.ControlEmbedding(5, Z))
    data = torch.randn(8, 4), torch.randn(8, 2)
    expected = nc.fit_control(steered, data, mse_loss, steps=3)
    torch.testing.assert_close(nc.fit_control(wrap(steered), data, mse_loss, steps=3), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fit_control_works_where_gradients_are_off(mode):
    model, x, y = network(), torch.randn(8, 4), torch.randn(8, 2)
    with mode():
        z = nc.fit_control(model, (x, y), mse_loss, steps=3)
    assert z.abs().sum() > 0
    assert not z.is_inference()


def test_fit_control_says_that_a_control_has_no_effect_yet():
    model = nc.recode(nn.Sequential(nn.Linear(4, 2)), "0", nc.CoreConfig(), control_dim=Z)
    with pytest.warns(UserWarning, match="the control does not change the loss, so z stays as it starts"):
        z = nc.fit_control(model, (torch.randn(8, 4), torch.randn(8, 2)), mse_loss, steps=3)
    assert not z.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0}, "lr must be a finite number > 0, got 0"),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"patience": -1}, "patience must be a whole number >= 1, got -1"),
        ({"start": [0.0, 0.0, 0.0]}, "start must be a floating-point tensor, got list"),
        ({"held_out": []}, "held_out must have batches with a finite loss each time it is read, got no batch"),
        (
            {"held_out": (torch.full((6, 4), float("nan")), torch.zeros(6, 2))},
            "held_out must have batches with a finite loss each time it is read, got a loss of nan",
        ),
        ({"start": torch.zeros(2)}, r"start must have shape \(3,\), got \(2,\)"),
        ({"data": torch.zeros(6, 4)}, r"data must be \(inputs, target\)"),
        ({"data": []}, "data must have at least one batch each time it is read, got none"),
        ({"data": 3}, "data must be a tensor"),
        ({"loss": lambda y, target: y - target}, r"loss must return a tensor of shape \(\), got shape \(6, 2\)"),
        ({"loss": lambda y, target: 0.0}, r"loss must return a tensor of shape \(\), got float"),
        (
            {"loss": lambda y, target: y.sum() * float("nan")},
            "loss must stay finite, got nan at step 0: look at the data",
        ),
    ],
)
def test_wrong_arguments_of_fit_control_change_nothing(changes, message):
    model = network().train()
    given = {"data": (torch.randn(6, 4), torch.randn(6, 2)), "loss": mse_loss} | changes
    before = states(model)
    with pytest.raises(ValueError, match=message):
        nc.fit_control(model, given.pop("data"), given.pop("loss"), **given)
    assert_same_states(states(model), before)
    with pytest.raises(ValueError, match="model must have a layer that was built with control_dim"):
        nc.fit_control(nn.Linear(4, 2), (torch.randn(6, 4), torch.randn(6, 2)), mse_loss)


# Files.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_control_is_a_small_file(tmp_path, dtype):
    for z in (
        torch.randn(16).to(dtype),
        torch.randn(4, 16, dtype=dtype)[:, ::2],
        nn.Parameter(torch.randn(2).to(dtype)),
    ):
        path = tmp_path / "users" / "seven.safetensors"
        nc.save_control(z, path)
        found = nc.load_control(path)
        assert torch.equal(found, z)
        assert found.dtype is dtype
        assert not found.requires_grad
        assert path.stat().st_size < 200 + z.numel() * z.element_size()
        assert [file.name for file in path.parent.iterdir()] == ["seven.safetensors"]


def test_files_that_are_no_controls(tmp_path):
    with pytest.raises(nc.CheckpointError, match="cannot read the control"):
        nc.load_control(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(nc.CheckpointError, match="cannot read the control"):
        nc.load_control(tmp_path / "text")
    nc.save(nn.Linear(2, 2), tmp_path)
    with pytest.raises(nc.CheckpointError, match=r"is not a control: give a file that nc\.save_control wrote"):
        nc.load_control(tmp_path / "neurocoder.safetensors")
    with pytest.raises(nc.CheckpointError, match="cannot write the control"):
        nc.save_control(torch.zeros(2), tmp_path)
    with pytest.raises(nc.CheckpointError, match="cannot write the control"):
        nc.save_control(torch.zeros(2), tmp_path / "text" / "z")
    with pytest.raises(nc.CheckpointError, match=r"path must be that of a file, got '\.'"):
        nc.save_control(torch.zeros(2), ".")
    assert not list(tmp_path.parent.glob(".*-*"))
    with pytest.raises(ValueError, match=r"z must have shape \(\.\.\., control_dim\) and values, got \(\) on cpu"):
        nc.save_control(torch.tensor(1.0), tmp_path / "z")
    with pytest.raises(ValueError, match="z must be a floating-point tensor, got list"):
        nc.save_control([1.0], tmp_path / "z")
