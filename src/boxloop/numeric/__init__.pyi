from .blas import lower_norms, lower_product, product, scatter, sparse_product, triangle as triangle
from .covariance import LowRank as LowRank
from .device import pick_device as pick_device, without_gpu as without_gpu
from .diagonal import Diagonaliser as Diagonaliser, joint as joint, power as power, widest_gap as widest_gap
from .distance import relative_error as relative_error, wasserstein as wasserstein
from .linalg import (
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
from .random import RandomState as RandomState, generator, normal, seed, spawn
from .rotation import signs, varimax as varimax
from .scramble import scrambled
from .threads import (
    SingleThreaded as SingleThreaded,
    single_threaded as single_threaded,
    use_threads as use_threads,
)
from .written import (
    digits_for as digits_for,
    join_words as join_words,
    number as number,
    with_error as with_error,
)

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
