"""Observable behaviour, frozen: names, layouts, files, numbers and texts, to be equal before and after a restructuring.

    python tests/golden.py write portable            # into tests/golden, committed
    python tests/golden.py check portable
    python tests/golden.py write machine [FOLDER]    # into /tmp/golden, comparable on one machine only
    python tests/golden.py check machine [FOLDER] [--only ITEM ...]

The library is the one that PYTHONPATH finds. Each item runs in a process of its own, and is compared with what was
written: one line an item, and an exit status of 1 if any differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import http.client
import importlib
import inspect
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import neurocoder as nc

ROOT = Path(__file__).resolve().parents[1]
PORTABLE, MACHINE = ROOT / "tests" / "golden", Path("/tmp/golden")
SAVED, LAB = PORTABLE / "saved", PORTABLE / "lab"
CHECKPOINT = PORTABLE / "unfinished-run.safetensors"
PASSING = re.compile(r"(.*_)?seconds|.*_per_second")
"""What a record has, at any depth, that differs from one time to the next."""

COMMANDS = ("run", "report", "export", "pack", "list", "play", "explore", "bench", "demo")
EXPERIMENTS = ("digits", "polynomials", "split", "images", "atari")
PROGRAM = {"slots": 6, "key_dim": 2, "heads": 2, "least_used": 3, "hidden": 4}
GROWING = {"slots": 6, "rank": 2, "top_k": 2, "max_similarity": 0.5, "count": "inputs", "consolidation": 30.0}
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "linear": ((5, 4), (3, 5)),
    "conv1d": ((2, 3, 3), (3, 2, 7)),
    "conv2d": ((2, 3, 3), (3, 2, 5, 6)),
}
"""By geometry: the sizes of a layer, and the shape of an input."""
CODED = {
    "program": {"linear": nc.Linear, "conv1d": nc.Conv1d, "conv2d": nc.Conv2d},
    "growing": {"linear": nc.GrowingLinear, "conv1d": nc.GrowingConv1d, "conv2d": nc.GrowingConv2d},
    "mixture": {"linear": nc.MixtureLinear},
    "stored_program": {"linear": nc.StoredProgramLinear},
    "hyper": {"linear": nc.HyperLinear},
}
CONFIGS: dict[str, tuple[str, nc.Config]] = {
    "mixture": ("mixture", nc.MixtureConfig(experts=3, active=2)),
    "stored_program": ("stored_program", nc.StoredProgramConfig(programs=3, key_dim=2)),
    "hyper": ("hyper", nc.HyperConfig(hidden=3)),
}
for _way in (True, False, "frozen"):
    CONFIGS[f"growing residual={_way}"] = "growing", nc.GrowingConfig(**GROWING, residual=_way)
for _way, _steps in itertools.product((True, False, "plain"), (1, 2)):
    _config = nc.ProgramConfig(**PROGRAM, residual=_way, steps=_steps)
    CONFIGS[f"program residual={_way} steps={_steps}"] = "program", _config


class Case(NamedTuple):
    """A layer to look at."""

    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    control_dim: int | None


def cases(*geometries: str) -> Iterator[Case]:
    """Every kind x geometry x control x bias."""
    for title, (kind, config) in CONFIGS.items():
        for geometry, coded in CODED[kind].items():
            sizes, shape = SHAPES[geometry]
            for control_dim, bias in ((None, True), (3, True), (None, False)):
                if not geometries or geometry in geometries:
                    options = {kind: config, "control_dim": control_dim, "bias": bias}
                    name = f"{title} {geometry} control_dim={control_dim} bias={bias}"
                    yield Case(name, lambda coded=coded, s=sizes, o=options: coded(*s, **o), shape, control_dim)


def varied(layer: Any, seed: int = 0) -> Any:
    """Give every parameter a random value, and growing layers some written slots."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        for memory in (one.memory for one in layer.modules() if hasattr(getattr(one, "memory", None), "visits")):
            keys = torch.randn(memory.keys.shape, generator=generator)
            memory.keys[:4] = nn.functional.normalize(keys - keys.mean(1, keepdim=True))[:4]
            memory.visits[:4], memory.born[:4] = torch.tensor([30.0, 2, 0, 7]), torch.tensor([0, 3, 4, 9])
            memory.written.fill_(4)
            memory.steps.fill_(12)
    return layer


