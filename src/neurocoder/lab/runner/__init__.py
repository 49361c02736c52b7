"""Running experiments: options, jobs, sweeps, and where they run."""
