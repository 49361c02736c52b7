"""Where the code runs: commit, versions, hardware."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

import neurocoder as nc


def git(*arguments: str) -> str | None:
    """The output of git in the folder of this code, or None."""
    try:
        here = Path(__file__).parent
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def commit(given: str | None = None) -> str:
    """The given commit, else `NEUROCODER_COMMIT`, else that of this code's checkout."""
    return given or os.environ.get("NEUROCODER_COMMIT") or git("rev-parse", "HEAD") or "unknown"


def changed(given: str | None = None) -> bool | None:
    """Whether the package differs from the commit; None outside a checkout, or if the commit was given."""
    if given or os.environ.get("NEUROCODER_COMMIT"):
        return None
    answer = git("status", "--porcelain", "--", str(Path(nc.__file__).parent))
    return None if answer is None else bool(answer)


def marked() -> str:
    """The commit, with a + if the package differs from it."""
    return commit() + ("+" if changed() else "")


def source(package: Path | None = None, *, without: str | None = None) -> str:
    """SHA-256 over a package's source files, by default this one's; `without` leaves out a subfolder."""
    root = package or Path(nc.__file__).parent
    files = sorted(file for file in root.rglob("*.py") if without not in file.relative_to(root).parts)
    content = b"".join(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions that affect results."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "neurocoder": nc.__version__,
    }


def processor() -> str:
    """The CPU's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe(device: torch.device) -> dict[str, str]:
    """Everything that a record stores; a commit with changes ends in `+`."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "commit": marked(),
        "source": source(),
        **{name: found for name, found in versions().items() if found is not None},
        "hardware": hardware,
        "threads": str(torch.get_num_threads()),
    }
