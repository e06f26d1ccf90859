"""What the file of a network estimator holds: every network whole, and the posterior over its weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from boxloop.estimators._params import pick_dtype
from boxloop.estimators.network_rows import Units
from boxloop.numeric import generator
from boxloop.persist import (
    LOCATION,
    POSITIVE,
    PROGRESS,
    SCALE,
    Array,
    Axes,
    Constraints,
    ModelFile,
    ModelFileError,
    Nested,
    Number,
    Saved,
    Table,
    Values,
)
from boxloop.tree import DictTree, Tree, from_tree, to_tree
from boxloop.weights import (
    CLASSES,
    CONSTRAINTS,
    NET,
    Kind,
    MultiPosterior,
    PosteriorState,
    Predictor,
    WeightPosterior,
    perceptron,
)

FACTS: dict[str, Any] = {
    **{name: kind for name, kind in PROGRESS.items() if name != "converged_"},
    "n_outputs_": int,
    "history_": dict[str, list[float]],
    "collect_rate_": float | None,
    "weight_decay_": float,
    "_mark": list[float],
    "weighted_": bool,
}
"""Fitted attributes of these estimators in a file, beside the networks."""
SCALES = Values(
    "positive, with a square that is not 0", lambda x: bool(((x > 0.0) & (x.double().square() > 0.0)).all())
)
"""Of columns; that of a constant one is infinite."""


@dataclass(frozen=True)
class Member(Tree):
    """One network: all its tensors, and the posterior over those that vary."""

    net: DictTree
    posterior: PosteriorState


@dataclass(frozen=True)
class NetworkState(Tree):
    """The networks of a fitted estimator.

    Args:
        x_units: of the columns.
        y_units: of the outputs; None for classes.
        members: the networks.
        own: name of the class, where they are a module of the user's.
        noise: as of the predictor, and so on.
    """

    x_units: Units
    y_units: Units | None
    members: tuple[Member, ...]
    own: str | None
    noise: Tensor | None
    buffers: tuple[DictTree, ...] | None
    scale: float
    temperature: float
    seed: int
    n_draws: int


def _state_fits(state: NetworkState, axes: Axes) -> str | None:
    if not state.members:
        return "members must not be empty"
    if state.y_units is not None and not SCALE.hold(state.y_units.scale):
        return f"y_units.scale must be {SCALE.words}"
    if len({len(member.posterior.layout.names) for member in state.members}) > 1:
        return "the layouts of the members differ"
    return None


def _member_fits(member: Member, axes: Axes) -> str | None:
    """A network is a table of tensors by their names."""
    named = all(isinstance(key, str) for key in member.net.keys)
    return (
        None
        if named and all(isinstance(value, Tensor) for value in member.net.values)
        else ("net must hold tensors by name")
    )


def _table_fits(table: DictTree, axes: Axes) -> str | None:
    ok = len(table.keys) == len(table.values) == len(set(table.keys))
    return None if ok else "keys must be distinct, with as many values"


STATE_CONSTRAINTS: Table = {
    **CONSTRAINTS,
    DictTree: Constraints(_table_fits),
    Units: Constraints(origin=Array("d", LOCATION), scale=Array("d", SCALES)),
    Member: Constraints(_member_fits, net=Nested((DictTree,)), posterior=Nested((PosteriorState,))),
    NetworkState: Constraints(
        _state_fits,
        x_units=Nested((Units,), "d"),
        y_units=Nested((Units, type(None)), "d=q"),
        members=Nested((Member,)),
        noise=Array("q|1", POSITIVE, torch.float64),
        buffers=Nested((DictTree, type(None))),
        scale=Number(least=0.0, most=1e30),
        temperature=Number(above=0.0, most=1e30),
        seed=Number(least=0),
        n_draws=Number(least=1, most=2**31),
    ),
}
"""What it must hold, by class."""


def network_file(**facts: Any) -> ModelFile:
    """The file of a network estimator.

    Args:
        facts: types of fitted attributes besides those of all network estimators.
    """
    return ModelFile(
        NetworkState,
        (*CLASSES.values(), Member, Units, DictTree),
        STATE_CONSTRAINTS,
        {**FACTS, **facts},
        checks=(_outputs_fit, _module_fits),
    )


def _outputs_fit(estimator: Any, saved: Saved) -> str | None:
    regression = "single_" in vars(estimator)
    n_outputs = saved.axes.get("q") if regression else len(estimator.classes_)
    if n_outputs == estimator.n_outputs_ and not (regression and estimator.single_ and n_outputs != 1):
        return None
    return f"n_outputs_ is {estimator.n_outputs_}, but the file describes {n_outputs} outputs"


def _module_fits(estimator: Any, saved: Saved) -> str | None:
    state: Any = saved.tree
    if state.own is None:
        return None if estimator.module is None else "its networks are boxloop's own: leave out module="
    if estimator.module is not None:
        return None
    return (
        f"its networks are a module of yours ({state.own}), of which a file holds the tensors alone: "
        f"{type(estimator).__name__}.load(path, module=...) puts them into one"
    )


def state_of(estimator: BaseEstimator) -> NetworkState:
    """All networks of a fitted estimator."""
    predictor, posteriors = estimator.predictor_, estimator.posterior_.posteriors
    return NetworkState(
        estimator.x_units_,
        estimator.y_units_,
        tuple(Member(to_tree(one.net.state_dict()), one.state()) for one in posteriors),
        None if estimator.module is None else type(posteriors[0].net).__name__,
        None if predictor.noise is None else torch.as_tensor(np.array(predictor.noise)),
        None if predictor.buffers is None else tuple(to_tree(dict(one)) for one in predictor.buffers),
        predictor.scale,
        predictor.temperature,
        predictor.seed,
        predictor.n_draws,
    )


def restore_state(estimator: BaseEstimator, state: NetworkState) -> None:
    """Set units, posterior and predictor of an estimator, whose parameters and other facts are set."""
    dtype = pick_dtype(estimator.dtype)
    blank = _blank(estimator, state, dtype) if estimator.module is None else estimator.module
    estimator.x_units_, estimator.y_units_ = state.x_units, state.y_units
    estimator.posterior_ = MultiPosterior([_filled(blank, member, dtype) for member in state.members])
    estimator.predictor_ = _predictor(state, estimator.posterior_, estimator._kind)


def _blank(estimator: BaseEstimator, state: NetworkState, dtype: torch.dtype) -> nn.Module:
    """A network of ours without values, once its parameters are known to be as many as those of the file."""
    widths = (estimator.n_features_in_, *estimator.hidden, estimator.n_outputs_)
    size = sum((before + 1) * after for before, after in pairwise(widths))
    held = sum(value.numel() for value in state.members[0].net.values if isinstance(value, Tensor))
    if size != held:
        raise ModelFileError(f"layers of {widths} columns have {size} parameters, the file {held}")
    return perceptron(widths, estimator.activation, dtype)


def _filled(blank: Any, member: Member, dtype: torch.dtype) -> WeightPosterior:
    """A posterior with a network of its own that has the tensors of the file."""
    net = copy.deepcopy(blank) if isinstance(blank, nn.Module) else blank(generator(0))
    net = net.to(dtype=dtype).eval()
    try:
        net.load_state_dict(from_tree(member.net))
        return WeightPosterior.restore(member.posterior, net)
    except (RuntimeError, ValueError) as error:
        raise ModelFileError(f"its tensors do not go into the {type(net).__name__} given: {error}") from error


def _predictor(state: NetworkState, posterior: MultiPosterior, kind: Kind) -> Predictor:
    buffers = None if state.buffers is None else tuple(from_tree(one) for one in state.buffers)
    if buffers is not None and len(buffers) != len(posterior.parts()):
        raise ValueError(f"it has buffers of {len(buffers)} networks, not of {len(posterior.parts())}")
    made = Predictor(
        posterior.parts(),
        kind,
        state.n_draws,
        scale=state.scale,
        noise=None if state.noise is None else state.noise.numpy(),
        temperature=state.temperature,
        seed=state.seed,
        refresh=None if buffers is None else NET,
        buffers=buffers,
    )
    for place, held in enumerate(buffers or ()):
        _check_buffers(made, place, held)
    return made


def _check_buffers(predictor: Predictor, place: int, held: dict[str, Tensor]) -> None:
    """Compare the statistics of a part with those that its network has, one set a draw."""
    own, n = dict(predictor.parts[place].net.named_buffers()), predictor.draws.strata.counts[place]
    for name, value in held.items():
        if name not in own or value.shape != (n, *own[name].shape) or value.dtype != own[name].dtype:
            raise ValueError(f"its buffer {name!r} is not one of the network's for {n} draws")
        if not bool(torch.isfinite(value).all()) or (name.endswith("var") and bool((value < 0).any())):
            raise ValueError(f"its buffer {name!r} must be finite, and a variance at least 0")
