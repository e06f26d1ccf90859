"""Files of a generator's estimator: the fitted model with the variables it stands on, own modules as their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from sklearn.base import BaseEstimator
from torch import nn

from boxloop.estimators.codes import Kept, read_coded
from boxloop.estimators.own_modules import filled, told
from boxloop.estimators.plain import DIGEST, PROGRESS, column_names, told_of
from boxloop.estimators.relevant_files import VIEW_PARTS
from boxloop.persist import ModelFileError, save_tree
from boxloop.twoview.generator import GeneratorModel
from boxloop.twoview.views import NetworkView, View, ViewPair

FACTS: dict[str, Any] = {
    **PROGRESS,
    "error_": float,
    "history_": dict[str, list[float]],
    "image_shape_": list[int] | None,
}

MODULES = ("decoder", "x_features", "y_features")
"""Where own modules may be: in the generator, and in the features it stands on."""


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    extra = told_of(estimator, (*FACTS, DIGEST), without=("features", "decoder"))
    save_tree(path, _plain(estimator.model_), columns=column_names(estimator), extra=extra)


def _plain(model: GeneratorModel) -> GeneratorModel:
    pair = model.relevance.pair
    views = {
        name: replace(view, part=told(view.part)) if isinstance(view, NetworkView) else view
        for name, view in (("left", pair.left), ("right", pair.right))
    }
    relevance = replace(model.relevance, pair=replace(pair, **views))
    return replace(model, relevance=relevance, decoder=told(model.decoder))


def read(
    path: str | PathLike[str], name: str, modules: Mapping[str, nn.Module | None]
) -> Kept[GeneratorModel]:
    """Read what :func:`write` wrote for the class of this name, into modules where there were some.

    Args:
        path: the file.
        name: of the estimator.
        modules: by their names in ``MODULES``.
    """
    kept = read_coded(path, name, GeneratorModel, VIEW_PARTS, FACTS)
    tree = kept.model
    loader, pair = f"{name}.load", tree.relevance.pair
    left = _view(path, pair.left, "x_features", modules.get("x_features"), loader)
    right = _view(path, pair.right, "y_features", modules.get("y_features"), loader)
    model = replace(
        tree,
        relevance=replace(tree.relevance, pair=ViewPair(left, right)),
        decoder=filled(path, tree.decoder, "decoder", modules.get("decoder"), loader),
    )
    return replace(kept, model=model)


def _view(path: str | PathLike[str], view: View, which: str, module: nn.Module | None, loader: str) -> View:
    if isinstance(view, NetworkView):
        return replace(view, part=filled(path, view.part, which, module, loader))
    if module is not None:
        raise ModelFileError(f"{path}: its {which} are boxloop's own: leave out {which}=")
    return view
