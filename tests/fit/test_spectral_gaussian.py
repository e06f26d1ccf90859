"""Round clusters from moments: exact on exact moments, right on many clusters, and refused where they do not show."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from boxloop import GaussianMixture, PoissonMixture
from boxloop.fit import (
    AUTO,
    SpectralError,
    compute_spherical_responsibilities,
    estimate_spherical_clusters,
    lineup,
)
from boxloop.numeric import generator


def clusters(k: int, d: int, n: int, apart: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean = apart * rng.normal(size=(k, d)) / np.sqrt(d)
    weight = rng.dirichlet(np.full(k, 5.0))
    return mean[rng.choice(k, n, p=weight)] + rng.normal(size=(n, d)), mean, weight


def matched(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    return linear_sum_assignment(np.linalg.norm(wanted[:, None] - found, axis=2))[1]


def exact_rows(mean: np.ndarray, weight: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose first three moments are exactly those of round clusters: each mean, plus and minus on every axis."""
    d = mean.shape[1]
    steps = np.sqrt(d * noise) * np.concatenate([np.eye(d), -np.eye(d)])
    rows = (mean[:, None] + steps).reshape(-1, d)
    return rows, np.repeat(weight / (2 * d), 2 * d)


@pytest.mark.parametrize(("k", "d"), [(1, 1), (2, 2), (2, 5), (4, 4), (6, 9)])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_exact_moments_give_the_clusters(k, d, shift):
    rng = np.random.default_rng(k)
    mean, weight = 3.0 * rng.normal(size=(k, d)) + shift, rng.dirichlet(np.full(k, 5.0))
    share, centre, noise = estimate_spherical_clusters(*exact_rows(mean, weight, 0.25), k, generator(0))
    place = matched(mean, centre)
    np.testing.assert_allclose(centre[place], mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(share[place], weight, rtol=1e-6)
    assert noise == pytest.approx(0.25, rel=1e-7)


def test_shares_are_those_of_the_clusters():
    X, _, _ = clusters(3, 5, 2000, 6.0, 0)
    weight = np.full(2000, 1 / 2000)
    share, mean, noise = estimate_spherical_clusters(X, weight, 3, generator(0))
    density = np.log(share)[:, None] - 0.5 * np.square(X - mean[:, None]).sum(2) / noise
    wanted = np.exp(density - logsumexp(density, axis=0))
    np.testing.assert_allclose(
        compute_spherical_responsibilities(X, weight, 3, generator(0)), wanted, atol=1e-9
    )


def test_many_clusters_are_not_merged():
    """Twenty clusters of thirty columns, seeds on which k-means merges two; the likelihood of the truth is reached."""
    worse = 0
    for seed in (1, 4):
        X, mean, weight = clusters(20, 30, 8000, 6.0, seed)
        options = {"covariance_type": "spherical", "random_state": 0, "max_iter": 300}
        start = {"weights_init": weight, "means_init": mean, "precisions_init": np.ones(20)}
        truth = GaussianMixture(20, **options, **start).fit(X).score(X)
        assert GaussianMixture(20, **options).fit(X).score(X) > truth - 1e-3
        worse += GaussianMixture(20, init_params="kmeans", **options).fit(X).score(X) < truth - 0.05
    assert worse >= 1


def test_when_moments_join_the_race():
    assert lineup(9, 50) == AUTO
    assert lineup(10, 9) == AUTO
    assert lineup(10, 10)[0] == "spectral"
    assert set(lineup(10, 10)) == {*AUTO, "spectral"}


def test_more_clusters_than_columns():
    X, _, _ = clusters(2, 2, 100, 4.0, 0)
    with pytest.raises(SpectralError, match="at most 2 clusters in 100 rows of 2 columns, not 3"):
        GaussianMixture(3, init_params="spectral").fit(X)
    GaussianMixture(2, init_params="spectral", random_state=0).fit(X)


def test_clusters_that_moments_do_not_show():
    rows = np.repeat(np.eye(3)[:2] * 5.0, 20, axis=0)
    with pytest.raises(SpectralError, match="fewer than 3 clusters"):
        estimate_spherical_clusters(rows, np.full(40, 1 / 40), 3, generator(0))


def test_a_start_that_does_not_apply_leaves_the_race_to_the_others():
    """Ten counts that are all alike: no moments show ten clusters, and the other starts still do their work."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.poisson(3.0, size=(12, 1)), 12, axis=1).astype(float)
    with pytest.warns(UserWarning, match="component"):
        PoissonMixture(10, random_state=0).fit(X)
