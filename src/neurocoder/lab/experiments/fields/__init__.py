"""Images as functions of the place, with a latent for each image."""

from .experiment import Fields

__all__ = ["Fields"]
