"""Posteriors over the weights of networks, and whether to believe them."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
