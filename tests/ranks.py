"""Two processes of torch.distributed on one machine, for the tests of DDP and FSDP.

A test file starts itself once for each rank (`run_both`), and its `work(rank, folder)` is what a rank does
(`take_part`).
"""

import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist


def run_both(file, folder):
    """Runs `file RANK FOLDER` for both ranks; either's failure is the test's."""
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(file).parent), *sys.path])
    options = {"env": os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, "text": True}
    processes = [
        subprocess.Popen([sys.executable, file, str(rank), str(folder)], stderr=subprocess.PIPE, **options)
        for rank in range(2)
    ]
    try:
        complaints = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(complaints)


def take_part(work):
    """Does `work(rank, folder)` as the rank that the command line names, and leaves once the other is as far.

    Python is not shut down: a thread of gloo may still hold a tensor then, and dropping it aborts the process, even
    after `destroy_process_group` (pytorch/pytorch#190489).
    """
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    work(rank, folder)
    dist.barrier()
    os._exit(0)
