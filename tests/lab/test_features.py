"""ResNet-18 and the cached features of CIFAR images, with random weights and tiny data."""

import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import conv2d, interpolate, max_pool2d

from neurocoder.lab.data import cifar
from neurocoder.lab.experiments.split import features, resnet


def random_state():
    """A ResNet-18 with torchvision's names and a random start; statistics as after training."""
    torch.manual_seed(0)
    state = resnet.ResNet18().state_dict()
    for name, tensor in state.items():
        if "bn" in name or "downsample.1" in name:
            state[name] = torch.rand(tensor.shape) + 0.5 if tensor.is_floating_point() else tensor
    return state | {"fc.weight": torch.randn(1000, 512), "fc.bias": torch.randn(1000)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(random_state(), file)
    return file


@pytest.fixture
def data(monkeypatch, tmp_path):
    """20 test images of CIFAR-10, and an empty cache."""
    monkeypatch.setattr(cifar, "TEST", 20)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    monkeypatch.setenv("NEUROCODER_CACHE", str(tmp_path / "cache"))
    records = np.random.default_rng(0).integers(0, 256, (20, 3073), np.uint8)
    records[:, 0] = np.arange(20) % 10
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    return torch.from_numpy(records[:, 1:]).view(20, 3, 32, 32)


def norm(x, state, name):
    """Batch normalisation as the formula says."""
    weight, bias, mean, var = (
        state[f"{name}.{part}"].view(-1, 1, 1) for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def literal(x, state):
    """ResNet-18 from its table of layers (He et al., 2016), in plain formulas."""
    x = norm(conv2d(x, state["conv1.weight"], stride=2, padding=3), state, "bn1").clamp(min=0)
    x = max_pool2d(x, 3, 2, 1)
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = norm(conv2d(x, state[f"{at}.conv1.weight"], stride=stride, padding=1), state, f"{at}.bn1").clamp(min=0)
            y = norm(conv2d(y, state[f"{at}.conv2.weight"], padding=1), state, f"{at}.bn2")
            if stride == 2:
                x = norm(conv2d(x, state[f"{at}.downsample.0.weight"], stride=2), state, f"{at}.downsample.1")
            x = (x + y).clamp(min=0)
    return x.flatten(2).sum(2) / x[0, 0].numel()


@pytest.mark.parametrize("size", [32, 47, 64])
def test_resnet18_is_its_table_of_layers(weights, size):
    network, state = resnet.load(weights), load_file(weights)
    x = torch.randn(2, 3, size, size)
    expected = literal(x, state)
    assert expected.shape == (2, 512)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_a_block_computed_by_hand():
    block = resnet.BasicBlock(1, 1, 1).eval()
    state = {name: torch.zeros_like(tensor) for name, tensor in block.state_dict().items()}
    state["conv1.weight"][0, 0, 1, 1] = 2.0  # the centre: twice the pixel
    state["conv2.weight"][0, 0, 1, 0] = 1.0  # the left neighbour
    for name in ("bn1", "bn2"):
        state[f"{name}.weight"] += 1.0
        state[f"{name}.running_var"] += 1.0 - 1e-5
    state["bn1.running_mean"] += 3.0
    state["bn2.bias"] -= 4.0
    block.load_state_dict(state)
    # relu(2x - 3) is 0 1 5; its left neighbours less 4: -4 -4 -3; plus x, no less than 0
    torch.testing.assert_close(block(torch.tensor([[[[1.0, 2.0, 4.0]]]])), torch.tensor([[[[0.0, 0.0, 1.0]]]]))


def test_resnet18_has_the_published_number_of_parameters(weights):
    network = resnet.load(weights)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == 11_176_512
    assert count + 512 * 1000 + 1000 == 11_689_512
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("kind", ["half", "pth", "without fc and counts"])
def test_every_form_of_weights_loads(tmp_path, weights, kind):
    state = load_file(weights)
    file = tmp_path / ("weights.pth" if kind == "pth" else "weights.safetensors")
    if kind == "pth":
        torch.save(state, file)
    elif kind == "half":
        save_file({name: tensor.half() if tensor.ndim == 4 else tensor for name, tensor in state.items()}, file)
    else:
        save_file({n: t for n, t in state.items() if "num_batches" not in n and not n.startswith("fc.")}, file)
    generator = torch.get_rng_state()
    loaded = resnet.load(file).state_dict()
    assert torch.equal(torch.get_rng_state(), generator)
    for name, tensor in resnet.load(weights).state_dict().items():
        assert loaded[name].dtype == tensor.dtype
        torch.testing.assert_close(loaded[name], tensor, rtol=1e-3 if kind == "half" else 0, atol=1e-7)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layer4.1.bn2.bias"), "torchvision's names, but it lacks layer4.1.bn2.bias"),
        (lambda s: s.update(extra=torch.zeros(1)), "torchvision's names, but it has extra$"),
        (lambda s: s.update({"bn1.bias": torch.zeros(3)}), r"has bn1.bias as torch.float32 \(3,\), not float \(64,\)"),
        (lambda s: s.update({"bn1.bias": torch.zeros(64).long()}), r"has bn1.bias as torch.int64 \(64,\), not float"),
        (lambda s: s.update(step=3), "must hold tensors by name"),
        (lambda s: s.update(extra=Harmful()), "holds more than tensors, which is never loaded"),
    ],
)
def test_other_weights_are_refused(tmp_path, monkeypatch, weights, change, message):
    monkeypatch.chdir(tmp_path)
    state = load_file(weights)
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=message):
        resnet.load(tmp_path / "weights.pth")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04"])
