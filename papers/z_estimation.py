"""Moments, estimating equations and likelihoods: worked examples, and sandwich errors in misspecified models.

Le Corff, Introduction to computational statistics, appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.distributions import NormalFamily, PoissonFamily
from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from boxloop.fit import (
    Estimate,
    huber,
    linear_regression,
    m_estimate,
    match_moments,
    quantile,
    quantile_step,
    z_estimate,
)
from boxloop.numeric import generator, normal
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, standard_error

Rows = NDArray[np.float64]


# --- Settings ---


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        repeats: samples of each problem.
        n: rows of each.
        lengths: rows along which errors fall.
        resamples: of the bootstrap.
        samples: that are resampled.
    """

    repeats: int
    n: int
    lengths: tuple[int, ...]
    resamples: int
    samples: int


QUICK = Size(30, 400, (100, 1600), 20, 2)
FULL = Size(1000, 1000, (50, 150, 500, 1500, 5000), 200, 10)
RATE = 2.0
CHANCE = 0.3
GROWTH = 0.5 * 0.5 + 2.0 * 2.0 * 0.5 * math.sqrt(2.0 / math.pi) + 3.0
"""n times the variance of the slope when x is normal and the noise has sd 1/2 + |x|: E[x^2 (1/2 + |x|)^2]."""
COMMON = 0.25 + math.sqrt(2.0 / math.pi) + 1.0
"""The same by the information: E[(1/2 + |x|)^2]."""


# --- Data and estimators of the examples ---


def waiting_times(n: int, stream: Generator) -> Tensor:
    """Exponential rows of rate 2, (n, 1)."""
    return -torch.rand((n, 1), generator=stream, dtype=torch.float64).clamp(min=1e-300).log() / RATE


def growing_noise(n: int, stream: Generator) -> Tensor:
    """x, and y = 1 + 2 x + (1/2 + |x|) e, (n, 2)."""
    x, e = normal((n, 1), stream), normal((n, 1), stream)
    return torch.cat([x, 1.0 + 2.0 * x + (0.5 + x.abs()) * e], dim=1)


def coin_flips(n: int, stream: Generator) -> Tensor:
    """Zeros and ones, (n, 1)."""
    return (torch.rand((n, 1), generator=stream, dtype=torch.float64) < CHANCE).double()


def laplace(n: int, stream: Generator) -> Tensor:
    """A Laplace distribution about 1, of variance 2, (n, 1)."""
    first, second = waiting_times(n, stream), waiting_times(n, stream)
    return 1.0 + RATE * (first - second)


