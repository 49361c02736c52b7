"""The benchmark: what a program layer costs beside a plain one. Run as `python -m neurocoder.lab.bench`."""
