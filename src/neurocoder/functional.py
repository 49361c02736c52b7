"""The equations of program layers as stateless functions; they live in `neurocoder.program.functional`."""

from .program.functional import (
    active_program,
    composition_states,
    content_attention,
    execute,
    least_used_attention,
    orthogonal_loss,
    program_attention,
    singular_values,
    unit,
)

__all__ = [
    "active_program",
    "composition_states",
    "content_attention",
    "execute",
    "least_used_attention",
    "orthogonal_loss",
    "program_attention",
    "singular_values",
    "unit",
]
