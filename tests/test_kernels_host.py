"""Parts of the kernels that run on the host, each against plain Python."""

import pytest
import torch

from neurocoder.ops.launch import aligned, cdiv, padded, power_of_two
from neurocoder.program.kernels.cpu_steps import smallest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 3, 7])
def test_smallest_usage_is_that_of_a_sorted_list(dtype, rank):
    generator = torch.Generator().manual_seed(rank)
    usage = torch.rand(3, 2, 7, 5, generator=generator, dtype=torch.float64).to(dtype)
    usage[0] = usage[0].round(decimals=1)  # ties
    usage[1, 0, :5] = 0
    usage[1, 1] *= 1e-40  # denormal, or zero
    found = smallest(usage, rank)
    assert found.shape == (3, 2, 1, 5)
    assert found.dtype == dtype
    expected = [sorted(usage[i, j, :, n].tolist())[rank - 1] for i in range(3) for j in range(2) for n in range(5)]
    assert found.flatten().tolist() == expected


def test_sizes_are_rounded_up():
    assert [cdiv(size, 4) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [aligned(size) for size in (1, 4, 31)] == [4, 4, 32]
    assert [power_of_two(size) for size in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
    assert [padded(size) for size in (1, 16, 17)] == [16, 16, 32]
