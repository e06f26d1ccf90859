"""Files of network estimators: posteriors over weights, with own modules as their tensors."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from boxloop.estimators.network_rows import Units
from boxloop.estimators.options import pick_dtype
from boxloop.estimators.plain import PROGRESS, column_names, read_facts, read_params, told_of
from boxloop.numeric import generator
from boxloop.persist import (
    LOCATION,
    POSITIVE,
    SCALE,
    Array,
    Axes,
    Constraints,
    ModelFileError,
    Nested,
    Number,
    Saved,
    Table as Constrained,
    Values,
    load_tree,
    save_tree,
)
from boxloop.tree import Tree
from boxloop.weights import (
    CLASSES,
    CONSTRAINTS,
    NET,
    Kind,
    MultiPosterior,
    PosteriorState,
    Predictor,
    Table,
    WeightPosterior,
    from_tree,
    perceptron,
    to_tree,
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
REGRESSION_FACTS: dict[str, Any] = {"single_": bool}
CLASS_FACTS: dict[str, Any] = {"classes_": list[bool | int | float | str]}
"""Those of regressions, and of classifications, alone."""
SCALES = Values(
    "positive, with a square that is not 0", lambda x: bool(((x > 0.0) & (x.double().square() > 0.0)).all())
)
"""Of columns; that of a constant one is infinite."""


@dataclass(frozen=True)
class Member(Tree):
    """One network: all its tensors, and the posterior over those that vary."""

    net: Table
    posterior: PosteriorState


@dataclass(frozen=True)
class NetworkFile(Tree):
    """What the file of a network estimator holds.

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
    buffers: tuple[Table, ...] | None
    scale: float
    temperature: float
    seed: int
    n_draws: int


NETWORK_PARTS: dict[str, type] = {
    **CLASSES,
    **{kind.__name__: kind for kind in (NetworkFile, Member, Units, Table)},
}
"""What the file of a network estimator may name."""


def _file_fits(file: NetworkFile, axes: Axes) -> str | None:
    if not file.members:
        return "members must not be empty"
    if file.y_units is not None and not SCALE.hold(file.y_units.scale):
        return f"y_units.scale must be {SCALE.words}"
    if len({len(member.posterior.layout.names) for member in file.members}) > 1:
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


def _table_fits(table: Table, axes: Axes) -> str | None:
    ok = len(table.keys) == len(table.values) == len(set(table.keys))
    return None if ok else "keys must be distinct, with as many values"


NETWORK_CONSTRAINTS: Constrained = {
    **CONSTRAINTS,
    Table: Constraints(_table_fits),
    Units: Constraints(origin=Array("d", LOCATION), scale=Array("d", SCALES)),
    Member: Constraints(_member_fits, net=Nested((Table,)), posterior=Nested((PosteriorState,))),
    NetworkFile: Constraints(
        _file_fits,
        x_units=Nested((Units,), "d"),
        y_units=Nested((Units, type(None)), "d=q"),
        members=Nested((Member,)),
        noise=Array("q|1", POSITIVE, torch.float64),
        buffers=Nested((Table, type(None))),
        scale=Number(least=0.0, most=1e30),
        temperature=Number(above=0.0, most=1e30),
        seed=Number(least=0),
        n_draws=Number(least=1, most=2**31),
    ),
}
"""What it must hold, by class."""


@dataclass(frozen=True)
class Kept:
    """What a file held: parameters of the constructor, fitted attributes, units, and the networks, whole."""

    params: dict[str, Any]
    facts: dict[str, Any]
    file: NetworkFile
    posterior: MultiPosterior
    predictor: Predictor


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    facts = vars(estimator)
    more = {name: facts[name] for name in REGRESSION_FACTS if name in facts}
    if "classes_" in facts:
        more |= {"classes_": facts["classes_"].tolist(), "classes_dtype": facts["classes_"].dtype.str}
    predictor, posteriors = estimator.predictor_, estimator.posterior_.posteriors
    own = None if estimator.module is None else type(posteriors[0].net).__name__
    file = NetworkFile(
        estimator.x_units_,
        estimator.y_units_,
        tuple(Member(to_tree(one.net.state_dict()), one.state()) for one in posteriors),
        own,
        None if predictor.noise is None else torch.as_tensor(np.array(predictor.noise)),
        None if predictor.buffers is None else tuple(to_tree(dict(one)) for one in predictor.buffers),
        *(predictor.scale, predictor.temperature, predictor.seed, predictor.n_draws),
    )
    extra = told_of(estimator, FACTS, without=("module",), more=more)
    save_tree(path, file, columns=column_names(estimator), extra=extra)


