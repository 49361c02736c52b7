"""How the modules of the growing layers depend on each other."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from neurocoder import growing

FOLDER = Path(growing.__file__).parent


def test_no_module_needs_one_that_needs_it():
    """Imports inside functions and for types alone count too: triton is imported late, but not to break a cycle."""
    needs = {}
    for file in FOLDER.glob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        near = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1]
        needs[file.stem] = {node.module for node in near}
    order = list(TopologicalSorter(needs).static_order())  # raises CycleError
    assert order.index("notes") < order.index("memory") < order.index("layer") < order.index("growth")
