"""Markov kernels: one file per algorithm, and the Metropolis step that most of them share."""
