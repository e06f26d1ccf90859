"""One small fitted model of every kind that can be saved, and what is asked of it after it was read."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import boxloop
from boxloop.networks import WeightPosterior, load_posterior
from estimators import cases
from networks.trajectories import METHODS

N = 60
TRAINING = {"max_iter": 2, "hidden": (3,), "batch_size": 30, "random_state": 0}
NETWORK = {"hidden": (3,), "epochs": 2, "collect": 4, "n_draws": 3, "rank": 2, "random_state": 0}
ENERGY = {"max_iter": 4, "hidden": (4,), "chains": 8, "buffer": 16, "steps": 2, "partition_chains": 16}


def pair(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Three columns and two that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, x[:, :2] ** 2 - x[:, 1:] + 0.1 * rng.normal(size=(n, 2))


def images(n: int = N) -> np.ndarray:
    """Pictures of 4 by 4 numbers."""
    return np.random.default_rng(0).normal(size=(n, 1, 4, 4))


def labels() -> np.ndarray:
    """Three classes that depend on the rows of :func:`pair`."""
    return np.array(["a", "b", "c"])[np.digitize(pair()[0][:, 0], [-0.5, 0.5])]


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A fitted estimator as a file, and the calls that a user makes of it.

    Args:
        name: of the case.
        fit: makes the estimator.
        rows: what its methods take.
        targets: what ``score`` takes beside the rows.
        load: reads the file.
    """

    name: str
    fit: Callable[[], Any]
    rows: Any = None
    targets: Any = None
    load: Callable[[Path], Any] = boxloop.load

    def __repr__(self) -> str:
        return self.name

    def write(self, path: Path) -> Path:
        """The file of the fitted estimator, fitted once in a session."""
        path.write_bytes(_content(self))
        return path

    def calls(self, estimator: Any, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Names and calls of all public methods that a fitted estimator has."""
        if isinstance(estimator, WeightPosterior):
            yield from _posterior_calls(estimator, folder)
            return
        X, known = self.rows, (self.rows,) if self.targets is None else (self.rows, self.targets)
        arguments: dict[str, tuple[Any, ...]] = {
            "save": (folder / "again.boxloop",),
            "score": known,
            "sample": (3,),
            "sample_posterior": (2,),
            **dict.fromkeys(("summary", "posterior_summary", "get_covariance", "get_precision"), ()),
            **dict.fromkeys(("n_parameters", "get_feature_names_out", "__repr__"), ()),
            **dict.fromkeys(("predict", "predict_proba", "predictive", "predict_distribution"), (X,)),
            **dict.fromkeys(("score_samples", "energy_of", "transform", "reconstruct", "posterior"), (X,)),
            **dict.fromkeys(("decision_function", "aic", "bic", "elbo"), (X,)),
        }
        for name, given in arguments.items():
            if callable(getattr(type(estimator), name, None)):
                yield name, lambda name=name, given=given: getattr(estimator, name)(*given)
        if "inverse_transform" in dir(type(estimator)):
            yield "inverse_transform", lambda: estimator.inverse_transform(estimator.transform(X))
        if "groups" in signature(estimator.fit).parameters:
            yield "predict of groups", lambda: estimator.predict(X, groups=GROUPS)
        if isinstance(estimator, boxloop.RelevantFeatures):
            yield "expect", lambda: estimator.predict(X)
        for name in sorted({*dir(type(estimator)), *vars(estimator)}):
            if name.endswith("_") and not name.startswith("_"):
                yield name, lambda name=name: getattr(estimator, name)


def _posterior_calls(posterior: WeightPosterior, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "distribution", lambda: vars(posterior.distribution())
    yield "draw", lambda: posterior.draw(2, 0)
    yield "centre", posterior.mean
    yield "record", lambda: posterior.trace.values
    yield "save", lambda: posterior.save(folder / "again.boxloop")
    yield "observe", lambda: [posterior.observe(torch.tensor(1.0)) for _ in range(5)]
    yield "distribution later", lambda: vars(posterior.distribution())


@cache
def _content(case: SavedModel) -> bytes:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.fit().save(Path(folder, "m.boxloop"))
        return Path(folder, "m.boxloop").read_bytes()


def not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Where an answer holds a number that is not one."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        for key, item in value.items():
            yield from not_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from not_finite(item, f"{path}.{i}")
    elif isinstance(value, float | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "fc":
        if not np.isfinite(np.asarray(value)).all():
            yield path
    elif "DataFrame" in type(value).__name__:
        yield from not_finite({name: value[name].to_numpy() for name in value.columns}, path)


def _net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def _small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(2, 1)


def _followed(method: Any) -> WeightPosterior:
    net, stream = _small_net(), torch.Generator().manual_seed(1)
    posterior = WeightPosterior(net, method, random_state=0)
    for _ in range(20):
        with torch.no_grad():
            for value in net.parameters():
                value += 0.01 * torch.randn(value.shape, generator=stream)
        posterior.observe()
    return posterior


def _of(case: cases.Case, **more: Any) -> SavedModel:
    X = case.rows(N)
    return SavedModel(case.name, lambda: case.quick(max_iter=5, **more).fit(X), X)


def _made(name: str, kind: str, X: Any, y: Any = None, **params: Any) -> SavedModel:
    def fit() -> Any:
        return getattr(boxloop, kind)(**params).fit(*((X,) if y is None else (X, y)))

    return SavedModel(name, fit, X, y)


def _own(name: str, kind: str, given: str, X: Any, y: Any = None, **params: Any) -> SavedModel:
    """One whose module is the user's."""
    cls = getattr(boxloop, kind)
    module = _net()

    def fit() -> Any:
        return cls(**{given: module, **params}).fit(*((X,) if y is None else (X, y)))

    return SavedModel(name, fit, X, y, lambda path: cls.load(path, **{given: module}))


def _grouped(name: str, kind: str, X: Any, y: Any, groups: Any, **params: Any) -> SavedModel:
    return SavedModel(
        name, lambda: getattr(boxloop, kind)(random_state=0, chains=2, **params).fit(X, y, groups), X, y
    )


def _named() -> SavedModel:
    import pandas as pd

    X = pd.DataFrame(cases.blobs(N), columns=["a", "b", "c"])
    return SavedModel("named columns", lambda: boxloop.GaussianMixture(2, random_state=0).fit(X), X)


X, Y = pair()
LABELS = labels()
BITS, COUNTS = cases.bits(N), cases.counts(N)
GROUPS = np.array(["north", "east", "south", "west"])[np.arange(N) % 4]
CODES = np.random.default_rng(0).integers(0, 3, size=(N, 3)).astype(float)

MODELS: tuple[SavedModel, ...] = (
    *(_of(case) for case in cases.EVERYONE),
    *(_of(case) for case in cases.POSTERIORS if case.name != "bayesian-full"),
    _made(
        "bayesian-sticks",
        "BayesianGaussianMixture",
        cases.blobs(N),
        n_components=2,
        weight_concentration_prior_type="dirichlet_process",
        max_iter=5,
        random_state=0,
    ),
    _named(),
    _made("linear", "BayesianLinearRegression", X, Y[:, 0]),
    _made("linear-two", "BayesianLinearRegression", X, Y, standardise=True),
    _grouped("effects-logistic", "LogisticRandomEffects", X, Y[:, 0] > 0.5, GROUPS, max_iter=4),
    _grouped("effects-poisson", "PoissonRandomEffects", X, COUNTS[:, 0], GROUPS, max_iter=4, slopes=(1,)),
    _made("energy", "EnergyBasedModel", cases.blobs(N), random_state=0, **ENERGY),
    _made("autoencoder", "VariationalAutoencoder", X, n_components=2, score_draws=4, **TRAINING),
    _made(
        "autoencoder-shared",
        "VariationalAutoencoder",
        X,
        n_components=2,
        variance="shared",
        score_draws=4,
        prior="mixture",
        prior_components=2,
        **TRAINING,
    ),
    _made(
        "autoencoder-lowrank",
        "VariationalAutoencoder",
        X,
        n_components=1,
        variance="low_rank",
        rank=1,
        score_draws=4,
        **TRAINING,
    ),
    _made(
        "autoencoder-bits",
        "VariationalAutoencoder",
        BITS,
        n_components=1,
        likelihood="bernoulli",
        score_draws=4,
        **TRAINING,
    ),
    _made(
        "autoencoder-counts",
        "VariationalAutoencoder",
        COUNTS,
        n_components=1,
        likelihood="poisson",
        score_draws=4,
        **TRAINING,
    ),
    _made(
        "autoencoder-codes",
        "VariationalAutoencoder",
        CODES,
        n_components=1,
        likelihood="categorical",
        score_draws=4,
        **TRAINING,
    ),
    _made(
        "autoencoder-images",
        "VariationalAutoencoder",
        images(),
        n_components=1,
        score_draws=4,
        **{**TRAINING, "hidden": None},
    ),
    _made(
        "features-linear", "RelevantFeatures", X, Y, n_features=2, x_features="linear", y_features="linear"
    ),
    _made(
        "features-fourier",
        "RelevantFeatures",
        X,
        Y,
        n_features=2,
        x_features="fourier",
        y_features="network",
        n_fourier=4,
        **TRAINING,
    ),
    _made("cca", "CCA", X, Y, n_components=2),
    _made("classifier", "RelevantClassifier", X, LABELS, n_features=2, **TRAINING),
    _made(
        "classifier-temperature",
        "RelevantClassifier",
        X,
        LABELS,
        n_features=2,
        calibration="temperature",
        **TRAINING,
    ),
    _made("generator", "RelevantGenerator", X, n_components=2, **TRAINING),
    _made(
        "generator-mixture",
        "RelevantGenerator",
        X,
        n_components=2,
        prior="mixture",
        prior_components=2,
        **TRAINING,
    ),
    _made("regressor", "NetworkRegressor", X, Y[:, 0], **NETWORK),
    _made("regressor-two", "NetworkRegressor", X, Y, members=2, method="swag", **NETWORK),
    _made("regressor-gradient", "NetworkRegressor", X, Y[:, :1], **{**NETWORK, "method": "gradient"}),
    _made("network-classifier", "NetworkClassifier", X, LABELS, method="full", **NETWORK),
    _own("regressor-own", "NetworkRegressor", "module", X, Y, **NETWORK),
    _own(
        "autoencoder-own", "VariationalAutoencoder", "encoder", X, n_components=1, score_draws=4, **TRAINING
    ),
    _own(
        "features-own", "RelevantFeatures", "x_features", X, Y, n_features=2, y_features="linear", **TRAINING
    ),
    *(
        SavedModel(
            f"weights-{name}",
            lambda method=method: _followed(method),
            load=lambda path: load_posterior(path, _small_net()),
        )
        for name, method in METHODS.items()
    ),
)
"""All of them; those of the fast tests are few."""
