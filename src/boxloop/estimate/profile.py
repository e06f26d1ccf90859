r"""Factor analysis whose noise vanishes: climb the likelihood of the noise alone.

A column that one factor explains wholly (a Heywood case) makes EM creep: its noise falls as 1/t. Given the noise, the
best loadings are known: with :math:`\theta_1 \ge \dots \ge \theta_d` the eigenvalues of
:math:`\Psi^{-1/2} S \Psi^{-1/2}` and k factors,

.. math:: -\tfrac{2}{n} L(\Psi) = d \log 2\pi + \sum_i \log \psi_i
   + \sum_{j \le k} (1 + \log \theta_j) + \sum_{j > k} \theta_j,
   \qquad \frac{\partial}{\partial \log \psi_i} = \frac{(F F^\top)_{ii} + \psi_i - S_{ii}}{\psi_i}.

Joreskog (1967), Lawley and Maxwell (1971). A bound on every noise variance is then a bound of the search.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from boxloop.estimate.em import EMState, Step
from boxloop.models import FactorModel
from boxloop.run import Round
from boxloop.types import Expected, Source

CREEPING = 1e-2
"""Noise below this part of a column's variance is on its way to the floor."""

ITERATIONS = 50
"""Iterations of the search in one round."""


def profiled(step: Step[FactorModel], source: Source, mean: Tensor, covariance: Tensor) -> Step[FactorModel]:
    """The given step, until a noise variance nears its floor; then the search over noise.

    Args:
        step: an EM step on the same rows.
        source: rows in standard coordinates.
        mean: of the rows, (d,).
        covariance: of the rows, (d, d).

    Returns:
        A step for :func:`boxloop.run.run` whose objective rises as EM's does.
    """
    variance = covariance.diagonal()

    def round_of(state: EMState[FactorModel]) -> Round[EMState[FactorModel]]:
        if state.safe is not None or not bool((state.model.noise < CREEPING * variance).any()):
            return step(state)
        expected: Expected[Any] = source.reduce(state.model.expect)
        objective = float(expected.log_likelihood / expected.weight)
        statistics = expected.statistics * (1.0 / float(expected.weight))
        return Round(EMState(climbed(state.model, mean, covariance), (statistics,)), objective)

    return round_of


def climbed(model: FactorModel, mean: Tensor, covariance: Tensor) -> FactorModel:
    """The model after a search over noise within its floor, at least as likely under these moments."""
    second: NDArray[np.float64] = covariance.cpu().numpy()
    k = model.loadings.shape[1]
    lowest = np.log(np.full(len(second), max(model.floor, 1e-300)))
    highest = np.maximum(np.log(np.maximum(second.diagonal(), 1e-300)), lowest)
    start: NDArray[np.float64] = np.clip(model.noise.log().cpu().numpy(), lowest, highest)
    options: Any = {"maxiter": ITERATIONS, "ftol": 0.0, "gtol": 1e-10, "maxcor": 20}
    found = minimize(
        _objective,
        start,
        args=(second, k),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lowest.tolist(), highest.tolist(), strict=True)),
        options=options,
    )
    _, loadings = _best_loadings(found.x, second, k)
    fitted = torch.from_numpy(loadings).to(mean), torch.from_numpy(np.exp(found.x)).to(mean)
    return type(model)(mean, *fitted, model.floor, model.expand)


def _best_loadings(u: NDArray[Any], second: NDArray[Any], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Eigenvalues, largest first, and the loadings (d, k) that are best for noise exp(u)."""
    root = np.exp(0.5 * u)
    values, vectors = np.linalg.eigh(second / root[:, None] / root)
    values, vectors = values[::-1], vectors[:, ::-1]
    return values, root[:, None] * vectors[:, :k] * np.sqrt(np.maximum(values[:k] - 1.0, 0.0))


def _objective(u: NDArray[Any], second: NDArray[Any], k: int) -> tuple[float, NDArray[Any]]:
    values, loadings = _best_loadings(u, second, k)
    top = np.maximum(values[:k], 1.0)
    value = u.sum() + np.log(top).sum() + np.minimum(values[:k], 1.0).sum() + values[k:].sum()
    noise = np.exp(u)
    return float(value), (np.square(loadings).sum(1) + noise - second.diagonal()) / noise
