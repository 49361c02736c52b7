"""The exact layer against the equations as they are written, and what follows from them: order, merging, forgetting."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import neurocoder as nc
from neurocoder.exact import reference
from neurocoder.exact.config import FEATURES
from neurocoder.exact.solve import RIDGES
from ranks import run_both

EACH = pytest.mark.parametrize("features", FEATURES)


def make(features="local", outputs=3, control_dim=None, bias=True, **changes):
    """A layer with a fixed basis, and 60 samples: x, labels, and a control each if it is steered."""
    generator = torch.Generator().manual_seed(0)
    config = nc.ExactConfig(**({"features": features, "slots": 5, "rank": 2} | changes))
    layer = nc.ExactLinear(4, outputs, bias, config, control_dim=control_dim)
    x, z = torch.randn(60, 4, generator=generator), torch.randn(60, 3, generator=generator)
    first, control = torch.randn(40, 4, generator=generator), torch.randn(40, 3, generator=generator)
    layer.basis(first, control if control_dim else None)
    y = torch.randint(3, (60,), generator=generator)
    return layer, x, y, {"control": z} if control_dim else {}


def learned(*batches, **options):
    """A layer that observed these index sets of the samples, solved with a ridge of 1."""
    layer, x, y, _ = make(**options)
    for rows in batches:
        layer.observe(x[rows], y[rows])
    layer.solve(1.0)
    return layer


def gcv(phi, y, ridge):
    """`n |(I - H) y|² / tr(I - H)²` with the hat matrix H (N, N) built."""
    gram = phi.mT @ phi + ridge * torch.eye(phi.shape[1], dtype=phi.dtype)
    rest = torch.eye(len(phi), dtype=phi.dtype) - phi @ torch.linalg.solve(gram, phi.mT)
    return float(len(phi) * (rest @ y).square().sum() / rest.trace() ** 2)


def literal(layer, x, z):
    """phi (N, M) of each sample from the loops of `reference`, in float64."""
    basis = {name: tensor.double() for name, tensor in layer.memory.named_buffers()}
    rows = zip(x.double(), z.double(), strict=True)
    return torch.stack([reference.features(layer.config, basis, a, b, layer.has_constant) for a, b in rows])


def test_the_ridge_solution_is_that_of_least_squares():
    layer, x, y, _ = make()
    layer.observe(x, y)
    layer.solve(0.5)
    phi, M = literal(layer, x, x).numpy(), layer.width
    rows = np.concatenate([phi, np.sqrt(0.5) * np.eye(M)])  # no normal equations: the ridge as M more samples
    targets = np.concatenate([one_hot(y, 3).double().numpy(), np.zeros((M, 3))])
    expected = np.linalg.lstsq(rows, targets, rcond=None)[0]
    torch.testing.assert_close(layer.V.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_features_weights_and_answers_are_the_literal_ones(features, steered, bias):
    layer, x, y, given = make(features, control_dim=3 if steered else None, bias=bias)
    z = given.get("control", x)
    phi, target = literal(layer, x, z), one_hot(y, 3).double()
    torch.testing.assert_close(layer.features(x.double(), z.double()), phi)
    layer.observe(x, y, **given)
    solution = layer.solve(ridge=0.5)
    expected = reference.weights(phi, target, 0.5)
    torch.testing.assert_close(layer.V.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer(x, **given).double(), phi @ expected, rtol=1e-4, atol=1e-4)
    assert solution.error == pytest.approx(gcv(phi, target, 0.5), rel=1e-6)
    hat = phi @ torch.linalg.solve(phi.mT @ phi + 0.5 * torch.eye(phi.shape[1]), phi.mT)
    assert solution.freedom == pytest.approx(float(hat.trace()), rel=1e-6)


def test_cross_validation_takes_the_smallest_candidate_that_is_near_the_best():
    layer, x, _, _ = make(outputs=2)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.3 * torch.randn(60, 2)
    layer.observe(x, y)
    solution, phi = layer.solve(), literal(layer, x, x)
    top = torch.linalg.eigvalsh(phi.mT @ phi)[-1]
    scores = {float(r): gcv(phi, y.double(), float(r)) for r in top * torch.logspace(-12, 0, RIDGES).double()}
    near = [r for r, score in scores.items() if score <= 1.01 * min(scores.values()) and r >= 0.99e-10 * top]
    assert near[0] < min(scores, key=scores.get)
    assert solution.ridge == pytest.approx(near[0], rel=1e-3)
    assert solution.error == pytest.approx(scores[near[0]], rel=1e-4)


def test_wide_features_are_summed_in_blocks():
    layer, x, y, _ = make("rbf", slots=600, residual=False)
    c = torch.arange(60) % 4
    layer.observe(x, y, weight=c)
    phi = layer.features(x.double(), x.double())
    weighted = (phi * c.double().unsqueeze(1)).mT
    torch.testing.assert_close(layer.sum_G[0].triu(), (weighted @ phi).triu())
    layer.solve(0.5)
    gram = weighted @ phi + 0.5 * torch.eye(601).double()
    expected = torch.linalg.solve(gram, weighted @ one_hot(y, 3).double())
    torch.testing.assert_close(layer.V.double(), expected, rtol=1e-4, atol=1e-6)
    layer.forget(x[:30], y[:30], weight=c[:30])
    layer.solve(0.5)
    other = make("rbf", slots=600, residual=False)[0]
    other.observe(x[30:], y[30:], weight=c[30:])
    other.solve(0.5)
    torch.testing.assert_close(layer.V, other.V, rtol=0, atol=1e-6)


def test_an_eigenvalue_below_zero_is_seen_across_blocks():
    layer = nc.ExactLinear(300, 2, bias=False, exact=nc.ExactConfig(features="none"))
    x = torch.zeros(2, 300)
    x[0, 0] = x[1, 299] = 1
    layer.observe(x, [0, 0])
    with pytest.raises(ValueError, match="cannot all have been observed"):
        layer.forget(0.9 * x.sum(0, keepdim=True), [0])  # each block of G alone would stay positive


@EACH
def test_neither_order_nor_batches_matter(features):
    order = torch.randperm(60)
    once = learned(slice(None), features=features)
    torch.testing.assert_close(learned(*order.split(7), features=features).V, once.V, rtol=0, atol=1e-6)


@EACH
def test_forgetting_is_never_having_seen(features):
    layer, x, y, _ = make(features)
    layer.observe(x, y)
    layer.solve(1.0)
    layer.forget(x[:20], y[:20])
    layer(x)  # solves again, with the ridge of the last time
    torch.testing.assert_close(layer.V, learned(slice(20, None), features=features).V, rtol=0, atol=1e-6)


def test_a_class_is_forgotten_without_its_data():
    layer, x, y, _ = make(per_class=True)
    layer.observe(x, y)
    layer.forget_class(1)
    layer.solve(1.0)
    torch.testing.assert_close(layer.V, learned(y != 1).V, rtol=0, atol=1e-6)
    assert layer.sum_samples.tolist() == torch.bincount(y[y != 1], minlength=3).tolist()
    layer.observe(x[y == 1], y[y == 1])
    torch.testing.assert_close(layer.solve(1.0).error, learned(slice(None)).solve(1.0).error)


def test_all_that_was_forgotten_leaves_nothing():
    layer, x, y, _ = make()
    layer.observe(x, y)
    layer.forget(x, y)
    assert not any(tensor.any() for tensor in layer.sums)
    with pytest.raises(ValueError, match="nothing was observed yet"):
        layer(x)


def test_eight_shards_merge_to_one_pass():
    layer, x, y, _ = make(ledger=True)
    shards = []
    for rows in torch.arange(60).chunk(8):
        shards.append(copy.deepcopy(layer))
        shards[-1].observe(x[rows], y[rows])
    total = shards[0]
    for shard in shards[1:]:
        total = total.merge(shard)
    total.solve(1.0)
    torch.testing.assert_close(total.V, learned(slice(None)).V, rtol=0, atol=1e-6)
    assert len(total.sum_ledger) == 60
    assert shards[0].sum_samples.item() == 8  # a new layer: the shards are as they were


def work(rank, folder):
    layer, x, y, _ = make(outputs=None, per_class=True)
    rows = torch.arange(60)[rank::2] if rank else torch.arange(60)[::2][y[::2] < 2]  # rank 0 sees two classes of three
    layer.observe(x[rows], y[rows])
    for _ in range(2):  # the sums are added once, however often it is called
        total = layer.merge_processes()
    seen = torch.cat([torch.arange(60)[1::2], torch.arange(60)[::2][y[::2] < 2]])
    total.solve(1.0)
    torch.testing.assert_close(total.V, learned(seen).V, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_processes_merge(tmp_path):
    run_both(work, tmp_path)


def test_weights_count_as_copies_do():
    layer, x, y, _ = make()
    layer.observe(x, y, weight=torch.arange(60) % 3)
    layer.solve(1.0)
    rows = torch.arange(60).repeat_interleave(torch.arange(60) % 3)
    torch.testing.assert_close(layer.V, learned(rows).V, rtol=0, atol=1e-6)


def test_a_weight_of_zero_is_no_sample():
    """Also for the ridge that cross-validation chooses."""
    layer, x, y, _ = make()
    twin = make()[0]
    layer.observe(x, y)
    twin.observe(torch.cat([x, torch.randn(200, 4)]), torch.cat([y, y.new_zeros(200)]), torch.arange(260) < 60)
    assert twin.solve() == pytest.approx(layer.solve())
    torch.testing.assert_close(twin.V, layer.V)


@pytest.mark.parametrize("features", ["local", "rbf", "fourier"])
def test_the_condition_number_says_how_equal_what_is_left_is(features):
    """In two dimensions G is nearly singular."""
    x = torch.randn(2000, 2)
    y = (1.5 * x.sin().sum(1)).round().long() % 3
    layers = [nc.ExactLinear(2, 3, exact=nc.ExactConfig(features=features, slots=60)) for _ in range(2)]
    for layer in layers:
        layer.basis(x[:300])
    layers[0].observe(x[300:], y[300:])
    layers[0].forget(x[1500:], y[1500:])
    layers[1].observe(x[300:1500], y[300:1500])
    for condition in (1e7, 1e9):
        top = float(torch.linalg.eigvalsh(layers[1].sums.G[0], UPLO="U")[-1])
        found = [layer.solve(top / condition) for layer in layers]
        assert found[0].condition == pytest.approx(condition, rel=1e-3)
        off = (layers[0].V - layers[1].V).abs().max() / layers[1].V.abs().max()
        assert off <= max(1e-14 * condition, 2e-7)


def test_what_float64_cannot_subtract_is_refused():
    layer, x, y, _ = make("relu")
    layer.observe(x, y)
    layer.observe(1e8 * x[:1], y[:1])
    before = layer.sums.G.clone()
    with pytest.raises(ValueError, match=r"float64 cannot subtract them.*learn again without them"):
        layer.forget(1e8 * x[:1], y[:1])
    assert torch.equal(layer.sums.G, before)
    layer.forget(torch.cat([x, 1e8 * x[:1]]), torch.cat([y, y[:1]]))  # nothing is left, so nothing is off
    assert not layer.sums.G.any()


@pytest.mark.parametrize(("dtype", "classes"), [(torch.uint8, 256), (torch.int8, 200), (torch.uint16, 300)])
def test_labels_of_any_whole_dtype(dtype, classes):
    layer = nc.ExactLinear(4, classes, exact=nc.ExactConfig(features="none"))
    layer.observe(torch.randn(3, 4), torch.tensor([0, 1, 100]).to(dtype))
    assert layer.sums.square.nonzero().flatten().tolist() == [0, 1, 100]


def test_labels_one_hot_rows_and_leading_dimensions_are_alike():
    layer, x, y, given = make(control_dim=3)
    other = copy.deepcopy(layer)
    layer.observe(x, y, **given)
    other.partial_fit(x.view(6, 10, 4), one_hot(y, 3).float().view(6, 10, 3), control=given["control"].view(6, 10, 3))
    listed = make(control_dim=3)[0]
    listed.observe(x, y.tolist(), **given)
    torch.testing.assert_close(layer.solve(1.0), other.solve(1.0))
    torch.testing.assert_close(listed.solve(1.0), other.solve(1.0))
    torch.testing.assert_close(layer.V, other.V)
    one = given["control"][0]  # one control for all inputs
    torch.testing.assert_close(layer(x, control=one), layer(x, control=one.expand(60, 3)))


def test_classes_grow_with_the_labels():
    layer, x, y, _ = make(outputs=None)
    for label in range(3):
        layer.observe(x[y == label], y[y == label])
        assert layer(x).shape == (60, label + 1)
        assert layer.out_features == label + 1
    layer.solve(1.0)
    torch.testing.assert_close(layer.V, learned(slice(None)).V, rtol=0, atol=1e-6)


def test_only_forgotten_samples_of_the_basis_are_warned_of():
    layer, x, y, _ = make()
    layer.basis(x[:10])
    layer.observe(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.forget(x[10:12], y[10:12])
    with pytest.warns(UserWarning, match="3 forgotten samples fixed the basis"):
        layer.forget(x[7:10], y[7:10])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, x, y: f.observe(x * torch.nan, y), "x and control must be finite"),
        (
            lambda f, x, y: f.observe(x, y + 1),
            "y must be labels \\(60,\\) >= 0 and < 3, or.*numbers \\(60, 3\\), got torch.int64 \\(60,\\) from 1 to 3",
        ),
        (lambda f, x, y: f.observe(x.numpy(), y), "x must be a floating-point tensor, got ndarray"),
        (
            lambda f, x, y: f.observe(x, y, weight=2.0),
            r"weight must be finite numbers >= 0, one a sample \(60,\), got \(\)",
        ),
        (lambda f, x, y: f.observe(x.double() * 1e200, y), "must have finite sums of squares, got x up to"),
        (lambda f, x, y: f.observe(x, one_hot(y, 3).double() * 1e200), "must have finite sums of squares"),
        (lambda f, x, y: f.observe(x, y[:5]), r"got torch.int64 \(5,\) from 0 to 2"),
        (lambda f, x, y: f.observe(x, torch.randn(60, 2)), r"got torch.float32 \(60, 2\) from"),
        (lambda f, x, y: f.observe(x, y, weight=-torch.ones(60)), "weight must be finite numbers >= 0"),
        (
            lambda f, x, y: f.observe(x.view(6, 10, 4), y.view(6, 10), weight=torch.ones(10, 6)),
            r"one a sample \(6, 10\), got \(10, 6\)",
        ),
        (lambda f, x, y: f.observe(x[:, :2], y), r"x must have shape \(..., 4\), got \(60, 2\)"),
        (lambda f, x, y: f.forget(x + 1, y), "cannot all have been observed"),
        (lambda f, x, y: f.forget(x[:5], (y[:5] + 1) % 3, weight=3 * torch.ones(5)), "cannot all have been observed"),
        (lambda f, x, y: f.forget(torch.cat([x, x]), torch.cat([y, y])), "cannot all have been observed"),
        (lambda f, x, y: f.forget_class(0), "forget_class needs per_class, no ledger, and an observed label, got 0"),
        (lambda f, x, y: f.basis(x), "basis must be called before anything is observed"),
        (lambda f, x, y: f.forget(x, y * 0 + 2), "cannot all have been observed"),
        (lambda f, x, y: f.merge(make(outputs=4)[0]), "other must be a copy from before observing"),
        (lambda f, x, y: f.merge(make(bias=False)[0]), "other must be a copy from before observing"),
        (lambda f, x, y: f.merge(nn.Linear(4, 3)), "other must be a copy from before observing"),
        (lambda f, x, y: f.merge(make(slots=4)[0]), "other must be a copy from before observing"),
        (lambda f, x, y: f.merge(make(seed=1)[0]), "other must be a copy from before observing"),
        (lambda f, x, y: f.solve(ridge="best"), "ridge must be a finite number > 0, got 'best'"),
        (lambda f, x, y: f.solve(ridge=0), "ridge must be a finite number > 0, got 0"),
        (lambda f, x, y: f.probabilities(x), "probabilities need calibrate"),
        (lambda f, x, y: f.calibrate(x, one_hot(y, 3).float()), "calibrate must be given labels"),
    ],
)
def test_bad_input_is_an_error_and_changes_nothing(call, message):
    layer, x, y, _ = make()
    layer.observe(x, y)
    layer.solve(1.0)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        call(layer, x, y)
    after = layer.state_dict()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_a_layer_that_grows_does_not_merge_with_one_of_one_output():
    one, grows = (nc.ExactLinear(4, outputs, exact=nc.ExactConfig(features="none")) for outputs in (1, None))
    grows.observe(torch.randn(5, 4), torch.arange(5))
    with pytest.raises(ValueError, match="other must be a copy from before observing"):
        one.merge(grows)
    grows.solve(1.0)
    with pytest.raises(ValueError, match="calibrate must be given labels < 5"):
        grows.calibrate(torch.randn(2, 4), torch.tensor([0, 6]))


def test_another_basis_does_not_merge():
    layer, x, _, _ = make()
    other = make()[0]
    other.basis(x)
    with pytest.raises(ValueError, match="other must be a copy from before observing"):
        layer.merge(other)


def test_nothing_is_answered_before_it_was_learned():
    layer = nc.ExactLinear(4, 3, exact=nc.ExactConfig(slots=5, rank=2))
    with pytest.raises(ValueError, match="nothing was observed yet"):
        layer(torch.randn(2, 4))
    with pytest.raises(ValueError, match="the basis is not fixed: call basis"):
        layer.observe(torch.randn(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="basis must be given at least 3 inputs that differ, got 2"):
        layer.basis(torch.randn(2, 4))
    with pytest.raises(ValueError, match="at least 3 inputs that differ, got 9"):
        layer.basis(torch.ones(9, 4))
    with pytest.raises(ValueError, match=r"inputs that differ by 1e-18 to 1e\+18: scale them first"):
        layer.basis(1e30 * torch.randn(9, 4))
    assert not any(layer.memory.mean)


@pytest.mark.parametrize("changes", [{}, {"ledger": True}, {"outputs": None}, {"outputs": None, "per_class": True}])
def test_an_empty_batch_changes_nothing(changes):
    layer, x, y, _ = make(**changes)
    layer.observe(x[:0], y[:0])
    layer.observe(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.forget(x[:0], y[:0])
    fresh, *_ = make(**changes)
    fresh.observe(x, y)
    assert all(torch.equal(a, b) for a, b in zip(layer.sums, fresh.sums, strict=True))


def test_what_was_learned_in_inference_mode_is_ordinary():
    layer, x, y, _ = make()
    with torch.inference_mode():
        layer.observe(x[:40], y[:40])
        layer(x)  # solves
    inputs = x.clone().requires_grad_()
    layer(inputs).sum().backward()
    assert inputs.grad.any()
    layer.load_state_dict(make()[0].state_dict())
    layer.observe(x, y)
    layer.solve(1.0)
    torch.testing.assert_close(layer.V, learned(slice(None)).V, rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", [1.5, "two", -1, 3])
def test_a_class_that_is_none_is_not_forgotten(label):
    layer, x, y, _ = make(per_class=True)
    layer.observe(x, y)
    with pytest.raises(ValueError, match="forget_class needs per_class, no ledger, and an observed label, got"):
        layer.forget_class(label)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "sines"}, "exact.features must be one of local, rbf, relu, fourier, none, got 'sines'"),
        ({"features": "none", "residual": False}, "exact.residual must be True where features is 'none'"),
        ({"slots": 0}, "exact.slots must be a whole number >= 1, got 0"),
        ({"width": 0.0}, "exact.width must be a finite number > 0"),
        ({"ridge": -1.0}, "exact.ridge must be a finite number > 0"),
        ({"seed": -1}, "exact.seed must be a whole number >= 0, got -1"),
        ({"ledger": 1}, "exact.ledger must be True or False, got 1"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        nc.ExactConfig(**changes)


def test_a_ledger_knows_each_sample():
    layer, x, y, _ = make(ledger=True)
    layer.observe(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))  # the first sample twice
    for wrong in ((x[:5], (y[:5] + 1) % 3), (x[:1].expand(3, 4), y[:1].expand(3)), (x[:2] / 2, y[:2])):
        with pytest.raises(ValueError, match="cannot all have been observed with this y and weight"):
            layer.forget(*wrong)
    layer.forget(x[:1].expand(2, 4), y[:1].expand(2))
    assert len(layer.sum_ledger) == 59
    layer.solve(1.0)
    torch.testing.assert_close(layer.V, learned(slice(1, None)).V, rtol=0, atol=1e-6)


def test_a_condition_that_float64_cannot_take_is_warned_of():
    layer = nc.ExactLinear(2, 1, exact=nc.ExactConfig(features="none"))
    x = torch.randn(50, 1).expand(50, 2)  # the same number twice
    layer.observe(1e4 * x, x[:, :1])
    with pytest.warns(UserWarning, match="float64 cannot take a condition number of"):
        layer.solve(ridge=1e-12)
    assert layer.solve().condition < 1e13


def test_probabilities_have_the_temperature_of_least_loss():
    layer = learned(slice(0, 40))
    _, x, y, _ = make()
    found = layer.calibrate(x[40:], y[40:])
    losses = [cross_entropy(layer(x[40:]) / t, y[40:]).item() for t in (found / 1.2, found, found * 1.2)]
    assert losses[1] == min(losses)
    p = layer.probabilities(x)
    torch.testing.assert_close(p.sum(-1), torch.ones(60))
    assert torch.equal(p.argmax(-1), layer(x).argmax(-1))


def test_a_local_program_is_its_weight_and_a_constant():
    layer, x, y, given = make(control_dim=3)
    layer.observe(x, y, **given)
    weight = layer.materialize(x, **given)
    use, V, one = layer.memory.use(given["control"]), 30 * layer.V[:15].view(5, 3, 3), layer.V[-1]
    constant = V[:, 0] - layer.memory.directions.mv(layer.memory.mean) @ V[:, 1:]
    expected = (x.unsqueeze(1) @ weight).squeeze(1) + use @ constant + one
    torch.testing.assert_close(layer(x, **given), expected, rtol=1e-4, atol=1e-4)
    relu = learned(slice(None), features="relu")
    assert torch.equal(relu.materialize(x), relu.V[5:9].expand(60, 4, 3))  # R: the slots only add a constant


@pytest.mark.parametrize("outputs", [3, None])
@EACH
def test_save_and_load_go_on_exactly(features, outputs, tmp_path):
    layer, x, y, _ = make(features, outputs=outputs, ledger=True)
    layer.observe(x[:40], y[:40])
    layer.solve(0.3)
    layer.calibrate(x, y)
    nc.save(nn.Sequential(layer), tmp_path)
    fresh = nn.Sequential(nc.ExactLinear(4, outputs, exact=layer.config))
    again = nc.load(tmp_path, fresh)[0]
    assert torch.equal(again(x), layer(x))
    assert torch.equal(again.probabilities(x), layer.probabilities(x))
    for one in (layer, again):
        one.observe(x[40:], y[40:])
        one.forget(x[:5], y[:5])
    assert torch.equal(again(x), layer(x))
    assert float(again.ridge) == 0.3
    assert torch.equal(copy.deepcopy(again)(x), layer(x))


def test_what_came_after_solving_is_loaded_as_not_yet_solved_for(tmp_path):
    layer, x, y, _ = make(per_class=True)
    layer.observe(x[:40], y[:40])
    layer.solve(0.3)
    layer.observe(x[40:], y[40:])
    nc.save(nn.Sequential(layer), tmp_path)
    again = nc.load(tmp_path, nn.Sequential(nc.ExactLinear(4, 3, exact=layer.config)))[0]
    assert torch.equal(again(x), layer(x))
    again.forget_class(2)
    with pytest.raises(ValueError, match="an observed label, got 2"):
        again.forget_class(2)


def test_recode_answers_with_the_old_weight_until_solved(tmp_path):
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(50, 4)
    y, before, weight = torch.randint(3, (50,)), model(x), model[2].weight.detach().clone()
    assert "nc.ExactLinear" in str(nc.plan(model, "2", nc.ExactConfig(slots=5, rank=2)))
    nc.recode(model, "2", nc.ExactConfig(slots=5, rank=2))
    assert torch.equal(model(x), before)
    assert torch.equal(nc.restore(copy.deepcopy(model))[2].weight, weight)
    with nc.exact(model, "2") as collector:
        model(x)
        collector.basis()
        for part in range(0, 50, 10):
            model(x[part : part + 10])
            collector.observe(y[part : part + 10])
        with pytest.raises(ValueError, match="call model"):
            collector.observe(y)
        model(x[:10])
        with pytest.raises(ValueError, match="y must be labels"):
            collector.forget(y)  # the wrong ones; the inputs stay
        with pytest.warns(UserWarning, match="10 forgotten samples"):
            collector.forget(y[:10])
    assert torch.equal(model(x), before)
    model[2].solve()
    assert not torch.equal(model(x), before)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["0.weight", "0.bias"]
    with pytest.raises(ValueError, match="cannot restore 2: no plain layer answers as it does"):
        nc.restore(model)
    nc.save(model, tmp_path)
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    torch.testing.assert_close(nc.load(tmp_path, plain)(x), model(x))
    with pytest.raises(ValueError, match="name must be that of an ExactLinear in the model, got '0'"):
        nc.exact(model, "0")


def test_sums_keep_their_precision(tmp_path):
    layer, x, y, _ = make()
    layer.observe(x, y)
    expected = layer(x)
    model = nn.Sequential(layer).bfloat16()
    assert {t.dtype for t in layer.sums} == {torch.float64, torch.int64}
    assert model(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(model.half()(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), expected)
    assert torch.equal(model.double()(x), expected)


def test_the_seed_gives_the_same_basis_whatever_the_default_dtype():
    keys = make("relu")[0].memory.keys
    torch.set_default_dtype(torch.float64)
    try:
        again = nc.ExactLinear(4, 3, exact=nc.ExactConfig(features="relu", slots=5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(again.memory.keys, keys)


def test_programs_are_wide_under_autocast():
    layer, x, _, _ = make()
    expected = layer.programs(x).use
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.programs(x).use, expected)


def test_a_solved_head_that_is_loaded_trains_no_old_weight():
    model = nc.recode(nn.Sequential(nn.Linear(4, 3)), "0", nc.ExactConfig(features="none"))
    twin = copy.deepcopy(model)
    assert twin[0].R.requires_grad
    model[0].observe(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64))
    model[0].solve(1.0)
    twin.load_state_dict(model.state_dict())
    assert not any(parameter.requires_grad for parameter in twin.parameters())


def test_a_head_that_knows_nothing_is_watched_and_inputs_are_copies():
    model = nn.Sequential(nc.ExactLinear(4, None, exact=nc.ExactConfig(slots=5, rank=2)))
    x, y, batch = torch.randn(60, 4), torch.randint(3, (60,)), torch.randn(60, 4)
    with nc.exact(model, "0") as head:
        assert model(x).shape == (60, 0)
        with pytest.raises(ValueError, match="nothing was observed yet"):
            copy.deepcopy(model[0])(x)
        head.basis()
        model(batch.copy_(x))
        batch.zero_()
        head.observe(y)
        assert model(x).shape == (60, 3)
    expected = nc.ExactLinear(4, None, exact=nc.ExactConfig(slots=5, rank=2))
    expected.basis(x)
    expected.observe(x, y)
    torch.testing.assert_close(model[0].sums.B, expected.sums.B)
    with pytest.raises(ValueError, match="nothing was observed yet"):
        nn.Sequential(nc.ExactLinear(4, 3, exact=nc.ExactConfig(slots=5)))(x)


def test_record_figures_and_counts():
    layer, x, y, given = make(control_dim=3)
    layer.observe(x, y, **given)
    model = nn.Sequential(layer)
    with nc.record(model) as trace, nc.control(model, given["control"]):
        model(x)
    assert trace["0"].use.shape == (60, 5)
    assert nc.plot.usage(trace, labels=y)._repr_png_()
    assert nc.count_parameters(model)["total"] == layer.numbers()["answer"] == 5 * 3 + 2 * 4 + 4 + 20 * 3
    assert layer.numbers()["learn"] == layer.numbers()["answer"] + 20 * 21 // 2
    assert learned(slice(None), features="relu").numbers()["answer"] == 10 * 3


def test_the_rest_of_torch():
    layer = learned(slice(None))
    x = torch.randn(7, 4, requires_grad=True)
    layer(x).sum().backward()  # a backbone below learns through it
    torch.testing.assert_close(x.grad, torch.func.grad(lambda one: layer(one).sum())(x.detach()))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))
    exported = torch.export.export(layer, (x.detach(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(x[:3]), layer(x[:3]))
    assert layer(x[:0]).shape == (0, 3)
    assert layer(x[0]).shape == (3,)
    assert nc.ExactLinear(4, 3, device="meta").V.is_meta


def test_memory_does_not_grow_with_the_samples():
    layer, x, y, _ = make()
    sizes = set()
    for _ in range(3):
        layer.observe(x.repeat(500, 1), y.repeat(500))
        sizes.add(sum(t.numel() for t in itertools.chain(layer.buffers(), layer.parameters())))
    assert len(sizes) == 1
