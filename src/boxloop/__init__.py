"""Latent-variable models as one loop: build, compute, criticise, repeat."""

from boxloop.exports import export_lazily
from boxloop.version import __version__ as __version__

export_lazily(__name__)
