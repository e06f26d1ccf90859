r"""Where EM starts.

A start is a partition of a sample of rows into k groups, turned into a model by one M step. k-means cuts space into
round cells, so on long or overlapping clusters it starts EM in the wrong basin and the likelihood never shows it. The
remedy is several kinds of partition (plain, whitened, along directions of least Gaussian shape, on random
projections), a short race between them, and the likelihood as judge.

The starts are one program: all run k-means side by side, and all climb side by side as members of one family.

Every start is a function of the *distribution* of the sample: duplicate rows are merged into weights first, so that
integer weights and repeated rows give the same start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from boxloop.data import ArraySource, sample_rows
from boxloop.distributions import DiagonalGaussian, Family, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.fit.spectral import SpectralError, compute_spherical_responsibilities
from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.models import Mixture
from boxloop.numeric import normal, single_threaded
from boxloop.types import Expected, Source

S = TypeVar("S")

RACE_ROWS = 20_000
"""Most rows on which starts race."""

SAMPLE_VALUES = 1 << 22
"""Values of the sample on which starts race, where that leaves enough rows: it is held dense."""

TIE = 8
"""Decimals beyond which two objectives are equal: then the start that was named first wins, whatever the rounding."""

BLEND = 0.05
"""Share of the whole sample mixed into every start's components, so that none starts singular."""

HEATS = ((12, 14), (16, 7), (24, 3), (1, 1))
"""EM iterations of each heat of a race, and how many starts run in it at most.

Early ranks mislead: where clusters cross, the winner is often among the last after ten iterations.
"""

EQUAL = 4
"""Decimals beyond which likelihoods in the race are equal: then the start named first wins, also in float32."""

PROSPECT = 100.0
"""A start may still gain so many times its last rise."""

GAIN = 1e-4
"""A start that cannot gain so much over the best leaves the race, and so do all but one of equal ones."""

BATCH_VALUES = 1 << 22
"""Responsibilities (starts x components x rows) that are held at once."""


