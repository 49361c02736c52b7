"""Two processes of torch.distributed on one machine, for the tests of DDP and FSDP.

`run_both(work, folder)` does `work(rank, folder)` as both ranks. The processes are forked from one that has imported
the library and does nothing else, since importing takes longer than most work.
"""

import multiprocessing
import os
import traceback

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["neurocoder", "torch.distributed.fsdp"])


def run_both(work, folder):
    """Does the work as both ranks; either's failure is the test's."""
    processes = [FORK.Process(target=take_part, args=(work, rank, folder)) for rank in range(2)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
    complaints = [file.read_text() for file in folder.glob("*.traceback")]
    assert [process.exitcode for process in processes] == [0, 0], "\n".join(complaints)


def take_part(work, rank, folder):
    """Does the work as this rank, and leaves once the other is as far.

    Python is not shut down: a thread of gloo may still hold a tensor then, and dropping it aborts the process, even
    after `destroy_process_group` (pytorch/pytorch#190489).
    """
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
        work(rank, folder)
        dist.barrier()
    except BaseException:
        (folder / f"{rank}.traceback").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)
