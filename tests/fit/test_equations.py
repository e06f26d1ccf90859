"""Z-estimation: identities, oracles, and bugs that must be seen."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import optimize
from torch import Tensor

from boxloop import Estimate, z_estimate
from boxloop.data import open_source
from boxloop.fit import (
    EstimateWarning,
    NoRootError,
    huber,
    linear_regression,
    mean_equation,
    measure_equations,
    quantile,
    quantile_step,
    sum_group_products,
)
from fit.equation_cases import chunked, logit_rows, logit_score, near, regression_rows

ZERO = [0.0, 0.0, 0.0]


def peer(rows: np.ndarray) -> sm.OLS:
    return sm.OLS(rows[:, 2], sm.add_constant(rows[:, :2]))


def same(one: Estimate, other: Estimate, rtol: float = 1e-10) -> None:
    near(one.theta, other.theta, rtol)
    near(one.covariance, other.covariance, rtol)


# Identities


def test_the_mean_and_its_error() -> None:
    rows = regression_rows()
    found = z_estimate(mean_equation, rows, ZERO)
    near(found.theta, rows.mean(0), 1e-12)
    near(found.covariance, np.cov(rows.T, bias=True) / len(rows), 1e-10)


@pytest.mark.parametrize("grouped", [False, True])
def test_chunks_are_the_whole(grouped: bool) -> None:
    rows = logit_rows()
    weight = np.random.default_rng(1).integers(0, 3, len(rows))
    groups = np.arange(len(rows)) // 9 if grouped else None
    whole = z_estimate(logit_score, rows, ZERO, sample_weight=weight, groups=groups)
    same(z_estimate(logit_score, chunked(rows, weight), ZERO, groups=groups), whole)


def test_a_file_is_the_array(tmp_path) -> None:
    rows = logit_rows()
    np.save(tmp_path / "rows.npy", rows)
    source = open_source(tmp_path / "rows.npy", memory=0)
    same(z_estimate(logit_score, source, ZERO), z_estimate(logit_score, rows, ZERO))


def check_weights_are_repetition(grouped: bool = False) -> None:
    rows = logit_rows(200)
    weight = np.random.default_rng(1).integers(0, 4, len(rows))
    groups = np.arange(len(rows)) // 9
    one = z_estimate(logit_score, rows, ZERO, sample_weight=weight, groups=groups if grouped else None)
    repeated = np.repeat(groups, weight) if grouped else None
    same(one, z_estimate(logit_score, np.repeat(rows, weight, axis=0), ZERO, groups=repeated))


@pytest.mark.parametrize("grouped", [False, True])
def test_weights_are_repetition(grouped: bool) -> None:
    check_weights_are_repetition(grouped)


def test_the_slope_is_the_closed_form() -> None:
    rows = torch.from_numpy(logit_rows())
    theta = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64)
    design = torch.cat([torch.ones(len(rows), 1).double(), rows[:, :2]], dim=1)
    p = torch.sigmoid(design @ theta)
    here = measure_equations(logit_score, chunked(rows.numpy()), theta)
    near(here.slope, -(design.mT @ (design * (p * (1 - p))[:, None])) / len(rows), 1e-10)


def test_differences_are_the_slope_of_a_smooth_psi() -> None:
    rows = logit_rows()
    same(z_estimate(logit_score, rows, ZERO, smooth=1e-4), z_estimate(logit_score, rows, ZERO), 1e-6)


def test_a_dictionary_is_the_vector() -> None:
    rows = regression_rows()

    def psi(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return linear_regression()(torch.cat([theta["level"][None], theta["slope"]]), x)

    found = z_estimate(psi, rows, {"level": 0.0, "slope": np.zeros(2)})
    plain = z_estimate(linear_regression(), rows, ZERO)
    assert found.names == ("level", "slope[0]", "slope[1]")
    assert found.theta["level"].shape == ()
    near(found.theta["slope"], plain.theta[1:], 1e-12)
    near(found.standard_errors["slope"], plain.standard_errors[1:], 1e-10)
    near(found.interval()[0]["slope"], plain.interval()[0][1:], 1e-10)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_do_not_matter(scale: float) -> None:
    rows = regression_rows()
    unit = np.array([scale, 1.0, 1.0 / scale])
    found = z_estimate(linear_regression(), rows * unit, ZERO)
    plain = z_estimate(linear_regression(), rows, ZERO)
    change = torch.tensor([1.0, 1.0 / scale, 1.0], dtype=torch.float64) / scale
    near(found.theta / change, plain.theta, 1e-9)
    near(found.standard_errors / change, plain.standard_errors, 1e-9)


def test_values_far_from_zero() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 1)) * 0.1 + 1e7
    found = z_estimate(mean_equation, rows, [0.0])
    assert found.converged
    assert abs(float(found.theta) - rows.mean()) < 1e-5 * float(found.standard_errors)


def test_an_exact_fit_converges() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    rows = np.column_stack([x, 1.0 + x @ [2.0, 0.0]])
    found = z_estimate(linear_regression(), rows, ZERO)
    assert found.converged
    near(found.theta, [1.0, 2.0, 0.0], 1e-10)


# Oracles


def check_heteroscedastic_errors(estimate=z_estimate) -> None:
    rows = regression_rows()
    found = estimate(linear_regression(), rows, ZERO)
    expected = peer(rows).fit(cov_type="HC0")
    near(found.theta, expected.params)
    near(found.covariance, expected.cov_params())
    near(found.table()["p_value"], expected.pvalues, 1e-7)


def test_least_squares_is_that_of_statsmodels() -> None:
    check_heteroscedastic_errors()


def test_the_small_sample_correction_is_hc1() -> None:
    rows = regression_rows(40)
    found = z_estimate(linear_regression(), rows, ZERO, correction=True)
    near(found.covariance, peer(rows).fit(cov_type="HC1").cov_params())


@pytest.mark.parametrize("correction", [False, True])
def test_clustered_errors_are_those_of_statsmodels(correction: bool) -> None:
    rows = regression_rows()
    groups = np.arange(len(rows)) // 7
    found = z_estimate(linear_regression(), rows, ZERO, groups=groups, correction=correction)
    kinds = {"groups": groups, "use_correction": correction}
    near(found.covariance, peer(rows).fit(cov_type="cluster", cov_kwds=kinds).cov_params())
    assert found.n_groups == 43


def test_groups_may_be_words_or_a_column() -> None:
    rows = regression_rows()
    groups = np.arange(len(rows)) // 7
    words = z_estimate(linear_regression(), rows, ZERO, groups=[f"school {g}" for g in groups])

    def psi(theta: Tensor, x: Tensor) -> Tensor:
        return linear_regression()(theta, x[:, :3])

    column = z_estimate(psi, np.column_stack([rows, groups]), ZERO, groups="x3")
    same(words, column)


def test_logistic_regression_is_that_of_statsmodels() -> None:
    rows = logit_rows()
    found = z_estimate(logit_score, rows, ZERO)
    design = sm.add_constant(rows[:, :2])
    expected = sm.Logit(rows[:, 2], design).fit(disp=0, cov_type="HC0", tol=1e-14, method="newton")
    near(found.theta, expected.params)
    near(found.covariance, expected.cov_params())


def test_sampling_weights_are_rows_as_groups() -> None:
    """Weights that say how many unseen rows a row stands for: the robust errors of weighted least squares."""
    rows = regression_rows()
    weight = np.random.default_rng(3).uniform(0.2, 3.0, len(rows))
    found = z_estimate(linear_regression(), rows, ZERO, sample_weight=weight, groups=range(len(rows)))
    expected = sm.WLS(rows[:, 2], sm.add_constant(rows[:, :2]), weights=weight).fit(cov_type="HC0")
    near(found.theta, expected.params)
    near(found.covariance, expected.cov_params())


def test_huber_is_its_own_equation() -> None:
    x = np.random.default_rng(0).standard_t(2, size=200)
    found = z_estimate(huber(1.345), x[:, None], [0.0])
    root = optimize.brentq(lambda t: np.clip(x - t, -1.345, 1.345).mean(), -2, 2, xtol=1e-14)
    score = np.clip(x - root, -1.345, 1.345)
    error = np.sqrt((score**2).mean() / (np.abs(x - root) < 1.345).mean() ** 2 / len(x))
    near(found.theta, [root])
    near(found.standard_errors, [error])


def test_huber_regression_is_that_of_statsmodels_at_its_scale() -> None:
    rows = regression_rows()
    design = sm.add_constant(rows[:, :2])
    expected = sm.RLM(rows[:, 2], design, M=sm.robust.norms.HuberT(1.345)).fit(tol=1e-13, maxiter=500)
    found = z_estimate(huber(1.345, float(expected.scale)), rows, ZERO)
    near(found.theta, expected.params, 1e-6)


def test_hubers_scale_is_that_of_gaussian_rows() -> None:
    """Consistent at the normal distribution: within 4.5 standard errors, false alarms below 1e-5."""
    x = np.random.default_rng(5).normal(1.0, 3.0, size=(20_000, 1))
    found = z_estimate(huber(1.345, None), x, [0.0, 1.0])
    assert abs(float(found.theta[1]) - 3.0) < 4.5 * float(found.standard_errors[1])


def test_quantile_regression_is_near_that_of_statsmodels() -> None:
    """Roots of a step function: within a tenth of a standard error, and errors within a tenth."""
    rows = regression_rows(4000)
    step = quantile_step(0.25, len(rows), spread=1.0)
    found = z_estimate(quantile(0.25), rows, ZERO, smooth=step)
    expected = sm.QuantReg(rows[:, 2], sm.add_constant(rows[:, :2])).fit(0.25)
    apart = (np.asarray(found.theta) - expected.params) / np.asarray(found.standard_errors)
    assert found.converged
    assert np.abs(apart).max() < 0.1


def test_more_equations_than_parameters_is_iv_by_two_steps() -> None:
    """Two instruments for one slope: first step's weighting aside, the closed form of two-step weighting."""
    rng = np.random.default_rng(0)
    instruments, hidden = rng.normal(size=(2000, 2)), rng.normal(size=2000)
    x = instruments @ [1.0, 0.5] + hidden + rng.normal(size=2000)
    y = 2.0 * x + hidden * (1.0 + 0.5 * np.abs(instruments[:, 0]))
    rows = np.column_stack([x, y, instruments])

    def psi(theta: Tensor, r: Tensor) -> Tensor:
        return r[:, 2:] * (r[:, 1] - theta * r[:, 0])[:, None]

    found = z_estimate(psi, rows, [0.0])
    zx, zy, n = instruments.T @ x / 2000, instruments.T @ y / 2000, 2000

    def solve(weight: np.ndarray) -> float:
        return float(zx @ weight @ zy / (zx @ weight @ zx))

    def spread(theta: float) -> np.ndarray:
        return np.cov((instruments * (y - theta * x)[:, None]).T, bias=True)

    first = solve(np.diag(1 / np.diag(spread(0.0))))
    weight = np.linalg.inv(spread(first))
    theta = solve(weight)
    near(found.theta, [theta])
    gap = zy - theta * zx
    near(found.j_test.statistic, n * gap @ np.linalg.inv(spread(theta)) @ gap, 1e-7)
    assert found.j_test.degrees == 1
    settled = z_estimate(psi, rows, [0.0], steps="iterated")
    near(settled.theta, [solve(np.linalg.inv(spread(float(settled.theta))))])
    assert abs(float(settled.theta) - theta) < 0.1 * float(found.standard_errors)