def drawn(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """An input and, if the layer is steered, a control."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.shape, generator=generator)
    control = None if case.control_dim is None else torch.randn(case.shape[0], case.control_dim, generator=generator)
    return x, {} if control is None else {"control": control}


def digest(value: bytes | Tensor) -> str:
    """SHA-256 of bytes, or of a tensor's values."""
    return hashlib.sha256(value if isinstance(value, bytes) else value.detach().numpy().tobytes()).hexdigest()


DEFINED = ("", "growing", "functional", "reference", "growing.reference", "plot", "lab.data.mnist")
DEFINED += ("lab.continual", "lab.rl", "lab.experiments", "lab.sections", "lab.statistics", "lab.store")
"""Modules whose public names are kept; of the store, only `records`."""


def signature(thing: Any) -> str:
    """A signature without module paths, quotes and addresses."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "?"
    text = re.sub(r" at 0x[0-9a-f]+", "", text).replace("'", "").replace('"', "")
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def member(kind: type, name: str) -> str | None:
    """A public attribute of a class, if our code defines it."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    if not owner.__module__.startswith("neurocoder"):
        return None
    value = inspect.getattr_static(kind, name)
    if isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
        return signature(getattr(kind, name))
    return "property" if isinstance(value, property) else "attribute"


def described(thing: Any) -> Any:
    """A name's signature; of a class also its public members."""
    if inspect.ismodule(thing):
        return "module"
    if inspect.isclass(thing):
        names = sorted({name for base in thing.__mro__ for name in vars(base) if not name.startswith("_")})
        members = {name: found for name in names if (found := member(thing, name)) is not None}
        return {"(class)": signature(thing), **members}
    return signature(thing) if callable(thing) else "value"


def public_names(writing: bool) -> Any:
    """Item 1: signatures by module. A check looks for each recorded name, wherever it is defined by then."""
    found, recorded = {}, {} if writing else kept("names", PORTABLE)
    for name in (f"neurocoder.{part}".rstrip(".") for part in DEFINED):
        module = importlib.import_module(name)
        own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == name and key[0] != "_"]
        names = recorded.get(name) or getattr(module, "__all__", ["records"] if name.endswith("store") else own)
        found[name] = {key: described(getattr(module, key)) for key in sorted(names) if hasattr(module, key)}
    return found


def layouts(writing: bool) -> Any:
    """Item 2: `state_dict` in order, with shapes and dtypes, and the order of `named_parameters`."""
    found = {}
    for case in cases():
        layer = case.build()
        state = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in layer.state_dict().items()]
        found[case.name] = {"state_dict": state, "named_parameters": [name for name, _ in layer.named_parameters()]}
    return found


def operators(writing: bool) -> Any:
    """Item 6: schemas of the operators, which an export with the kernels registers."""
    layer = nc.Linear(5, 4, program=nc.ProgramConfig(**PROGRAM, steps=1))
    with nc.backend("triton"):
        torch.export.export(layer, (torch.randn(3, 5),))
    return {name: str(getattr(torch.ops.neurocoder, name).default._schema) for name in ("run", "run_backward")}


def helps(writing: bool) -> Any:
    """Item 7: what the commands print about themselves, as text files."""
    asked = {"list": ("list",), "neurocoder --help": ("--help",)}
    asked |= {f"{name} --help": (name, "--help") for name in COMMANDS}
    asked |= {f"run {name} --help": ("run", name, "--help") for name in EXPERIMENTS}
    return {f"{name.replace(' ', '_')}.txt": lab(*words).stdout for name, words in asked.items()}


class Transposed(nn.Module):
    """A linear layer whose weight is (in, out), as transformers' `Conv1D`."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Tied(nn.Module):
    """An embedding, a layer with two names, and an output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
        self.again, self.head.weight = self.first, self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.again(self.first(self.embed(tokens))).tanh())


