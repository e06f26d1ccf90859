"""Bayesian Gaussian mixtures, full covariance: an iteration of coordinate ascent and a cold start; scikit-learn.

python benchmarks/bench_variational.py [--quick]
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture as Peer

from bench_mixture import clusters
from boxloop.data import ArraySource, StandardisedSource, fit_standardisation
from boxloop.distributions import Dirichlet, MixturePrior, NormalInverseWishart
from boxloop.estimators import BayesianGaussianMixture
from boxloop.fit import EMState, elbo, em
from boxloop.loop import run
from boxloop.models import VariationalMixture
from common import interleave, report

CASES = [(100_000, 10, 10, "float64"), (20_000, 50, 10, "float64"), (20_000, 50, 10, "float32")]
LARGE = (1_000_000, 8, 16, "float64")


class Given(Peer):
    """scikit-learn's class, started from responsibilities that are given."""

    share: np.ndarray

    def _initialize_parameters(self, X, random_state, xp=None):
        self._initialize(X, self.share)


def peer_iterations(rows: np.ndarray, share: np.ndarray, iterations: int) -> Peer:
    d = rows.shape[1]
    peer = Given(
        n_components=share.shape[1],
        weight_concentration_prior_type="dirichlet_distribution",
        mean_prior=np.zeros(d),
        covariance_prior=np.eye(d),
        max_iter=iterations,
        tol=0.0,
        reg_covar=0.0,
    )
    peer.share = share
    return peer.fit(rows)


def one_case(n: int, d: int, k: int, dtype: str, repeats: int) -> dict:
    rows, labels = clusters(n, d, k)
    share = 0.9 * np.eye(k)[labels] + 0.1 / k
    source = ArraySource(torch.from_numpy(rows))
    frame = fit_standardisation(source)
    standard = StandardisedSource(source, frame, getattr(torch, dtype))
    one = torch.ones(1, dtype=torch.float64)
    components = NormalInverseWishart(
        one.new_zeros(1, d), one, d * one, torch.eye(d, dtype=torch.float64)[None]
    )
    prior = MixturePrior(Dirichlet(one.new_full((k,), 1.0 / k)), components)
    start = VariationalMixture.from_responsibilities(
        prior, source.rows, torch.from_numpy(share).mT.contiguous()
    )
    iterations = 3 if n > 500_000 else 6

    def ours(r: int):
        return run(em(standard, elbo), EMState(start), max_iter=r)

    peer, mine = peer_iterations(rows, share, iterations), ours(iterations).state.best
    apart = np.abs(mine.parameter_posterior.components.mean.numpy() - peer.means_).max()
    assert apart < (1e-8 if dtype == "float64" else 1e-3), f"answers differ by {apart}"
    times = interleave(
        {
            "peer": lambda: peer_iterations(rows, share, iterations),
            "peer 1": lambda: peer_iterations(rows, share, 1),
            "ours": lambda: ours(iterations),
            "ours 1": lambda: ours(1),
        },
        repeats,
    )
    peer_ms = 1e3 * (times["peer"] - times["peer 1"]) / (iterations - 1)
    ours_ms = 1e3 * (times["ours"] - times["ours 1"]) / (iterations - 1)
    return {
        "case": f"n={n} d={d} K={k} {dtype}",
        "peer": "scikit-learn",
        "peer_ms": peer_ms,
        "ours_ms": ours_ms,
        "ratio": peer_ms / ours_ms,
        "difference": float(apart),
    }


def cold_start(n: int, d: int, k: int, repeats: int) -> dict:
    """From no start to a fit with twice as many components as there are clusters."""
    rows, _ = clusters(2 * n, d, k, seed=1)
    train, test = rows[:n], rows[n:]
    found = {}

    def fit(name: str, estimator):
        found[name] = estimator.fit(train)

    times = interleave(
        {
            "peer": lambda: fit("peer", Peer(n_components=2 * k, random_state=0, max_iter=200)),
            "ours": lambda: fit("ours", BayesianGaussianMixture(2 * k, random_state=0)),
        },
        repeats,
    )
    return {
        "case": f"cold start n={n} d={d} clusters={k} K={2 * k}",
        "peer": "scikit-learn",
        "peer_ms": 1e3 * times["peer"],
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["peer"] / times["ours"],
        "peer_held_out": found["peer"].score(test),
        "ours_held_out": found["ours"].score(test),
        "peer_in_use": int((found["peer"].weights_ * n >= 1.0).sum()),
        "ours_in_use": found["ours"].n_components_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--large", action="store_true", help="a million rows too")
    given = parser.parse_args()
    cases = [(2_000, 5, 3, "float64")] if given.quick else [*CASES, *([LARGE] if given.large else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows = [one_case(*case, repeats=3) for case in cases]
        rows.append(cold_start(*((1_000, 5, 3) if given.quick else (20_000, 10, 5)), repeats=3))
    report("variational_quick" if given.quick else "variational", rows)


if __name__ == "__main__":
    main()
