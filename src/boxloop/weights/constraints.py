"""What files of posteriors over weights may consist of, and what it must hold."""

from __future__ import annotations

import math
from typing import Any

import torch

from boxloop.average import Power
from boxloop.fit import GradientState, StreamSettings, StreamState
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
from boxloop.weights.factor import FactorEM
from boxloop.weights.full import Full, FullState
from boxloop.weights.gradient import FactorGradient, GradientUnits, WeightUnits
from boxloop.weights.layout import Layout
from boxloop.weights.linear_regression import LinearPosterior
from boxloop.weights.posterior import DTYPES, PosteriorState
from boxloop.weights.record import Record
from boxloop.weights.regression_moments import Centre
from boxloop.weights.swa import SWA, MeanState
from boxloop.weights.swag import SWAG, SwagState
from boxloop.weights.window import Windowed, WindowState

MOMENT = Values("at least 0, with a finite square", lambda x: NOT_NEGATIVE.hold(x) and REAL.hold(x))
NOISE = Values("positive, with a finite square", lambda x: POSITIVE.hold(x) and REAL.hold(x))
"""Of weights: their squares are added up."""
COUNT = Number(least=0)
AT_ONCE = Number(least=1, most=2**31)
"""Vectors that are held in memory together."""
STATES: dict[type, type] = {
    FactorEM: StreamState,
    FactorGradient: GradientUnits,
    SWAG: SwagState,
    SWA: MeanState,
    Full: FullState,
    Windowed: WindowState,
}
"""What each method knows, by the method."""
METHODS, FOLLOWERS = tuple(STATES), tuple(STATES.values())
CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        PosteriorState, Layout, Record, Power, *METHODS, *FOLLOWERS, StreamSettings, GradientState, WeightUnits,
    )
}  # fmt: skip
"""What a file of a posterior may be made of."""


def _layout_fits(layout: Layout, axes: Axes) -> str | None:
    sizes = [math.prod(shape) for shape in layout.shapes]
    if not sizes or len(layout.names) != len(sizes) or len(set(layout.names)) != len(sizes):
        return "names must be distinct, with as many shapes"
    if min(length for shape in (*layout.shapes, (1,)) for length in shape) < 1 or max(sizes) >= 2**48:
        return "shapes must be positive, and of tensors that a memory holds"
    axes["D"] = sum(sizes)
    return None


def _posterior_fits(state: PosteriorState, axes: Axes) -> str | None:
    if state.dtype not in DTYPES:
        return f"dtype is {state.dtype!r}, not one of {', '.join(DTYPES)}"
    if axes["dtype"] != DTYPES[state.dtype]:
        return f"dtype is {state.dtype!r}, but the follower holds {axes['dtype']}"
    if int(state.record.places[-1]) >= axes["D"]:
        return f"record.places go beyond the {axes['D']} weights"
    seen = _vectors(state.follower)
    if seen != state.record.seen:
        return f"record.seen is {state.record.seen}, but the follower has seen {seen} vectors"
    return _method_fits(state.method, state.follower) or _has_law(state)


def _has_law(state: PosteriorState) -> str | None:
    """What each field may hold by itself may still give variances that are negative, or beyond all numbers."""
    if state.record.seen < state.method.least:
        return None
    try:
        law = state.method.restore(state.follower.map(torch.clone), torch.device("cpu")).law()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return f"follower gives no law of the weights: {error}"
    finite = all(bool(torch.isfinite(part).all()) for part in (law.mean, law.loadings, law.noise))
    return None if finite and bool((law.noise >= 0.0).all()) else "follower gives a law that is not finite"


def _method_fits(method: Any, state: Any) -> str | None:
    """Whether a state is one of this method, with its settings."""
    if not isinstance(state, STATES[type(method)]):
        return f"follower is a {type(state).__name__}, which is no state of {type(method).__name__}"
    if isinstance(method, Windowed) and isinstance(state, WindowState):
        whole, rest = divmod(state.count, method.window)
        if (whole, rest) != (_vectors(state.inner), state.filled):
            return f"follower.count is {state.count}, which does not fit its windows of {method.window}"
        return _method_fits(method.inner, state.inner)
    rank = getattr(method, "rank", None)
    held = _rank(state)
    return None if rank == held else f"method.rank is {rank}, but the follower has rank {held}"


