"""Estimating equations: roots, optima and moments, with sandwich errors."""