def plain_models() -> dict[str, tuple[Callable[[], nn.Module], Any, nc.Config, Tensor]]:
    """By folder: the plain model, what is recoded, its configuration, and an input."""
    nc.register(Transposed, nc.Linear, transposed=True)
    plain = {"linear": nn.Linear, "conv1d": nn.Conv1d, "conv2d": nn.Conv2d}
    generator, found = torch.Generator().manual_seed(2), {}
    for title, (kind, config) in CONFIGS.items():
        for geometry in CODED[kind]:
            sizes, shape = SHAPES[geometry]
            name = re.sub(r"\W+", "-", f"{title}-{geometry}").lower()
            build = lambda kind=plain[geometry], sizes=sizes: nn.Sequential(kind(*sizes))  # noqa: E731
            if "steps=1" not in title:
                found[name] = (build, "0", config, torch.randn(shape, generator=generator))
    program = nc.ProgramConfig(**PROGRAM, steps=2)
    found["transposed"] = (lambda: nn.Sequential(Transposed(4, 5)), "0", program, torch.randn(3, 5))
    found["tied"] = (Tied, "first", program, torch.tensor([[0, 3, 5], [1, 1, 2]]))
    return found


def keeps(new: Any, old: Any) -> bool:
    """Whether one says what the other does; it may have fields that there were not before."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and keeps(new[name], value) for name, value in old.items())
    return bool(new == old)


def saved(writing: bool) -> Any:
    """Item 8a: folders of `nc.save`, of every kind, load and compute what they did, to 1e-5."""
    if writing:
        shutil.rmtree(SAVED, ignore_errors=True)
        for name, (build, target, config, x) in plain_models().items():
            model = varied(nc.recode(build(), target, config)).eval()
            nc.save(model, SAVED / name)
            save_file({"x": x, "y": model(x).detach().contiguous()}, SAVED / name / "outputs.safetensors")
    found = {}
    for name, (build, _, _, _) in plain_models().items():
        given, model = load_file(SAVED / name / "outputs.safetensors"), nc.load(SAVED / name, build()).eval()
        off = (model(given["x"]) - given["y"]).abs().max().item()
        kept = json.loads((SAVED / name / "neurocoder.json").read_text())
        found[name] = {
            "output": "as saved" if off <= 1e-5 else f"off by {off}",
            "layers": {key: type(one).__name__ for key, one in model.named_modules() if isinstance(one, nc.CodedLayer)},
            "format": kept["format"],
            "aliases": kept["aliases"],
        }
        with tempfile.TemporaryDirectory() as folder:
            nc.save(model, folder)
            before, after = (load_file(Path(one, "neurocoder.safetensors")) for one in (SAVED / name, folder))
            same = list(before) == list(after) and all(torch.equal(before[key], after[key]) for key in before)
            anew = json.loads(Path(folder, "neurocoder.json").read_text())
            found[name]["saved anew"] = same and all(keeps(anew[key], kept[key]) for key in ("layers", "aliases"))
    return found


def records(writing: bool) -> Any:
    """Item 8b: a loose record and a packed one are read."""
    if writing:
        shutil.rmtree(LAB, ignore_errors=True)
        wish = ("run", "lines:Lines", "--variants", "linear,program", "--steps", "20", "--device", "cpu")
        lab(*wish, "--seeds", "0", "--output", str(LAB / "packed"))
        lab("pack", "--output", str(LAB / "packed"))
        lab(*wish, "--seeds", "1", "--output", str(LAB / "loose"))
        for output in ("packed", "loose"):
            shutil.rmtree(LAB / output / "report")
    read, warnings = importlib.import_module("neurocoder.lab.store").records, []
    both = {name: list(map(asdict, read(LAB / name, "lines", warnings.append))) for name in ("loose", "packed")}
    return {**both, "warnings": warnings}


def resumes(writing: bool) -> Any:
    """Item 8c: the checkpoint of an interrupted run is continued, to the same record."""
    wish = ("run", "lines:Lines", "--variants", "program", "--seeds", "0", "--device", "cpu", "--pause", "0.02")
    with tempfile.TemporaryDirectory() as folder:
        place, whole = Path(folder, "lines/best/program/seed0.checkpoint.safetensors"), Path(folder, "whole")
        if writing:
            words = command(*wish, "--checkpoint-seconds", "0", "--output", folder)
            process = subprocess.Popen(
                words, env=settings(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while process.poll() is None and not place.exists():
                time.sleep(0.01)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
            shutil.copy(place, CHECKPOINT)
            lab(*wish, "--output", str(whole))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKPOINT, place)
        lab(*wish, "--output", folder, "--resume")
        assert not place.exists()
        found = record(place.with_name("seed0.json"))
        assert not writing or found == record(whole / "lines/best/program/seed0.json")
        return found


def wheel_data(writing: bool) -> Any:
    """Item 10b: the names of the files that go into the wheel beside the modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    globs = project["tool"]["setuptools"]["package-data"]["neurocoder"]
    package = ROOT / "src" / "neurocoder"
    return sorted(file.name for glob in globs for file in package.glob(glob) if file.is_file())


