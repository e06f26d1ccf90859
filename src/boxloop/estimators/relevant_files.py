"""Files of two-view estimators: variables and means of columns, with own modules as their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from torch import nn

from boxloop.estimators.own_modules import OwnModule, filled, told
from boxloop.estimators.plain import column_names, read_params, told_of
from boxloop.estimators.relevant_rows import Edge
from boxloop.models.latent import NormalMixture, StandardNormal
from boxloop.models.networks import Convolutions, Layers, Part
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.twoview.canonical import Canonical, RelevanceModel
from boxloop.twoview.generator import GeneratorModel
from boxloop.twoview.inference import RelevanceFit
from boxloop.twoview.views import FiniteView, FourierView, LinearView, NetworkView, View, ViewPair

FACTS = (
    "n_features_in_",
    "n_iter_",
    "batch_size_",
    "ridge_",
    "converged_",
    "interrupted_",
    "history_",
    "events_",
)
OWN_FACTS = ("temperature_",)
"""Those of some estimators alone."""

PARTS = (
    RelevanceFit, RelevanceModel, Canonical, ViewPair, LinearView, FourierView, FiniteView, NetworkView, Part, Layers,
    Convolutions, OwnModule, GeneratorModel, StandardNormal, NormalMixture,
)  # fmt: skip
VIEW_PARTS: dict[str, type] = {kind.__name__: kind for kind in PARTS}
"""What the file of a two-view estimator may name, also of a generator: a file of another class is told by name."""


@dataclass(frozen=True)
class Kept:
    """What a file held: parameters of the constructor, fitted attributes, and the fit."""

    params: dict[str, Any]
    facts: dict[str, Any]
    fit: RelevanceFit


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    edges = {name: getattr(estimator, name).facts() for name in ("x_edge_", "y_edge_")}
    own = {name: vars(estimator)[name] for name in OWN_FACTS if name in vars(estimator)}
    extra = told_of(estimator, FACTS, more={**own, **edges})
    fit = estimator.fit_
    pair = fit.model.pair
    plain = replace(pair, left=_plain(pair.left), right=_plain(pair.right))
    save_tree(
        path, replace(fit, model=replace(fit.model, pair=plain)), columns=column_names(estimator), extra=extra
    )


def _plain(view: View) -> View:
    return replace(view, part=told(view.part)) if isinstance(view, NetworkView) else view


def read(path: str | PathLike[str], name: str, modules: Mapping[str, nn.Module | None]) -> Kept:
    """Read what :func:`write` wrote for the class of this name.

    Args:
        path: the file.
        name: of the class.
        modules: what the user gave for the parameters that make the features of the first view, and of the second.
    """
    saved = load_tree(path, VIEW_PARTS)
    tree, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(tree, RelevanceFit):
        raise ModelFileError(f"{path}: holds the estimator {extra.get('estimator')!r}, not {name!r}")
    try:
        params = read_params(extra["params"])
        facts = {fact: extra["facts"][fact] for fact in FACTS}
        facts |= {fact: extra["facts"][fact] for fact in OWN_FACTS if fact in extra["facts"]}
        facts |= {edge: Edge.read(extra["facts"][edge]) for edge in ("x_edge_", "y_edge_")}
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: not what save writes about a {name}: {error}") from error
    if saved.columns:
        facts["feature_names_in_"] = np.asarray(saved.columns, dtype=object)
    given = {which: module for which, module in modules.items() if module is not None}
    pair = tree.model.pair
    whole = {
        side: _whole(path, view, which, module, name)
        for (side, view), (which, module) in zip(
            (("left", pair.left), ("right", pair.right)), modules.items()
        )
    }
    pair = replace(pair, **whole)
    return Kept({**params, **given}, facts, replace(tree, model=replace(tree.model, pair=pair)))


def _whole(path: str | PathLike[str], view: View, which: str, module: nn.Module | None, name: str) -> View:
    if not isinstance(view, NetworkView):
        if module is not None:
            raise ModelFileError(f"{path}: its {which} are boxloop's own: leave out {which}=")
        return view
    return replace(view, part=filled(path, view.part, which, module, f"{name}.load"))
