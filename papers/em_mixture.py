"""EM for a mixture with one covariance: scikit-learn's iterates, and a log-likelihood that never falls.

Le Corff, Introduction to computational statistics, section 2.5.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from boxloop.data import ArraySource
from boxloop.distributions import PooledSums, TiedGaussian
from boxloop.fit import EMState, accelerated_em, em
from boxloop.loop import FALL, run
from boxloop.models import Mixture
from boxloop.numeric import generator, normal
from papers.experiment import Finding, Options, Report

Rows = NDArray[np.float64]


def run_problem(seed: int, n: int, d: int, k: int, iterations: int) -> tuple[float, float, float, float]:
    """One data set, one start, both programs.

    Returns:
        Largest difference of any parameter from scikit-learn's after the last iteration, smallest increment of the
        log-likelihood relative to its size, largest error of the updates displayed in the paper, and the gain of
        accelerated EM in as many iterations.
    """
    stream = generator(seed)
    centre = 2.0 * normal((k, d), stream)
    mixing = normal((d, d), stream) / d**0.5
    label = torch.randint(k, (n,), generator=stream)
    rows = centre[label] + normal((n, d), stream) @ mixing
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    start = rows[torch.randperm(n, generator=stream)[:k]]
    weight = torch.full((k,), 1.0 / k, dtype=torch.float64)
    model = Mixture(weight.log(), TiedGaussian(start, torch.eye(d, dtype=torch.float64)))
    source = ArraySource(rows)
    outcome = run(em(source), EMState(model), max_iter=iterations, monotone=True)
    peer = _fit_sklearn(rows.numpy(), start.numpy(), iterations)
    ours = outcome.state.model
    apart = max(
        np.abs(ours.log_weight.exp().numpy() - peer.weights_).max(),
        np.abs(ours.family.mean.numpy() - peer.means_).max(),
        np.abs(ours.family.named_parameters()["covariances"].numpy() - peer.covariances_).max(),
    )
    trace = np.asarray(outcome.trace)
    lowest = float(np.min(np.diff(trace) / np.abs(trace[:-1])))
    fast = run(accelerated_em(source), EMState(model), max_iter=iterations, monotone=True)
    return float(apart), lowest, _update_error(model, rows), fast.trace[-1] - outcome.trace[-1]


def _fit_sklearn(rows: Rows, start: Rows, iterations: int) -> Peer:
    k, d = start.shape
    peer = Peer(
        k,
        covariance_type="tied",
        weights_init=np.full(k, 1.0 / k),
        means_init=start,
        precisions_init=np.eye(d),
        max_iter=iterations,
        tol=0.0,
        reg_covar=0.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # tol=0 runs every iteration
        return peer.fit(rows)


def _update_error(model: Mixture[PooledSums], rows: torch.Tensor) -> float:
    """Our M step against the three displayed updates, computed literally."""
    share = model.posterior(rows)
    count = share.sum(0)
    mean = share.mT @ rows / count[:, None]
    apart = rows[:, None, :] - mean
    covariance = torch.einsum("nk,nki,nkj->ij", share, apart, apart) / len(rows)
    expected = model.expect(rows, torch.ones(len(rows), dtype=rows.dtype))
    ours = model.solve(expected.statistics)
    return float(
        max(
            (ours.log_weight.exp() - count / len(rows)).abs().max(),
            (ours.family.mean - mean).abs().max(),
            (ours.family.named_parameters()["covariances"] - covariance).abs().max(),
        )
    )


def experiment(options: Options) -> Report:
    """Run over many data sets and starts."""
    seeds, n, iterations = (4, 500, 20) if options.quick else (50, 5000, 100)
    results = []
    for i in range(seeds):
        options.progress(i, seeds, f"data set {i + 1}")
        results.append(run_problem(options.seed + i, n, 4, 3, iterations))
    settings = {
        "data sets": seeds,
        "rows": n,
        "columns": 4,
        "components": 3,
        "iterations": iterations,
        "seed": options.seed,
    }
    findings = judge(np.asarray(results), f"{seeds} data sets, {iterations} iterations each.")
    return Report("em-mixture", "EM for a Gaussian mixture with one covariance", settings, findings)


def judge(results: Rows, size: str) -> list[Finding]:
    """Findings from one row of measures per data set, in the order of :func:`run_problem`."""
    apart, lowest, update, gain = results.T
    return [
        Finding(
            "tied covariance EM, parameters after the last iteration",
            "scikit-learn's, from the same start",
            f"largest difference {apart.max():.1e}",
            None,
            "reproduced" if apart.max() < 1e-8 else "not reproduced",
            size,
            exact=True,
        ),
        Finding(
            "the updates of section 2.5",
            "weights, means and covariance as displayed",
            f"largest difference {update.max():.1e}",
            None,
            "reproduced" if update.max() < 1e-10 else "not reproduced",
            "The final updates are right, although the text has c = n (it is 1/n) and a factor 2 in a gradient.",
            exact=True,
        ),
        Finding(
            "the log-likelihood never falls (lemma 2.1)",
            "increments at least 0",
            f"smallest relative increment {lowest.min():.1e}",
            None,
            "reproduced" if lowest.min() > -FALL else "not reproduced",
            "The loop checks every iteration against 1e-9 of the log-likelihood.",
            exact=True,
        ),
        Finding(
            "guarded extrapolation after as many passes",
            "not in the document",
            f"higher by {gain.mean():.2e} a row",
            float(gain.std() / len(gain) ** 0.5),
            "target met" if gain.min() > -1e-6 else "target missed",
            f"Between {gain.min():.1e} and {gain.max():.1e}: it may find another maximum, and never falls.",
        ),
    ]
