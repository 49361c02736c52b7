"""The networks of object recognition: sizes next to the paper's, shapes, and memory-efficient DenseNet."""

from itertools import combinations
from statistics import fmean

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import neurocoder as nc
from neurocoder.lab.experiments.images.densenet import DenseNet
from neurocoder.lab.experiments.images.models import (
    DATASETS,
    DENSE,
    MODELS,
    build_model,
    build_network,
    parse,
    variants,
)
from neurocoder.lab.networks import LeNet
from neurocoder.lab.report.build import paper_numbers

PAPER = paper_numbers()["images"]["parameters"]


def test_variants_name_data_set_network_and_model():
    assert parse("cifar100-lenet-neurocoder-middle") == ("cifar100", "lenet", "neurocoder-middle")
    assert parse("cifar100-lenet-neurocoder-middle").classes == 100
    assert "cifar10-densenet-neurocoder-middle" not in variants()  # it has one dense layer
    with pytest.raises(ValueError, match=r"variant must be DATASET-NETWORK-MODEL such as cifar10-mlp-original, got"):
        parse("cifar10-mlp")


SIZES = {
    # 3072-512-256-10; 5x5 convolutions of 64 and 128 and 3200-512-256-10; depth 100, growth 12
    "mlp-original": 1_707_274,
    "lenet-original": 4_864 + 204_928 + 1_638_912 + 131_328 + 2_570,
    "densenet-original": 6_979_642,
    "mlp-mixture": 1_707_274 + 9 * 3072 * 512 + 2 * 10 * 3072,
    "mlp-stored-program": 17_088_946,
    "lenet-mixture": 16_792_202,
    "lenet-stored-program": 17_954_866,
    "densenet-mixture": 7_108_122,
    "densenet-stored-program": 7_091_826,
    "mlp-neurocoder": 2_005_146,
    "mlp-neurocoder-middle": 1_754_224,
    "lenet-neurocoder": 2_003_534,
    "lenet-neurocoder-dense": 2_289_178,
    "densenet-neurocoder": 7_062_590,
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name):
    with torch.device("meta"):
        assert nc.count_parameters(build_model(parse(f"cifar10-{name}")))["total"] == SIZES[name]


@pytest.mark.parametrize(
    ("network", "model", "off"),
    [
        ("mlp", "original", 0.02),
        ("lenet", "original", 0.06),
        ("densenet", "original", 0.01),
        ("mlp", "neurocoder", 0.07),
        ("lenet", "neurocoder-dense", 0.01),
        ("densenet", "neurocoder", 0.03),
        ("mlp", "mixture", 0.04),
        ("mlp", "stored-program", 0.19),
        ("lenet", "stored-program", 0.34),
    ],
)
def test_how_far_the_counts_are_from_table_6(network, model, off):
    names = {"mixture": "moe", "stored-program": "nsm", "neurocoder-dense": "neurocoder"}
    with torch.device("meta"):
        built = [build_model(parse(f"{dataset}-{network}-{model}")) for dataset in DATASETS]
    total = fmean(nc.count_parameters(one)["total"] for one in built)
    assert total == pytest.approx(PAPER[network][names.get(model, model)], rel=off)


@pytest.mark.parametrize("network", ["mlp", "lenet", "densenet"])
@pytest.mark.parametrize(("model", "name"), [("mixture", "moe"), ("stored-program", "nsm")])
def test_baselines_replace_the_dense_layers_that_come_nearest_to_table_6(network, model, name):
    with torch.device("meta"):
        built = [build_network(network, classes, 100, False) for classes in DATASETS.values()]
    counts = {
        layers: fmean(nc.plan(one, list(layers), MODELS[model].config).total_after for one in built)
        for size in range(1, len(DENSE[network]) + 1)
        for layers in combinations(DENSE[network], size)
    }
    nearest = min(counts, key=lambda layers: abs(counts[layers] - PAPER[network][name]))
    assert nearest == tuple(MODELS[model].targets[network])


@pytest.mark.parametrize("name", [name for name in variants() if name.startswith("cifar10-lenet")])
def test_every_model_classifies_and_gets_gradients(name):
    model = build_model(parse(name), depth=10)
    loss = model(torch.randn(2, 3, 32, 32)).square().mean() + nc.auxiliary_loss(model)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    "name", ["densenet-neurocoder-conv", "densenet-neurocoder", "mlp-neurocoder-steered", "mlp-neurocoder-constant"]
)
def test_models_of_a_seed_start_as_the_original(name):
    x, outputs = torch.randn(4, 3, 32, 32), []
    for model in (name, f"{name.split('-')[0]}-original"):
        torch.manual_seed(3)
        outputs.append(build_model(parse(f"cifar10-{model}"), depth=10).eval()(x).detach())
    torch.testing.assert_close(*outputs, rtol=0.05, atol=0.05 * float(outputs[1].abs().max()))


