"""Fused paths of composition and mix, each checked against `neurocoder.functional`; `neurocoder.backend` chooses."""
