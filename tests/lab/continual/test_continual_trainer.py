"""The trainer: what moves and what does not, what is in the matrix, exact resumption."""

import copy
import json
import math

import pytest
import torch
from continual_helpers import METHODS, PAIRS, Heads, adam, data, network, one_task, set_weight, sgd, still, tasks
from torch import Tensor, nn

import neurocoder as nc
from conftest import small
from neurocoder.lab import continual as cl
from neurocoder.lab.continual.pool import permutation

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trained(scenario, method, optimiser=adam, model=None, **options):
    """A trainer that has learned all tasks."""
    trainer = cl.Trainer(network(scenario) if model is None else model, method, optimiser=optimiser, **options)
    for task in tasks(scenario):
        trainer.learn(task)
    return trainer


def test_ten_lines():
    train, test = data(600), data(60, seed=1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    tasks = cl.split(train, test, classes=[(0, 1), (2, 3)], scenario="domain")
    method = cl.EWC(100.0)
    trainer = cl.Trainer(model, method, optimiser=lambda p: torch.optim.Adam(p, lr=1e-2), batch=128, epochs=30, seed=0)
    for task in tasks:
        trainer.learn(task)
    matrix = trainer.matrix
    assert matrix.shape == (2, 2)
    assert matrix.dtype == torch.float64
    assert min(matrix[0, 0], matrix[1, 1]) > 80
    assert method.penalty(model).item() > 0
    assert cl.average_accuracy(matrix) == pytest.approx(matrix[1].mean().item())
    assert cl.forgetting(matrix) == pytest.approx(-cl.backward_transfer(matrix))


def test_the_trainer_learns_and_forgets_as_expected():
    plain, offline = (trained("class", method, epochs=10, batch=8) for method in (cl.Plain(), cl.Offline()))
    assert cl.forgetting(plain.matrix) > 50
    assert cl.average_accuracy(offline.matrix) > 75


# The loop


@pytest.mark.parametrize("known", [False, True])
def test_the_loop_written_out(known):
    """Offline: the last task trains a new model on all data, in an order that depends on seed, task and epoch."""
    start, sequence = network("domain"), tasks("domain", PAIRS[:2])
    trainer = cl.Trainer(
        copy.deepcopy(start), cl.Offline(), optimiser=adam, batch=16, epochs=2, seed=5, tasks=sequence if known else ()
    )
    orders = []

    def watch(trainer):
        orders.append((trainer.task, trainer.step))

    for task in sequence:
        trainer.learn(task, after_step=watch)
    assert orders == [*((0, step) for step in range(1, 5)), *((1, step) for step in range(1, 7))]
    assert len(trainer.method.memory) == (0 if known else 2)  # it need not keep what the trainer has
    x, y = (torch.cat([task.train[index] for task in sequence]) for index in range(2))
    optimiser = adam(start.parameters())
    for epoch in range(2):
        for rows in permutation(len(y), 5, 1, epoch).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(start(x[rows]), y[rows]).backward()
            optimiser.step()
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, start.state_dict()[name])


def test_training_is_in_train_mode():
    model = network("domain").eval()
    cl.Trainer(model, cl.Plain(), optimiser=still, epochs=1).learn(tasks("domain")[0])
    assert model.trunk[0].num_batches_tracked == 1


def test_order_depends_on_seed_task_and_epoch():
    orders = [permutation(50, *key).tolist() for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 4
    assert permutation(50, 0, 0, 1).tolist() == orders[3]


@pytest.mark.parametrize(("reset", "expected"), [(False, 8 * 3), (True, 8)])
def test_one_optimiser_for_all_tasks_unless_reset(reset, expected):
    trainer = trained("domain", cl.Plain(), reset=reset, epochs=4, batch=10)
    parameter = next(trainer.model.parameters())
    assert trainer.optimiser.state[parameter]["step"].item() == expected


def test_the_loss_of_the_class_scenario_covers_the_classes_seen():
    """Outputs of classes to come stay as they were, and evaluation counts them."""
    model = nn.Linear(4, 6)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 99.0]))
    weight = model.weight.detach().clone()
    trainer = cl.Trainer(model, cl.Plain(), optimiser=sgd, epochs=1, batch=20)
    sequence = tasks("class")
    expected = nn.functional.cross_entropy(model(sequence[0].train[0])[:, :2], sequence[0].train[1])
    gradient = torch.autograd.grad(expected, model.weight)[0]
    trainer.learn(sequence[0])
    torch.testing.assert_close(model.weight, weight - 0.1 * gradient)
    assert torch.equal(model.weight[2:], weight[2:])
    assert trainer.matrix.tolist() == [[0.0]]
    trainer.learn(sequence[1])
    assert not torch.equal(model.weight[:4], weight[:4])
    assert torch.equal(model.weight[4:], weight[4:])