def test_damaged_weights_are_refused(tmp_path, suffix, content):
    (tmp_path / f"weights.{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=r"weights.* is damaged, or holds more than tensors"):
        resnet.load(tmp_path / f"weights.{suffix}")


def test_missing_weights_say_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there are no ResNet-18 weights at .*the file that torchvision"):
        resnet.load(tmp_path / "weights.pth")
    (tmp_path / "weights.txt").write_text("")
    with pytest.raises(ValueError, match=r"must be a .safetensors or .pth file, got .*weights.txt"):
        resnet.load(tmp_path / "weights.txt")


@pytest.mark.parametrize("size", [32, 48])
def test_features_are_those_of_normalised_images(data, weights, size):
    x, y = features.features("cifar10", False, size, weights, "cpu")
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = interpolate((data / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1), size=(size, size), mode="bilinear")
    expected = literal(images, load_file(weights))
    assert x.dtype == torch.float32
    assert y.tolist() == [i % 10 for i in range(20)]
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    (x * torch.ones(512, requires_grad=True)).sum().backward()  # usable in training


def test_features_do_not_depend_on_the_batches(data, weights):
    network, seen = resnet.load(weights), []
    many = data.repeat(4, 1, 1, 1)
    x = features.extract(network, many, 66, lambda *counts: seen.append(counts))
    assert seen == [(64, 80), (80, 80)]
    torch.testing.assert_close(x[60:], x[:20])


def test_features_are_computed_once(data, weights, tmp_path, monkeypatch):
    seen = []

    def compute(size=32, backbone=weights):
        seen.clear()
        x, _ = features.features("cifar10", False, size, backbone, "cpu", lambda *counts: seen.append(counts))
        return x

    first = compute()
    assert seen == [(20, 20)]
    (file,) = (tmp_path / "cache" / "features").iterdir()
    assert file.name.startswith("cifar10-test-32px-")
    assert torch.equal(compute(), first)
    assert seen == []
    # Another size, other weights and other images have files of their own.
    assert compute(size=40).shape == first.shape
    assert seen
    state = load_file(weights)
    save_file(state | {"bn1.bias": state["bn1.bias"] + 1}, tmp_path / "other.safetensors")
    assert not torch.equal(compute(backbone=tmp_path / "other.safetensors"), first)
    assert seen
    (tmp_path / "moved").mkdir()
    content = (tmp_path / "test_batch.bin").read_bytes()
    (tmp_path / "moved" / "test_batch.bin").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "moved"))
    compute()
    assert seen
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 4


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-4], lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda _: b"", lambda c: c[:8] + b"x" + c[9:]]
)
def test_a_damaged_cache_is_computed_again(data, weights, tmp_path, damage):
    first, _ = features.features("cifar10", False, 32, weights, "cpu")
    (file,) = (tmp_path / "cache" / "features").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=f"{file.name} is damaged .*computed again"):
        again, _ = features.features("cifar10", False, 32, weights, "cpu")
    assert torch.equal(again, first)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_obstacle(data, weights, tmp_path):
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.warns(UserWarning, match=r"cannot be written: .*not kept for the next run \(NEUROCODER_CACHE\)"):
        x, _ = features.features("cifar10", False, 32, weights, "cpu")
    assert x.shape == (20, 512)


def test_the_cache_is_in_the_home_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("NEUROCODER_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert features.cache_folder() == tmp_path / ".cache" / "neurocoder"


def test_wrong_requests_are_refused(data, weights, tmp_path):
    with pytest.raises(ValueError, match="size must be at least 32 pixels, got 16"):
        features.features("cifar10", False, 16, weights, "cpu")
    features.features("cifar10", False, 32, weights, "cpu")
    with pytest.raises(FileNotFoundError, match=r"there are no ResNet-18 weights at .*gone"):
        features.features("cifar10", False, 32, tmp_path / "gone.safetensors", "cpu")


def test_standardised_features():
    torch.manual_seed(0)
    train, test = torch.randn(50, 3) * 4 + 2, torch.randn(7, 3)
    train[:, 1], test[0, 1] = 0.1, 5.1
    x, other = features.standardised(train, test)
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(other[0, 1], torch.tensor(5.0))  # constant in training: centred only
    torch.testing.assert_close(other[:, 0], (test[:, 0] - train[:, 0].mean()) / train[:, 0].std(correction=0))
