"""Files of network estimators: posteriors over weights, with own modules as their tensors."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from boxloop.estimators.network_rows import Units
from boxloop.estimators.options import pick_dtype
from boxloop.estimators.plain import column_names, read_params, told_of
from boxloop.numeric import generator
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree
from boxloop.weights.ensemble import MultiPosterior
from boxloop.weights.fitting_state import Table, from_tree, to_tree
from boxloop.weights.members import perceptron
from boxloop.weights.posterior import PosteriorState, WeightPosterior
from boxloop.weights.posterior_files import CLASSES
from boxloop.weights.predictor import NET, Kind, Predictor

FACTS = (
    "n_features_in_",
    "n_outputs_",
    "n_iter_",
    "history_",
    "collect_rate_",
    "weight_decay_",
    "interrupted_",
    "events_",
    "_mark",
)
OWN_FACTS = ("single_",)
"""Those of some estimators alone."""


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
    more = {name: facts[name] for name in OWN_FACTS if name in facts}
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
    saved = load_tree(path, NETWORK_PARTS)
    file, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(file, NetworkFile):
        raise ModelFileError(f"{path}: holds the estimator {extra.get('estimator')!r}, not {name!r}")
    try:
        params = read_params(extra["params"])
        facts = {fact: extra["facts"][fact] for fact in FACTS}
        facts |= {fact: extra["facts"][fact] for fact in OWN_FACTS if fact in extra["facts"]}
        if kind == "classification":
            told = extra["facts"]
            facts["classes_"] = np.asarray(told["classes_"], dtype=told.get("classes_dtype"))
        dtype = pick_dtype(params["dtype"])
        widths = (facts["n_features_in_"], *params["hidden"], facts["n_outputs_"])
        activation = params["activation"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: not what save writes about a {name}: {error}") from error
    if saved.columns:
        facts["feature_names_in_"] = np.asarray(saved.columns, dtype=object)
    _match(path, file, module, name)
    blank = perceptron(widths, activation, dtype) if module is None else module
    posterior = MultiPosterior([_filled(path, blank, member, dtype) for member in file.members])
    return Kept(params, facts, file, posterior, _predictor(file, posterior, kind))


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
    return Predictor(
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
