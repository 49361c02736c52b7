"""Where the code runs: commit, versions, hardware."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

import neurocoder as nc

PACKAGE = Path(nc.__file__).parent


def git(*arguments: str, folder: Path = PACKAGE) -> bytes | None:
    """The output of git in a folder, by default that of this code; None if it fails."""
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def commit(given: str | None = None) -> str:
    """The given commit, else `NEUROCODER_COMMIT`, else that of this code's checkout; as a hash where git knows it."""
    name = given or os.environ.get("NEUROCODER_COMMIT")
    found = git("rev-parse", "--verify", "--quiet", f"{name or 'HEAD'}^{{commit}}")
    return found.decode().strip() if found else name or "unknown"


def _digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the names and contents of files, in the order of their names."""
    return hashlib.sha256(b"".join(name.encode() + b"\0" + files[name] for name in sorted(files))).hexdigest()


def source(package: Path = PACKAGE, *, without: str | None = None) -> str:
    """A hash of a package's source files, by default this one's; `without` leaves out a subfolder."""
    files = {file.relative_to(package): file for file in package.rglob("*.py")}
    return _digest({name.as_posix(): file.read_bytes() for name, file in files.items() if without not in name.parts})


@cache
def running() -> str:
    """`source()` when this process first asked, which is that of the code it runs."""
    return source()


@cache
def committed(commit: str) -> str | None:
    """What `source()` is in a commit of this code's repository; None if git does not know it."""
    place = git("rev-parse", "--show-toplevel", "--show-prefix")
    if place is None:
        return None
    top, prefix = place.decode().split("\n")[:2]
    packed = git("archive", "--format=tar", f"{commit}:{prefix}", folder=Path(top))
    if packed is None:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive if entry.name.endswith(".py")}
        return _digest({name: file.read() for name, file in files.items() if file is not None})


def source_changed(commit: str, source: str | None) -> str:
    """Whether source with this hash differs from the commit: `yes`, `no`, or `unknown` where git cannot tell."""
    if commit.endswith("+"):
        return "yes"
    expected = committed(commit) if source else None
    return "unknown" if expected is None else "no" if expected == source else "yes"


@cache
def origin(file: Path) -> dict[str, str]:
    """Hash and commit of a file outside the package, when this process first asked; a commit that the file differs from
    ends in `+`."""
    status = git("status", "--porcelain", "--ignored", "--", file.name, folder=file.parent)
    at = git("rev-parse", "HEAD", folder=file.parent)
    return {
        "experiment_source": _digest({file.name: file.read_bytes()}),
        "experiment_commit": (at or b"unknown").decode().strip() + ("+" if at and status else ""),
    }


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


def describe(device: torch.device, sources: Sequence[str]) -> dict[str, str]:
    """What a record stores. `sources` are the hashes of the code of all parts of a run: more than one means that it was
    changed between them."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    of = commit()
    return {
        "commit": of,
        "source": running(),
        **({"earlier_sources": ", ".join(sources[:-1])} if len(sources) > 1 else {}),
        "changed": "yes" if len(sources) > 1 else source_changed(of, running()),
        **{name: found for name, found in versions().items() if found is not None},
        "hardware": hardware,
        "threads": str(torch.get_num_threads()),
    }
