"""`nc.control`, `nc.record` and `nc.backend` hold in the thread or task that runs their block, and nowhere else."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from neurocoder.program import reference

CALLS = 1000
CONTROLS = [torch.full((3,), -2.0), torch.full((3,), 2.0)]


@pytest.fixture
def model():
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    nc.recode(network, "0", small(steps=1), control_dim=3)
    randomised(network[0])
    return network.eval()


def steered(model, x, control):
    with torch.no_grad(), nc.control(model, control):
        return model(x)


def test_two_threads_with_different_controls_are_both_right(model):
    x = torch.randn(2, 6)
    expected = [steered(model, x, control) for control in CONTROLS]
    assert not torch.allclose(*expected)
    start = threading.Barrier(2, timeout=60)

    def work(index):
        start.wait()
        return sum(torch.equal(steered(model, x, CONTROLS[index]), expected[index]) for _ in range(CALLS))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [CALLS, CALLS]


def test_two_threads_inside_long_blocks_are_both_right(model):
    """Each thread opens its block once; the calls of the other fall into it."""
    x = torch.randn(2, 6)
    expected = [steered(model, x, control) for control in CONTROLS]
    step = threading.Barrier(2, timeout=60)

    def work(index):
        right = 0
        with torch.no_grad(), nc.control(model, CONTROLS[index]):
            for _ in range(100):
                step.wait()
                right += torch.equal(model(x), expected[index])
        return right

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [100, 100]


def test_training_in_two_threads_gets_each_its_own_gradient(model):
    x = torch.randn(2, 6)

    def gradient(control):
        with nc.control(model, control):
            return torch.autograd.grad(model(x).square().sum(), model[0].memory.U)[0]

    expected = [gradient(control) for control in CONTROLS]
    start = threading.Barrier(2, timeout=60)

    def work(index):
        start.wait()
        return all(torch.allclose(gradient(CONTROLS[index]), expected[index]) for _ in range(50))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_tasks_that_interleave_are_all_right(model):
    x = torch.randn(2, 6)
    controls = [torch.full((3,), float(i)) for i in range(4)]
    expected = [steered(model, x, control) for control in controls]

    async def work(index):
        right = 0
        for _ in range(25):
            with nc.control(model, controls[index]):
                for _ in range(10):
                    await asyncio.sleep(0)  # another task runs, inside a block of its own
                    with torch.no_grad():
                        right += torch.equal(model(x), expected[index])
        return right

    async def main():
        return await asyncio.gather(*[work(index) for index in range(4)])

    assert asyncio.run(main()) == [250] * 4


def test_a_control_does_not_reach_another_thread(model):
    x = torch.randn(2, 6)
    with ThreadPoolExecutor(1) as pool, nc.control(model, CONTROLS[0]):
        with pytest.raises(ValueError, match="control must be given"):
            pool.submit(model, x).result()
        # unless the caller hands its context on, as asyncio.to_thread does
        there = pool.submit(contextvars.copy_context().run, model, x).result()
        assert torch.equal(there, model(x))


def test_asyncio_to_thread_hands_the_control_on(model):
    x = torch.randn(2, 6)

    async def main():
        with nc.control(model, CONTROLS[1]):
            return await asyncio.to_thread(model, x)

    assert torch.equal(asyncio.run(main()), steered(model, x, CONTROLS[1]))


def test_blocks_that_end_in_another_order_leave_no_control_behind(model):
    """The first thread's block ends while the second's is open, and the other way round."""
    x = torch.randn(2, 6)
    opened, closed = threading.Event(), threading.Event()

    def second():
        with nc.control(model, CONTROLS[1]):
            opened.set()
            closed.wait(60)
            return model(x)

    with ThreadPoolExecutor(1) as pool:
        with nc.control(model, CONTROLS[0]):
            later = pool.submit(second)
            opened.wait(60)
        closed.set()
        assert torch.equal(later.result(), steered(model, x, CONTROLS[1]))
    with pytest.raises(ValueError, match="control must be given"):
        model(x)


@pytest.fixture
def layer():
    return nc.Linear(6, 4, program=small(steps=1)).eval()


def sizes(trace):
    """How many inputs each recorded call had."""
    return [len(programs.u) for programs in trace.calls("")]


def test_two_threads_record_their_own_calls(layer):
    step = threading.Barrier(2, timeout=60)

    def work(size):
        with torch.no_grad(), nc.record(layer) as trace:
            for _ in range(100):
                step.wait()
                layer(torch.ones(size, 6))
            step.wait()
        return sizes(trace)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (1, 2))) == [[1] * 100, [2] * 100]
    assert layer.recorded is None


def test_tasks_that_interleave_record_their_own_calls(layer):
    async def work(size):
        with nc.record(layer) as trace:
            for _ in range(10):
                await asyncio.sleep(0)  # another task runs, inside a block of its own
                layer(torch.ones(size, 6))
        return sizes(trace)

    async def main():
        return await asyncio.gather(*[work(size) for size in (1, 2, 3)])

    assert asyncio.run(main()) == [[1] * 10, [2] * 10, [3] * 10]
    assert layer.recorded is None


def test_calls_of_another_thread_are_not_recorded(layer):
    x = torch.ones(1, 6)
    with ThreadPoolExecutor(1) as pool, nc.record(layer) as trace:
        pool.submit(layer, x).result()
        assert sizes(trace) == []
        # unless the caller hands its context on, as asyncio.to_thread does
        context = contextvars.copy_context()
        pool.submit(context.run, layer, torch.ones(2, 6)).result()
    context.run(layer, x)  # the block has ended
    with nc.record(layer) as other:
        context.run(layer, x)
    assert (sizes(trace), sizes(other)) == ([2], [])


def test_a_task_records_in_the_blocks_that_are_open_where_it_was_started(layer):
    async def later(event):
        await event.wait()
        layer(torch.ones(2, 6))

    async def main():
        event = asyncio.Event()
        with nc.record(layer) as outer:
            with nc.record(layer) as inner:
                task = asyncio.create_task(later(event))
                layer(torch.ones(1, 6))
            event.set()
            await task
        return sizes(outer), sizes(inner)

    assert asyncio.run(main()) == ([1, 2], [1])


@pytest.mark.parametrize("build", [nc.Linear, nc.GrowingLinear])
def test_the_block_of_another_thread_may_end_during_a_call(build, monkeypatch):
    """Here it ends as soon as the layer has seen that it is open."""
    layer = build(6, 4).eval()
    block, seen = nc.record(layer), []
    block.__enter__()

    def look(layer):
        recorder = vars(layer)["recorded"]
        seen.append(recorder)
        if len(seen) == 1:
            block.__exit__(None, None, None)
        return recorder

    def put(layer, value):
        vars(layer)["recorded"] = value

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(build, "recorded", property(look, put), raising=False)
        layer(torch.ones(1, 6))
    assert seen[0] is not None
    assert layer.recorded is None


@pytest.fixture
def literal_calls(monkeypatch):
    """Who called the literal equations, which the backend "reference" alone does: a thread or a task for each input."""
    calls = []
    literal = reference.compose

    def spy(*args):
        try:
            calls.append(asyncio.current_task().get_name())
        except RuntimeError:  # no task runs here
            calls.append(threading.current_thread().name)
        return literal(*args)

    monkeypatch.setattr(reference, "compose", spy)
    return calls


NAMES = ["reference", "torch"]


def test_a_backend_holds_in_its_own_thread(literal_calls):
    layer, x = nc.Linear(6, 4, program=small()), torch.randn(1, 6)
    step = threading.Barrier(2, timeout=60)

    def work(name):
        threading.current_thread().name = name
        with torch.no_grad(), nc.backend(name):
            for _ in range(100):
                step.wait()
                layer(x)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, NAMES))
    assert literal_calls == ["reference"] * 100


def test_a_backend_holds_in_its_own_task(literal_calls):
    layer, x = nc.Linear(6, 4, program=small()), torch.randn(1, 6)

    async def work(name):
        with nc.backend(name):
            for _ in range(20):
                await asyncio.sleep(0)  # the other task runs, inside a block of its own
                layer(x)

    async def main():
        await asyncio.gather(*[asyncio.create_task(work(name), name=name) for name in NAMES])

    asyncio.run(main())
    assert literal_calls == ["reference"] * 20
