"""Augmentation, batches, splits, and what is read when."""

import numpy as np
import pytest
import torch
from PIL import Image

from neurocoder.lab.data import cifar
from neurocoder.lab.experiments.images import data as images_data
from neurocoder.lab.experiments.images.augmentation import PAD, Draws, identity, normalised, pictures, redraw
from neurocoder.lab.experiments.images.data import ImageStream, Labelled, division, load, read_folder
from neurocoder.lab.experiments.images.experiment import Images, ImagesConfig, training_data
from neurocoder.lab.experiments.images.models import parse

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget():
    images_data._load.cache_clear()
    yield
    images_data._load.cache_clear()


def one_by_one(image, top, left, mirrored):
    """Pad, cut, mirror: pixel by pixel."""
    height, width, _ = image.shape
    padded = np.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            out[y, width - 1 - x if mirrored else x] = padded[top + y, left + x]
    return out


def test_pictures_are_those_of_a_loop_over_pixels():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (7, 9, 12, 3), dtype=torch.uint8, generator=generator)
    rows = torch.tensor([3, 0, 6, 3, 5, 1, 2, 4] * 5)
    draws = identity((40,), CPU)
    redraw(draws, "reflect", generator)
    assert {(0, 8), (8, 0)} <= {(int(a), int(b)) for a in draws.top for b in draws.left}  # the extremes occur
    found = pictures(images, rows, draws)
    for row, picture, *draw in zip(rows, found, *draws, strict=True):
        np.testing.assert_array_equal(picture.numpy(), one_by_one(images[row].numpy(), *map(int, draw)))


@pytest.mark.parametrize(("kind", "tops", "flips"), [("none", 1, 1), ("flip", 1, 2), ("reflect", 9, 2)])
def test_draws_by_kind(kind, tops, flips):
    draws = identity((500,), CPU)
    before = [tensor.data_ptr() for tensor in draws]
    redraw(draws, kind, torch.Generator().manual_seed(0))
    assert [tensor.data_ptr() for tensor in draws] == before
    assert (len(draws.top.unique()), len(draws.left.unique()), len(draws.mirrored.unique())) == (tops, tops, flips)
    assert draws.top.double().mean() == pytest.approx(PAD, abs=0.5)
    images = torch.randint(0, 256, (500, 8, 8, 3), dtype=torch.uint8)
    if kind == "none":
        assert torch.equal(pictures(images, torch.arange(500), draws), images)


def test_normalised_images_are_channels_last():
    pixels = torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8)
    found = normalised(pixels, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0]))
    assert found.shape == (2, 3, 4, 5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found[1, 2, 3, 4].item() == pytest.approx((pixels[1, 3, 4, 2].item() / 255 - 0.3) / 2)


def numbered(count):
    """Images that show their own number in every pixel."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 32, 32, 3).contiguous()
    return Labelled(images, torch.arange(count), torch.zeros(3), torch.full((3,), 1 / 255))


def test_a_block_is_an_epoch_of_seed_and_number():
    stream = ImageStream(numbered(10), 3, 4, "reflect")
    places = [tensor.data_ptr() for tensor in (stream.order, *stream.draws)]

    def block(number, stream=stream):
        stream.fill(number)
        batches = [stream.batch(torch.tensor(step)) for step in range(stream.steps)]
        for x, y in batches:
            assert torch.equal(x[:, 0, 16, 16].round().long(), y)  # the middle is never cut off
        return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]).tolist()

    (x, first), (_, second) = block(0), block(1)
    assert stream.steps == 3  # the tenth image is left out
    assert len(set(first)) == len(set(second)) == 9
    assert first != second
    again = block(0, ImageStream(numbered(10), 3, 4, "reflect"))
    assert torch.equal(again[0], x)
    assert block(0, ImageStream(numbered(10), 3, 5, "reflect"))[1] != first
    assert [tensor.data_ptr() for tensor in (stream.order, *stream.draws)] == places
    stream.fill(0)
    expected = pictures(stream.data.images, stream.order[1], Draws(*(tensor[1] for tensor in stream.draws)))
    assert torch.equal(x[3:6].round().byte(), expected.permute(0, 3, 1, 2))


def test_without_augmentation_images_stay_as_they_are():
    stream = ImageStream(numbered(4), 2, 0, "none")
    stream.fill(0)
    x, y = stream.batch(torch.tensor(1))
    torch.testing.assert_close(x, y.float().view(2, 1, 1, 1).expand_as(x))


def test_the_division_of_cifar():
    kept, held_out = division(50_000)
    assert (len(kept), len(held_out)) == (45_000, 5_000)
    assert torch.cat([kept, held_out]).unique().tolist() == list(range(50_000))
    assert held_out.tolist() == division(50_000)[1].tolist()
    assert held_out.tolist() != sorted(held_out.tolist())


def test_validation_holds_out_images(monkeypatch):
    monkeypatch.setattr(images_data, "load", None)
    config = ImagesConfig(validation=True, source="synthetic", train_images=200)
    train, validation = training_data(config, parse("cifar10-mlp-original"), CPU)
    assert (len(train.labels), len(validation.labels)) == (200, 100)
    seen = {bytes(image.numpy().tobytes()) for image in train.images}
    assert not seen & {bytes(image.numpy().tobytes()) for image in validation.images}
    with pytest.raises(ValueError, match="train_images must be at most 900, got 901"):
        training_data(
            ImagesConfig(validation=True, source="synthetic", train_images=901), parse("cifar10-mlp-original"), CPU
        )


def test_a_missing_data_set_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"there is no CIFAR-10 in {tmp_path}.*cifar-10-batches-bin"):
        Images().build(ImagesConfig(), "cifar10-mlp-original", 0, CPU)


def test_images_are_bytes_with_channels_last(monkeypatch, tmp_path):
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    monkeypatch.setattr(cifar, "folder", lambda name: tmp_path / name)
    monkeypatch.setattr(cifar, "load", lambda name, train: cifar.Images(images + train, torch.arange(20)))
    data = load("cifar10", "cifar", True, CPU)
    assert data.images.is_contiguous()
    assert torch.equal(data.images.permute(0, 3, 1, 2), images + 1)
    assert load("cifar10", "cifar", True, CPU) is data
    assert torch.equal(load("cifar10", "cifar", False, CPU).images[0, 1, 2], images[0, :, 1, 2])


def test_folders_of_ones_own(tmp_path):
    for place, (name, colour) in enumerate({"cat": (255, 0, 0), "dog": (0, 51, 0)}.items()):
        (tmp_path / name).mkdir()
        for number in range(place + 1):
            Image.new("RGB", (40, 30), colour).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data, classes = read_folder(tmp_path)
    assert classes == ["cat", "dog"]
    assert data.labels.tolist() == [0, 1, 1]
    assert data.images.shape == (3, 32, 32, 3)
    assert data.images[1, 5, 5].tolist() == [0, 51, 0]
    torch.testing.assert_close(data.mean, torch.tensor([1 / 3, 2 / 15, 0.0]))
    with pytest.raises(FileNotFoundError, match="path must be a folder with a folder of images for each class, got"):
        read_folder(tmp_path / "cat")
