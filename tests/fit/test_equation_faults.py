"""Bad equations, bad starts and bad rows, each with its own words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop import m_estimate, match_moments, z_estimate
from boxloop.fit import (
    EquationError,
    EstimateWarning,
    NoRootError,
    NotIdentifiedError,
    mean_equation,
    quantile,
)
from fit.equation_cases import regression_rows

ROWS = regression_rows()


def test_no_root_tells_how_far_the_best_point_is() -> None:
    with pytest.raises(NoRootError, match=r"theta\[0\] = .*\|mean psi\| is 2.*standard errors"):
        z_estimate(lambda t, x: t.square() + 2.0 + 0.0 * x[:, :1], ROWS, [1.0])


def test_a_stepped_psi_without_smooth_says_what_to_do() -> None:
    with pytest.raises((NoRootError, NotIdentifiedError), match="smooth="):
        z_estimate(quantile(0.5), ROWS[:, :1], [1.0])


def test_a_direction_that_changes_nothing_is_named() -> None:
    def psi(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        gap = x[:, 0] - t[0] - 2.0 * t[1]
        return torch.stack([gap, gap * 3.0, x[:, 1] - t[2]], dim=1)

    with pytest.raises(NotIdentifiedError, match=r"first and second enter only.*\+1 first, -0.5 second"):
        z_estimate(psi, ROWS, [0.0, 0.0, 0.0], names=["first", "second", "third"])


def test_a_parameter_without_influence_is_named() -> None:
    with pytest.raises((NotIdentifiedError, NoRootError), match=r"theta\[1\] has no influence"):
        z_estimate(lambda t, x: x[:, :2] - t[0] + 0.0 * t[1], ROWS, [0.0, 0.0])


def test_the_direction_does_not_depend_on_units() -> None:
    def psi(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x[:, [0, 0]] - t[0] - 1e9 * t[1]

    with pytest.raises(NotIdentifiedError, match=r"\+1 theta\[0\], -1e-09 theta\[1\]"):
        z_estimate(psi, ROWS, [0.0, 0.0])


def test_collinear_columns_are_named() -> None:
    def psi(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        design = torch.stack([x[:, 0], x[:, 1], x[:, 0] + x[:, 1]], dim=1)
        return design * (x[:, 2] - design @ t)[:, None]

    with pytest.raises(NotIdentifiedError, match=r"theta\[0\], theta\[1\] and theta\[2\]"):
        z_estimate(psi, ROWS, [0.0, 0.0, 0.0])


def test_the_first_bad_row_is_named() -> None:
    rows = ROWS.copy()
    rows[17, 1] = np.nan
    with pytest.raises(EquationError, match=r"row 17 .*'x1' is missing"):
        z_estimate(mean_equation, rows, [0.0, 0.0, 0.0])
    with pytest.raises(EquationError, match="row 17 "):
        m_estimate(lambda t, x: -(x[:, 1] - t[0]).square(), rows, [0.0])


def test_a_bad_row_of_no_weight_counts_for_nothing() -> None:
    rows = ROWS.copy()
    rows[17] = np.nan
    weight = np.ones(len(rows))
    weight[17] = 0.0
    found = z_estimate(mean_equation, rows, [0.0, 0.0, 0.0], sample_weight=weight)
    np.testing.assert_allclose(found.theta, np.delete(rows, 17, 0).mean(0), rtol=1e-10)


def test_a_step_into_nowhere_is_shortened() -> None:
    """From 10 a full Newton step for the rate would be negative, where the logarithm is NaN."""
    rows = np.random.default_rng(0).exponential(2.0, size=(100, 1))
    found = z_estimate(lambda t, x: 1 / t - x + 0.0 * t.log(), rows, [10.0])
    np.testing.assert_allclose(float(found.theta), 1 / rows.mean(), rtol=1e-8)


@pytest.mark.parametrize(
    ("psi", "words"),
    [
        (lambda t, x: x[:, 0].sum() - t.sum(), "one line per row"),
        (lambda t, x: x[:, 0], "one line per row"),
        (lambda t, x: x.mT, "one line per row"),
        (lambda t, x: x[:, :1] - t[0], "1 equation.* for 2 parameters"),
        (lambda t, x: x.numpy(), "torch tensor, not ndarray"),
    ],
)
def test_wrong_shapes(psi, words: str) -> None:
    with pytest.raises(EquationError, match=words):
        z_estimate(psi, ROWS, [0.0, 0.0])


def test_an_objective_of_a_wrong_shape() -> None:
    with pytest.raises(EquationError, match=r"\(300,\) here; it returned \(300, 3\)"):
        m_estimate(lambda t, x: x - t, ROWS, [0.0])


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ([0.0, np.nan, 0.0], r"theta\[1\] is nan"),
        ({"a": 1.0, "b": [0.0, np.inf]}, r"b\[1\] is inf"),
        (3.0, r"give \[3.0\]"),
        ([[1.0]], "2 dimensions"),
        ([], "no parameter"),
        ({}, "no parameter"),
    ],
)
def test_bad_starts(start, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        z_estimate(mean_equation, ROWS, start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ["a"]}, "names has 1 entries for 3"),
        ({"groups": [1, 2]}, "one label per row"),
        ({"groups": np.where(np.arange(300) == 4, np.nan, 1.0)}, "group of row 4"),
        ({"groups": "nowhere"}, "no column 'nowhere'"),
        ({"smooth": [1.0, 2.0]}, "smooth must be"),
        ({"smooth": -1.0}, "smooth must be"),
        ({"sample_weight": np.zeros(300)}, "all zero"),
    ],
)
def test_bad_options(options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        z_estimate(mean_equation, ROWS, [0.0, 0.0, 0.0], **options)


def test_few_groups_are_doubted() -> None:
    with pytest.warns(EstimateWarning, match="2 groups for 3 parameters"):
        z_estimate(mean_equation, ROWS, [0.0, 0.0, 0.0], groups=np.arange(300) % 2)
    with pytest.warns(EstimateWarning, match="2 groups for 2 parameters"):
        match_moments(lambda x: x[:, :2], lambda t: t, ROWS, [0.0, 0.0], groups=np.arange(300) % 2)


def test_several_starts_for_too_many_equations() -> None:
    with pytest.raises(ValueError, match="starts are for as many"):
        z_estimate(lambda t, x: x - t, ROWS, [0.0], starts=[[1.0]])


def test_an_equation_without_noise_has_nothing_left_over() -> None:
    """A ratio of other parameters is the same on every row; rounding is not a miss."""

    def psi(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 0] - t[0], x[:, 2] - t[1], (t[0] - t[1] * t[2]).expand(len(x))], dim=1)

    found = z_estimate(psi, ROWS, [1.0, 1.0, 1.0])
    assert found.converged
    assert found.residual < 1e-6


def test_few_iterations_warn() -> None:
    rows = np.random.default_rng(0).exponential(2.0, size=(100, 1))
    with pytest.warns(EstimateWarning, match="did not converge in 2 iterations"):
        found = z_estimate(lambda t, x: t.log() - x, rows, [100.0], max_iter=2)
    assert not found.converged
    assert "not converged" in repr(found)


def test_several_roots_are_all_kept() -> None:
    rows = np.random.default_rng(0).normal(4.0, 1.0, size=(200, 1))

    def psi(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x - t.square()

    with pytest.warns(EstimateWarning, match="2 different roots"):
        found = z_estimate(psi, rows, [1.0], starts=[[-1.0], [3.0]])
    assert float(found.theta) > 0
    assert [float(root) > 0 for root in found.roots] == [True, False]
    assert len(z_estimate(psi, rows, [1.0], starts=[[3.0]]).roots) == 1


def test_separated_classes_do_not_pass_for_an_answer() -> None:
    """The maximum lies at infinity."""
    x = np.linspace(-1, 1, 50)
    rows = np.column_stack([x, x > 0])

    def density(t: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return r[:, 1] * r[:, 0] * t[0] - torch.nn.functional.softplus(r[:, 0] * t[0])

    with pytest.warns(EstimateWarning, match="at infinity"):
        found = m_estimate(density, rows, [0.0], max_iter=30)
    assert not found.converged


def test_kinks_are_not_taken_for_maxima() -> None:
    with pytest.raises(NoRootError, match="smooth="):
        m_estimate(lambda t, x: -(x[:, 0] - t[0]).abs(), ROWS, [0.5])


def test_a_minimum_is_no_maximum() -> None:
    with pytest.raises(NoRootError, match="not at a maximum"):
        m_estimate(lambda t, x: t[0] ** 2 + 0.0 * x[:, 0], ROWS, [0.0])


def test_a_flat_direction_of_an_objective_is_named() -> None:
    with pytest.raises(NotIdentifiedError, match=r"\+1 theta\[0\], -1 theta\[1\]"):
        m_estimate(lambda t, x: -(x[:, 0] - t[0] - t[1]).square(), ROWS, [1.0, 0.0])


def test_an_objective_without_a_maximum() -> None:
    with pytest.raises(NoRootError, match="rises without bound"):
        m_estimate(lambda theta, rows: theta[0] * rows[:, 0].square(), regression_rows(), [0.5])
