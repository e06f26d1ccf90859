"""The method of moments: closed forms, weights, simulation, over-identification."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from statsmodels.sandbox.regression.gmm import GMM
from torch import Generator, Tensor

from boxloop import match_moments, z_estimate
from boxloop.fit import EquationError, NoRootError, NotIdentifiedError
from fit.equation_cases import chunked, near

ROWS = np.random.default_rng(0).exponential(0.5, size=(2000, 1))


def first(x: Tensor) -> Tensor:
    return x


def two(x: Tensor) -> Tensor:
    return torch.cat([x, x.square()], dim=1)


def of_two(rate: Tensor) -> Tensor:
    return torch.cat([1 / rate, 2 / rate.square()])


def draw(rate: Tensor, stream: Generator, m: int) -> Tensor:
    return -torch.rand(m, 1, generator=stream, dtype=torch.float64).log() / rate


@pytest.mark.parametrize("power", [1, 2])
def test_the_estimators_of_example_a1(power: int) -> None:
    found = match_moments(
        lambda x: x**power, lambda rate: float(power) / rate**power, ROWS, [1.0], names=["rate"]
    )
    moment = (ROWS**power).mean()
    near(found.theta, [(power / moment) ** (1 / power)])
    slope = power**2 * float(found.theta) ** (-power - 1)
    near(found.standard_errors, [(ROWS**power).std() / slope / len(ROWS) ** 0.5])
    assert found.j_test is None


def test_it_is_z_estimation() -> None:
    def psi(rate: Tensor, x: Tensor) -> Tensor:
        return two(x) - of_two(rate)

    groups = np.arange(len(ROWS)) // 5
    for options in ({}, {"groups": groups}, {"steps": "one"}, {"correction": True}):
        one, other = (
            match_moments(two, of_two, ROWS, [1.0], **options),
            z_estimate(psi, ROWS, [1.0], **options),
        )
        # In the first step psi is weighed by its spread at the start, which for matched moments is the same anywhere.
        near(one.theta, other.theta, 1e-6)
        near(one.covariance, other.covariance, 1e-6)


def test_chunks_and_weights_are_repetition() -> None:
    weight = np.random.default_rng(1).integers(0, 4, len(ROWS))
    whole = match_moments(two, of_two, np.repeat(ROWS, weight, axis=0), [1.0], tol=1e-11)
    for one in (
        match_moments(two, of_two, ROWS, [1.0], sample_weight=weight, tol=1e-11),
        match_moments(two, of_two, chunked(ROWS, weight), [1.0], tol=1e-11),
    ):
        near(one.theta, whole.theta, 1e-10)
        near(one.covariance, whole.covariance, 1e-10)
        near(one.j_test.statistic, whole.j_test.statistic, 1e-8)


def test_two_steps_are_the_closed_form() -> None:
    both = np.column_stack([ROWS, ROWS**2])
    weight, mean = np.linalg.inv(np.cov(both.T, bias=True)), both.mean(0)

    def slope(t: float) -> float:
        return np.array([t**-2, 4 * t**-3]) @ weight @ (mean - [1 / t, 2 / t**2])

    root = optimize.brentq(slope, 1.0, 4.0, xtol=1e-15)
    gap = mean - [1 / root, 2 / root**2]
    bread = np.array([root**-2, 4 * root**-3])
    found = match_moments(two, of_two, ROWS, [1.0])
    near(found.theta, [root])
    near(found.standard_errors, [(len(ROWS) * bread @ weight @ bread) ** -0.5])
    near(found.j_test.statistic, len(ROWS) * gap @ weight @ gap)
    near(found.j_test.p_value, stats.chi2(1).sf(found.j_test.statistic))


def test_two_steps_are_nearly_those_of_statsmodels() -> None:
    """It weighs by second moments about zero, which differ by the square of a gap of the order of 1/n."""

    class Peer(GMM):
        def momcond(self, params):
            x, rate = self.endog, np.ravel(params)[0]
            return np.column_stack([x - 1 / rate, x**2 - 2 / rate**2])

    peer = Peer(ROWS[:, 0], np.ones((len(ROWS), 1)), None, k_moms=2, k_params=1)
    options = {"maxiter": 2, "optim_method": "nm", "optim_args": {"disp": 0, "xtol": 1e-12, "ftol": 1e-16}}
    expected = peer.fit(start_params=[2.0], **options)
    found = match_moments(two, of_two, ROWS, [1.0])
    near(found.theta, expected.params, 1e-5)
    near(found.j_test.statistic, expected.jtest()[0], 1e-3)


def test_iterating_the_weights_changes_nothing_for_moments() -> None:
    one, other = (match_moments(two, of_two, ROWS, [1.0], steps=steps) for steps in ("two", "iterated"))
    near(one.theta, other.theta, 1e-8)
    assert match_moments(two, of_two, ROWS, [1.0], steps="one").j_test is None


def test_the_j_test_has_its_distribution() -> None:
    """Kolmogorov's test at level 1e-4 over 100 samples of a true model."""
    chances = []
    for seed in range(100):
        x = np.random.default_rng(seed).uniform(-1.0, 1.0, size=(400, 1))
        found = match_moments(
            lambda r: torch.cat([r, r.square(), r**3, r**4], dim=1),
            lambda t: torch.stack([0.0 * t[0], t[0] ** 2 / 3, 0.0 * t[0], t[0] ** 4 / 5]),
            x,
            [0.9],
        )
        chances.append(found.j_test.p_value)
    assert found.j_test.degrees == 3
    assert stats.kstest(chances, "uniform").pvalue > 1e-4


