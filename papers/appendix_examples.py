"""The examples of 002, appendix A, one by one: closed forms, variances, normal equations, total probability."""

from __future__ import annotations

import math

import torch

from boxloop.distributions import NormalFamily, PoissonFamily
from boxloop.fit import Estimate, linear_regression, z_estimate
from boxloop.numeric import generator, normal
from papers.estimator_trials import (
    Trials,
    bernoulli,
    both_moments,
    coin_flips,
    first_moment,
    laplace,
    location,
    second_moment,
    waiting_times,
)
from papers.experiment import Finding
from papers.words import met


def closed_forms(seed: int) -> list[Finding]:
    """The estimators that the document writes down, against ours found by Newton's method."""
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
                f"Found by Newton's method; rounds: {estimate.n_iter}.",
                exact=True,
            )
        )
    return lines


def variances(trials: list[Trials]) -> list[Finding]:
    """Which moment estimator of example A.1 is better, and by how much."""
    spread = [t.n * float(t.miss.var()) for t in trials[:2]]
    ratio = spread[1] / spread[0]
    error = ratio * (4.0 / len(trials[0].value)) ** 0.5
    both = both_moments(waiting_times(100_000, generator(1)))
    single = first_moment(waiting_times(100_000, generator(1)))
    gain = float(both.covariance[0, 0] / single.covariance[0, 0])
    return [
        Finding(
            "A.1, n times the variance of both estimators",
            "not in the document; theory says θ² = 4 and 5θ²/4 = 5",
            f"{spread[0]:.3g} and {spread[1]:.3g}, ratio {ratio:.3g}",
            error,
            met(abs(ratio - 1.25) < 4.0 * error),
            "The first moment is better by a quarter: the sum of x is sufficient, its estimator the maximum of the "
            "likelihood.",
        ),
        Finding(
            "A.1, both statistics weighed by their covariance",
            "not in the document",
            f"variance {gain:.3f} of that of the first alone; J test p = {_chance(both):.2f}",
            None,
            met(0.98 < gain < 1.02 and _chance(both) > 1e-4),
            "A second statistic adds nothing to a sufficient one; it tests the law instead.",
        ),
    ]


def _chance(estimate: Estimate) -> float:
    return math.nan if estimate.j_test is None else estimate.j_test.p_value


def normal_equations(seed: int) -> Finding:
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


def partitions() -> list[Finding]:
    """Example A.8: total probability with the document's B and with ours."""
    counts = torch.arange(200.0, dtype=torch.float64)[:, None]
    poisson, theta = PoissonFamily(), 2.5
    ours = float(poisson.log_prob(poisson.natural({"rate": theta}), counts).exp().sum())
    x = torch.linspace(-40.0, 40.0, 400_001, dtype=torch.float64)[:, None]
    family, mean, variance = NormalFamily(), 1.5, 2.0
    cell = float(x[1] - x[0])
    whole = float(family.log_prob(family.natural({"mean": mean, "variance": variance}), x).exp().sum()) * cell
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
