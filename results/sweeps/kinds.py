"""Ten kinds of text for `neurocoder run tasks`: `python3 results/sweeps/kinds.py FOLDER`, then `--data-root FOLDER`.

Manual pages in six languages from this machine (their markup dropped), and C headers, Python, type stubs and JavaScript
from its installed packages: up to 400,000 characters of each in FOLDER/kinds.
"""

from __future__ import annotations

import gzip
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from neurocoder.lab.records.files import atomic_write

SIZE, EACH = 400_000, 12_000
"""Characters of a kind, and of one file, at most."""
MANUALS = Path("/usr/share/man")
LANGUAGES = {"german": "de", "french": "fr", "polish": "pl", "russian": "ru", "spanish": "es", "english": ""}
SOURCES = {"headers": "*.h", "python": "*.py", "stubs": "*.pyi", "javascript": "*.js"}


def manual(file: Path) -> str:
    """A page without lines of comments."""
    text = gzip.decompress(file.read_bytes()).decode("utf8", "replace")
    return "\n".join(line for line in text.splitlines() if not line.startswith(('.\\"', "'\\\"")))


def gathered(texts: Iterable[str]) -> str:
    """The beginnings of texts, until there is enough."""
    found = ""
    for text in texts:
        if len(found) >= SIZE:
            break
        found += text[:EACH] + "\n\n"
    return found[:SIZE]


def main(folder: Path) -> None:
    """Write the files; a kind of which there is too little is an error."""
    packages = Path(sysconfig.get_paths()["purelib"])
    kinds = {name: gathered(map(manual, sorted((MANUALS / at).glob("man?/*.gz")))) for name, at in LANGUAGES.items()}
    for name, pattern in SOURCES.items():
        # every 7th file, so that no package is all there is
        kinds[name] = gathered(file.read_text("utf8", "replace") for file in sorted(packages.rglob(pattern))[::7])
    if short := {name: len(text) for name, text in kinds.items() if len(text) < SIZE / 4}:
        raise SystemExit(
            f"too little text of {short}: install manpages in these languages, or packages with such files"
        )
    for name, text in kinds.items():
        with atomic_write(folder / "kinds" / f"{name}.txt") as temporary:
            temporary.write_text(text, encoding="utf8")
        print(f"{name}: {len(text):,} characters")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
