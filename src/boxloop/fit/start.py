r"""Where EM starts.

A start is a partition of a sample of rows into k groups, turned into a model by one M step. k-means cuts space into
round cells, so on long or overlapping clusters it starts EM in the wrong basin and the likelihood never tells. The
remedy is several kinds of partition (plain, whitened, along directions of least Gaussian shape, on random
projections), a short race between them, and the likelihood as judge.

Every start is a function of the *distribution* of the sample: duplicate rows are merged into weights first, so that
integer weights and repeated rows give the same start.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from torch import Generator, Tensor

from boxloop.data import ArraySource, sample_rows
from boxloop.distributions import Family, PooledSums, Sums
from boxloop.fit.em import EMState, accelerated_em, rounding_error
from boxloop.fit.spectral import SpectralError, compute_spherical_responsibilities
from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.models import Mixture
from boxloop.numeric import normal, seed, single_threaded
from boxloop.types import Source

S = TypeVar("S")
Statistics = TypeVar("Statistics", Sums, PooledSums)
Points = NDArray[np.float64]

RACE_ROWS = 20_000
"""Most rows on which starts race."""

SAMPLE_VALUES = 1 << 22
"""Values of the sample on which starts race, where that leaves enough rows: it is held dense."""

TIE = 8
"""Decimals beyond which two objectives are equal: then the start that was named first wins, whatever the rounding."""

BLEND = 0.05
"""Share of the whole sample mixed into every start's components, so that none starts singular."""


