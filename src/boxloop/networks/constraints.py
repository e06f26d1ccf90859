"""The classes that files of posteriors over weights may contain, and the constraints on their values."""

from __future__ import annotations

import math
from typing import Any

import torch

from boxloop.average import Power
from boxloop.fit import GradientState, StreamSettings, StreamState
from boxloop.networks.linear_regression import Centre, LinearPosterior
from boxloop.networks.methods.factor import (
    FactorEM,
    FactorGradient,
    StandardisedGradientState,
    WeightStandardisation,
)
from boxloop.networks.methods.sample_moments import SWA, SWAG, FullCovariance, FullState, MeanState, SwagState
from boxloop.networks.methods.window_average import WindowAverage, WindowState
from boxloop.networks.posterior import DTYPES, Layout, PosteriorState, WeightTrace
from boxloop.persist import (
    LOCATION,
    NOT_NEGATIVE,
    PLACES,
    POSITIVE,
    POSITIVE_DEFINITE,
    REAL,
    SCALE,
    Array,
    Axes,
    Constraints,
    Nested,
    Number,
    Table,
    Values,
)

MOMENT = Values("at least 0, with a finite square", lambda x: NOT_NEGATIVE.hold(x) and REAL.hold(x))
NOISE = Values("positive, with a finite square", lambda x: POSITIVE.hold(x) and REAL.hold(x))
"""Noise of weights, whose squares are summed."""
COUNT = Number(least=0)
VECTORS = Number(least=1, most=2**31)  # number of vectors in memory at the same time
STATES: dict[type, type] = {
    FactorEM: StreamState,
    FactorGradient: StandardisedGradientState,
    SWAG: SwagState,
    SWA: MeanState,
    FullCovariance: FullState,
    WindowAverage: WindowState,
}
"""The state of each method."""
METHODS, ESTIMATES = tuple(STATES), tuple(STATES.values())
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        PosteriorState, Layout, WeightTrace, Power, *METHODS, *ESTIMATES, StreamSettings, GradientState,
        WeightStandardisation,
    )
}  # fmt: skip
"""Classes that a file of a posterior may contain, by name."""


def _check_layout(layout: Layout, axes: Axes) -> str | None:
    sizes = [math.prod(shape) for shape in layout.shapes]
    if not sizes or len(layout.names) != len(sizes) or len(set(layout.names)) != len(sizes):
        return "names must be distinct, with as many shapes"
    if min(length for shape in (*layout.shapes, (1,)) for length in shape) < 1 or max(sizes) >= 2**48:
        return "shapes must be positive, and have less than 2^48 entries"
    axes["D"] = sum(sizes)
    return None


def _check_posterior(state: PosteriorState, axes: Axes) -> str | None:
    if state.dtype not in DTYPES:
        return f"dtype is {state.dtype!r}, not one of {', '.join(DTYPES)}"
    if axes["dtype"] != DTYPES[state.dtype]:
        return f"dtype is {state.dtype!r}, but the estimate holds {axes['dtype']}"
    if int(state.trace.index[-1]) >= axes["D"]:
        return f"trace.index exceeds the {axes['D']} weights"
    count = _count_vectors(state.estimate)
    if count != state.trace.count:
        return f"trace.count is {state.trace.count}, but the estimate has {count} vectors"
    return _check_method(state.method, state.estimate) or _check_distribution(state)


def _check_distribution(state: PosteriorState) -> str | None:
    """Fields that are valid one by one may still give variances that are negative or infinite."""
    if state.trace.count < state.method.min_vectors:
        return None
    try:
        found = state.method.restore(state.estimate.map(torch.clone), torch.device("cpu")).distribution()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return f"estimate gives no distribution of the weights: {error}"
    finite = all(bool(torch.isfinite(part).all()) for part in (found.mean, found.loadings, found.noise))
    if finite and bool((found.noise >= 0.0).all()):
        return None
    return "estimate gives a distribution that is not finite"


def _check_method(method: Any, state: Any) -> str | None:
    """Whether a state belongs to this method and its settings."""
    if not isinstance(state, STATES[type(method)]):
        return f"estimate is a {type(state).__name__}, which is not a state of {type(method).__name__}"
    if isinstance(method, WindowAverage) and isinstance(state, WindowState):
        if divmod(state.count, method.window) != (_count_vectors(state.inner), state.filled):
            return (
                f"estimate.count is {state.count}, which does not agree with its windows of {method.window}"
            )
        return _check_method(method.inner, state.inner)
    rank, own = getattr(method, "rank", None), _state_rank(state)
    return None if rank == own else f"method.rank is {rank}, but the estimate has rank {own}"


def _state_rank(state: Any) -> int | None:
    if isinstance(state, StreamState):
        return state.rank
    if isinstance(state, StandardisedGradientState):
        return state.stream.rank
    return len(state.rows) if isinstance(state, SwagState) else None


