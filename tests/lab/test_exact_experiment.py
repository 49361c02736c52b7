"""The experiment of one pass: its learners and inputs. `test_smoke.py` runs it."""

import json
import lzma

import pytest
import torch

from neurocoder.lab.experiments.exact import sentences
from neurocoder.lab.experiments.exact.experiment import Exact, blurred, parts
from neurocoder.lab.experiments.exact.learners import LEARNERS, STORING, make, stored


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_learn_and_store_what_they_count(name):
    torch.manual_seed(0)
    y = torch.arange(5).repeat(60)
    x = 4 * torch.randn(5, 40)[y] + torch.randn(300, 40)
    value = 0.01 if name in ("replay", "derpp", "gdumb", "offline") else None
    learner = make(name, 40, 5, features=99, residual=False, value=value)
    if hasattr(learner, "basis"):
        learner.basis(x[:100])
    learner.observe(x, y)
    right = (learner(x).argmax(1) == y).double().mean()
    assert right > 0.9
    local = make("local", 40, 5, features=99, residual=False).numbers()["learn"]
    found = learner.numbers()
    assert 0 < found["answer"] <= found["learn"]
    if name in ("replay", "derpp", "gdumb", "1nn"):
        assert found["learn"] <= max(local, 5 * 46 + 11_782)


@pytest.mark.parametrize("name", STORING)
def test_a_number_of_stored_samples_may_be_given(name):
    learner = make(name, 4, 2, features=9, residual=False, samples=30)
    learner.observe(torch.randn(50, 4), torch.arange(50) % 2)
    weights = 5 * 256 + 257 * 2 if name in ("replay", "derpp") else 0
    assert learner.numbers()["learn"] == weights + 30 * (7 if name == "derpp" else 5)


def test_a_basis_counts_as_the_inputs_that_give_it_again():
    x = torch.randn(100, 4)
    learner = make("rbf", 4, 2, features=50, residual=False)
    learner.basis(x[:20])
    learner.observe(x, torch.arange(100) % 2)
    sums = 51 * 52 // 2 + 51 * 2
    assert learner.numbers()["learn"] - sums == pytest.approx(50 * 4, abs=3)  # counts of samples
    assert stored(learner, 20, 4)["learn"] == learner.numbers()["learn"] - 30 * 4
    assert stored(learner, 60, 4) == learner.numbers()


def test_learners_have_about_the_features_asked_for():
    for name, width in {"local": 99, "local16": 85, "rbf": 99, "relu": 99, "fourier": 99, "ridge": 40}.items():
        assert make(name, 40, 5, features=99, residual=False).width == width + 1


def test_keys_by_novelty_are_far_from_each_other():
    x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [3.0, 0.0], [0.0, 3.0], [3.1, 0.0], [9.0, 9.0]])
    learner = make("novel", 2, 2, features=4, residual=False, value=0.5)
    learner.basis(x)  # the median distance is 3.1
    learner.observe(x[:4], torch.tensor([0, 0, 1, 1]))
    assert learner.written == 3
    learner.observe(x[4:], torch.tensor([1, 0]))
    assert torch.equal(learner.layer.memory.keys, x[[0, 2, 3, 5]])
    use = learner.layer.programs(x).use
    assert use[[0, 2, 3, 5], range(4)].tolist() == pytest.approx([1, 1, 1, 1])
    assert learner(x).shape == (6, 2)


def test_a_variant_may_name_its_features():
    config = Exact.presets["best"]
    assert parts("mnist-local-500") == ("mnist", "local", 500)
    assert parts("clinc150-1nn-all") == ("clinc150", "1nn-all", None)
    assert {"mnist-randumb-250", "banking77-gdumb", "mnist-1nn-4000"} <= set(Exact().variants(config))


def test_sentences_are_read_and_encoded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    monkeypatch.setenv("NEUROCODER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NEUROCODER_SENTENCES", str(tmp_path / "encoder"))
    with pytest.raises(FileNotFoundError, match=r"give a folder with banking77\.json\.xz by --data-root"):
        sentences.prepare("banking77")
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"weights")
    train = [[f"text {index}", f"intent {index % 3}"] for index in range(20)]
    with lzma.open(tmp_path / "banking77.json.xz", "wt", encoding="utf8") as file:
        json.dump({"train": train, "test": train[:4]}, file)
    calls = []

    def encode(texts, folder, device, progress):
        calls.append(len(texts))
        return torch.tensor([float(text.split()[1]) for text in texts]).unsqueeze(1).repeat(1, sentences.WIDTH)

    monkeypatch.setattr(sentences, "encode", encode)
    for _ in range(2):
        (x, y), (x_test, y_test) = sentences.features("banking77", "cpu", validation=False)
        assert x[:, 0].tolist() == list(range(20))
        assert y.tolist() == [index % 3 for index in range(20)]
        assert (x_test[:, 0].tolist(), y_test.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 0])
    assert calls == [20, 4]
    (x, _), (held_out, _) = sentences.features("banking77", "cpu", validation=True)
    assert (len(x), held_out[:, 0].tolist()) == (18, [0, 10])


def test_blurred_images_are_centred_and_of_unit_length():
    z = blurred(torch.randn(3, 1024))
    torch.testing.assert_close(z.sum(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))
