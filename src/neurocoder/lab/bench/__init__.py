"""The benchmark: the cost of a program layer next to a plain one. Run as `python -m neurocoder.lab.bench`."""
