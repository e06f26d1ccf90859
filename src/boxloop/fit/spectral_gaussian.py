r"""Where round clusters lie, from moments: the start of EM that no seeding can spoil.

Clusters of weight :math:`\pi_h`, mean :math:`\mu_h` and common variance :math:`\sigma^2` have, with a constant column c
added to rows x and to means, and J the unit matrix without its last entry,

.. math:: M_2 = E[x x^\top] - \sigma^2 J = \sum_h \pi_h \mu_h \mu_h^\top, \qquad
   M_3 = E[x^{\otimes 3}] - \sigma^2 \sum_{\text{3 places}} E[x] \otimes J = \sum_h \pi_h \mu_h^{\otimes 3},

and :math:`\sigma^2` is the mean of the least eigenvalues of the covariance. Hsu and Kakade (2013). With the constant
column the means need only be corners of a simplex, wherever the origin lies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Generator

from boxloop.fit.documents import SpectralError
from boxloop.numeric import diagonalise_jointly

Array = NDArray[np.float64]

TILE_VALUES = 1 << 18
"""Products of pairs of columns that are held at once."""


def round_clusters(rows: Array, weight: Array, k: int, generator: Generator) -> tuple[Array, Array, float]:
    """Weights (k,), means (k, d) and variance of round clusters.

    Args:
        rows: (n, d), complete.
        weight: (n,), sums to one.
        k: number of clusters, at most d.
        generator: for directions.

    Raises:
        SpectralError: the moments do not show k clusters.
    """
    n, d = rows.shape
    if k > d or n <= d:
        raise SpectralError(
            f"moments show at most {min(n - 1, d)} clusters in {n} rows of {d} columns, not {k}"
        )
    mean = weight @ rows
    spread = np.linalg.eigvalsh((rows - mean).T @ ((rows - mean) * weight[:, None]))
    noise = float(spread[: d - k + 1].mean())
    size = float(np.sqrt(max(spread[-1], 1e-300)))
    x = np.column_stack([rows - mean, np.full(n, size)])
    unit = np.append(np.ones(d), 0.0)
    second = x.T @ (x * weight[:, None]) - noise * np.diag(unit)
    values, axes = np.linalg.eigh(second)
    values, axes = values[-k:], axes[:, -k:]
    if values[0] <= 1e-9 * values[-1]:
        raise SpectralError(f"second moments show fewer than {k} clusters")
    whiten = axes / np.sqrt(values)
    y = x @ whiten
    third = _third(y, weight)
    plane, centre = whiten.T @ (unit[:, None] * whiten), weight @ y
    third -= noise * sum(np.einsum(f"a,bc->{order}", centre, plane) for order in ("abc", "bac", "bca"))
    turn = diagonalise_jointly(third, generator)
    found = (axes * np.sqrt(values)) @ turn
    if np.abs(found[-1]).min() < 1e-6 * size:
        raise SpectralError(f"third moments show fewer than {k} clusters")
    share = (found[-1] / size) ** 2  # a column is sqrt(pi) (mu, c)
    return share / share.sum(), (found[:-1] / found[-1] * size).T + mean, max(noise, 0.0)


def _third(y: Array, weight: Array) -> Array:
    """Third moment of rows (n, k), (k, k, k), as a matrix product on tiles."""
    n, k = y.shape
    found, step = np.zeros((k, k * k)), max(1, TILE_VALUES // (k * k))
    for start in range(0, n, step):
        some = y[start : start + step]
        pairs = (some[:, :, None] * some[:, None, :]).reshape(len(some), -1)
        found += (some * weight[start : start + step, None]).T @ pairs
    return found.reshape(k, k, k)


def round_shares(rows: Array, weight: Array, k: int, generator: Generator) -> Array:
    """Responsibilities (k, n) of round clusters found from moments; arguments as in :func:`round_clusters`."""
    share, mean, noise = round_clusters(rows, weight, k, generator)
    far = np.square(mean).sum(1)[:, None] - 2.0 * mean @ rows.T  # less what all clusters share
    joint_density = np.log(np.maximum(share, 1e-300))[:, None] - 0.5 * far / max(noise, 1e-12)
    return np.asarray(softmax(joint_density, axis=0))