def _rank(state: Any) -> int | None:
    if isinstance(state, StreamState):
        return state.rank
    if isinstance(state, GradientUnits):
        return state.stream.rank
    return len(state.rows) if isinstance(state, SwagState) else None


def _vectors(state: Any) -> int:
    """How many vectors a follower has seen."""
    if isinstance(state, StreamState):
        return state.count + len(state.gathered)
    count = state.stream.count if isinstance(state, GradientUnits) else state.count
    return int(count)


def _record_fits(record: Record, axes: Axes) -> str | None:
    kept = -(-record.seen // record.stride)
    return None if len(record.rows) == kept else f"rows has {len(record.rows)} rows, not {kept}"


def _stream_fits(state: StreamState, axes: Axes) -> str | None:
    if not axes["K"] < axes["R"]:
        return f"rows has {axes['R']} rows for rank {axes['K']}"
    if state.settings.variant == "paper":
        return None
    if state.start is not None:
        return "start belongs to the paper's variant alone"
    return None if POSITIVE_DEFINITE.hold(state.latent) else f"latent must be {POSITIVE_DEFINITE.words}"


def _gradient_fits(state: GradientState, axes: Axes) -> str | None:
    wanted = (len(state.rows),) * 2
    if state.moment is not None and tuple(state.moment.shape) != wanted:
        return f"moment has shape {tuple(state.moment.shape)}, not {wanted}"
    return None if len(state.rows) > state.rank else f"rows has {len(state.rows)} rows for rank {state.rank}"


def _rank_fits(posterior: LinearPosterior, axes: Axes) -> str | None:
    most = axes["d"]
    if not 0 <= posterior.rank <= most:
        return f"rank is {posterior.rank}, not between 0 and {most}"
    # In standard units no product of a row with a column of vectors is above this.
    reach = 10.0 * posterior.vectors.abs().sum(0)
    variance = posterior.variance @ reach.square() + posterior.level_variance + posterior.beta.reciprocal()
    return None if bool(torch.isfinite(variance).all()) else "variance is so large that predictions overflow"


CONSTRAINTS: Table = {
    Power: Constraints(),
    StreamSettings: Constraints(schedule=Nested((Power,)), refresh=AT_ONCE, warmup=AT_ONCE),
    StreamState: Constraints(
        _stream_fits,
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
        _gradient_fits,
        rows=Array("R D"),
        mean=Array("D"),
        noise=Array("D", NOISE),
        moment=Array("R R", dtype=torch.float64),
        rank=Number(least=1),
        count=COUNT,
        learning_rate=Number(least=0.0, most=1e3),
        warmup=Number(least=0),
    ),
    WeightUnits: Constraints(
        mean=Array("D"),
        square=Array("D", MOMENT),
        origin=Array("D"),
        scale=Array("D", MOMENT),
        due=COUNT,
    ),
    GradientUnits: Constraints(
        stream=Nested((GradientState,), "D dtype"), units=Nested((WeightUnits,), "D dtype")
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
    WindowState: Constraints(mean=Array("D"), inner=Nested(FOLLOWERS, "D dtype"), filled=COUNT, count=COUNT),
    Windowed: Constraints(inner=Nested(METHODS)),
    FactorEM: Constraints(schedule=Nested((Power,)), refresh=AT_ONCE, warmup=AT_ONCE),
    Layout: Constraints(_layout_fits),
    Record: Constraints(
        _record_fits,
        places=Array("p", PLACES, torch.int64),
        rows=Array("t p", dtype=torch.float64, least=0),
        stride=Number(least=1),
        seen=COUNT,
    ),
    PosteriorState: Constraints(
        _posterior_fits,
        layout=Nested((Layout,), "D"),
        method=Nested(METHODS),
        follower=Nested(FOLLOWERS, "D dtype"),
        record=Nested((Record,)),
        n_refused=COUNT,
    ),
    Centre: Constraints(origin=Array("d", LOCATION), scale=Array("d", SCALE), level=Array("k")),
    LinearPosterior: Constraints(
        _rank_fits,
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
"""By class."""
