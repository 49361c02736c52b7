"""Keep a machine full: `python3 results/sweeps/pool.py PROCESSES FOLDER [--once]`.

Runs the lines of FOLDER/*.txt, each `WEIGHT COMMAND`, files in order of their names. Commands run side by side as long
as their weights (the processes that each starts) add up to at most PROCESSES. Files may be added, and lines appended,
while it runs. It ends when FOLDER/stop exists; what runs then goes on. With `--once` it ends when all have. SIGTERM
goes to all that run (`neurocoder run` saves and ends), then it ends too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path


def main(limit: int, folder: Path, once: bool) -> None:
    """Start what fits, look again four times a second."""
    seen: set[tuple[str, int]] = set()
    waiting: list[tuple[str, int, int, str]] = []
    running: dict[subprocess.Popen[bytes], int] = {}

    def end(*_: object) -> None:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    while not (folder / "stop").exists():
        for file in folder.glob("*.txt"):
            for place, line in enumerate(file.read_text().splitlines()):
                if line.strip() and (file.name, place) not in seen:
                    weight, command = line.split(maxsplit=1)
                    seen.add((file.name, place))
                    waiting.append((file.name, place, int(weight), command))
        waiting.sort()
        running = {process: weight for process, weight in running.items() if process.poll() is None}
        while waiting and (not running or sum(running.values()) + waiting[0][2] <= limit):
            name, _, weight, command = waiting.pop(0)
            print(f"{time.strftime('%T')} {name}: {command}", flush=True)
            running[subprocess.Popen(["bash", "-c", f"exec {command}"])] = weight
        if once and not waiting and not running:
            break
        time.sleep(0.25)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), "--once" in sys.argv[3:])
