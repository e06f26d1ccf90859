"""Pictures of mixtures with a distribution over parameters: the components in use, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from boxloop import BayesianGaussianMixture, BayesianMultinomialMixture, GaussianMixture
from estimators.cases import GAUSSIAN, blobs, documents


@pytest.mark.parametrize(
    ("kind", "weights"),
    list(zip(GAUSSIAN, ["dirichlet_process", "dirichlet_distribution"] * 2, strict=True)),
)
def test_components_in_use_are_drawn(kind: str, weights: str) -> None:
    X = blobs(200, gap=12.0)
    X[3, 1] = np.nan
    params = {"covariance_type": kind, "random_state": 0}
    fitted = BayesianGaussianMixture(5, weight_concentration_prior_type=weights, **params).fit(X)
    used = np.flatnonzero(fitted.active_)
    axes = fitted.plot(X, columns=[0, 1])
    assert len(axes.patches) == 2 * len(used) < 10
    centres = np.array([patch.center for patch in axes.patches[::2]])
    np.testing.assert_allclose(centres, fitted.means_[used][:, :2])
    assert fitted.plot_pairs(X).shape == (3, 3)
    assert len(np.unique(axes.collections[0].get_facecolors(), axis=0)) == len(used), (
        "rows have their colours"
    )


def test_with_many_rows_the_ellipses_are_those_of_maximum_likelihood() -> None:
    X = blobs(3000)
    one, other = (kind(2, random_state=0).fit(X) for kind in (GaussianMixture, BayesianGaussianMixture))
    sizes = [sorted(p.width * p.height for p in e.plot(X, columns=[0, 2]).patches) for e in (one, other)]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=0.01)


def test_weights_with_their_deviations() -> None:
    fitted = BayesianMultinomialMixture(4, random_state=0).fit(documents(200))
    axes = fitted.plot_weights()
    used = np.flatnonzero(fitted.active_)
    assert axes.get_title("left") == f"{len(used)} of 4 components in use"
    points = next(line for line in axes.lines if line.get_marker() == "o")
    np.testing.assert_allclose(points.get_xdata(), fitted.weights_[used])
    wide = next(c for c in axes.collections if isinstance(c, LineCollection)).get_segments()
    sd = fitted.standard_errors()["weights"][used]
    np.testing.assert_allclose([s[1, 0] - s[0, 0] for s in wide], 4 * sd)
