"""What `make wheel` does after the build: install the wheel into an empty environment and try it."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE = """
import torch
import neurocoder as nc

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
nc.recode(model, "*", nc.ProgramConfig(slots=6))
optimiser = torch.optim.Adam(nc.parameter_groups(model, lr=1e-2))
x, y = torch.randn(64, 8), torch.randint(4, (64,))
losses = []
for _ in range(5):
    loss = torch.nn.functional.cross_entropy(model(x), y) + nc.auxiliary_loss(model)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
with nc.record(model) as trace:
    before = model(x)
assert trace["2"].u.shape == (64, 15, 6)
nc.save(model, "checkpoint")
plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
assert torch.equal(nc.load("checkpoint", plain)(x), before)
assert "site-packages" in nc.__file__, nc.__file__
print("neurocoder", nc.__version__)
"""


def run(*command: str | Path, folder: Path, fails: bool = False) -> str:
    """What a command prints; it must end as expected."""
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(dist: Path) -> None:
    """Try the wheel in this folder."""
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True)
        binaries = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        python = binaries / "python"
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            ROOT / "constraints.txt",
        ]
        print(f"Installing {wheel.name} into an empty environment")
        run(*install, wheel, folder=folder)
        version = run(python, "-c", SMOKE, folder=folder).strip()
        for file in (wheel, archive):
            assert file.name.startswith(version.replace(" ", "-")), f"{file.name} is not {version}"
        assert version == run(binaries / "neurocoder", "--version", folder=folder).strip()
        assert "pip install 'neurocoder[lab]'" in run(python, "-m", "neurocoder", folder=folder)
        assert "neurocoder[lab]" in run(binaries / "neurocoder", "list", folder=folder, fails=True)
        print("Installing the extra [lab]")
        run(*install, f"neurocoder[lab] @ {wheel.as_uri()}", folder=folder)
        assert "digits" in run(binaries / "neurocoder", "list", folder=folder)
        run(binaries / "neurocoder", "explore", "--export", "page.html", folder=folder)
        assert (folder / "page.html").stat().st_size > 100_000
        print(run(python, "-m", "neurocoder", folder=folder))
    print(f"{wheel.name} and {archive.name} in {dist} work")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
