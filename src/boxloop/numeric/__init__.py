"""Linear algebra and random streams that the laws and models share."""

from boxloop.numeric.blas import product
from boxloop.numeric.linalg import (
    ConditionError,
    floor_covariance,
    gram,
    pack,
    pack_index,
    safe_cholesky,
    unpack,
    woodbury,
)
from boxloop.numeric.random import generator, normal, seed, spawn

__all__ = [
    "ConditionError",
    "floor_covariance",
    "generator",
    "gram",
    "normal",
    "pack",
    "pack_index",
    "product",
    "safe_cholesky",
    "seed",
    "spawn",
    "unpack",
    "woodbury",
]
