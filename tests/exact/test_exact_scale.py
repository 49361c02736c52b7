"""Exact layers on many samples: shards on a Ray cluster, and a million samples in a stream."""

import copy
import resource
import time

import pytest
import torch

import neurocoder as nc

SAMPLES = 1_000_000


def drawn(start, stop):
    """Samples start to stop of 64 inputs, ten classes."""
    generator = torch.Generator().manual_seed(start)
    x = torch.randn(stop - start, 64, generator=generator)
    return x, x[:, :10].argmax(1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")  # Ray's, of its own options
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that Ray leaves open
def test_eight_shards_on_ray_merge_to_one_pass():
    ray = pytest.importorskip("ray")
    layer = nc.ExactLinear(64, 10, exact=nc.ExactConfig(slots=20, rank=8))
    layer.basis(drawn(0, 200)[0])
    one = copy.deepcopy(layer)
    for start in range(0, 4000, 500):
        one.observe(*drawn(start, start + 500))

    def observed(layer, x, y):  # in the test, so that the workers need not import this file
        layer = copy.deepcopy(layer)
        layer.observe(x, y)
        return layer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1)(observed)
        shards = ray.get([remote.remote(layer, *drawn(start, start + 500)) for start in range(0, 4000, 500)])
    finally:
        ray.shutdown()
    total = shards[0]
    for shard in shards[1:]:
        total = total.merge(shard)
    assert total.sum_samples.item() == 4000
    total.solve(1.0)
    one.solve(1.0)
    torch.testing.assert_close(total.V, one.V, rtol=0, atol=1e-6)


@pytest.mark.long
def test_a_million_samples_stream_through_in_constant_memory():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = nc.ExactConfig(slots=60, rank=24, residual=False)  # 1,501 features
    layer = nc.ExactLinear(512, 100, exact=config, device=device)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8192, 512, generator=generator), torch.randint(100, (8192,), generator=generator)
    layer.basis(x[:1000].to(device))
    begun, peaks = time.perf_counter(), []
    for done in range(0, SAMPLES, len(x)):
        layer.observe(x[: SAMPLES - done].to(device), y[: SAMPLES - done].to(device))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    layer.solve()
    assert layer.sum_samples.item() == SAMPLES  # waits for a GPU
    seconds = time.perf_counter() - begun
    where = "a GPU" if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{SAMPLES:,} samples of 512 inputs, {layer.width:,} features: {seconds:.1f} s on {where}")
    assert peaks[-1] - peaks[len(peaks) // 4] < 100_000  # KB: no more for the last three quarters
