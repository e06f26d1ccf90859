"""Latent-variable models as one loop: build, compute, criticise, repeat."""

from boxloop.exports import lazy_exports
from boxloop.version import __version__ as __version__

lazy_exports(__name__)