def test_the_steering_image_changes_the_programs():
    model = build_model(parse("cifar10-mlp-neurocoder-steered"), depth=10)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    x = torch.randn(2, 3, 32, 32)
    with nc.record(model) as trace:
        model(x)
    z = torch.stack(
        [x[:, :, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].mean((2, 3)) for i in range(8) for j in range(8)], -1
    )
    expected = model.network[5].programs(torch.randn(2, 256), control=z.flatten(1))
    torch.testing.assert_close(trace["network.5"].u, expected.u)


def test_the_constant_control_composes_one_program_for_all_images():
    programs = {}
    for name in ("neurocoder", "neurocoder-constant"):
        torch.manual_seed(0)
        model = build_model(parse(f"cifar10-lenet-{name}"), depth=10)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
        with nc.record(model) as trace:
            model(torch.randn(4, 3, 32, 32))
        (programs[name],) = (trace[layer].u for layer in trace)
    torch.testing.assert_close(
        programs["neurocoder-constant"][1:], programs["neurocoder-constant"][:1].expand(3, -1, -1)
    )
    assert (programs["neurocoder"][1:] - programs["neurocoder"][:1]).abs().max() > 1e-4


def test_baselines_start_from_ten_different_weights():
    for name in ("mixture", "stored-program"):
        bank = build_model(parse(f"cifar10-lenet-{name}"), depth=10).dense[0].bank
        assert torch.corrcoef(bank.flatten(1)[:2])[0, 1].abs() < 0.1


def test_densenet_reads_all_that_came_before():
    model = DenseNet(7, depth=13, growth=4).eval()  # three layers a block
    assert [layer.convolution.in_channels for layer in model.blocks[1]] == [28, 32, 36]
    x = torch.randn(2, 3, 32, 32)
    features = model.first(x)
    for index, block in enumerate(model.blocks):
        for layer in block:
            norm = torch.nn.functional.batch_norm(
                features, layer.norm.running_mean, layer.norm.running_var, layer.norm.weight, layer.norm.bias
            )
            features = torch.cat([features, layer.convolution(norm.clamp(min=0))], 1)
        if index < 2:
            transition = model.transitions[index]
            features = transition.convolution(transition.norm(features))
            features = features.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
            assert features.shape == (2, 16 + 12 * (index + 1), 16 // (index + 1), 16 // (index + 1))
    expected = model.classifier(model.norm(features).mean((2, 3)))
    torch.testing.assert_close(model(x), expected)
    assert model(x).shape == (2, 7)
    with pytest.raises(ValueError, match=r"depth must be 7, 10, 13, ..., got 12"):
        DenseNet(10, depth=12)


def test_checkpointing_changes_neither_values_nor_gradients_nor_statistics():
    plain, efficient = DenseNet(10, depth=25), DenseNet(10, depth=25, checkpointing=True)
    efficient.load_state_dict(plain.state_dict())
    saved = []
    for model in (plain, efficient):
        count = 0

        def pack(tensor):
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(torch.ones(2, 3, 32, 32).cumsum(2).cumsum(3) / 500)
        saved.append(count)
        out.square().sum().backward()
    assert saved[1] < 0.5 * saved[0]
    for first, second in zip(plain.parameters(), efficient.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)
    for (name, first), second in zip(plain.named_buffers(), efficient.buffers(), strict=True):
        assert torch.equal(first, second), name


class Additions(TorchDispatchMode):
    """Counts the additions of tensors: in a backward, gradients of what several operations read."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.add.Tensor
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("width", [4, 8])
def test_the_backward_of_densenet_adds_one_gradient_for_each_layer(width):
    """Not one for each pair of layers: on a GPU these are many small kernels over twelve channels each."""
    loss = DenseNet(10, depth=4 + 3 * width)(torch.randn(2, 3, 32, 32)).sum()
    with Additions() as seen:
        loss.backward()
    assert seen.count == 3 * width


def test_lenet_takes_channels_last_images():
    model, x = LeNet(10), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), model(x))
