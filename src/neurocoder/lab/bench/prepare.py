"""Compiling the GPU kernels of all cases in parallel: one after the other they take two minutes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, wait
from itertools import pairwise

import torch
from torch import nn

import neurocoder as nc

from .cases import Case


def run_once(case: Case) -> None:
    """One forward and backward of the case's program layers in each dtype."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for d_in, d_out in pairwise(case.widths):
        layer = nc.recode(nn.Sequential(nn.Linear(d_in, d_out, device="cuda")), "*", case.program)
        for dtype in sorted({group.dtype for group in case.groups}):
            x = torch.randn(case.batch, d_in, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
                with torch.inference_mode():
                    layer(x)
                y = layer(x)
            y.sum().backward()
    torch.cuda.synchronize()


def compile_kernels(cases: Iterable[Case]) -> None:
    """Compiled kernels stay in Triton's cache on disk; a case that fails here compiles when it is measured."""
    distinct = list({(case.program, case.widths, case.batch): case for case in cases}.values())
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        wait([pool.submit(run_once, case) for case in distinct])