def lazy(writing: bool) -> Any:
    """Item 11: what `import neurocoder` leaves alone."""
    heavy = ["triton", "matplotlib", "scipy", "torch._dynamo", "ray", "tyro", "rich"]
    code = f"import sys, neurocoder; print([name for name in {heavy} if name in sys.modules])"
    return run([sys.executable, "-c", code]).stdout.strip()


def state(model: nn.Module) -> dict[str, str]:
    """Digests of all parameters and buffers, and the next random number: the generator's place."""
    return {name: digest(value) for name, value in model.state_dict().items()} | {"next": digest(torch.rand(1))}


def starts(writing: bool) -> Any:
    """Item 3: the values that layers start from, constructed and recoded."""
    found = {}
    for case in cases():
        torch.manual_seed(0)
        found[case.name] = state(case.build())
    for title, (kind, config) in CONFIGS.items():
        torch.manual_seed(0)
        layers = [nn.Linear(5, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 3)]
        if len(CODED[kind]) > 1:
            layers[:1] = [nn.Conv1d(2, 5, 3), nn.Conv2d(2, 4, 3)]
        found[f"recoded {title}"] = state(nc.recode(nn.Sequential(*layers), "*", config))
    return found


def computed(case: Case, backend: Any) -> dict[str, Any]:
    """Output, losses and gradients of a layer in training, and its output in evaluation."""
    layer, (x, options) = varied(case.build()), drawn(case)
    x.requires_grad_()
    torch.manual_seed(3)
    with nc.backend(backend):
        y = layer(x, **options)
        (y.square().sum() + nc.auxiliary_loss(layer)).backward()
        still = layer.eval()(x, **options)
        found = {
            "y": y,
            "eval": still,
            "x.grad": x.grad,
            "orthogonal": nc.orthogonal_loss(layer),
            "next": torch.rand(1),
        }
    found |= {f"{name}.grad": parameter.grad for name, parameter in layer.named_parameters()}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in found.items()}


def outputs(backend: str, *geometries: str) -> Callable[[bool], Any]:
    """Item 5: what each layer computes with a backend."""
    return lambda writing: {case.name: computed(case, backend) for case in cases(*geometries)}


def training(writing: bool) -> Any:
    """Item 5b: eight steps of each kind, with memories that grow, by "torch"."""
    found = {}
    for title, (kind, config) in CONFIGS.items():
        torch.manual_seed(0)
        model = nc.recode(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), "*", config)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        growth = nc.grow(model, optimiser) if kind == "growing" else None
        losses = []
        for step in range(8):
            x = torch.randn(9, 6) + step
            with nc.backend("torch"):
                loss = (model(x) - x[:, :2]).square().mean() + nc.auxiliary_loss(model)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            losses.append(loss.item())
        found[title] = {"losses": losses, "grown": growth is not None, **state(model)}
    return found


def report(writing: bool) -> Any:
    """Item 7b: the pages of the committed records, without data sets; and all records as CSV."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for output in ("results", "results/selection"):
            target = Path(folder, output.replace("/", "-"))
            lab("report", "--output", output, "--target", str(target))
            found |= files(target, output)
        lab("export", f"{folder}/all.csv")
        content = Path(folder, "all.csv").read_bytes()
        rows = list(csv.reader(content.decode().splitlines()))
        found["export"] = {"columns": rows[0], "rows": len(rows), "sha256": digest(content)}
    return found


def bench_page(writing: bool) -> Any:
    """Item 8d: the committed benchmark records are read, and give the same page."""
    with tempfile.TemporaryDirectory() as folder:
        lab("bench", "--report", "--output", str(ROOT / "results" / "bench"), "--docs", folder)
        return files(Path(folder), "bench")


def files(folder: Path, name: str) -> dict[str, Any]:
    """The Markdown files under a folder as text with digests, and the names of all others."""
    pages = {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.md"))}
    others = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    found = {f"{name}/{page}": {"sha256": digest(text.encode()), "text": text} for page, text in pages.items()}
    return {**found, f"{name} files": others}


def smoke(experiment: str) -> Callable[[bool], Any]:
    """Item 9: the records of an experiment's smoke preset on the CPU."""

    def records(writing: bool) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            lab("run", experiment, "--preset", "smoke", "--device", "cpu", "--output", folder)
            found = sorted(Path(folder).rglob("seed*.json"))
            return {str(file.relative_to(folder)): record(file) for file in found}

    return records


