"""Distributions in batches, and the exponential families that mixtures are made of."""

from boxloop.exports import export_lazily

export_lazily(__name__)
