"""Growing models in continual learning: keys, nearest keys, the map of slots, permuted pixels."""

import base64
import json
from types import SimpleNamespace

import pytest
import torch

import neurocoder as nc
from neurocoder.lab import continual as cl
from neurocoder.lab.cli import main
from neurocoder.lab.experiments.split.data import permuted
from neurocoder.lab.experiments.split.experiment import SplitConfig
from neurocoder.lab.experiments.split.growing import PIXELS, Growing, erased, nearest_keys, slot_map
from neurocoder.lab.experiments.split.models import build_growing
from neurocoder.lab.experiments.split.report import erased_table, memory_plots

MEMORY = nc.GrowingConfig(slots=8, residual=False, top_k=1)


def test_a_growing_layer_writes_slots_and_learns_two_tasks(tmp_path):
    words = ["run", "split", "--preset", "smoke", "--samples", "512", "--writes", "1", "--slots", "100"]
    assert main([*words, "--variants", "mnist-domain-adagrad-growing", "--output", str(tmp_path)]) == 0
    found = json.loads(next(tmp_path.glob("split/smoke/*/seed*.json")).read_text())
    assert found["metrics"]["learned"] > 65
    assert found["model"]["heads.0"]["rank"] == 4
    assert sum(found["observations"]["slot_map"]["written"]) == 20  # four steps in each of five tasks
    assert 60 < found["metrics"]["nearest_key"] <= 100


def test_nearest_keys_by_hand():
    x = torch.eye(4)
    model = Growing(4, 2, None, nc.GrowingConfig(slots=8, residual=False), "features")
    memory = model.heads[0].memory
    memory.keys[:3] = x[:3]
    memory.written.fill_(3)
    train, test = (x, torch.tensor([0, 1, 0, 1])), (3 * x[:3], torch.tensor([0, 1, 1]))
    assert nearest_keys(model, [cl.Task(train, test)]) == pytest.approx(200 / 3)  # the keys have labels 0, 1, 0


def test_accuracy_after_erasing_slots_by_hand():
    """The third slot, least visited, is nearest to the second, which has another label."""
    keys = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.8, 0.6, 0.0]])
    model = Growing(4, 2, None, nc.GrowingConfig(slots=8, rank=1, residual=False), "features")
    memory, labels = model.memory(None), torch.tensor([0, 1, 0])
    with torch.no_grad():
        memory.keys[:3], memory.U[:3, 0] = keys, keys
        memory.V[:3, 0] = torch.eye(2)[labels]
    memory.visits[:3] = torch.tensor([3.0, 2.0, 1.0])
    memory.written.fill_(3)
    task = cl.Task((keys, labels), (keys, labels))
    two_thirds = pytest.approx(200 / 3, abs=1e-3)
    expected = [100.0, two_thirds, two_thirds, two_thirds]
    assert erased(model, [task]) == {"merged": expected, "dropped": expected}
    assert int(memory.written) == 3
    memory.visits[:3] = 0.0  # of equal ones the first stay
    assert erased(model, [task]) == {"merged": expected, "dropped": expected}
    records = [SimpleNamespace(variant="mnist-domain-adagrad-growing", seed=seed) for seed in (0, 1)]
    for seed, record in enumerate(records):
        record.metrics = {"average_accuracy": 90.0 + seed}
        record.observations = {"erased": {"merged": [80.0, 70.0, 60.0, 50.0], "dropped": [8.0, 7.0, 6.0, 5.0]}}
    (table,) = erased_table(records)
    assert table.headings[3:] == ["all slots", "75%", "50%", "25%", "10%"]
    assert [row[2] for row in table.rows] == ["merged", "dropped"]
    assert [cell.values for cell in table.rows[1][3:]] == [[90.0, 91.0], [8.0] * 2, [7.0] * 2, [6.0] * 2, [5.0] * 2]
    assert erased_table([SimpleNamespace(variant="mnist-domain-adam-mlp", seed=0, observations={})]) == []


def test_the_map_of_slots_by_hand():
    x = torch.eye(4)
    model = Growing(4, 2, None, MEMORY, "features")
    memory = model.memory(None)
    memory.keys[:3] = x[:3]
    memory.born[:3] = torch.tensor([0, 1, 3])
    memory.written.fill_(3)
    tasks = [
        cl.Task((x, torch.tensor([0, 1, 0, 1])), (x[rows], torch.zeros(len(rows), dtype=torch.long)))
        for rows in ([0, 1], [2, 2, 2, 0])
    ]
    found = slot_map(model, tasks, steps=[2, 2])  # steps 0 and 1 wrote two slots, step 3 the third
    assert found == {"written": [2, 1], "use": [[0.5, 0.5, 0.0], [0.25, 0.0, 0.75]], "width": 1, "keys": []}