@dataclass(frozen=True)
class Sample:
    """Distinct rows in a canonical order with their weights; ``filled`` has missing values at the column mean."""

    rows: Tensor
    weight: Tensor
    filled: Tensor

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
        return cls(distinct, total, torch.where(seen, plain, mean))

    @cached_property
    def whitened(self) -> Tensor:
        """Rows in the axes of their own covariance, unit variance each, constant directions dropped."""
        share = self.weight / self.weight.sum()
        centred = self.filled - share @ self.filled
        values, vectors = torch.linalg.eigh((centred.mT * share) @ centred)
        keep = values > 1e-10 * values[-1]
        # With few rows, all would be equally far apart.
        keep[: max(len(values) - max(1, len(share) // 4), 0)] = False
        keep[-1] = True
        return centred @ (vectors[:, keep] / values[keep].clamp(min=1e-300).sqrt())


PURSUIT_ITERATIONS = 15
LLOYD_ITERATIONS = 10
SAME = 1e-6
"""Relative difference below which two sums of squares are equal."""

SEEDINGS = 2
"""k-means runs from which the tightest is taken: with many clusters a single one often merges two of them."""


def pursue(sample: Sample, copies: int, generator: Generator) -> list[Tensor]:
    """Rows along one or two directions of least Gaussian shape, where clusters lie apart, (n, 1) or (n, 2) each.

    Each direction is a fixed point of ``w = E[x (w'x)^3] - 3 w`` on whitened rows (FastICA; Hyvärinen and Oja 1997)
    from a random start, the second one orthogonal to the first.
    """
    points, share = sample.whitened, (sample.weight / sample.weight.sum())[:, None]
    first = points.new_zeros(points.shape[1], copies)
    axes = []
    for w in normal((min(points.shape[1], 2), *first.shape), generator).to(points.device):
        for _ in range(PURSUIT_ITERATIONS):
            w = w - first * (first * w).sum(0)
            w = w / w.norm(dim=0).clamp(min=1e-300)
            w = points.mT @ (share * (points @ w) ** 3) - 3.0 * w
        w = w - first * (first * w).sum(0)
        first = w / w.norm(dim=0).clamp(min=1e-300)
        axes.append(first)
    along = torch.stack([points @ axis for axis in axes], dim=2)
    widths = torch.randint(1, 3, (copies,), generator=generator, device=generator.device).tolist()
    return [along[:, i, :width] for i, width in enumerate(widths)]


def project(sample: Sample, generator: Generator) -> Tensor:
    """Whitened rows on one to three random axes, (n, w)."""
    d = sample.whitened.shape[1]
    width = min(d, int(torch.randint(1, 4, (), generator=generator, device=generator.device)))
    return sample.whitened @ torch.linalg.qr(normal((d, width), generator))[0].to(sample.rows.device)


def draw_indices(density: Tensor, draws: int, generator: Generator) -> Tensor:
    """Indices in proportion to each row of ``density`` (s, n), with replacement, (s, draws)."""
    below = density.cumsum(1)
    shape = (len(density), draws)
    chance = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
    found = torch.searchsorted(below, chance.to(below.device) * below[:, -1:], right=True)
    return found.clamp(max=density.shape[1] - 1)


def distances(centres: Tensor, columns: Tensor) -> Tensor:
    """Of centres (s, m, w) from rows (s, w, n), squared and less the rows' own squares, (s, m, n)."""
    return torch.baddbmm(centres.square().sum(2, keepdim=True), centres, columns, alpha=-2.0)


def seed_centres(columns: Tensor, weight: Tensor, k: int, generator: Generator) -> Tensor:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): the best of a few rows far from all centres, (s, k, w)."""
    trials, length = 2 + int(math.log(k)), columns.square().sum(1, keepdim=True)
    batch = torch.arange(len(columns), device=columns.device)[:, None]
    chosen = draw_indices(weight.expand(len(columns), -1), 1, generator)
    nearest = (distances(columns.mT[batch, chosen], columns) + length)[:, 0].clamp_(min=0.0)
    for _ in range(1, k):
        candidates = draw_indices(nearest * weight, trials, generator)
        far = (distances(columns.mT[batch, candidates], columns) + length).clamp_(min=0.0)
        far = torch.minimum(far, nearest[:, None])
        best = (far @ weight).argmin(1, keepdim=True)
        nearest = far[batch, best][:, 0]
        chosen = torch.cat([chosen, candidates.gather(1, best)], 1)
    return columns.mT[batch, chosen]


def assign_nearest(centres: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Which centre (s, k, w) is nearest to each row, as zeros and ones (s, k, n), and its :func:`distances`, (s, n)."""
    found = distances(centres, columns)
    least = found.amin(1, keepdim=True)  # argmin over a middle axis is fifty times as slow
    return (found == least).double(), least[:, 0]


def cluster(columns: Tensor, weight: Tensor, k: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """k-means in each of s coordinates (s, w, n): cells as in :func:`assign_nearest`, and squares within them, (s,)."""
    centres = seed_centres(columns, weight, k, generator)
    cells, least = assign_nearest(centres, columns)
    within = least @ weight
    for _ in range(LLOYD_ITERATIONS):
        share = cells * weight
        count = share.sum(2, keepdim=True)
        centres = torch.where(count > 0.0, share @ columns.mT / count.clamp(min=1e-300), centres)
        cells, least = assign_nearest(centres, columns)
        before, within = within, least @ weight
        if torch.equal(before, within):
            break
    return cells, (within + columns.square().sum(1) @ weight).clamp(min=0.0)


def cluster_embeddings(sample: Sample, embeddings: list[Tensor], k: int, generator: Generator) -> Tensor:
    """The tightest of several runs of k-means in each of the coordinates: cells (s, k, n)."""
    width = max(points.shape[1] for points in embeddings)
    padded = [pad(points, (0, width - points.shape[1])).mT.contiguous() for points in embeddings]
    padded = [columns for columns in padded for _ in range(SEEDINGS)]
    at_once = max(1, BATCH_VALUES // (k * len(sample.rows)))
    parts = [
        cluster(torch.stack(padded[i : i + at_once]), sample.weight, k, generator)
        for i in range(0, len(padded), at_once)
    ]
    within = torch.cat([part[1] for part in parts]).reshape(-1, SEEDINGS)
    order = torch.arange(SEEDINGS, device=within.device)
    # The first of equal runs, whatever the rounding: they may number their cells differently.
    first = torch.where(within <= (1.0 + SAME) * within.amin(1, keepdim=True), order, SEEDINGS).amin(1)
    tightest = first + SEEDINGS * torch.arange(len(within), device=within.device)
    return torch.cat([part[0] for part in parts])[tightest]


def draw_rows(sample: Sample, k: int, generator: Generator) -> Tensor:
    """k distinct rows by weight (exponential race; Efraimidis and Spirakis 2006), or all of them, (k, d)."""
    chance = torch.rand(len(sample.rows), dtype=torch.float64, generator=generator, device=generator.device)
    arrival = -chance.to(sample.weight.device).log() / sample.weight
    return sample.filled[arrival.topk(min(k, len(arrival)), largest=False).indices]


STARTS = (
    "kmeans",
    "whitened",
    "pursuit",
    "projection",
    "k-means++",
    "random_from_data",
    "random",
    "spectral",
)
"""Kinds of start: k-means in four kinds of coordinates, or other responsibilities."""

AUTO = ("kmeans", "whitened", "pursuit", "pursuit", "projection", "random_from_data", "random")
"""The line-up of ``init_params="auto"``."""

LAPS = 2
"""How often :func:`best_start` repeats a line-up of several kinds."""

MANY = 10
"""Clusters from which k-means often merges two of them, and moments, where columns are as many, do not."""


def lineup(k: int, n_columns: int) -> tuple[str, ...]:
    """The starts that race for so many clusters in so many columns."""
    return ("spectral", *AUTO) if MANY <= k <= n_columns else AUTO


def draw_responsibilities(sample: Sample, names: Sequence[str], k: int, generator: Generator) -> Tensor:
    """Responsibilities (s, k, n) of the sample's rows by every start that applies; one start for one component."""
    if k == 1:
        return sample.rows.new_ones(1, 1, len(sample.rows))
    pursued = pursue(sample, names.count("pursuit"), generator) if "pursuit" in names else []
    embeddings: list[Tensor] = []
    shares: list[Tensor] = []
    columns = sample.filled.mT.contiguous()[None]
    for kind in names:
        match kind:
            case "kmeans":
                embeddings.append(sample.filled)
            case "whitened":
                embeddings.append(sample.whitened)
            case "pursuit":
                embeddings.append(pursued.pop())
            case "projection":
                embeddings.append(project(sample, generator))
            case "k-means++":
                shares.append(assign_nearest(seed_centres(columns, sample.weight, k, generator), columns)[0])
            case "random_from_data":
                centres = draw_rows(sample, k, generator)
                cells = assign_nearest(centres[None], columns)[0]
                shares.append(pad(cells, (0, 0, 0, k - len(centres))))
            case "random":
                size = (1, k, len(sample.rows))
                chance = torch.rand(size, dtype=torch.float64, generator=generator, device=generator.device)
                shares.append(chance.to(columns.device))
            case "spectral":
                weight = (sample.weight / sample.weight.sum()).cpu().numpy()
                try:
                    found = compute_spherical_responsibilities(
                        sample.filled.cpu().numpy(), weight, k, generator
                    )
                except SpectralError:
                    if len(set(names)) == 1:
                        raise
                    continue
                shares.append(torch.from_numpy(found).to(columns.device)[None])
    if embeddings:
        shares.insert(0, cluster_embeddings(sample, embeddings, k, generator))
    share = torch.cat(shares)
    return share / share.sum(1, keepdim=True)


def choose_race_size(k: int, d: int) -> int:
    """How many rows starts of k components in d columns race on."""
    return min(RACE_ROWS, max(2_000, 200 * k, 10 * k * d), max(2_000, 50 * k, SAMPLE_VALUES // d))


def draw_starts(
    source: Source, starts: Sequence[str], k: int, generator: Generator
) -> tuple[Sample, Tensor, Source]:
    """A sample of rows, responsibilities (s, k, n) of its rows by every start, and the rows of the race.

    Starts race on the sample, or on all rows where these are few and sparse.
    """
    sample = Sample.draw(source, choose_race_size(k, source.n_columns), generator)
    shares = draw_responsibilities(sample, starts, k, generator)
    rows, _ = next(iter(source.chunks(1)))
    is_small = rows.layout != torch.strided and source.n_rows <= RACE_ROWS
    return (
        sample,
        (1.0 - BLEND) * shares + BLEND / k,
        source if is_small else ArraySource(sample.rows, sample.weight),
    )


@single_threaded
def start_mixtures(template: Family[Any], sample: Sample, shares: Tensor) -> Mixture[Any]:
    """s mixtures, side by side, by one M step from responsibilities (s, k, n) of the sample's rows.

    Args:
        template: k members of the wanted family; their values only fix the shapes and floors.
        sample: rows and weights.
        shares: responsibilities, (s, k, n).
    """
    s, k, _ = shares.shape
    members = template.select(torch.arange(k, device=shares.device).repeat(s))
    statistics = members.view(sample.rows).summarise(shares.flatten(0, 1) * sample.weight)
    return Mixture(shares.new_full((s, k), -math.log(k)), members).solve(statistics)


@dataclass(frozen=True)
class Racers:
    """Mixtures side by side, the mean log-likelihood of each before its last iteration, and by how much that rose."""

    models: Mixture[Any]
    height: Tensor
    rise: Tensor

    def climb(self, source: Source) -> Racers:
        """After one iteration of EM."""
        expected: Expected[Any] = source.reduce(self.models.expect)
        statistics, _ = self.models.repair_statistics(expected.statistics)
        height = expected.log_likelihood / expected.weight
        return Racers(self.models.solve(statistics), height, height - self.height)


def keep_best(field: list[Racers], keep: int, small: float) -> list[Racers]:
    """At most ``keep`` mixtures: the best, those that may still overtake it, and one in reserve until the best settles.

    Those with a component at a floor, or of a smaller share than ``small``, which ends there, come last: their
    likelihood has no bound. The reserve is for a best one that becomes such.
    """
    ranking = []
    for b, racers in enumerate(field):
        model = racers.models
        floored = model.family.is_floored().reshape(model.log_weight.shape) | (model.log_weight.exp() < small)
        collapsed = floored.any(1).tolist()
        for i, (height, rise) in enumerate(zip(racers.height.tolist(), racers.rise.tolist())):
            ranking.append((collapsed[i], -round(height, EQUAL), b, i, PROSPECT * rise))
    best, *others = sorted(ranking)
    others = [r for r in others[: keep - 1] if r[0] == best[0]]
    rivals = [r for r in others if r[4] - r[1] > GAIN - best[1]]
    if not rivals and best[4] > GAIN:
        rivals = [r for r in others if r[1] > best[1] + GAIN][:1]
    chosen = [best, *rivals]
    kept = []
    for b, racers in enumerate(field):
        index = torch.tensor([i for _, _, own, i, _ in chosen if own == b], device=racers.height.device)
        if len(index):
            kept.append(Racers(racers.models.select(index), racers.height[index], racers.rise[index]))
    return kept


@single_threaded
def best_start(
    source: Source,
    template: Family[Any],
    starts: Sequence[str],
    generator: Generator,
    rivals: Sequence[Mixture[Any]] = (),
) -> tuple[Mixture[Any], bool]:
    """The winner of a race between starts on a sample of the rows, and whether Ctrl-C ended the race.

    Successive halving (Jamieson and Talwalkar 2016): all starts climb side by side by a few iterations of EM, the
    best go on.

    Args:
        source: rows in standard coordinates.
        template: k members of the family.
        starts: names from :data:`STARTS`.
        generator: of the sample and the starts.
        rivals: models that race against the starts.
    """
    k = len(template.mean)
    names = [*starts] * (LAPS if len(set(starts)) > 1 else 1)
    sample, shares, rows = draw_starts(source, names, k, generator)
    # Members that share a covariance share it with their own mixture alone.
    at_once = 1 if isinstance(template, TiedGaussian) else max(1, BATCH_VALUES // shares[0].numel())
    models = [start_mixtures(template, sample, part) for part in shares.split(at_once)]
    models += [Mixture(rival.log_weight[None], rival.family) for rival in rivals]
    low = [m.log_weight.new_full(m.log_weight.shape[:1], -torch.inf) for m in models]
    field = [Racers(m, height, -height) for m, height in zip(models, low, strict=True)]
    singular = {FullGaussian: template.mean.shape[1] + 1, DiagonalGaussian: 2, SphericalGaussian: 2}
    fewest: dict[type[Any], int] = {**singular}
    small = fewest.get(type(template), 0) / float(sample.weight.sum())
    interrupted = False
    try:
        for iterations, keep in HEATS:
            for _ in range(iterations):
                if sum(len(racers.height) for racers in field) == 1:
                    break
                field = keep_best([racers.climb(rows) for racers in field], keep, small)
    except KeyboardInterrupt:
        interrupted = True
        field = keep_best(field, 1, small)
    winner = field[0].models
    return Mixture(winner.log_weight[0], winner.family), interrupted


@single_threaded
def race(
    step: Callable[[S], Iteration[S]],
    starts: Sequence[S],
    *,
    iterations: int = 5,
    tol: float = 0.0,
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
        rounding: as in :func:`boxloop.loop.run`.
        observers: notified of every iteration of every start.

    Returns:
        All outcomes, the winner first.
    """

    def rank(outcome: Outcome[S]) -> float:
        return -round(outcome.trace[-1], TIE) if outcome.trace else math.inf

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