def first_moment(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.1 with T(x) = x."""
    return match_moments(lambda x: x, lambda rate: 1.0 / rate, rows, [1.0], sample_weight=weight)


def second_moment(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.1 with T(x) = x^2."""
    return match_moments(
        lambda x: x.square(), lambda rate: 2.0 / rate.square(), rows, [1.0], sample_weight=weight
    )


def both_moments(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Both statistics, weighed by their covariance."""
    return match_moments(
        lambda x: torch.cat([x, x.square()], dim=1),
        lambda rate: torch.cat([1.0 / rate, 2.0 / rate.square()]),
        rows,
        [1.0],
        sample_weight=weight,
    )


def location(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.2."""
    return z_estimate(lambda theta, x: x - theta, rows, [0.0], sample_weight=weight)


def bernoulli(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.4, by maximising the displayed log-likelihood."""
    return m_estimate(
        lambda p, x: x[:, 0] * p[0].log() + (1.0 - x[:, 0]) * torch.log1p(-p[0]),
        rows,
        [0.5],
        likelihood=True,
        sample_weight=weight,
    )


def gaussian_line(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.5, by maximising its likelihood in (intercept, slope, log sigma): one sigma for all rows."""

    def density(theta: Tensor, x: Tensor) -> Tensor:
        residual = x[:, 1] - theta[0] - theta[1] * x[:, 0]
        return -theta[2] - 0.5 * residual.square() * (-2.0 * theta[2]).exp()

    return m_estimate(density, rows, [0.0, 0.0, 0.0], likelihood=True, sample_weight=weight)


def robust(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Huber's location, bend 1.345."""
    return z_estimate(huber(1.345), rows, [0.0], sample_weight=weight)


def median(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """A step function's root; its slope is a density, smoothed over a width from the interquartile range."""
    low, high = torch.quantile(rows[:, 0], torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    step = quantile_step(0.5, len(rows), (high - low) / 1.349)
    return z_estimate(quantile(0.5), rows, [float(rows.mean())], smooth=step, sample_weight=weight)


def huber_spread(bend: float = 1.345) -> float:
    """n times the variance of Huber's location of Laplace rows: E[psi^2] / P(|x| < b)^2."""
    inside = 1.0 - math.exp(-bend)
    square = 2.0 - math.exp(-bend) * (bend * bend + 2.0 * bend + 2.0) + bend * bend * math.exp(-bend)
    return square / inside**2


@dataclass(frozen=True)
class Problem:
    """A distribution and an estimator, with the estimator's asymptotic variance.

    Args:
        name: of the estimator.
        draw: n rows from a stream.
        estimate: from rows, with weights if any.
        truth: the parameter.
        spread: n times the estimator's variance as n grows, in closed form.
        place: of the parameter among those estimated.
    """

    name: str
    draw: Callable[[int, Generator], Tensor]
    estimate: Callable[[Tensor, Tensor | None], Estimate]
    truth: float
    spread: float
    place: int = 0


PROBLEMS = (
    Problem("A.1: first moment of waiting times", waiting_times, first_moment, RATE, RATE**2),
    Problem("A.1: second moment of waiting times", waiting_times, second_moment, RATE, 1.25 * RATE**2),
    Problem("A.2: mean of a Laplace distribution", laplace, location, 1.0, 2.0),
    Problem("Huber's location of a Laplace distribution", laplace, robust, 1.0, huber_spread()),
    Problem("median of a Laplace distribution", laplace, median, 1.0, 1.0),
    Problem("A.4: Bernoulli likelihood", coin_flips, bernoulli, CHANCE, CHANCE * (1.0 - CHANCE)),
    Problem("A.5: slope, noise that grows", growing_noise, gaussian_line, 2.0, GROWTH, 1),
)
SLOPE = len(PROBLEMS) - 1


# --- Trials ---


@dataclass(frozen=True)
class Trials:
    """Many samples of one problem: estimates, sandwich errors, information errors (NaN where there are none)."""

    problem: Problem
    n: int
    value: Rows
    error: Rows
    information: Rows

    @property
    def miss(self) -> Rows:
        """Estimates less the truth."""
        return self.value - self.problem.truth

    def covered(self, error: Rows) -> float:
        """Share of 95% intervals that cover the truth."""
        return float((np.abs(self.miss) < 1.959964 * error).mean())


def run_trials(problem: Problem, n: int, repeats: int, seed: int) -> Trials:
    """Estimate anew on ``repeats`` samples of n rows."""
    found = []
    for i in range(repeats):
        estimate = problem.estimate(problem.draw(n, generator(seed + i)), None)
        j, inner = problem.place, estimate.information
        known = math.nan if inner is None else float(inner[j, j].sqrt())
        found.append((float(estimate.vector[j]), float(estimate.covariance[j, j].sqrt()), known))
    value, error, information = np.asarray(found).T
    return Trials(problem, n, value, error, information)


def root_mean_square_errors(size: Size, seed: int) -> dict[str, Rows]:
    """Root mean square error of every estimator at every length."""
    repeats = max(size.repeats // 5, 20)
    found = {}
    for i, problem in enumerate(PROBLEMS):
        path = [run_trials(problem, n, repeats, seed + 10_000 * i + 77 * n) for n in size.lengths]
        found[problem.name] = np.asarray([float(np.sqrt(np.mean(t.miss**2))) for t in path])
    return found


def bootstrap_error(problem: Problem, rows: Tensor, repeats: int, stream: Generator) -> float:
    """Standard deviation of the estimate over resampled rows: a resample is a weight for each row."""
    n, values = len(rows), []
    for _ in range(repeats):
        drawn = torch.randint(n, (n,), generator=stream)
        weight = torch.bincount(drawn, minlength=n).double()
        values.append(float(problem.estimate(rows, weight).vector[problem.place]))
    return float(np.std(values, ddof=1))


def compare_errors(size: Size, seed: int) -> dict[str, Rows]:
    """Errors of the slope of A.5 under noise that grows, over the closed form, one per sample."""
    problem = PROBLEMS[SLOPE]
    truth = (GROWTH / size.n) ** 0.5
    found: dict[str, list[float]] = {"sandwich": [], "bootstrap": [], "information": []}
    for i in range(size.samples):
        rows = problem.draw(size.n, generator(seed + 555 + i))
        estimate = problem.estimate(rows, None)
        assert estimate.information is not None
        j = problem.place
        found["sandwich"].append(float(estimate.covariance[j, j].sqrt()) / truth)
        found["information"].append(float(estimate.information[j, j].sqrt()) / truth)
        resampled = bootstrap_error(problem, rows, size.resamples, generator(seed + 999 + i))
        found["bootstrap"].append(resampled / truth)
    return {name: np.asarray(values) for name, values in found.items()}


# --- Findings ---


def judge_closed_forms(seed: int) -> list[Finding]:
    """The estimators that the paper displays, against ours by Newton's method."""
    times, flips, rows = (
        make(500, generator(seed + j)) for j, make in enumerate((waiting_times, coin_flips, laplace))
    )
    n = len(times)
    found = [
        ("A.1, T(x) = x", "n / sum of x", first_moment(times), n / float(times.sum())),
        (
            "A.1, T(x) = x²",
            "(2n / sum of x²)^1/2",
            second_moment(times),
            (2 * n / float(times.square().sum())) ** 0.5,
        ),
        ("A.2, psi = x - theta", "the mean", location(rows), float(rows.mean())),
        ("A.4, Bernoulli likelihood", "the mean", bernoulli(flips), float(flips.mean())),
    ]
    lines = []
    for claim, paper, estimate, closed in found:
        apart = abs(float(estimate.vector[0]) / closed - 1.0)
        lines.append(
            Finding(
                claim,
                paper,
                f"equal to {apart:.0e}",
                None,
                "reproduced" if apart < 1e-9 else "not reproduced",
                f"Found by Newton's method; iterations: {estimate.n_iter}.",
                exact=True,
            )
        )
    return lines


def judge_variances(trials: list[Trials]) -> list[Finding]:
    """Which moment estimator of example A.1 is better, and by how much."""
    spread = [t.n * float(t.miss.var()) for t in trials[:2]]
    ratio = spread[1] / spread[0]
    error = ratio * (4.0 / len(trials[0].value)) ** 0.5
    both = both_moments(waiting_times(100_000, generator(1)))
    p_value = math.nan if both.j_test is None else both.j_test.p_value
    single = first_moment(waiting_times(100_000, generator(1)))
    gain = float(both.covariance[0, 0] / single.covariance[0, 0])
    return [
        Finding(
            "A.1, n times the variance of both estimators",
            "not in the document; theory says θ² = 4 and 5θ²/4 = 5",
            f"{spread[0]:.3g} and {spread[1]:.3g}, ratio {ratio:.3g}",
            error,
            judge_target(abs(ratio - 1.25) < 4.0 * error),
            "The first moment is better by a quarter: the sum of x is sufficient, its estimator the maximum of the "
            "likelihood.",
        ),
        Finding(
            "A.1, both statistics weighed by their covariance",
            "not in the document",
            f"variance {gain:.3f} of that of the first alone; J test p = {p_value:.2f}",
            None,
            judge_target(0.98 < gain < 1.02 and p_value > 1e-4),
            "A second statistic adds nothing to a sufficient one; it tests the distribution instead.",
        ),
    ]


def judge_normal_equations(seed: int) -> Finding:
    """Example A.5: the equations as displayed do not fit, the right ones are the root."""
    stream = generator(seed)
    design = torch.cat([torch.ones(200, 1, dtype=torch.float64), normal((200, 3), stream)], dim=1)
    y = design @ torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64) + normal((200,), stream)
    closed = torch.linalg.solve(design.mT @ design, design.mT @ y)
    rows = torch.cat([design[:, 1:], y[:, None]], dim=1)
    apart = float((z_estimate(linear_regression(), rows, [0.0] * 4).vector - closed).abs().max())
    displayed = "x".join(map(str, (design @ design.mT).shape))
    return Finding(
        "A.5, normal equations",
        "ΦΦᵀβ = ΦY",
        f"ΦᵀΦβ = ΦᵀY, equal to the root to {apart:.0e}",
        None,
        "not reproduced",
        f"With n = 200 rows ΦΦᵀ is {displayed}, β has 4 entries and ΦY cannot be formed; transposed, the claim holds.",
        exact=True,
    )


def judge_normalisation() -> list[Finding]:
    """Example A.8: total probability with the paper's B and with ours."""
    counts = torch.arange(200.0, dtype=torch.float64)[:, None]
    poisson, theta = PoissonFamily(), 2.5
    ours = float(poisson.log_prob(poisson.to_natural({"rate": theta}), counts).exp().sum())
    x = torch.linspace(-40.0, 40.0, 400_001, dtype=torch.float64)[:, None]
    family, mean, variance = NormalFamily(), 1.5, 2.0
    cell = float(x[1] - x[0])
    whole = (
        float(family.log_prob(family.to_natural({"mean": mean, "variance": variance}), x).exp().sum()) * cell
    )
    slip = whole * math.exp((mean**2 - mean) / (2.0 * variance))
    wrong = "The sign of B is the other way round: the sum is exp(2θ)."
    return [
        Finding(
            "A.8, Poisson probabilities with B = -θ sum to one",
            "B = -θ",
            f"{ours * math.exp(2.0 * theta):.1f} at θ = 2.5; with B = θ {ours:.12f}",
            None,
            "not reproduced",
            wrong,
            exact=True,
        ),
        Finding(
            "A.8, the Gaussian density with mu/(2σ²) in B integrates to one",
            "B = log(2πσ²)/2 + mu/(2σ²)",
            f"{slip:.3f} at mu = 1.5, σ² = 2; with mu² {whole:.12f}",
            None,
            "not reproduced",
            "The square of mu is missing.",
            exact=True,
        ),
    ]


def judge_rate(paths: dict[str, Rows], size: Size) -> Finding:
    """Theorem A.6: estimates tend to the truth. The slope is the rate."""
    x = np.log(size.lengths)
    x = x - x.mean()
    slopes = np.asarray([float(x @ np.log(path) / (x @ x)) for path in paths.values()])
    repeats = max(size.repeats // 5, 20)
    error = float((0.5 / repeats / (x @ x)) ** 0.5)
    worst = float(np.abs(slopes + 0.5).max())
    return Finding(
        "A.6, estimates tend to the truth",
        "in probability, no rate",
        f"error falls as n to the {slopes.mean():.3f}, for each of {len(slopes)} estimators within {worst:.3f} of -1/2",
        error / len(slopes) ** 0.5,
        judge_claim(worst < 5.0 * error + 0.02),
        f"Root mean square error from n = {size.lengths[0]} to {size.lengths[-1]}; short samples are a little worse.",
    )


def judge_errors(errors: dict[str, Rows]) -> list[Finding]:
    """Sandwich errors beside the closed form and the bootstrap."""
    lines = []
    beside = errors["sandwich"] / errors["bootstrap"]
    for name, values, target in (
        ("sandwich error over the closed form", errors["sandwich"], 1.0),
        ("sandwich error over the bootstrap's", beside, 1.0),
        ("information error over the closed form", errors["information"], (COMMON / GROWTH) ** 0.5),
    ):
        error = standard_error(values)
        lines.append(
            Finding(
                f"A.5 with noise that grows, {name}",
                f"not in the document; theory says {target:.3g}",
                f"{values.mean():.3f}",
                error,
                judge_target(abs(float(values.mean()) - target) < 4.0 * error + 0.03),
                f"Slope of y = 1 + 2x + (1/2 + abs x) e under a model with one variance, {len(values)} samples.",
            )
        )
    return lines


def judge_coverage(trials: list[Trials]) -> list[Finding]:
    """Shares of 95% intervals that cover the truth."""
    lines = []
    for t in trials:
        share, relative = t.covered(t.error), float(t.error.mean() / (t.problem.spread / t.n) ** 0.5)
        error = (0.95 * 0.05 / len(t.value)) ** 0.5
        why = f"n = {t.n}, {len(t.value)} samples, mean error {relative:.3f} of the closed form."
        if "median" in t.problem.name:
            why += " The smoothed density at the peak of a Laplace distribution is too low, so errors are too large."
        lines.append(
            Finding(
                f"95% intervals from the sandwich, {t.problem.name}",
                "not in the document; 0.95",
                f"{share:.3f}",
                error,
                judge_target(abs(share - 0.95) < 4.0 * error + 0.01),
                why,
            )
        )
    t = trials[SLOPE]
    share, error = t.covered(t.information), (0.8 * 0.2 / len(t.value)) ** 0.5
    lines.append(
        Finding(
            "95% intervals from the information, A.5 with noise that grows",
            "not in the document; theory says 0.798",
            f"{share:.3f}",
            error,
            judge_target(abs(share - 0.798) < 4.0 * error + 0.01),
            "The model has one variance and the rows do not: its information is too sure, the sandwich is not.",
        )
    )
    return lines


# --- Figure ---


def draw_figure(
    paths: dict[str, Rows], lengths: Sequence[int], errors: dict[str, Rows], trials: Sequence[Trials]
) -> Figure:
    """Three panels.

    Args:
        paths: root mean square errors by estimator, one for each length.
        lengths: numbers of rows.
        errors: errors over the closed form by kind, one for each sample.
        trials: samples of each problem.
    """
    figure = new_figure(12.0, 8.2)
    grid: Any = figure.add_gridspec(2, 2, width_ratios=(1.15, 1.0), height_ratios=(1.25, 1.0))
    _draw_paths(figure.add_subplot(grid[0, 0]), paths, lengths)
    _draw_errors(figure.add_subplot(grid[0, 1]), errors)
    _draw_coverage(figure.add_subplot(grid[1, :]), trials)
    return figure


def _draw_paths(axes: Any, paths: dict[str, Rows], lengths: Sequence[int]) -> None:
    dress(axes, "Error falls as one over the root of n", "rows", "root mean square error")
    axes.set(xscale="log", yscale="log")
    n = np.asarray(lengths, dtype=float)
    for j, (name, path) in enumerate(paths.items()):
        axes.plot(n, path, MARKERS[j] + "-", color=COLOURS[j], lw=1.3, markersize=4.5, label=name)
    middle = np.exp(np.mean([np.log(path[0]) for path in paths.values()]))
    axes.plot(n, middle * (n / n[0]) ** -0.5, "--", color=FAINT, lw=1.2, label="slope -1/2")
    low = min(float(path.min()) for path in paths.values())
    axes.set_ylim(bottom=low / 12.0)  # room for the legend below all lines
    axes.legend(frameon=False, fontsize=7.5, loc="lower left", ncols=2, columnspacing=0.8, handlelength=1.6)


def _draw_errors(axes: Any, errors: dict[str, Rows]) -> None:
    dress(axes, "Errors of a slope, noise that grows", "", "over the closed form")
    axes.axhline(1.0, color=FAINT, lw=1.2, ls="--")
    for j, values in enumerate(errors.values()):
        spread = np.linspace(-0.15, 0.15, len(values))
        axes.plot(j + spread, values, MARKERS[j], color=COLOURS[j], markersize=5, alpha=0.8)
        axes.hlines(values.mean(), j - 0.3, j + 0.3, color=INK, lw=1.6)
    axes.set_xticks(range(len(errors)), list(errors))
    axes.set_ylim(0.0, 1.1 * max(float(values.max()) for values in errors.values()))


def _draw_coverage(axes: Any, trials: Sequence[Trials]) -> None:
    dress(axes, "Share of 95% intervals that hold the truth", "share, with 2 Monte Carlo errors")
    axes.axvline(0.95, color=FAINT, lw=1.2, ls="--")
    for j, t in enumerate(trials):
        _draw_share(axes, j, t.covered(t.error), len(t.value), 0, "sandwich" if j == 0 else None)
        if np.isfinite(t.information).all():
            _draw_share(
                axes,
                j,
                t.covered(t.information),
                len(t.value),
                1,
                "information" if j == len(trials) - 1 else None,
            )
    axes.set_yticks(range(len(trials)), [t.problem.name for t in trials])
    axes.set_ylim(len(trials) - 0.4, -0.6)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_share(axes: Any, line: int, share: float, repeats: int, kind: int, label: str | None) -> None:
    reach = 2.0 * (share * (1.0 - share) / repeats) ** 0.5
    axes.errorbar(
        share,
        line + (0.12 if kind else -0.12),
        xerr=reach,
        fmt=MARKERS[kind],
        color=COLOURS[kind],
        markersize=6,
        capsize=3,
        label=label,
    )


def experiment(options: Options) -> Report:
    """Run every example."""
    size = QUICK if options.quick else FULL
    trials = []
    for i, problem in enumerate(PROBLEMS):
        options.progress(i, len(PROBLEMS) + 2, problem.name)
        trials.append(run_trials(problem, size.n, size.repeats, options.seed))
    options.progress(len(PROBLEMS), len(PROBLEMS) + 2, "error against rows")
    paths = root_mean_square_errors(size, options.seed)
    options.progress(len(PROBLEMS) + 1, len(PROBLEMS) + 2, "bootstrap")
    errors = compare_errors(size, options.seed)
    findings = [
        *judge_closed_forms(options.seed),
        *judge_variances(trials),
        judge_normal_equations(options.seed),
        *judge_normalisation(),
        judge_rate(paths, size),
        *judge_errors(errors),
        *judge_coverage(trials),
    ]
    settings = {
        "samples": size.repeats,
        "rows": size.n,
        "longest": max(size.lengths),
        "resamples": size.resamples,
        "seed": options.seed,
    }
    curves = {
        "root mean square error": {name: list(map(float, path)) for name, path in paths.items()},
        "lengths": list(size.lengths),
        "coverage": {t.problem.name: t.covered(t.error) for t in trials},
        "error ratios": {name: list(map(float, values)) for name, values in errors.items()},
    }
    title = "Moments, estimating equations and maximum likelihood"
    figure = draw_figure(paths, size.lengths, errors, trials)
    return Report("z-estimation", title, settings, findings, curves, {"errors": figure})
