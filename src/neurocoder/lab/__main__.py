"""`python -m neurocoder.lab` is the `neurocoder` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
