"""docs/clients.md: the tests that its tables name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    row for row in (ROOT / "docs/clients.md").read_text().splitlines() if row.startswith("| ") and "Test |" not in row
]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_a_test_that_is_there(row):
    file, name = re.search(r"\| `([\w./]+)::(test_\w+)` \|$", row).groups()
    found = (ROOT / file if "/" in file else Path(__file__).parent / file).read_text()
    assert f"def {name}(" in found
