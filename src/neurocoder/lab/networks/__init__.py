"""Main Networks of the experiments."""
