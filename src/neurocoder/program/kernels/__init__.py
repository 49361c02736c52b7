"""Fused composition and mix, each path checked against `neurocoder.functional`; `neurocoder.backend` chooses."""
