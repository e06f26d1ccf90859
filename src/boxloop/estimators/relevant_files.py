"""Files of two-view estimators: variables and means of columns, with own modules as their tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from sklearn.base import BaseEstimator
from torch import nn

from boxloop.estimators.own_modules import OwnModule, filled, told
from boxloop.estimators.plain import PROGRESS, column_names, read_facts, read_params, read_shape, told_of
from boxloop.estimators.relevant_rows import Edge
from boxloop.models import Convolutions, Layers, NormalMixturePrior, Part, StandardNormal
from boxloop.persist import ModelFileError, Saved, check_types, is_of, load_tree, save_tree
from boxloop.twoview import (
    CONSTRAINTS,
    Canonical,
    FiniteView,
    FourierView,
    GeneratorModel,
    LinearView,
    NetworkView,
    RelevanceFit,
    RelevanceModel,
    View,
    ViewPair,
)

FACTS: dict[str, Any] = {
    **PROGRESS,
    "batch_size_": int | None,
    "ridge_": float,
    "history_": dict[str, list[float]],
    "x_edge_": dict[str, Any],
    "y_edge_": dict[str, Any],
}
OWN_FACTS: dict[str, Any] = {"temperature_": float | None}
"""Those of some estimators alone."""

PARTS = (
    RelevanceFit, RelevanceModel, Canonical, ViewPair, LinearView, FourierView, FiniteView, NetworkView, Part, Layers,
    Convolutions, OwnModule, GeneratorModel, StandardNormal, NormalMixturePrior,
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
    extra = told_of(estimator, [name for name in FACTS if name not in edges], more={**own, **edges})
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
    saved = load_tree(path, VIEW_PARTS, CONSTRAINTS)
    tree, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(tree, RelevanceFit):
        raise saved.refusal(f"holds the estimator {extra.get('estimator')!r}, not {name!r}")
    params, facts = read_params(saved), read_facts(saved, FACTS, OWN_FACTS)
    facts |= {
        "x_edge_": _edge(saved, facts["x_edge_"], tree.model.pair.left, "v_left"),
        "y_edge_": _edge(saved, facts["y_edge_"], tree.model.pair.right, "v_right"),
    }
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


def _edge(saved: Saved, facts: dict[str, Any], view: View, axis: str) -> Edge:
    """What is known of the table of a view, as far as it fits the view."""
    try:
        edge = Edge.read(facts)
        check_types(Edge, vars(edge), "")
        n_values = None if edge.values is None else len(set(edge.values))
    except (KeyError, TypeError, ModelFileError) as error:
        raise saved.refusal(f"the columns of a view are not described as save does: {error}") from error
    labels = list(edge.values or ())
    alike = is_of(labels, list[str]) or is_of(labels, list[bool | int | float])
    if not alike or any(isinstance(label, float) and not math.isfinite(label) for label in labels):
        raise saved.refusal(f"the values {labels} of {edge.word} must be text, or finite numbers")
    labelled = isinstance(view, FiniteView)
    wanted = (1, saved.axes[axis]) if labelled else (view.n_columns, None)
    if (len(edge.names), n_values) != wanted or (labelled and len(edge.values or ()) != n_values):
        raise saved.refusal(
            f"the columns {edge.names} or values {edge.values} of {edge.word} do not fit its view"
        )
    read_shape(saved, None if edge.image is None else list(edge.image), view.n_columns)
    return edge


def _whole(path: str | PathLike[str], view: View, which: str, module: nn.Module | None, name: str) -> View:
    if not isinstance(view, NetworkView):
        if module is not None:
            raise ModelFileError(f"{path}: its {which} are boxloop's own: leave out {which}=")
        return view
    return replace(view, part=filled(path, view.part, which, module, f"{name}.load"))