def test_each_head_has_slots_of_its_own_in_the_map():
    x = torch.eye(4)
    model = Growing(4, 2, 2, MEMORY, "features")
    for head, rows in enumerate(([0, 1], [2])):
        memory = model.memory(head)
        memory.keys[: len(rows)] = x[rows]
        memory.written.fill_(len(rows))
    tasks = [
        cl.Task((x, torch.tensor([0, 1, 0, 1])), (x[rows], torch.zeros(len(rows), dtype=torch.long)), head)
        for head, rows in enumerate(([1], [2]))
    ]
    found = slot_map(model, tasks, steps=[5, 5])
    assert found["written"] == [2, 1]
    assert found["use"] == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_keys_of_images_are_kept_as_images():
    model = Growing(1024, 2, None, MEMORY)
    image = torch.zeros(32, 32)
    image[:16] = 1
    memory = model.memory(None)
    memory.keys[0] = (image - image.mean()).flatten()
    memory.written.fill_(1)
    task = cl.Task((image.view(1, -1), torch.tensor([0])), (image.view(1, -1), torch.tensor([0])))
    (key,) = slot_map(model, [task], steps=[1])["keys"][0]
    half = PIXELS * PIXELS // 2
    assert base64.b64decode(key) == bytes([255] * half + [0] * half)


def test_shorter_keys_are_smaller_images_or_projections():
    x = torch.rand(3, 1024)
    z = Growing(1024, 2, None, MEMORY, key_dim=256).control(x)
    assert z.shape == (3, 256)
    torch.testing.assert_close(z.mean(1), torch.zeros(3), atol=1e-6, rtol=0)
    assert Growing(512, 2, None, MEMORY, "features", 64).control(torch.rand(3, 512)).shape == (3, 64)
    with pytest.raises(ValueError, match="key_dim must be a square number"):
        Growing(1024, 2, None, MEMORY, key_dim=200)


def test_the_small_model_is_no_larger_than_the_papers_stored_programs():
    for outputs, heads in ((2, 5), (2, None), (10, None)):
        model = build_growing("growing-small", 1024, outputs, heads, SplitConfig())
        assert nc.count_parameters(model)["total"] <= 2_300_000


def test_options_change_the_size_of_the_memory():
    model = build_growing("growing", 1024, 2, 5, SplitConfig(slots=100, rank=2, key_dim=64, max_similarity=0.7))
    config = model.memory(0).config
    assert (config.slots, config.rank, config.max_similarity, model.memory(0).keys.shape[1]) == (20, 2, 0.7, 64)


@pytest.mark.parametrize(
    ("scenario", "head", "labels", "width"),
    [("task", 1, [0, 1], 10), ("domain", None, [0, 1], 10), ("class", None, [10, 11], 20)],
)
def test_permuted_tasks_have_one_order_of_pixels_each(scenario, head, labels, width):
    train, test = ((torch.arange(12.0).view(2, 6), torch.tensor([0, 1])) for _ in range(2))
    first, second = permuted(train, test, 2, scenario)
    assert torch.equal(first.train[0], train[0])
    order = second.train[0][0].long()
    assert sorted(order.tolist()) == list(range(6))
    assert order.tolist() != list(range(6))
    assert torch.equal(second.train[0], train[0][:, order])
    assert torch.equal(second.test[0], second.train[0])
    assert torch.equal(permuted(train, test, 2, scenario)[1].train[0], second.train[0])
    assert (second.head, second.train[1].tolist(), second.width) == (head, labels, width)


def test_accuracy_is_drawn_against_memory_where_several_sizes_were_tried():
    def run(variant, slots, rank, accuracy, rate=1.0):
        metrics = {"average_accuracy": accuracy, "nearest_key": accuracy - 1}
        model = {"heads.0": {"slots": slots, "rank": rank}}
        parameters, config = {"total": 1000 * slots * rank}, {"rate": rate}
        return SimpleNamespace(variant=variant, model=model, parameters=parameters, metrics=metrics, config=config)

    growing = [run("mnist-domain-adagrad-growing", slots, rank, 90) for slots, rank in ((100, 1), (100, 4), (200, 4))]
    others = [run("mnist-domain-adagrad-mlp", 1, 1, 60), run("mnist-class-adagrad-growing", 100, 4, 80)]
    worse = [run("mnist-domain-adagrad-growing", 100, 4, 70, rate=2.0), run("mnist-domain-adam-growing", 100, 4, 50)]
    (plot,) = memory_plots([*growing, *growing, *others, *worse])
    (axis,) = plot.draw().axes
    assert axis.get_title() == "Split MNIST, domain"
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [[100_000], [400_000, 800_000]]
    assert [set(line.get_ydata()) for line in dots] == [{90}, {90}]
    assert memory_plots(growing[:2]) == []
