"""Markov chain Monte Carlo: kernels, adaptation, diagnostics, checks."""