@dataclass(frozen=True)
class Sample:
    """Distinct rows in a canonical order with their weights; ``filled`` has missing values at the column mean."""

    rows: Tensor
    weight: Tensor
    filled: Points

    @classmethod
    def draw(cls, source: Source, size: int, generator: Generator) -> Sample:
        """About ``size`` rows, each with equal chance, in one pass; all of them when there are no more.

        Duplicate rows are merged, weightless ones dropped.
        """
        drawn = sample_rows(source, size, generator)
        rows, weight = drawn.rows[drawn.weight > 0], drawn.weight[drawn.weight > 0]
        distinct, inverse = torch.unique(torch.nan_to_num(rows, nan=torch.inf), dim=0, return_inverse=True)
        total = torch.zeros(len(distinct), dtype=torch.float64, device=rows.device).index_add(
            0, inverse, weight
        )
        distinct = torch.where(torch.isinf(distinct), torch.nan, distinct)
        seen = ~torch.isnan(distinct)
        plain = torch.nan_to_num(distinct, nan=0.0)
        mean = (total @ plain) / (total @ seen.to(total.dtype)).clamp(min=1e-300)
        filled = torch.where(seen, plain, mean).cpu().numpy()
        return cls(distinct, total, np.ascontiguousarray(filled, dtype=np.float64))

    @cached_property
    def whitened(self) -> Points:
        """Rows in the axes of their own covariance, unit variance each, constant directions dropped."""
        weight = self.weight.cpu().numpy()
        centred = self.filled - np.average(self.filled, axis=0, weights=weight)
        values, vectors = np.linalg.eigh((centred.T * weight) @ centred / weight.sum())
        keep = values > 1e-10 * values[-1]
        # With few rows, all would be equally far apart.
        keep[: max(len(values) - max(1, len(weight) // 4), 0)] = False
        keep[-1] = True
        values = np.maximum(values, 1e-300)
        return np.asarray(centred @ (vectors[:, keep] / np.sqrt(values[keep])), dtype=np.float64)


NUMPY_SEEDS = 2**31 - 1
"""Seeds that NumPy and scikit-learn take."""

PURSUIT_ITERATIONS = 15
SEEDINGS = 5
"""k-means runs from which the tightest is taken: with many clusters a single one often merges two of them."""

Partition = Callable[[Sample, int, Generator], Tensor]


def kmeans(sample: Sample, k: int, generator: Generator, whiten: bool = False) -> Tensor:
    """scikit-learn's k-means, one-hot, (k, n); after whitening right when clusters are long in the same direction."""
    return _cluster(sample, sample.whitened if whiten else sample.filled, k, generator, SEEDINGS)


def projected_kmeans(sample: Sample, k: int, generator: Generator) -> Tensor:
    """k-means on a random projection of the whitened rows to one to three dimensions."""
    points = sample.whitened
    d = points.shape[1]
    width = min(d, int(torch.randint(1, 4, (), generator=generator, device=generator.device)))
    axes = normal((d, width), generator).cpu().numpy()
    return _cluster(sample, points @ np.linalg.qr(axes)[0], k, generator)


def pursued_kmeans(sample: Sample, k: int, generator: Generator) -> Tensor:
    """k-means along one or two directions of least Gaussian shape, where clusters lie apart.

    Each direction is a fixed point of ``w = E[x (w'x)^3] - 3 w`` on whitened rows (FastICA; Hyvärinen and Oja 1997)
    from a random start, the second one orthogonal to the first.
    """
    points, weight = sample.whitened, (sample.weight / sample.weight.sum()).cpu().numpy()
    d = points.shape[1]
    width = min(d, int(torch.randint(1, 3, (), generator=generator, device=generator.device)))
    starts = normal((width, d), generator).cpu().numpy()
    axes = np.zeros((0, d))
    for w in starts:
        for _ in range(PURSUIT_ITERATIONS):
            w = w - axes.T @ (axes @ w)
            w = w / max(np.linalg.norm(w), 1e-300)
            w = points.T @ (weight * (points @ w) ** 3) - 3.0 * w
        w = w - axes.T @ (axes @ w)
        axes = np.vstack([axes, w / max(np.linalg.norm(w), 1e-300)])
    return _cluster(sample, points @ axes.T, k, generator)


def seed_centres(sample: Sample, k: int, generator: Generator) -> Tensor:
    """k-means++ seeds and their nearest cells, without Lloyd's iterations."""
    n = min(k, len(sample.filled))
    state, weight = seed(generator) % NUMPY_SEEDS, sample.weight.cpu().numpy()
    centres, _ = kmeans_plusplus(sample.filled, n, sample_weight=weight, random_state=state)
    return _assign_nearest(sample, centres, k)


def random_centres(sample: Sample, k: int, generator: Generator) -> Tensor:
    """Rows drawn by weight as centres, and their nearest cells."""
    share = (sample.weight / sample.weight.sum()).cpu().numpy()
    n = min(k, len(share))
    state = np.random.RandomState(seed(generator) % NUMPY_SEEDS)
    chosen = state.choice(len(share), size=n, replace=False, p=share)
    return _assign_nearest(sample, sample.filled[chosen], k)


def spectral_shares(sample: Sample, k: int, generator: Generator) -> Tensor:
    """Responsibilities of spherical clusters that second and third moments show (Hsu and Kakade 2013)."""
    weight = (sample.weight / sample.weight.sum()).cpu().numpy()
    return torch.from_numpy(compute_spherical_responsibilities(sample.filled, weight, k, generator)).to(
        sample.rows.device
    )


def random_shares(sample: Sample, k: int, generator: Generator) -> Tensor:
    """Uniform random responsibilities."""
    share = torch.rand(k, len(sample.rows), dtype=torch.float64, generator=generator, device=generator.device)
    return (share / share.sum(0)).to(sample.rows.device)


PARTITIONS: dict[str, Partition] = {
    "kmeans": kmeans,
    "whitened": partial(kmeans, whiten=True),
    "pursuit": pursued_kmeans,
    "projection": projected_kmeans,
    "k-means++": seed_centres,
    "random_from_data": random_centres,
    "random": random_shares,
    "spectral": spectral_shares,
}

AUTO = ("kmeans", "whitened", "pursuit", "pursuit", "pursuit", "pursuit", "projection", "random_from_data")
"""The line-up of ``init_params="auto"``, most useful first."""

MANY = 10
"""Clusters from which k-means often merges two of them, and moments, where columns are as many, do not."""


def lineup(k: int, n_columns: int) -> tuple[str, ...]:
    """The starts that race for so many clusters in so many columns; eight, since a ninth would cost a heat more."""
    return ("spectral", *AUTO[:4], *AUTO[5:]) if MANY <= k <= n_columns else AUTO


@single_threaded
def start_mixture(template: Family[Statistics], k: int, sample: Sample, share: Tensor) -> Mixture[Statistics]:
    """One M step from responsibilities (k, n) of the sample's rows.

    Args:
        template: k members of the wanted family; their values only fix the shapes and floors.
        k: number of components.
        sample: rows and weights.
        share: responsibilities, (k, n).
    """
    blended = (1.0 - BLEND) * share + BLEND / k
    statistics = template.view(sample.rows).summarise(blended * sample.weight)
    level = torch.full((k,), 1.0 / k, dtype=torch.float64, device=sample.rows.device)
    return Mixture(level.log(), template).solve(statistics)


def _cluster(sample: Sample, points: Points, k: int, generator: Generator, seedings: int = 1) -> Tensor:
    """The cells of k-means in these points of the sample's rows, one-hot, (k, n)."""
    if k == 1:
        return torch.ones(1, len(points), dtype=torch.float64, device=sample.rows.device)
    with warnings.catch_warnings():
        # Fewer distinct points than k: empty cells are fine.
        warnings.simplefilter("ignore", ConvergenceWarning)
        state = seed(generator) % NUMPY_SEEDS
        model = KMeans(min(k, len(points)), n_init=seedings, max_iter=50, tol=1e-3, random_state=state)
        labels = model.fit(points, sample_weight=sample.weight.cpu().numpy()).labels_
    return torch.from_numpy((labels[:, None] == np.arange(k)).astype(float)).mT.to(sample.rows.device)


def _assign_nearest(sample: Sample, centres: Points, k: int) -> Tensor:
    """The cells around centres, one-hot, (k, n)."""
    labels = np.argmin((centres**2).sum(1) - 2.0 * sample.filled @ centres.T, axis=1)
    return torch.from_numpy((labels[:, None] == np.arange(k)).astype(float)).mT.to(sample.rows.device)


def choose_race_size(k: int, d: int) -> int:
    """How many rows starts of k components in d columns race on."""
    return min(RACE_ROWS, max(2_000, 200 * k, 10 * k * d), max(2_000, 50 * k, SAMPLE_VALUES // d))


def draw_starts(
    source: Source, starts: Sequence[str], k: int, generator: Generator
) -> tuple[Sample, list[Tensor], Source]:
    """A sample of rows, responsibilities (k, n) of its rows by every start that applies, and the rows of the race.

    One component needs one start. Starts race on the sample, or on all rows where these are few and sparse.
    """
    sample = Sample.draw(source, choose_race_size(k, source.n_columns), generator)
    names = starts if k > 1 else starts[:1]
    shares = []
    for name in names:
        try:
            shares.append(PARTITIONS[name](sample, k, generator))
        except SpectralError:
            if len(set(names)) == 1:
                raise
    rows, _ = next(iter(source.chunks(1)))
    is_small = rows.layout != torch.strided and source.n_rows <= RACE_ROWS
    return sample, shares, source if is_small else ArraySource(sample.rows, sample.weight)


@single_threaded
def race(
    step: Callable[[S], Iteration[S]],
    starts: Sequence[S],
    *,
    iterations: int = 5,
    tol: float = 0.0,
    doubtful: Callable[[S], bool] | None = None,
    rounding: Callable[[S], float] | None = None,
    observers: Sequence[Observer[S]] = (),
) -> list[Outcome[S]]:
    """Successive halving (Jamieson and Talwalkar 2016) over the starts of one fit.

    Every start gets ``iterations`` of them; the better half by objective gets twice as many more; and so on until one
    is left. Nothing is lost: losers stay in the result with the trace they had when they were abandoned.

    Args:
        step: one iteration, for example :func:`boxloop.fit.em.em`.
        starts: states to start from.
        iterations: iterations in the first heat.
        tol: as in :func:`boxloop.loop.run`; a start that has converged rests on its objective.
        doubtful: states that come after all others, whatever their objective: a component that has collapsed on a
            few rows has a likelihood without bound, and means nothing.
        rounding: as in :func:`boxloop.loop.run`.
        observers: told of every iteration of every start.

    Returns:
        All outcomes, the winner first.
    """

    def rank(outcome: Outcome[S]) -> tuple[bool, float]:
        objective = round(outcome.trace[-1], TIE) if outcome.trace else -math.inf
        return doubtful is not None and doubtful(outcome.state), -objective

    proceed = partial(run, step, tol=tol, monotone=True, rounding=rounding, observers=observers)
    field = [Outcome(start) for start in starts]
    beaten: list[Outcome[S]] = []
    budget = iterations
    while len(field) > 1:
        field = [proceed(outcome.state, max_iter=budget, resume=outcome) for outcome in field]
        field.sort(key=rank)
        if any(outcome.interrupted for outcome in field):
            break
        keep = (len(field) + 1) // 2
        beaten, field = [*field[keep:], *beaten], field[:keep]
        budget += 2 * budget
    return [*field, *beaten]


def best_start(
    source: Source,
    template: Family[Any],
    starts: Sequence[str],
    generator: Generator,
    tol: float,
    rivals: Sequence[Mixture[Any]] = (),
) -> tuple[Mixture[Any], bool]:
    """The winner of a race between starts on a sample of the rows, and whether Ctrl-C ended the race.

    Args:
        source: rows in standard coordinates.
        template: k members of the family.
        starts: names from :data:`PARTITIONS`.
        generator: of the sample and the starts.
        tol: of the fit that goes on from the winner.
        rivals: models that race against the starts.
    """
    k = len(template.mean)
    sample, shares, rows = draw_starts(source, starts, k, generator)
    models = [*rivals, *(start_mixture(template, k, sample, share) for share in shares)]
    if len(models) == 1:
        return models[0], False
    heat = race(
        accelerated_em(rows),
        [EMState(m) for m in models],
        iterations=10,
        tol=min(tol, 1e-4),
        doubtful=lambda state: bool(state.best.family.floored().any()),
        rounding=partial(rounding_error, source=rows),
    )
    return heat[0].state.best, any(outcome.interrupted for outcome in heat)
