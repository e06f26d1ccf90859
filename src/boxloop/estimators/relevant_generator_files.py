"""Files of a generator's estimator: the fitted model with the variables it stands on, own modules as their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from torch import nn

from boxloop.estimators.own_modules import filled, told
from boxloop.estimators.plain import column_names, read_params, told_of
from boxloop.estimators.relevant_files import VIEW_PARTS
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.twoview.generator import GeneratorModel
from boxloop.twoview.views import NetworkView, View, ViewPair

FACTS = (
    "n_features_in_",
    "n_iter_",
    "error_",
    "history_",
    "converged_",
    "interrupted_",
    "events_",
    "image_shape_",
)

MODULES = ("decoder", "x_features", "y_features")
"""Where own modules may be: in the generator, and in the features it stands on."""


@dataclass(frozen=True)
class Kept:
    """What a file held: parameters of the constructor, fitted attributes, and the model."""

    params: dict[str, Any]
    facts: dict[str, Any]
    model: GeneratorModel


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    extra = told_of(estimator, FACTS, without=("features", "decoder"))
    save_tree(path, _plain(estimator.model_), columns=column_names(estimator), extra=extra)


def _plain(model: GeneratorModel) -> GeneratorModel:
    pair = model.relevance.pair
    views = {
        name: replace(view, part=told(view.part)) if isinstance(view, NetworkView) else view
        for name, view in (("left", pair.left), ("right", pair.right))
    }
    relevance = replace(model.relevance, pair=replace(pair, **views))
    return replace(model, relevance=relevance, decoder=told(model.decoder))


def read(path: str | PathLike[str], name: str, modules: Mapping[str, nn.Module | None]) -> Kept:
    """Read what :func:`write` wrote for the class of this name, into modules where there were some.

    Args:
        path: the file.
        name: of the estimator.
        modules: by their names in ``MODULES``.
    """
    saved = load_tree(path, VIEW_PARTS)
    tree, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(tree, GeneratorModel):
        raise ModelFileError(f"{path}: holds the estimator {extra.get('estimator')!r}, not {name!r}")
    try:
        params = read_params(extra["params"])
        facts = {fact: extra["facts"][fact] for fact in FACTS}
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: not what save writes about a {name}: {error}") from error
    if facts["image_shape_"] is not None:
        facts["image_shape_"] = tuple(facts["image_shape_"])
    if saved.columns:
        facts["feature_names_in_"] = np.asarray(saved.columns, dtype=object)
    loader, pair = f"{name}.load", tree.relevance.pair
    left = _view(path, pair.left, "x_features", modules.get("x_features"), loader)
    right = _view(path, pair.right, "y_features", modules.get("y_features"), loader)
    model = replace(
        tree,
        relevance=replace(tree.relevance, pair=ViewPair(left, right)),
        decoder=filled(path, tree.decoder, "decoder", modules.get("decoder"), loader),
    )
    return Kept(params, facts, model)


def _view(path: str | PathLike[str], view: View, which: str, module: nn.Module | None, loader: str) -> View:
    if isinstance(view, NetworkView):
        return replace(view, part=filled(path, view.part, which, module, loader))
    if module is not None:
        raise ModelFileError(f"{path}: its {which} are boxloop's own: leave out {which}=")
    return view
