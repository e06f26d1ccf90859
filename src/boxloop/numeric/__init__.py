"""Linear algebra and random streams that the laws and models share."""

from boxloop.numeric.blas import lower_norms, lower_product, product, scatter, sparse_product
from boxloop.numeric.linalg import (
    ConditionError,
    cholesky,
    column_means,
    floor_covariance,
    from_log_factor,
    gram,
    log_factor,
    mirrored,
    pack,
    pack_index,
    safe_cholesky,
    solved,
    unpack,
    upper_gram,
    woodbury,
)
from boxloop.numeric.random import generator, normal, seed, spawn
from boxloop.numeric.rotation import signs
from boxloop.numeric.scramble import scrambled

__all__ = [
    "ConditionError",
    "cholesky",
    "column_means",
    "floor_covariance",
    "from_log_factor",
    "generator",
    "gram",
    "log_factor",
    "lower_norms",
    "lower_product",
    "mirrored",
    "normal",
    "pack",
    "pack_index",
    "product",
    "safe_cholesky",
    "scatter",
    "scrambled",
    "seed",
    "signs",
    "solved",
    "sparse_product",
    "spawn",
    "unpack",
    "upper_gram",
    "woodbury",
]
