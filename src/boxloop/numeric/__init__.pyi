from .covariance import (
    LowRank as LowRank,
    average_covariance as average_covariance,
    projected_variance as projected_variance,
    relative_error as relative_error,
    wasserstein_distance as wasserstein_distance,
)
from .device import pick_device as pick_device, without_gpu as without_gpu
from .format import (
    count_significant_digits as count_significant_digits,
    format_above as format_above,
    format_number as format_number,
    format_with_error as format_with_error,
    join_words as join_words,
)
from .linalg import (
    ConditionError,
    column_means,
    column_signs,
    floor_covariance,
    from_log_factor,
    gram,
    has_missing as has_missing,
    log_factor,
    lower_norms,
    lower_product,
    mirrored,
    pack,
    pack_index,
    product,
    safe_cholesky,
    scatter,
    sparse_product,
    unpack,
    upper_gram,
    woodbury,
)
from .random import (
    RandomState as RandomState,
    generator,
    hash_rows as hash_rows,
    normal,
    scrambled,
    seed,
    sobol_normal_nodes as sobol_normal_nodes,
    sobol_points as sobol_points,
    spawn,
)
from .rotation import (
    Diagonaliser as Diagonaliser,
    diagonalise_by_powers as diagonalise_by_powers,
    diagonalise_jointly as diagonalise_jointly,
    diagonalise_widest_gap as diagonalise_widest_gap,
    varimax as varimax,
)
from .standard_errors import mean_and_error as mean_and_error
from .threads import (
    SingleThreaded as SingleThreaded,
    single_threaded as single_threaded,
    use_threads as use_threads,
)

__all__ = [
    "ConditionError",
    "column_means",
    "column_signs",
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
    "sparse_product",
    "spawn",
    "unpack",
    "upper_gram",
    "woodbury",
]
