"""Checks of a posterior over weights: its trajectory, its covariance and its predictions."""