def _count_vectors(state: Any) -> int:
    """Number of vectors observed."""
    if isinstance(state, StreamState):
        return state.count + len(state.gathered)
    count = state.stream.count if isinstance(state, StandardisedGradientState) else state.count
    return int(count)


def _check_trace(trace: WeightTrace, axes: Axes) -> str | None:
    expected = -(-trace.count // trace.stride)
    return None if len(trace.values) == expected else f"values has {len(trace.values)} rows, not {expected}"


def _check_stream(state: StreamState, axes: Axes) -> str | None:
    if not axes["K"] < axes["R"]:
        return f"rows has {axes['R']} rows for rank {axes['K']}"
    if state.settings.variant == "paper":
        return None
    if state.start is not None:
        return "start belongs to the paper's variant only"
    return None if POSITIVE_DEFINITE.hold(state.latent) else f"latent must be {POSITIVE_DEFINITE.words}"


def _check_gradient(state: GradientState, axes: Axes) -> str | None:
    return None if len(state.rows) > state.rank else f"rows has {len(state.rows)} rows for rank {state.rank}"


def _check_linear_posterior(posterior: LinearPosterior, axes: Axes) -> str | None:
    most = axes["d"]
    if not 0 <= posterior.rank <= most:
        return f"rank is {posterior.rank}, not between 0 and {most}"
    # In standard units no product of a row with a column of vectors is above this.
    reach = 10.0 * posterior.vectors.abs().sum(0)
    variance = posterior.variance @ reach.square() + posterior.level_variance + posterior.beta.reciprocal()
    return None if bool(torch.isfinite(variance).all()) else "variance is so large that predictions overflow"


CONSTRAINTS: Table = {
    Power: Constraints(),
    StreamSettings: Constraints(schedule=Nested((Power,)), refresh=VECTORS, warmup=VECTORS),
    StreamState: Constraints(
        _check_stream,
        rows=Array("R D"),
        mean=Array("D"),
        square=Array("D", MOMENT),
        noise=Array("D", MOMENT),
        start=Array("K D"),
        gathered=Array("n D", least=0),
        basis=Array("K K", dtype=torch.float64),
        latent=Array("K K", dtype=torch.float64),
        turn=Array("K K", dtype=torch.float64),
        update=Array("K R", dtype=torch.float64),
        count=COUNT,
    ),
    GradientState: Constraints(
        _check_gradient,
        rows=Array("R D"),
        mean=Array("D"),
        noise=Array("D", NOISE),
        moment=Array("R R", dtype=torch.float64),
        rank=Number(least=1),
        count=COUNT,
        learning_rate=Number(least=0.0, most=1e3),
        warmup=Number(least=0),
    ),
    WeightStandardisation: Constraints(
        mean=Array("D"), square=Array("D", MOMENT), origin=Array("D"), scale=Array("D", MOMENT), due=COUNT
    ),
    StandardisedGradientState: Constraints(
        stream=Nested((GradientState,), "D dtype"), units=Nested((WeightStandardisation,), "D dtype")
    ),
    SwagState: Constraints(
        mean=Array("D"),
        square=Array("D", MOMENT),
        rows=Array("K D"),
        count=COUNT,
        floor=Number(least=0.0, most=1e30),
    ),
    MeanState: Constraints(mean=Array("D"), count=COUNT),
    FullState: Constraints(mean=Array("D"), scatter=Array("D D"), count=COUNT),
    WindowState: Constraints(mean=Array("D"), inner=Nested(ESTIMATES, "D dtype"), filled=COUNT, count=COUNT),
    WindowAverage: Constraints(inner=Nested(METHODS)),
    FactorEM: Constraints(schedule=Nested((Power,)), refresh=VECTORS, warmup=VECTORS),
    Layout: Constraints(_check_layout),
    WeightTrace: Constraints(
        _check_trace,
        index=Array("p", PLACES, torch.int64),
        values=Array("t p", dtype=torch.float64, least=0),
        stride=Number(least=1),
        count=COUNT,
    ),
    PosteriorState: Constraints(
        _check_posterior,
        layout=Nested((Layout,), "D"),
        method=Nested(METHODS),
        estimate=Nested(ESTIMATES, "D dtype"),
        trace=Nested((WeightTrace,)),
        n_refused=COUNT,
    ),
    Centre: Constraints(origin=Array("d", LOCATION), scale=Array("d", SCALE), level=Array("k")),
    LinearPosterior: Constraints(
        _check_linear_posterior,
        mean=Array("k d"),
        vectors=Array("d d"),
        variance=Array("k d", NOT_NEGATIVE),
        centre=Nested((Centre,), "k d dtype"),
        level_variance=Array("k", NOT_NEGATIVE),
        alpha=Array("k", POSITIVE),
        beta=Array("k", POSITIVE),
        log_evidence=Array("k"),
        effective=Array("k", NOT_NEGATIVE),
    ),
}
"""Constraints on the fields of each class."""
