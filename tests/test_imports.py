"""Who may import whom. What is not so yet is listed, and the list may only shrink."""

import ast
from pathlib import Path

import pytest

import neurocoder as nc
from neurocoder import functional, growing, inspect, plot, reference
from neurocoder.growing import reference as growing_reference

SOURCE = Path(nc.__file__).parent
PUBLIC = {f"neurocoder.{module.__name__.rpartition('.')[2]}": module for module in (functional, growing, inspect, plot)}
PUBLIC |= {"neurocoder": nc, "neurocoder.reference": reference, "neurocoder.growing.reference": growing_reference}
LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if "lab" not in path.relative_to(SOURCE).parts]
LAB = sorted((SOURCE / "lab").rglob("*.py"))
KINDS = ("program", "core", "growing", "baselines", "exact")


def imported(path):
    """The full names that a file imports, of this package: (module, name) pairs."""
    package = ["neurocoder", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found = [(module, alias.name) for alias in node.names]
        else:
            continue
        yield from (pair for pair in found if pair[0].partition(".")[0] == "neurocoder")


def attributes(path):
    """The attributes of a public module that a file uses: (module, name) pairs, as in `nc.plot.usage`."""
    names = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = getattr(node, "module", None)
            names |= {
                alias.asname or alias.name: full
                for alias in node.names
                if (full := f"{start}.{alias.name}" if start else alias.name) in PUBLIC
            }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            module = names.get(parts[0])
            while module and len(parts) > 2 and f"{module}.{parts[1]}" in PUBLIC:
                module, parts = f"{module}.{parts[1]}", parts[1:]
            if module and len(parts) == 2:
                yield module, parts[1]


def is_public(module, name):
    """Whether a name of the library is one that users have."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (name is None or name in PUBLIC[module].__all__)


def folders(path):
    """The folders of the library that a file imports from."""
    for module, name in imported(path):
        _, *parts = f"{module}.{name}".split(".")
        if parts and (SOURCE / parts[0]).is_dir():
            yield parts[0]


def library(name):
    """The files of a folder or of a single module."""
    return [path for path in LIBRARY if path.relative_to(SOURCE).parts[0] == name] or [SOURCE / name]


def broken(files, is_wrong):
    """Each file with what it imports and may not: a set of `file: name`."""
    return {f"{path.relative_to(SOURCE)}: {name}" for path in files for name in is_wrong(path)}


def require(found, exceptions):
    """No other import than the listed ones, and all of these: a line that is no longer needed must go."""
    assert sorted(found - exceptions) == [], "these imports are not allowed"
    assert sorted(exceptions - found) == [], "these exceptions are no longer needed: delete their lines"


def test_the_library_does_not_know_the_lab():
    def is_wrong(path):
        return [name for name in folders(path) if name == "lab"]

    require(broken(LIBRARY, is_wrong), {"__main__.py: lab"})  # it reads the list of commands


def test_the_lab_imports_public_names_only():
    def is_wrong(path):
        found = [*imported(path), *attributes(path)]
        return [
            f"{module}.{name}"
            for module, name in found
            if not f"{module}.".startswith("neurocoder.lab.") and name not in ("lab", "__file__", "__version__")
            if not is_public(module, name)
        ]

    images = "lab/experiments/images"
    exceptions = {
        # The kernels of DenseNet, which will go.
        f"{images}/densenet.py: neurocoder.ops.backend.is_traced",
        f"{images}/densenet.py: neurocoder.ops.backend.is_transformed",
        f"{images}/densenet.py: neurocoder.ops.backend.prefers_triton",
        f"{images}/densenet.py: neurocoder.ops.torch_private.has_global_hooks",
        f"{images}/densenet.py: neurocoder.ops.torch_private.has_hooks",
        f"{images}/dense_block.py: neurocoder.ops.autograd.refuse_second_derivatives",
        f"{images}/dense_block.py: neurocoder.ops.launch.cdiv",
        f"{images}/dense_block.py: neurocoder.ops.launch.on_device_of",
        f"{images}/dense_block.py: neurocoder.ops.launch.power_of_two",
    }
    require(broken(LAB, is_wrong), exceptions)


@pytest.mark.parametrize(
    ("folder", "forbidden", "exceptions"),
    [
        ("layer", KINDS, set()),
        ("ops", KINDS, set()),
        *[(kind, tuple(other for other in KINDS if other != kind), set()) for kind in KINDS],
        ("surgery", KINDS, set()),
        ("inspect", KINDS, set()),
        ("training.py", KINDS, set()),
    ],
)
def test_a_kind_knows_no_other_kind_and_what_is_below_knows_none(folder, forbidden, exceptions):
    def is_wrong(path):
        return [name for name in folders(path) if name in forbidden]

    require(broken(library(folder), is_wrong), exceptions)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from ..surgery import plan", ["neurocoder.surgery.plan"]),
        ("import neurocoder.layer.base", ["neurocoder.layer.base.None"]),
        ("import neurocoder as nc\nnc.surgery.plan", ["neurocoder.surgery"]),
        ("import neurocoder as nc\nnc.inspect.views.many", ["neurocoder.inspect.views"]),
        ("from neurocoder import inspect, recode\ninspect.attention", []),
        ("import neurocoder as nc\nnc.growing.GrowingLayer, nc.recode, nc.plot.usage(1).savefig", []),
    ],
)
def test_a_private_name_is_seen_however_it_is_imported(tmp_path, monkeypatch, line, wrong):
    (tmp_path / "lab").mkdir()
    path = tmp_path / "lab" / "own.py"
    path.write_text(line)
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    found = [f"{module}.{name}" for module, name in (*imported(path), *attributes(path)) if not is_public(module, name)]
    assert found == wrong
