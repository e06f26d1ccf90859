"""Gaussian families: the fast and the careful ways agree, gaps are integrated out, floors hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop import distributions
from boxloop.distributions import CentredView, QuadraticView, WhitenedView
from contract.distribution_checks import FAMILY_CHECKS, near, with_missing
from contract.distributions import DistributionCase, covariances, distribution_case, uniform

K, D, N = 3, 5, 60
Builder = Callable[[float, float], Any]


def _members(width: float, floor: float) -> tuple[Tensor, Tensor]:
    stream = Generator().manual_seed(11)
    return uniform(stream, K, D, low=-2, high=2), width**2 * covariances(stream, K, D)


def full(width: float = 1.0, floor: float = 0.0) -> distributions.FullGaussian:
    mean, covariance = _members(width, floor)
    return distributions.FullGaussian.from_covariance(mean, covariance, floor)


def tied(width: float = 1.0, floor: float = 0.0) -> distributions.TiedGaussian:
    mean, covariance = _members(width, floor)
    return distributions.TiedGaussian.from_covariance(mean, covariance[0], floor)


def diagonal(width: float = 1.0, floor: float = 0.0) -> distributions.DiagonalGaussian:
    mean, covariance = _members(width, floor)
    return distributions.DiagonalGaussian(mean, covariance.diagonal(dim1=-2, dim2=-1).clone(), floor)


def spherical(width: float = 1.0, floor: float = 0.0) -> distributions.SphericalGaussian:
    mean, covariance = _members(width, floor)
    return distributions.SphericalGaussian(mean, covariance[:, :1, 0].clone(), floor)


EVERY = pytest.mark.parametrize("build", [full, tied, diagonal, spherical], ids=lambda f: f.__name__)


def rows_of(distribution: Any) -> Tensor:
    return distribution.draw(N // K, Generator().manual_seed(12)).reshape(-1, D)


def shares() -> Tensor:
    return uniform(Generator().manual_seed(13), K, N)


@EVERY
def test_missing_values_leave_the_marginal_density(build: Builder) -> None:
    distribution = build(1.0, 0.0)
    rows = with_missing(rows_of(distribution))
    mean, covariance = distribution.mean.numpy(), distribution.covariance().dense().numpy()
    expected = np.zeros((K, N))
    for k in range(K):
        for i, row in enumerate(rows.numpy()):
            seen = ~np.isnan(row)
            if seen.any():
                block = covariance[k][np.ix_(seen, seen)]
                expected[k, i] = stats.multivariate_normal(mean[k][seen], block).logpdf(row[seen])
    assert_close(distribution.log_prob(rows), torch.from_numpy(expected), rtol=1e-11, atol=1e-11)


def expected_moments(
    mean: np.ndarray, covariance: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[x] and E[x x'] given the values present: regression of the missing on the seen, by explicit inverses."""
    seen, gone = ~np.isnan(row), np.isnan(row)
    slope = covariance[np.ix_(gone, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
    filled = row.copy()
    filled[gone] = mean[gone] + slope @ (row[seen] - mean[seen])
    second = np.outer(filled, filled)
    second[np.ix_(gone, gone)] += covariance[np.ix_(gone, gone)] - slope @ covariance[np.ix_(seen, gone)]
    return filled, second


@EVERY
def test_missing_values_enter_by_their_conditional_moments(build: Builder) -> None:
    distribution, share = build(1.0, 0.0), shares()
    rows = with_missing(rows_of(distribution))
    mean, covariance = distribution.mean.numpy(), distribution.covariance().dense().numpy()
    first, second = torch.zeros(K, D).double(), torch.zeros(K, D, D).double()
    for k in range(K):
        for i, row in enumerate(rows.numpy()):
            one, two = expected_moments(mean[k], covariance[k], row)
            first[k] += share[k, i] * torch.from_numpy(one)
            second[k] += share[k, i] * torch.from_numpy(two)
    fitted = distribution.fit_statistics(distribution.view(rows).summarise(share))
    count = share.sum(1)
    means = first / count[:, None]
    apart = second / count[:, None, None] - means[:, :, None] * means[:, None, :]
    if build is tied:
        apart = (apart * count[:, None, None]).sum(0, keepdim=True).expand(K, D, D) / count.sum()
    if build in (diagonal, spherical):
        apart = torch.diag_embed(apart.diagonal(dim1=-2, dim2=-1))
    if build is spherical:
        apart = torch.eye(D).double() * apart.diagonal(dim1=-2, dim2=-1).mean(1)[:, None, None]
    assert_close(fitted.mean, means, rtol=1e-11, atol=1e-11)
    assert_close(fitted.covariance().dense(), apart, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=lambda check: check.__name__)
def test_the_whitened_path_keeps_the_contract(
    check: Callable[[DistributionCase], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxloop.distributions.gaussian_full.QUADRATIC_COLUMNS", 0)
    case = distribution_case(distributions.FullGaussian)
    assert isinstance(case.distribution.view(case.rows), WhitenedView)
    check(case)


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "family", [distributions.DiagonalGaussian, distributions.SphericalGaussian, distributions.TiedGaussian]
)
def test_the_centred_path_keeps_the_contract(
    family: type, check: Callable[[DistributionCase], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gaussian_diagonal", "gaussian_tied"):
        monkeypatch.setattr(f"boxloop.distributions.{module}.QUADRATIC_CONDITION", 1e-9)
    case = distribution_case(family)
    assert family is distributions.TiedGaussian or isinstance(case.distribution.view(case.rows), CentredView)
    assert family is not distributions.TiedGaussian or case.distribution.is_ill_conditioned
    check(case)


def test_the_quadratic_and_the_whitened_path_agree() -> None:
    for width in (1.0, 0.1):
        distribution, share = full(width), shares()
        columns, offset = rows_of(distribution).mT.contiguous(), torch.zeros(K).double()
        fast, careful = (
            QuadraticView(distribution.natural_parameters, columns),
            WhitenedView(distribution, columns),
        )
        assert_close(fast.log_joint(offset), careful.log_joint(offset), rtol=1e-9, atol=1e-9)
        near(fast.summarise(share), careful.summarise(share), rtol=1e-9)


def test_the_path_follows_columns_precision_and_condition() -> None:
    distribution, rows = full(), rows_of(full())
    assert isinstance(distribution.view(rows), QuadraticView)
    assert isinstance(distribution.view(rows.float()), WhitenedView)
    assert isinstance(full(1e-4).view(rows), WhitenedView)
    wide = distributions.FullGaussian(torch.zeros(1, 13).double(), torch.eye(13).double()[None])
    assert isinstance(wide.view(torch.zeros(2, 13).double()), WhitenedView)


@EVERY
@pytest.mark.parametrize("width", [1.0, 0.03])
@pytest.mark.parametrize("gaps", [False, True])
def test_float32_tiles_agree_with_float64(build: Builder, width: float, gaps: bool) -> None:
    """Rounded rows are the same rows in both precisions: what differs is the arithmetic."""
    distribution, share = build(width, 0.0), shares()
    rows = rows_of(distribution).float()
    rows = with_missing(rows) if gaps else rows
    offset = torch.zeros(K, dtype=torch.float64)
    low, high = distribution.view(rows), distribution.view(rows.double())
    own = torch.arange(K).repeat_interleave(N // K)
    index = (own, torch.arange(N))
    exact = high.log_joint(offset)[index]
    assert_close(low.log_joint(offset)[index].double(), exact, rtol=1e-5, atol=3e-5)
    assert float((low.log_joint(offset)[index].double() - exact).mean().abs()) < 1e-6 * float(
        exact.abs().mean()
    )
    a, b = (
        distribution.fit_statistics(low.summarise(share.float())),
        distribution.fit_statistics(high.summarise(share.float().double())),
    )
    assert_close(a.mean, b.mean, rtol=1e-6, atol=1e-6)
    near(a.covariance(), b.covariance(), rtol=1e-6)


@EVERY
def test_narrow_members_keep_their_digits(build: Builder) -> None:
    distribution = build(1e-5, 0.0)
    rows = rows_of(distribution)
    mean, covariance = distribution.mean.numpy(), distribution.covariance().dense().numpy()
    own = np.stack(
        [stats.multivariate_normal(np.zeros(D), c).logpdf(rows.numpy() - m) for m, c in zip(mean, covariance)]
    )
    index = (torch.arange(K).repeat_interleave(N // K), torch.arange(N))
    assert_close(distribution.log_prob(rows)[index], torch.from_numpy(own)[index], rtol=1e-9, atol=1e-9)


@EVERY
def test_a_floor_binds_only_where_it_must(build: Builder) -> None:
    """Members on one point are held at the floor and flagged; the others are what they were without it."""
    floor = 1e-3
    distribution, rows = build(1.0, floor), rows_of(full())
    share = shares()
    free, held = build(1.0, 0.0), distribution.fit_statistics(distribution.view(rows).summarise(share))
    near(held.covariance(), free.fit_statistics(free.view(rows).summarise(share)).covariance())
    assert not bool(held.is_floored().any())
    point = rows[:1].expand(N, D)
    stuck = distribution.fit_statistics(distribution.view(point).summarise(share))
    assert bool(stuck.is_floored().all())
    assert_close(
        stuck.covariance().diagonal(), torch.full((K, D), floor, dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert bool(torch.isfinite(stuck.log_prob(point)).all())


@EVERY
def test_there_is_no_floor_unless_one_is_given(build: Builder) -> None:
    distribution = build(1e-3, 0.0)
    rows, own = rows_of(distribution), torch.arange(K).repeat_interleave(N // K)
    share = (own == torch.arange(K)[:, None]).double()
    fitted = distribution.fit_statistics(distribution.view(rows).summarise(share))
    apart = rows - fitted.mean[own]
    variance = torch.stack([apart[own == k].square().mean(0) for k in range(K)])
    if build is tied:
        variance = variance.mean(0, keepdim=True).expand(K, D)
    if build is spherical:
        variance = variance.mean(1, keepdim=True).expand(K, D)
    assert_close(fitted.covariance().diagonal(), variance, rtol=1e-6, atol=0)
    just_above = replace(fitted, floor=0.5 * float(torch.linalg.eigvalsh(fitted.covariance().dense()).min()))
    assert not bool(just_above.is_floored().any())


def test_a_spherical_distribution_refuses_columns_of_different_scale() -> None:
    with pytest.raises(ValueError, match="share one scale"):
        spherical().affine(torch.zeros(D).double(), torch.arange(1.0, 1 + D).double())


@pytest.mark.parametrize("build", [full, tied, diagonal, spherical], ids=lambda f: f.__name__)
def test_parts_of_a_member_lie_within_half_a_standard_deviation(build: Callable[..., Any]) -> None:
    """They keep its covariance; full and tied ones lie along its main axis, the others along alternating signs."""
    distribution, member, pieces = build(), 1, 3
    parts = distribution.split(member, pieces)
    shift = parts[:, 1 : 1 + D] - distribution.mean[member]
    covariance = distribution.covariance().dense().expand(K, D, D)[member]
    if build in (full, tied):
        spread, axes = torch.linalg.eigh(covariance)
        along = shift @ axes[:, -1] / spread[-1].sqrt()
        assert_close(along.sort().values, torch.tensor([-0.5, 0.0, 0.5]).double())
        assert_close(shift @ axes[:, :-1], torch.zeros(pieces, D - 1).double(), rtol=0, atol=1e-12)
    else:
        steps = torch.tensor([0.5, 0.0, 0.5]).double()[:, None]
        assert_close(shift.abs(), steps * covariance.diagonal().sqrt())
    if build is not tied:
        fresh = distribution.select(torch.zeros(pieces, dtype=torch.long))
        rows = rows_of(distribution)
        statistics = fresh.view(rows).summarise(torch.ones(pieces, len(rows)).double())
        fitted = fresh.fit_statistics(statistics.replace_members(torch.arange(pieces), parts))
        assert_close(fitted.covariance().dense().expand(pieces, D, D), covariance.expand(pieces, D, D))
