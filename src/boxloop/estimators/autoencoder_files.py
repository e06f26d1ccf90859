"""Files of an autoencoder's estimator: the fitted model, with own modules as their tensors."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Any

from sklearn.base import BaseEstimator
from torch import nn

from boxloop.estimators.allowed import CLASSES
from boxloop.estimators.codes import Kept, read_coded
from boxloop.estimators.own_modules import OwnModule, filled, told
from boxloop.estimators.plain import PROGRESS, column_names, told_of
from boxloop.models import (
    Autoencoder,
    BernoulliHead,
    CategoricalHead,
    Convolutions,
    Deconvolutions,
    GaussianHead,
    Layers,
    LowRankHead,
    NormalMixturePrior,
    Part,
    PoissonHead,
    StandardNormal,
)
from boxloop.persist import ModelFileError, save_tree

FACTS: dict[str, Any] = {
    **PROGRESS,
    "n_samples_seen_": float,
    "history_": dict[str, list[float]],
    "alpha_": float | None,
    "alphas_": dict[str, list[float]] | None,
    "image_shape_": list[int] | None,
}
WATCHERS = ("verbose", "checkpoint", "device", "score_draws", "warm_start")
"""Parameters that do not change the path of a fit."""

LOADER = "VariationalAutoencoder.load"


PARTS = (
    Autoencoder, Part, Layers, Convolutions, Deconvolutions, OwnModule, StandardNormal, NormalMixturePrior,
    GaussianHead, LowRankHead, BernoulliHead, PoissonHead, CategoricalHead,
)  # fmt: skip
SAVED_PARTS: dict[str, type] = {**CLASSES, **{kind.__name__: kind for kind in PARTS}}
"""What the file of an autoencoder may name."""


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    extra = told_of(estimator, FACTS, without=("encoder", "decoder"))
    model = estimator.model_
    plain = replace(model, encoder=told(model.encoder), decoder=told(model.decoder))
    save_tree(path, plain, columns=column_names(estimator), extra=extra)


def read(
    path: str | PathLike[str], name: str, encoder: nn.Module | None = None, decoder: nn.Module | None = None
) -> Kept[Autoencoder]:
    """Read what :func:`write` wrote for the class of this name, into modules where there were some."""
    kept = read_coded(path, name, Autoencoder, SAVED_PARTS, FACTS)
    tree = kept.model
    networks = (tree.encoder.network, tree.decoder.network)
    if kept.facts["image_shape_"] is None and any(
        isinstance(n, Convolutions | Deconvolutions) for n in networks
    ):
        raise ModelFileError(
            f"{path}: its networks are of images, but the fitted attribute 'image_shape_' is None"
        )
    model = replace(
        tree,
        encoder=filled(path, tree.encoder, "encoder", encoder, LOADER),
        decoder=filled(path, tree.decoder, "decoder", decoder, LOADER),
    )
    return replace(kept, model=model)