def explorer(writing: bool) -> Any:
    """Item 10: the page of the explorer."""
    with tempfile.TemporaryDirectory() as folder:
        lab("explore", "--export", f"{folder}/page.html")
        return digest(Path(folder, "page.html").read_bytes())


def shown_model() -> nn.Module:
    """A small model for the explorer's server."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    nc.recode(model, "0", nc.ProgramConfig(**PROGRAM, steps=2))
    return varied(nc.recode(model, "2", nc.GrowingConfig(**GROWING)))


def shown_data() -> tuple[Tensor, Tensor]:
    """Its inputs and labels."""
    return torch.randn(20, 6, generator=torch.Generator().manual_seed(4)), torch.arange(20) % 3


@contextmanager
def served() -> Iterator[Callable[..., Any]]:
    """A function that asks a running server of that model."""
    words = command("explore", "--model", "golden:shown_model", "--data", "golden:shown_data")
    process = subprocess.Popen(words, env=settings(), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = next(urlsplit(line.strip()) for line in process.stdout if line.startswith("http"))

    def ask(name: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=30)
        connection.request("GET", address.path + name)
        answer = connection.getresponse()
        content = answer.read()
        return [answer.status, json.loads(content) if name.startswith("api") else digest(content)]

    try:
        yield ask
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def server(writing: bool) -> Any:
    """Item 10c: what the explorer's server answers about that model."""
    gets = ("", "page.css", "page.js", "api/summary", "api/layer?place=0", "api/layer?place=1", "api/layer?place=x")
    question = "api/inspect?index=4&other=5&way=0.5&layer="
    with served() as ask:
        found = {name: ask(name) for name in gets}
        return found | {"inspect": [ask(f"{question}{place}") for place in (0, 1)]}


def import_time(writing: bool) -> Any:
    """Item 11b: seconds of `import neurocoder` beyond torch, printed only."""
    code = "import torch, time; t = time.perf_counter(); import neurocoder; print(time.perf_counter() - t)"
    found = min(float(run([sys.executable, "-c", code]).stdout) for _ in range(3))
    print(f"import neurocoder: {found:.3f} s after torch", file=sys.stderr)
    return "printed only"


