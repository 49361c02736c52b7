"""Preparation before measuring: compile GPU kernels in parallel, start the compiler in an empty cache."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import pairwise

import torch

import neurocoder as nc

from .cases import Case


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def empty_compile_cache() -> Iterator[None]:
    """Empty caches for `torch.compile` and Triton inside the block, so that first calls are true first calls."""
    with (
        tempfile.TemporaryDirectory(prefix="neurocoder-bench-", ignore_cleanup_errors=True) as folder,
        environment(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton"),
    ):
        yield


def start_compiler(device: str) -> None:
    """Compile something small, so that the first contender does not pay for starting the compiler."""
    weight = torch.ones(8, device=device, requires_grad=True)
    torch.compile(lambda tensor: (tensor.sin() * 2).sum())(weight).backward()
    torch.compiler.reset()


def run_once(case: Case) -> None:
    """One forward and backward of the case's program layers in each dtype, in eager mode."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for d_in, d_out in pairwise(case.widths):
        layer = nc.Linear(d_in, d_out, program=case.program, device="cuda")
        for dtype in sorted({group.dtype for group in case.groups}):
            x = torch.randn(case.batch, d_in, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
            with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
                layer(x)
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
                y = layer(x)
            y.sum().backward()
    torch.cuda.synchronize()


def compile_kernels(cases: Iterable[Case]) -> int:
    """Run the program layers of all cases once, in parallel processes: the compiled kernels stay in Triton's cache
    on disk. Returns the number of cases that failed; those compile when they are measured."""
    distinct = list({(case.program, case.widths, case.batch): case for case in cases}.values())
    workers = min(len(distinct), (os.cpu_count() or 1) - 1)
    if workers < 2:
        return 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            futures = [pool.submit(run_once, case) for case in distinct]
        except BrokenProcessPool:
            return len(distinct)
        return sum(future.exception() is not None for future in futures)
