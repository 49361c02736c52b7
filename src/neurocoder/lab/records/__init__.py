"""Records of runs: what they hold, where they are kept, and how they are read."""