def test_wild_starts_find_the_root_or_say_so() -> None:
    """Ten units off, nearly all rows are saturated and Newton's step leads to infinity, where psi is flat."""
    rows, reached = logit_rows(), 0
    expected = z_estimate(logit_score, rows, ZERO).theta
    for start in np.random.default_rng(0).normal(0.0, 10.0, size=(10, 3)):
        try:
            found = z_estimate(logit_score, rows, start)
        except (NoRootError, EstimateWarning):  # a warning is an error here
            continue
        near(found.theta, expected, 1e-6)
        reached += 1
    assert reached >= 8


# The result


def test_the_result_tells_and_draws() -> None:
    found = z_estimate(linear_regression(), regression_rows(), ZERO, names=["level", "a", "b"])
    low, high = found.interval(0.9)
    near(found.table(0.9)["low"], low)
    assert bool((low < found.theta).all() and (found.theta < high).all())
    assert found.table().index.tolist() == ["level", "a", "b"]
    assert "level" in repr(found)
    assert "±" in repr(found)
    assert len(found.plot().get_yticks()) == 3


# Planted bugs


def test_a_sandwich_without_meat_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inverse slope alone is the error only of a likelihood that is true."""
    monkeypatch.setattr(
        "boxloop.fit.equations.roots.sandwich",
        lambda slope, meat, weight, whiten: slope.inverse() / -weight,
    )
    with pytest.raises(AssertionError):
        check_heteroscedastic_errors()


def test_a_forgotten_weight_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxloop.fit.equations.roots.open_source", lambda X, weight: open_source(X))
    with pytest.raises(AssertionError):
        check_weights_are_repetition()


def test_weights_squared_in_the_meat_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right for sampling weights, wrong for counts."""

    def squared(self, point, here, centre):
        groups = torch.arange(self.source.n_rows)
        return sum_group_products(self.values, self.source, point, groups)

    monkeypatch.setattr("boxloop.fit.equations.roots.Equations.estimate_meat", squared)
    with pytest.raises(AssertionError):
        check_weights_are_repetition()