# Idle heads


def program_heads():
    torch.manual_seed(1)
    config = small(orthogonality=10.0)
    return Heads(
        nn.Sequential(nc.Linear(4, 8, program=config), nn.ReLU()), [nc.Linear(8, 2, program=config) for _ in range(3)]
    )


@pytest.mark.parametrize("model", [lambda: network("task"), program_heads], ids=["plain", "program"])
@pytest.mark.parametrize("name", ["Plain", "L2", "EWC", "OnlineEWC", "SI", "MAS"])
def test_idle_heads_do_not_move(name, model):
    trainer = cl.Trainer(model(), METHODS[name](), optimiser=adam, epochs=1, batch=8)
    for index, task in enumerate(tasks("task")):
        before = copy.deepcopy(trainer.model.state_dict())
        idle = []

        def watch(trainer, index=index, idle=idle):
            heads = [head for head in range(3) if head != index]
            idle.append(all(p.grad is None for head in heads for p in trainer.model.heads[head].parameters()))

        trainer.learn(task, after_step=watch)
        assert all(idle)
        for key, value in trainer.model.state_dict().items():
            moves = not key.startswith("heads.") or key.startswith(f"heads.{index}.")
            assert moves or torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", ["LwF", "Rehearsal"])
def test_heads_of_earlier_tasks_move_if_the_method_uses_them(name):
    trainer = cl.Trainer(network("task"), METHODS[name](), optimiser=adam, epochs=1)
    sequence = tasks("task")
    trainer.learn(sequence[0])
    before = copy.deepcopy(trainer.model.heads)
    trainer.learn(sequence[1])
    moved = [not torch.equal(old.weight, new.weight) for old, new in zip(before, trainer.model.heads, strict=True)]
    assert moved == [True, True, False]


def test_the_auxiliary_loss_is_that_of_the_layers_that_ran():
    model, task = program_heads(), tasks("task")[0]
    by_hand = copy.deepcopy(model)
    loss = nn.functional.cross_entropy(by_hand(task.train[0], 0), task.train[1])
    (loss + nc.auxiliary_loss(by_hand.trunk, by_hand.heads[0])).backward()
    sgd(by_hand.parameters()).step()
    cl.Trainer(model, cl.Plain(), optimiser=sgd, epochs=1).learn(task)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, by_hand.get_parameter(name))


def test_the_balance_loss_of_a_mixture_is_added():
    def build(balance):
        torch.manual_seed(0)
        return nc.MixtureLinear(4, 2, mixture=nc.MixtureConfig(experts=3, active=2, balance=balance))

    task = tasks("domain")[0]
    by_hand = build(5.0)
    torch.manual_seed(7)
    loss = nn.functional.cross_entropy(
        by_hand(task.train[0][permutation(20, 0, 0, 0)]), task.train[1][permutation(20, 0, 0, 0)]
    )
    (loss + nc.auxiliary_loss(by_hand)).backward()
    sgd(by_hand.parameters()).step()
    model = build(5.0)
    torch.manual_seed(7)
    cl.Trainer(model, cl.Plain(), optimiser=sgd, epochs=1).learn(task)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, by_hand.get_parameter(name))


# The matrix


def answers(*rows):
    """A model of one-hot inputs that answers as the rows say."""
    return set_weight(nn.Linear(2, 2, bias=False), *rows)


