"""Markov chain Monte Carlo: kernels, adaptation, diagnostics, checks."""

from boxloop.exports import export_lazily

export_lazily(__name__)
