"""Training one run."""