def test_the_matrix_holds_the_accuracy_after_each_task_on_each_task():
    """The model is moved by hand between tasks, so that its accuracies are known."""
    first = one_task([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    second = one_task([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0, 1, 0, 0], classes=(0, 1))
    third = one_task([[0.0, 1.0]], [0], classes=(0, 1))
    model = answers([1.0, 0.0], [0.0, 1.0])
    rows = [[100.0, 25.0, 0.0], [50.0, 75.0, 100.0], [0.0, 75.0, 100.0]]
    states = [None, ([1.0, 1.0], [0.0, 0.0]), ([0.0, 1.0], [1.0, 0.0])]
    for known in ((), (first, second, third)):
        set_weight(model, [1.0, 0.0], [0.0, 1.0])
        trainer = cl.Trainer(model, cl.Plain(), optimiser=still, epochs=1, tasks=known)

        def answer(trainer, state):
            set_weight(trainer.model, *state)

        for task, state in zip((first, second, third), states, strict=True):
            trainer.learn(task, after_step=(lambda trainer, state=state: answer(trainer, state)) if state else None)
        expected = torch.tensor(rows, dtype=torch.float64)
        if not known:
            expected[0, 2] = math.nan
        torch.testing.assert_close(trainer.matrix, expected, equal_nan=True)


def test_accuracy_is_in_eval_mode_and_leaves_the_modes_alone():
    model = Heads(nn.Sequential(nn.Dropout(0.99), nn.BatchNorm1d(2)), [answers([1.0, 0.0], [0.0, 1.0])])
    model.trunk[1].eval()
    task = one_task([[1.0, 0.0], [0.0, 1.0]] * 600, [0, 1] * 600)
    assert cl.accuracy(model, task) == 100
    assert [module.training for module in (model, model.trunk[0], model.trunk[1])] == [True, True, False]


# Resuming


class Stop(Exception):
    pass


def storable(state):
    """Whether safetensors and JSON can hold it, with text as keys."""
    if isinstance(state, dict):
        return all(isinstance(key, str) and storable(value) for key, value in state.items())
    if isinstance(state, list):
        return all(map(storable, state))
    return isinstance(state, Tensor) or json.loads(json.dumps(state)) == state


def assert_same(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize(("scenario", "known"), [("task", False), ("domain", True), ("class", False)])
@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_mid_task_to_the_last_bit(name, scenario, known):
    sequence, model = tasks(scenario), network(scenario, dropout=0.3)
    options = {"optimiser": adam, "batch": 8, "epochs": 2, "tasks": sequence if known else ()}
    whole = cl.Trainer(copy.deepcopy(model), METHODS[name](), **options)
    saved, at = {}, (1, 4)  # the second epoch of the second task, or (with more data) the first

    def save(trainer):
        if (trainer.task, trainer.step) == at:
            saved.update(trainer.state_dict())

    torch.manual_seed(4)
    for task in sequence:
        whole.learn(task, after_step=save)
    assert storable(saved)

    torch.manual_seed(99)
    resumed = cl.Trainer(network(scenario, dropout=0.3), METHODS[name](), **options)
    resumed.load_state_dict(saved)
    assert_same(resumed.state_dict(), saved)
    for task in sequence[1:]:
        resumed.learn(task)
    assert_same(resumed.state_dict(), whole.state_dict())
    torch.testing.assert_close(resumed.matrix, whole.matrix, rtol=0, atol=0, equal_nan=True)


def test_a_stopped_task_continues():
    model, task = network("domain"), tasks("domain")[0]
    whole = cl.Trainer(copy.deepcopy(model), cl.SI(1.0), optimiser=adam, batch=8, epochs=2)
    stopped = cl.Trainer(model, cl.SI(1.0), optimiser=adam, batch=8, epochs=2)

    def stop(trainer):
        if trainer.step in (2, 6):  # in the middle, and after the last step
            raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            stopped.learn(task, after_step=stop)
        assert stopped.task == 0
    stopped.learn(task)
    whole.learn(task)
    assert_same(stopped.state_dict(), whole.state_dict())
    assert stopped.task == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed must be the state's 0 to continue, got 1"),
        ({"batch": 3}, "batch must be the state's 128 to continue, got 3"),
        ({"method": cl.MAS(1.0)}, "method must be the state's 'EWC' to continue, got 'MAS'"),
        ({"tasks": tasks("domain")}, "the number of tasks must be the state's 0 to continue, got 3"),
    ],
)
def test_states_of_another_training_are_refused(changes, message):
    state = cl.Trainer(network("domain"), cl.EWC(1.0), optimiser=adam).state_dict()
    trainer = cl.Trainer(network("domain"), **({"method": cl.EWC(1.0), "optimiser": adam} | changes))
    with pytest.raises(ValueError, match=f"^{message}"):
        trainer.load_state_dict(state)


# Wrong input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model must be an nn.Module with trainable parameters, got NoneType"),
        ({"model": nn.ReLU()}, "model must be an nn.Module with trainable parameters, got ReLU"),
        ({"method": cl.EWC}, "method must be a method such as EWC\\(100.0\\), got <class"),
        ({"method": trained("domain", cl.L2(1.0), epochs=1).method}, "method must be new, got one that has learned"),
        ({"batch": 0}, "batch must be a whole number >= 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number >= 1, got 1.5"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"optimiser": list}, "optimiser must return a torch optimiser, got list"),
    ],
)
def test_wrong_trainers(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cl.Trainer(**({"model": network("domain"), "method": cl.Plain(), "optimiser": adam} | changes))


@pytest.mark.parametrize(
    ("model", "scenario", "message"),
    [
        (nn.Linear(4, 3), "domain", r"model\(x\) must return 2 outputs, one for each class, got 3"),
        (nn.Linear(4, 5), "class", r"model\(x\) must return at least 6 outputs, one for each class, got 5"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)),
            "domain",
            r"model\(x\) must return logits \(N, outputs\), got .*",
        ),
        (Heads(nn.Identity(), [nn.Linear(4, 3)]), "task", r"model\(x, 0\) must return 2 outputs.*got 3"),
    ],
)
def test_models_of_the_wrong_width(model, scenario, message):
    trainer = cl.Trainer(model, cl.LwF(), optimiser=adam)
    with pytest.raises(ValueError, match=f"^{message}"):
        trainer.learn(tasks(scenario)[-1 if scenario == "class" else 0])
    assert trainer.heads == []


