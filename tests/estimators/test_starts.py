"""Long, overlapping clusters: where scikit-learn's k-means start ends in a poor solution, the race of starts does not.

Not a test of chance: each seed is one data set, and both sides are deterministic. The claims are weaker than what was
measured over 30 seeds: better by more than 0.05 on 27 (two columns) and 29 (five columns) data sets of stripes, on 10
of crosses; worse by more than 0.001 on none, 1 and 2, by 0.03 at most; at the best likelihood that many starts could
find on 28, 25 and 22, where scikit-learn was on 2, 0 and 11.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import mixture
from sklearn.exceptions import ConvergenceWarning

from boxloop import FitWarning, GaussianMixture
from estimators.cases import blobs, fit_with_warnings

SEEDS = range(12)


def stripes(seed: int, n: int, k: int, d: int) -> np.ndarray:
    """Parallel clusters, ten times as long as they are far apart, in a random direction."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    rows = rng.normal(size=(n, d)) * np.r_[10.0, np.full(d - 1, 0.6)]
    rows[:, 1] += 3.0 * rng.integers(k, size=n)
    return rows @ turn.T


def crosses(seed: int, n: int, k: int, d: int) -> np.ndarray:
    """Needles in random directions that cross each other."""
    rng = np.random.default_rng(seed)
    rows, z = np.empty((n, d)), rng.integers(k, size=n)
    for j in range(k):
        turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
        size = np.r_[5.0, np.full(d - 1, 0.3)]
        rows[z == j] = rng.normal(size=((z == j).sum(), d)) * size @ turn.T + 2.0 * rng.normal(size=d)
    return rows


def gains(X: list[np.ndarray], k: int) -> np.ndarray:
    """Mean log-likelihood, ours less scikit-learn's, with the defaults of both and time to converge."""
    found = []
    for seed, rows in enumerate(X):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FitWarning)  # a needle may be as thin as the floor
            theirs = mixture.GaussianMixture(k, random_state=seed, tol=1e-4, max_iter=1000).fit(rows)
            ours = GaussianMixture(k, random_state=seed, max_iter=1000).fit(rows)
        found.append(ours.score(rows) - theirs.score(rows))
    return np.array(found)


def test_stripes_in_two_columns() -> None:
    gain = gains([stripes(seed, 900, 3, 2) for seed in SEEDS], 3)
    assert gain.min() > -1e-3, "on no data set worse"
    assert (gain > 0.05).sum() >= 8


@pytest.mark.slow
def test_stripes_in_five_columns() -> None:
    gain = gains([stripes(seed, 900, 4, 5) for seed in SEEDS], 4)
    assert gain.min() > -0.05
    assert (gain > -1e-3).sum() >= 10
    assert (gain > 0.05).sum() >= 8


def test_crosses() -> None:
    gain = gains([crosses(seed, 900, 4, 2) for seed in SEEDS], 4)
    assert gain.min() > -0.05
    assert (gain > -1e-3).sum() >= 10
    assert (gain > 0.05).sum() >= 2
    assert gain.mean() > 0.02


def test_round_clusters_need_no_more() -> None:
    """Where k-means is right, so are we."""
    rng = np.random.default_rng(0)
    centres = 6.0 * rng.normal(size=(4, 3))
    X = [centres[rng.integers(4, size=500)] + rng.normal(size=(500, 3)) for _ in range(4)]
    assert gains(X, 4).min() > -1e-3


def test_a_spike_on_a_few_rows_is_not_the_winner() -> None:
    """Likelihood alone prefers a component collapsed on a few rows: without a rule, on 5 of the first 20 data sets."""
    collapsed = 0
    for seed in range(20):
        fitted, _ = fit_with_warnings(
            GaussianMixture(3, random_state=seed, max_iter=500), blobs(60, seed=seed)
        )
        collapsed += any("floor" in event for event in fitted.events_)
    assert collapsed <= 1


def test_true_labels_are_found() -> None:
    """The best matching of labels with the stripes that drew them is right on 90% of rows, on 10 of 12 data sets."""
    right = 0
    for seed in SEEDS:
        rng = np.random.default_rng(100 + seed)
        z = rng.integers(2, size=600)
        rows = np.column_stack([12.0 * rng.normal(size=600), 3.5 * z + 0.6 * rng.normal(size=600)])
        labels = GaussianMixture(2, random_state=seed, max_iter=1000).fit_predict(rows)
        right += max((labels == z).mean(), (labels != z).mean()) > 0.9
    assert right >= 10


def test_more_components_than_clusters_do_not_collapse() -> None:
    """Two round clusters, three to five components: a component of a few rows has a likelihood without bound.

    Over 180 such fits one ended at the floor.
    """
    collapsed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(240, 2)) + 6.0 * rng.integers(2, size=(240, 1))
        for k in (3, 4, 5):
            fitted, _ = fit_with_warnings(GaussianMixture(k, random_state=0), rows)
            collapsed += any("floor" in event for event in fitted.events_)
    assert collapsed <= 1


def test_a_small_cluster_is_found() -> None:
    """Eight rows far from the others, in four columns: few more than a covariance needs."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = np.concatenate([rng.normal(size=(150, 4)), 12.0 + rng.normal(size=(8, 4))])
        labels = GaussianMixture(2, random_state=seed).fit_predict(rows)
        assert sorted(np.bincount(labels)) == [8, 150]
