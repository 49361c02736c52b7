"""The page for users: short, and of models that exist. `tests/test_docs.py` runs its snippets."""

import re
from pathlib import Path

from neurocoder.lab.experiments.images.models import MODELS

PAGE = (Path(__file__).parents[3] / "docs" / "images.md").read_text()


def test_ones_own_folder_takes_fewer_than_twenty_lines():
    snippet = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[-1]
    assert "read_folder" in snippet
    assert len([line for line in snippet.splitlines() if line.strip()]) < 20


def test_every_model_is_explained():
    table = PAGE.partition("## Models")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z0-9-]+)`", table.partition("\n\nThe paper")[0].replace("`-", "`neurocoder-"))
    assert sorted(named) == sorted(MODELS)