def test_tasks_that_are_not_next():
    sequence = tasks("domain")
    trainer = cl.Trainer(network("domain"), cl.Plain(), optimiser=adam, tasks=sequence)
    with pytest.raises(ValueError, match=r"^task must be tasks\[0\], the next of 3, got another one"):
        trainer.learn(sequence[1])
    with pytest.raises(ValueError, match=r"^task must be a Task, got tuple"):
        trainer.learn(data())


# On a GPU


class Own(torch.optim.SGD):
    """An optimiser of which it is not known whether it can be captured."""


OPTIMISERS = {
    "adam": adam,
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "own": lambda p: Own(p, lr=1e-2, momentum=0.9),
}


@gpu
@pytest.mark.parametrize("scenario", ["task", "class"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", METHODS)
def test_captured_steps_agree_with_a_cpu(name, optimiser, scenario):
    torch.manual_seed(2)
    start = program_heads().double() if scenario == "task" else network("class").double()
    sequence = cl.split(*((x.double(), y) for x, y in (data(), data(30, seed=1))), PAIRS, scenario)
    found = {}
    for device in ("cpu", "cuda"):
        trainer = cl.Trainer(copy.deepcopy(start).to(device), METHODS[name](), optimiser=OPTIMISERS[optimiser], batch=8)
        for task in sequence:
            trainer.learn(task)
        found[device] = trainer
    for key, value in found["cuda"].model.state_dict().items():
        torch.testing.assert_close(value.cpu(), found["cpu"].model.state_dict()[key], rtol=1e-4, atol=1e-5)


@gpu
@pytest.mark.parametrize("name", ["L2", "EWC", "SI"])
def test_idle_heads_do_not_move_in_a_graph(name):
    trainer = cl.Trainer(program_heads().cuda(), METHODS[name](), optimiser=adam, epochs=4, batch=8)
    for index, task in enumerate(tasks("task")):
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.learn(task)
        for key, value in trainer.model.state_dict().items():
            moves = not key.startswith("heads.") or key.startswith(f"heads.{index}.")
            assert moves or torch.equal(value, before[key]), key


@gpu
@pytest.mark.parametrize("optimiser", ["adam", "adagrad", "own"])
def test_a_captured_task_is_resumed(optimiser):
    sequence, options = tasks("task"), {"optimiser": OPTIMISERS[optimiser], "batch": 4, "epochs": 4}
    start, saved = network("task").cuda(), {}
    whole = cl.Trainer(copy.deepcopy(start), cl.SI(1.0), **options)
    for task in sequence:
        whole.learn(task, after_step=lambda t: saved.update(t.state_dict() if (t.task, t.step) == (1, 12) else {}))
    resumed = cl.Trainer(start, cl.SI(1.0), **options)
    resumed.load_state_dict(saved)
    for task in sequence[1:]:
        resumed.learn(task)
    for key, value in resumed.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[key], rtol=1e-3, atol=1e-4)