def read(path: str | PathLike[str], name: str, kind: Kind, module: Any) -> Kept:
    """Read what :func:`write` wrote for the class of this name, into modules where there were some.

    Args:
        path: the file.
        name: of the class.
        kind: of its predictions.
        module: what the user gave.
    """
    saved = load_tree(path, NETWORK_PARTS, NETWORK_CONSTRAINTS)
    file, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(file, NetworkFile):
        raise saved.refusal(f"holds the estimator {extra.get('estimator')!r}, not {name!r}")
    regression = kind == "regression"
    params = read_params(saved)
    facts = read_facts(saved, {**FACTS, **(REGRESSION_FACTS if regression else CLASS_FACTS)})
    n_outputs = saved.axes.get("q")
    if not regression:
        facts["classes_"] = _classes(saved, facts["classes_"])
        n_outputs = len(facts["classes_"])
    if n_outputs != facts["n_outputs_"] or (regression and facts["single_"] and n_outputs != 1):
        raise saved.refusal(
            f"n_outputs_ is {facts['n_outputs_']}, but the file describes {n_outputs} outputs"
        )
    _match(path, file, module, name)
    try:
        dtype = pick_dtype(params["dtype"])
        blank = _blank(saved, params, facts, file, dtype) if module is None else module
        posterior = MultiPosterior([_filled(path, blank, member, dtype) for member in file.members])
        predictor = _predictor(file, posterior, kind)
    except (KeyError, TypeError, ValueError) as error:
        raise saved.refusal(f"not what save writes about a {name}: {error}") from error
    return Kept(params, facts, file, posterior, predictor)


def _classes(saved: Saved, labels: list[Any]) -> NDArray[Any]:
    """Labels as they came, of the type that they had."""
    try:
        found = np.asarray(labels, dtype=saved.extra["facts"].get("classes_dtype"))
    except (TypeError, ValueError) as error:
        raise saved.refusal(f"the classes are not of their type: {error}") from error
    if found.ndim != 1 or len(set(found.tolist())) != len(found) or found.tolist() != labels:
        raise saved.refusal(f"the classes {labels} must be distinct, and of the type that is named")
    return found


def _blank(
    saved: Saved, params: dict[str, Any], facts: dict[str, Any], file: NetworkFile, dtype: torch.dtype
) -> nn.Module:
    """A network of ours without values, once its parameters are known to be as many as those of the file."""
    widths = (facts["n_features_in_"], *params["hidden"], facts["n_outputs_"])
    size = sum((before + 1) * after for before, after in pairwise(widths))
    held = [value.numel() for value in file.members[0].net.values if isinstance(value, Tensor)]
    if size != sum(held):
        raise saved.refusal(f"layers of {widths} columns have {size} parameters, the file {sum(held)}")
    return perceptron(widths, params["activation"], dtype)


def _match(path: str | PathLike[str], file: NetworkFile, module: Any, name: str) -> None:
    if file.own is None and module is not None:
        raise ModelFileError(f"{path}: its networks are boxloop's own: leave out module=")
    if file.own is not None and module is None:
        raise ModelFileError(
            f"{path}: its networks are a module of yours ({file.own}), of which a file holds the tensors alone: "
            f"{name}.load(path, module=...) puts them into one"
        )


def _filled(path: str | PathLike[str], blank: Any, member: Member, dtype: torch.dtype) -> WeightPosterior:
    """A posterior with a network of its own that has the tensors of the file."""
    net = copy.deepcopy(blank) if isinstance(blank, nn.Module) else blank(generator(0))
    net = net.to(dtype=dtype).eval()
    try:
        net.load_state_dict(from_tree(member.net))
        return WeightPosterior.restore(member.posterior, net)
    except (RuntimeError, ValueError) as error:
        raise ModelFileError(
            f"{path}: its tensors do not go into the {type(net).__name__} given: {error}"
        ) from error


def _predictor(file: NetworkFile, posterior: MultiPosterior, kind: Kind) -> Predictor:
    buffers = None if file.buffers is None else tuple(from_tree(one) for one in file.buffers)
    if buffers is not None and len(buffers) != len(posterior.parts()):
        raise ValueError(f"it has buffers of {len(buffers)} networks, not of {len(posterior.parts())}")
    made = Predictor(
        posterior.parts(),
        kind,
        file.n_draws,
        scale=file.scale,
        noise=None if file.noise is None else file.noise.numpy(),
        temperature=file.temperature,
        seed=file.seed,
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
