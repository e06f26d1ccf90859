"""Markov chain Monte Carlo: kernels, adaptation, diagnostics, checks."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