def settings() -> dict[str, str]:
    """The environment of the commands: plain text of a fixed width, and the experiments of the tests."""
    folders = [os.environ.get("PYTHONPATH", ""), str(ROOT / "tests"), str(ROOT / "tests" / "lab")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NEUROCODER_")}
    fixed = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    return kept | fixed | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command at the repository's root; an error if it fails."""
    done = subprocess.run(words, env=settings(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-600:]}")
    return done


def command(*arguments: str) -> list[str]:
    """The words of a command of the lab."""
    return [sys.executable, "-m", "neurocoder.lab", *arguments]


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A finished command of the lab."""
    return run(command(*arguments))


def lasting(value: Any) -> Any:
    """Without what passes."""
    if isinstance(value, list):
        return [lasting(entry) for entry in value]
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: lasting(entry) for name, entry in pairs if not PASSING.fullmatch(name)} if pairs else value


def record(file: Path) -> dict[str, Any]:
    """A record without what passes, and without the machine and the source it was made with."""
    row = json.loads(file.read_text())
    return lasting({name: value for name, value in row.items() if name not in ("environment", "digest")})


class Item(NamedTuple):
    """A golden: how it is made, and how it is compared."""

    kind: str
    make: Callable[[bool], Any]
    tolerance: float = 0.0
    more: bool = False
    """Whether new names are allowed."""
    texts: bool = False
    """Whether it is kept as a folder of text files."""
    quick: bool = False
    """Whether it is a test, too."""


ITEMS: dict[str, Item] = {
    "names": Item("portable", public_names, more=True, quick=True),
    "layouts": Item("portable", layouts, quick=True),
    "operators": Item("portable", operators),
    "help": Item("portable", helps, texts=True),
    "saved": Item("portable", saved, quick=True),
    "records": Item("portable", records, quick=True),
    "checkpoint": Item("portable", resumes, 1e-4),
    "wheel": Item("portable", wheel_data, quick=True),
    "imports": Item("portable", lazy, quick=True),
    "starts": Item("machine", starts),
    "torch": Item("machine", outputs("torch")),
    "cpu": Item("machine", outputs("cpu"), 1e-6),
    "reference": Item("machine", outputs("reference"), 1e-6),
    "triton": Item("machine", outputs("triton", "linear"), 1e-6),
    "training": Item("machine", training),
    "bench": Item("machine", bench_page),
    **{f"smoke-{name}": Item("machine", smoke(name)) for name in EXPERIMENTS},
    "explorer": Item("machine", explorer),
    "server": Item("machine", server),
    "report": Item("machine", report),
    "import-time": Item("machine", import_time),
}


def difference(old: Any, new: Any, item: Item, where: str = "") -> str | None:
    """The first difference, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        if missing := [name for name in old if name not in new]:
            return f"{where} lacks {missing[0]!r}"
        if not item.more and (added := [name for name in new if name not in old]):
            return f"{where} has {added[0]!r} anew"
        pairs = ((f"{where}/{name}", old[name], new[name]) for name in old)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f"{where} had {len(old)} entries, now {len(new)}"
        pairs = ((f"{where}/{place}", *both) for place, both in enumerate(zip(old, new, strict=True)))
    elif isinstance(old, float) and isinstance(new, float):
        same = old == new or (old != old and new != new) or abs(old - new) <= item.tolerance * max(1.0, abs(old))
        return None if same else f"{where} was {old!r}, now {new!r}"
    elif isinstance(old, str) and isinstance(new, str) and "\n" in old and old != new:
        rows = zip([*old.splitlines(), None], [*new.splitlines(), None], strict=False)
        return next(f"{where} line {n}: was {a!r}, now {b!r}" for n, (a, b) in enumerate(rows, 1) if a != b)
    else:
        return None if old == new else f"{where} was {old!r}, now {new!r}"
    return next((told for place, a, b in pairs if (told := difference(a, b, item, place))), None)


def keep(name: str, found: Any, folder: Path) -> None:
    """Write what an item is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not ITEMS[name].texts:
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir()
    for file, text in found.items():
        (folder / name / file).write_text(text)


def kept(name: str, folder: Path) -> Any:
    """What an item was."""
    if ITEMS[name].texts:
        return {file.name: file.read_text() for file in sorted((folder / name).iterdir())}
    return json.loads((folder / f"{name}.json").read_text())


def one(action: str, name: str, folder: Path) -> str | None:
    """Write or check an item; the first difference, or None."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = json.loads(json.dumps(ITEMS[name].make(action == "write")))
    if action == "write":
        keep(name, found, folder)
        return None
    return difference(kept(name, folder), found, ITEMS[name])


def main() -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write or check the goldens.")
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("kind", choices=("portable", "machine"))
    parser.add_argument("folder", nargs="?", type=Path, default=None)
    parser.add_argument("--only", nargs="+", choices=list(ITEMS), metavar="ITEM", help=", ".join(ITEMS))
    parser.add_argument("--here", action="store_true", help="all in this process")
    chosen = parser.parse_args()
    folder = (chosen.folder or (PORTABLE if chosen.kind == "portable" else MACHINE)).resolve()
    names = [name for name, item in ITEMS.items() if item.kind == chosen.kind and name in (chosen.only or ITEMS)]
    if chosen.here:
        found = [(name, one(chosen.action, name, folder)) for name in names]
        done = "written" if chosen.action == "write" else "equal"
        print("\n".join(f"{name:18} {f'DIFFERS: {told}' if told else done}"[:600] for name, told in found))
        return int(any(told for _, told in found))
    print(f"neurocoder of {Path(nc.__file__).parent}, goldens in {folder}")
    failed = 0
    for name in names:
        begun = time.perf_counter()
        words = [sys.executable, __file__, chosen.action, chosen.kind, str(folder), "--only", name, "--here"]
        done = subprocess.run(words, env=settings(), capture_output=True, text=True, check=False)
        lines = done.stdout.strip() if done.returncode in (0, 1) and done.stdout else f"{name:18} FAILED"
        failed += done.returncode != 0
        told = done.stderr.strip()[-600:] if done.returncode or name == "import-time" else ""
        print(f"{lines}  ({time.perf_counter() - begun:.1f} s) {told}".rstrip(), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
