"""Estimators and rows as a command line asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.names import MODELS

if TYPE_CHECKING:
    from boxloop.cli.describe import Fitted
    from boxloop.types import Source

FLAGS = {
    "n_components": "--components",
    "covariance_type": "--covariance",
    "init_params": "--init",
    "random_state": "--seed",
}
"""Options whose name is not that of the estimator's parameter."""

USUAL: dict[str, dict[str, Any]] = {
    "bayesian-mixture": {"n_components": 10},
    "bayesian-multinomial-mixture": {"n_components": 10},
}
"""What a model takes where nothing is said: an upper bound, for those that empty components."""


def make_estimator(model: str, given: Mapping[str, Any]) -> Fitted:
    """The estimator with the options that were given, None being none; one that it does not have is wrong usage."""
    from boxloop import estimators

    kind: Any = getattr(estimators, MODELS[model])
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in kind().get_params():
            raise click.UsageError(f"{model} has no option {flag(name)}")
    streams = "method" in kind().get_params()
    if streams and "batch_size" in given and given.get("method", "em") in ("em", "spectral"):
        raise click.UsageError("--batch-size needs --method online or --method gradient")
    made: Fitted = kind(**{**USUAL.get(model, {}), **given})
    return made


def rows_with_names(source: Source) -> Any:
    """A table as a frame, for work that takes rows in and out."""
    import torch

    from boxloop.data import make_frame

    values: Any = torch.cat([rows for rows, _ in source.chunks()]).numpy()
    return make_frame({name: values[:, j] for j, name in enumerate(source.names)})


def flag(name: str) -> str:
    """The option that sets a parameter of an estimator."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
