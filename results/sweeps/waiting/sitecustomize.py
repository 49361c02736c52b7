"""Lets a process sleep while its GPU works, instead of asking for the end on a core: for runs that share a machine.

Python imports a module of this name at its start from PYTHONPATH, where `queue.sh` puts this folder. Without it twelve
small trainings took twelve cores from the emulators beside them: 1,700 steps a second and agent instead of 5,000.
"""

import ctypes
from contextlib import suppress

BLOCKING = 4  # CU_CTX_SCHED_BLOCKING_SYNC

with suppress(OSError):  # no GPU
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) == 0:
        driver.cuDevicePrimaryCtxSetFlags_v2(0, BLOCKING)
