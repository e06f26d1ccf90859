"""Distributions in batches, and the exponential families that mixtures are made of."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
