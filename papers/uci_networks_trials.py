"""Every method on every split of a table: errors, log-likelihood and coverage of test rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from torch import Tensor

from boxloop.weights import (
    Found,
    MultiPosterior,
    Posterior,
    Predictor,
    RegressionPrediction,
    WeightWarning,
    tune,
)
from papers.uci_networks_data import Splits, Table, split
from papers.uci_networks_training import Run, Setting, trained

Array = NDArray[np.float64]
Facts = dict[str, dict[str, list[float]]]
"""By method and measure, a number for each split."""

SCALES = (0.0, *(4.0**power for power in range(-4, 5)))
"""Of the covariance; the neighbours of the best are looked between."""
WIDE = float(ndtri(0.975))
"""Half the width of intervals of 95%, in standard deviations."""
ALONE = " at scale 1"
"""After the name of a measure of a law as it is, with its noise alone tuned."""

SGD, ANNEALED, SWA, SWAG, FACTOR = "SGD", "SGD, rate to 0", "SWA", "SWAG", "factor EM"
LAPLACE, ENSEMBLE, ENSEMBLE_0 = "last-layer Laplace", "deep ensemble", "deep ensemble, rate to 0"
MULTI_SWA, MULTI_SWAG, MULTI_FACTOR = "MultiSWA", "MultiSWAG", "mixture of factor analysers"
SPREAD = (SWAG, FACTOR, LAPLACE, MULTI_SWAG, MULTI_FACTOR)
"""Methods whose law has a covariance, and so a scale."""


def _first_laplace(runs: Sequence[Run]) -> Posterior:
    found = runs[0].laplace
    assert found is not None
    return found


METHODS: dict[str, Callable[[Sequence[Run]], Posterior]] = {
    SGD: lambda runs: runs[0].last,
    ANNEALED: lambda runs: runs[0].annealed,
    SWA: lambda runs: runs[0].followed["swa"],
    SWAG: lambda runs: runs[0].followed["swag"],
    FACTOR: lambda runs: runs[0].followed["factor"],
    LAPLACE: _first_laplace,
    ENSEMBLE: lambda runs: MultiPosterior([run.last for run in runs]),
    ENSEMBLE_0: lambda runs: MultiPosterior([run.annealed for run in runs]),
    MULTI_SWA: lambda runs: MultiPosterior([run.followed["swa"] for run in runs]),
    MULTI_SWAG: lambda runs: MultiPosterior([run.followed["swag"] for run in runs]),
    MULTI_FACTOR: lambda runs: MultiPosterior([run.followed["factor"] for run in runs]),
}
"""From the runs of a split; single ones take the first."""


@dataclass(frozen=True)
class Trial:
    """What is tried on every table.

    Args:
        splits: of each table.
        runs: trainings of each split.
        draws: networks of a posterior that has spread.
        setting: how networks are trained.
    """

    splits: int
    runs: int
    draws: int
    setting: Setting


def tried(table: Table, trial: Trial, seed: int) -> Facts:
    """All methods on all splits of a table.

    Args:
        table: with all its rows.
        trial: sizes.
        seed: of splits, starts, orders and draws.
    """
    splits = split(table, trial.splits, seed)
    trainings = trained(splits, trial.runs, trial.setting, seed)
    found: Facts = {}
    for place, runs in enumerate(trainings):
        for method, of in METHODS.items():
            facts = _judged(of(runs), splits, place, trial.draws if method in SPREAD else None, seed)
            own = found.setdefault(method, {})
            for measure, value in facts.items():
                own.setdefault(measure, []).append(value)
    return found


def _judged(
    posterior: Posterior, splits: Splits, place: int, draws: int | None, seed: int
) -> dict[str, float]:
    """Noise, and scale where there is one, by the rows to tune with; then the test rows."""
    x, y = ({part: value[place] for part, value in values.items()} for values in (splits.x, splits.y))
    start = Predictor.of(posterior, "regression", draws or 2, random_state=seed)
    least = Normal.of(start.at_scale(0.0).predict(x["train"]), y["train"]).size

    def profile(scale: float) -> Found:
        law = Normal.of(start.at_scale(scale).predict(x["valid"]), y["valid"])
        noise = law.best_noise(least)
        return np.array([noise]), law.log_density(noise), 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # a scale at the end of the grid is counted instead
        tuning = tune("noise", profile, None, SCALES if draws else (0.0,), 4)

    def test(scale: float, noise: float) -> dict[str, float]:
        law = Normal.of(start.at_scale(scale).predict(x["test"]), y["test"])
        return law.scores(noise, splits.scale[place])

    found = test(tuning.scale, float(tuning.value[0]))
    own = tuning.values[tuning.scales == 1.0] if draws else tuning.values
    alone = test(1.0, float(own[0, 0]))
    found |= {f"{measure}{ALONE}": value for measure, value in alone.items()}
    found |= {"scale": tuning.scale, "at the end": float(tuning.at_end)}
    return found | {"noise": float(tuning.value[0] * splits.scale[place])}


@dataclass(frozen=True)
class Normal:
    r"""Predictions as normal laws with the mean and variance of what the drawn networks say.

    .. math:: y \sim N\bigl(\bar f(x), \ s^2(x) + \sigma^2\bigr)

    Lakshminarayanan et al. (2017). On a few dozen rows the noise of the mixture itself, a bump around every draw, is
    tuned to nearly nothing: some draw is close to each of these rows, and far from one of the others.

    Args:
        left: targets less their means, (n,).
        variance: s^2, due to the weights, (n,).
    """

    left: Array
    variance: Array

    @classmethod
    def of(cls, found: RegressionPrediction, y: Tensor) -> Normal:
        """From what networks say and what was observed."""
        return cls((y.numpy() - found.mean).ravel(), (found.spread**2).ravel())

    @property
    def size(self) -> float:
        """Root mean square of what is left."""
        return float(np.sqrt((self.left**2).mean()))

    def best_noise(self, least: float) -> float:
        """Sigma of the highest density, no smaller than what mean networks leave of the rows they were trained on."""
        ends = (np.log(least), np.log(max(self.size, least)) + 1.0)
        found = minimize_scalar(
            lambda at: -float(self.log_density(np.exp(at)).mean()),
            bounds=ends,
            method="bounded",
            options={"xatol": 1e-6},
        )
        return float(np.exp(found.x))

    def log_density(self, noise: float) -> Array:
        """Of every row, (n,)."""
        variance = self.variance + noise**2
        return np.asarray(-0.5 * (np.log(2.0 * np.pi * variance) + self.left**2 / variance))

    def scores(self, noise: float, scale: float) -> dict[str, float]:
        """In units of the target; ``inside`` is the share of rows in central intervals."""
        inside = np.abs(self.left) <= WIDE * np.sqrt(self.variance + noise**2)
        return {
            "rmse": float(np.sqrt((self.left**2).mean()) * scale),
            "nll": float(np.log(scale) - self.log_density(noise).mean()),
            "inside": float(inside.mean()),
        }