def test_the_j_test_rejects_a_wrong_distribution() -> None:
    x = np.abs(np.random.default_rng(0).normal(size=(2000, 1)))
    assert match_moments(two, of_two, x, [1.0]).j_test.p_value < 1e-6


def test_simulated_moments_are_the_closed_ones() -> None:
    """With common random numbers: within 4.5 errors of the simulation, false alarms below 1e-5."""
    closed = match_moments(first, lambda rate: 1 / rate, ROWS, [1.0])
    m = 20_000
    found = match_moments(first, None, ROWS, [1.0], sampler=draw, draws=m, random_state=3)
    error = float(closed.standard_errors) * (len(ROWS) / m) ** 0.5
    assert found.converged
    assert abs(float(found.theta) - float(closed.theta)) < 4.5 * error
    inflated = float(closed.standard_errors) * (1 + len(ROWS) / m) ** 0.5
    near(found.standard_errors, [inflated], 0.05)


@pytest.mark.slow
def test_errors_of_simulated_moments_cover() -> None:
    """As many draws as rows double the variance. 300 samples at 95%: within 4 binomial errors, false alarms 6e-5."""
    inside = 0
    for seed in range(300):
        x = np.random.default_rng(seed).exponential(0.5, size=(400, 1))
        found = match_moments(first, None, x, [1.5], sampler=draw, draws=400, random_state=seed)
        low, high = found.interval()
        inside += bool(low < 2.0 < high)
    assert abs(inside / 300 - 0.95) < 4.0 * (0.95 * 0.05 / 300) ** 0.5


def test_samples_that_jump_take_differences() -> None:
    x = np.random.default_rng(0).poisson(4.0, size=(1000, 1))

    def jumpy(rate: Tensor, stream: Generator, m: int) -> Tensor:
        u = torch.rand(m, 1, generator=stream, dtype=torch.float64).numpy()
        return torch.from_numpy(stats.poisson(rate.detach().numpy()).ppf(u))

    found = match_moments(first, None, x, [3.0], sampler=jumpy, draws=50_000, smooth=0.1, tol=1e-2)
    assert abs(float(found.theta) - x.mean()) < 4.5 * float(found.standard_errors) * (1000 / 50_000) ** 0.5


@pytest.mark.parametrize(
    ("statistics", "expected", "start", "kind", "words"),
    [
        (first, lambda t: t[:1], [0.0, 1.0], EquationError, "1 statistic.* for 2 parameters"),
        (first, lambda t: t.sum(), [0.0], EquationError, r"expected must return \(1,\)"),
        (lambda x: x[:, 0], lambda t: t, [0.0], EquationError, r"statistics must return \(2000, q\)"),
        (lambda x: (x - 1).log(), lambda t: t, [0.0], EquationError, "statistics is .* at row 0"),
        (first, lambda t: t.log(), [-1.0], EquationError, "at the start"),
        (two, lambda t: t.log().expand(2), [-1.0], EquationError, "at the start"),
        (first, lambda t: -t.square(), [1.0], NoRootError, "No root"),
        (two, lambda t: torch.stack([t.sum(), t.sum()]), [0.0, 0.0], None, r"theta\[0\] and theta\[1\]"),
        (
            lambda x: torch.cat([x, 2 * x], dim=1),
            lambda t: torch.cat([t, 2 * t]),
            [0.0],
            EquationError,
            "linearly dependent",
        ),
        (
            lambda x: torch.cat([x, 0 * x], dim=1),
            lambda t: torch.cat([t, 0 * t]),
            [0.0],
            EquationError,
            "same on every row",
        ),
    ],
)
def test_bad_moments(statistics, expected, start, kind, words: str) -> None:
    with pytest.raises(kind or (NotIdentifiedError, NoRootError), match=words):
        match_moments(statistics, expected, ROWS, start)


def test_one_of_two_distributions_is_needed() -> None:
    with pytest.raises(ValueError, match="either"):
        match_moments(first, None, ROWS, [1.0])
    with pytest.raises(ValueError, match="either"):
        match_moments(first, lambda t: t, ROWS, [1.0], sampler=draw)
