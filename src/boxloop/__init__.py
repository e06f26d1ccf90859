"""Latent-variable models as one loop: build, compute, criticise, repeat."""

from boxloop.version import __version__

__all__ = ["__version__"]
