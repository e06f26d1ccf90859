"""What every distribution and every exponential family must satisfy, as functions that raise AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from contract.distributions import NAN, DistributionCase, uniform
from contract.scores import assert_scores, moment_scores

DRAWS = 20_000
GRADIENT = 1e-9
"""Largest slope of a maximum, per unit of weight."""


def near(actual: Any, expected: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Tensors, or trees of them, that agree to rounding; in a tree, to the rounding of its largest number."""
    if isinstance(actual, Tensor):
        assert_close(actual, expected, rtol=rtol, atol=atol)
        return
    for (path, a), (_, b) in zip(actual.leaves(), expected.leaves(), strict=True):
        allowed = rtol * float(b.abs().max())
        assert_close(a, b, rtol=rtol, atol=allowed, msg=lambda text, path=path: f"{path}: {text}")


def flatten(free: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in free.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = vector.split([value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for part, (name, value) in zip(parts, like.items(), strict=True)}


def slope(function: Callable[[Any], Tensor], owner: Any) -> Tensor:
    """Gradient of ``function(owner)`` with respect to the owner's free parameters."""
    free = owner.free_parameters()
    point = flatten(free).detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(owner.with_free_parameters(unflatten(point, free))), point)
    return gradient


def assert_peak(best: Any, statistics: Any, total: float) -> None:
    """Expected log-likelihood is flat at ``best``, and no higher at random places near and far."""
    gradient = slope(lambda owner: owner.expected_log_likelihood(statistics), best)
    assert float(gradient.abs().max()) < GRADIENT * total, "the M step left a slope"
    top, free = float(best.expected_log_likelihood(statistics)), best.free_parameters()
    noise = Generator().manual_seed(4)
    for size in (1e-3, 1e-2, 0.1, 1.0) * 5:
        step = size * torch.randn(flatten(free).shape, generator=noise, dtype=torch.float64)
        other = best.with_free_parameters(unflatten(flatten(free) + step, free))
        assert float(other.expected_log_likelihood(statistics)) <= top + 1e-12 * abs(top), (
            "a place near the M step is better"
        )


def shares(case: DistributionCase, n: int, seed: int = 1) -> Tensor:
    return uniform(Generator().manual_seed(seed), case.k, n, low=0.05, high=1.0)


def with_missing(rows: Tensor, seed: int = 2, rate: float = 0.4) -> Tensor:
    """Rows with random values missing; the first misses all of them, the second none."""
    gone = uniform(Generator().manual_seed(seed), *rows.shape) < rate
    gone[0], gone[1] = True, False
    return torch.where(gone, NAN, rows)


def check_shapes(case: DistributionCase) -> None:
    """Leading axis: members; log-densities (k, n), draws (k, n, d)."""
    distribution, (n, d) = case.distribution, case.rows.shape
    assert distribution.mean.shape == (case.k, d)
    assert distribution.covariance().dense().shape == (case.k, d, d)
    assert_close(
        distribution.covariance().diagonal(), distribution.covariance().dense().diagonal(dim1=-2, dim2=-1)
    )
    assert distribution.log_prob(case.rows).shape == (case.k, n)
    assert distribution.draw(5, Generator().manual_seed(0)).shape == (case.k, 5, d)
    assert distribution.is_finite()
    assert distribution.to(dtype=torch.float32).mean.dtype == torch.float32


def check_density(case: DistributionCase) -> None:
    """Equal to SciPy's, and one in all."""
    expected = torch.stack([case.reference(k, case.rows) for k in range(case.k)])
    near(case.distribution.log_prob(case.rows), expected)
    mass = case.distribution.log_prob(case.support).exp().sum(1) * case.cell
    near(mass, torch.ones(case.k, dtype=torch.float64), rtol=1e-9)


def check_moments(case: DistributionCase) -> None:
    """Mean and covariance are those of the density."""
    mass = case.distribution.log_prob(case.support).exp() * case.cell
    mean = mass @ case.support
    apart = case.support - mean[:, None]
    near(case.distribution.mean, mean, rtol=1e-8)
    near(case.distribution.covariance().dense(), (apart * mass[..., None]).mT @ apart, rtol=1e-8, atol=1e-9)


def check_draws(case: DistributionCase) -> None:
    """Draws have the distribution's mean and covariance; the same generator gives the same draws."""
    draws = case.distribution.draw(DRAWS, Generator().manual_seed(5))
    assert torch.equal(draws, case.distribution.draw(DRAWS, Generator().manual_seed(5)))
    mean, covariance = case.distribution.mean, case.distribution.covariance().dense()
    assert_scores(
        torch.cat([moment_scores(draws[k].double(), mean[k], covariance[k]) for k in range(case.k)])
    )


def check_joint(case: DistributionCase) -> None:
    """A view's joint is offset + log-density, less the base measure."""
    offset = uniform(Generator().manual_seed(3), case.k)
    for rows in (case.rows, with_missing(case.rows)):
        base = case.distribution.log_base(rows)
        expected = offset[:, None] + case.distribution.log_prob(rows) - (0.0 if base is None else base)
        near(case.distribution.view(rows).log_joint(offset), expected)
        near(
            case.distribution.view(rows).log_joint(offset),
            case.distribution.view(rows).log_joint(offset * 0) + offset[:, None],
        )


def check_statistics(case: DistributionCase) -> None:
    """Statistics are shares times features, summed the slow way."""
    share = shares(case, len(case.rows))
    expected = case.features(case.rows).expand(case.k, -1, -1)
    near(case.distribution.view(case.rows).summarise(share), case.statistics(share, expected))


def check_missing(case: DistributionCase) -> None:
    """A missing value is integrated out of the density, and enters the statistics by its expected features."""
    rows = with_missing(case.rows[::4])
    density, expected = zip(*[case.gappy(row) for row in rows], strict=True)
    near(case.distribution.log_prob(rows), torch.stack(density, 1), rtol=1e-8, atol=1e-9)
    near(case.distribution.log_prob(rows)[:, 0], torch.zeros(case.k, dtype=torch.float64))
    share = shares(case, len(rows))
    statistics = case.statistics(share, torch.stack(expected, 1))
    near(case.distribution.view(rows).summarise(share), statistics, rtol=1e-8)


def check_additive(case: DistributionCase) -> None:
    """Chunked = whole; a weight = that many copies of a row."""
    for rows in (case.rows, with_missing(case.rows)):
        share = shares(case, len(rows))
        whole = case.distribution.view(rows).summarise(share)
        parts = [
            case.distribution.view(r).summarise(s)
            for r, s in zip(rows.split(5), share.split(5, 1), strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        near(total, whole)
        times = torch.arange(len(rows)) % 3
        repeated = share.repeat_interleave(times, 1)
        near(
            case.distribution.view(rows.repeat_interleave(times, 0)).summarise(repeated),
            case.distribution.view(rows).summarise(share * times),
        )
        near(case.distribution.view(rows).summarise(share * 1e-17), whole * 1e-17)


def check_complete(case: DistributionCase) -> None:
    """The expected log-density of the statistics is that of the rows, weighted."""
    share = shares(case, len(case.rows))
    view = case.distribution.view(case.rows)
    expected = (share * view.log_joint(case.distribution.mean.new_zeros(case.k))).sum()
    near(case.distribution.expected_log_likelihood(view.summarise(share)), expected)


def check_fitted(case: DistributionCase) -> None:
    """``fitted`` is where ``complete`` is flat, and nothing near it is better; only ratios of statistics matter."""
    for rows in (case.rows, with_missing(case.rows)):
        share = shares(case, len(rows))
        statistics = case.distribution.view(rows).summarise(share)
        best = case.distribution.fit_statistics(statistics)
        near(case.distribution.fit_statistics(statistics * 7.0), best)
        assert_peak(best, statistics, float(share.sum()))


def check_free(case: DistributionCase) -> None:
    """``with_free_parameters`` of ``free_parameters`` changes nothing, and public parameters are finite."""
    near(case.distribution.with_free_parameters(case.distribution.free_parameters()), case.distribution)
    assert case.distribution.named_parameters()
    assert all(bool(torch.isfinite(value).all()) for value in case.distribution.named_parameters().values())
    assert case.distribution.is_floored().shape == (case.k,)
    assert not bool(case.distribution.is_floored().any())


def check_select(case: DistributionCase) -> None:
    """Members can be picked, repeated and reordered."""
    index = torch.tensor([2, 0, 2])
    near(case.distribution.select(index).log_prob(case.rows), case.distribution.log_prob(case.rows)[index])
    near(case.distribution.select(index).mean, case.distribution.mean[index])


def check_split(case: DistributionCase) -> None:
    """Parts of a member are distinct, each a distribution that can be fitted."""
    for pieces in (2, 3, 5):
        parts = case.distribution.split(1, pieces)
        near(parts[:, 0], torch.ones(pieces, dtype=torch.float64))
        gap = torch.pdist(parts / parts.abs().amax(0).clamp(min=1e-300))
        assert float(gap.min()) > 1e-3
        fresh = case.distribution.select(torch.zeros(pieces, dtype=torch.long))
        share = torch.ones(pieces, len(case.rows), dtype=torch.float64)
        statistics = fresh.view(case.rows).summarise(share).replace_members(torch.arange(pieces), parts)
        fitted = fresh.fit_statistics(statistics)
        assert fitted.is_finite()
        near(fitted.mean, parts[:, 1 : 1 + case.rows.shape[1]])


def assert_refuses(owner: Any, origin: Tensor) -> None:
    """Counts have no other coordinates."""
    refusal = ""
    try:
        owner.affine(origin, torch.ones_like(origin))
    except ValueError as error:
        refusal = str(error)
    assert "no affine image" in refusal


def check_affine(case: DistributionCase) -> None:
    """A change of units moves the density by its Jacobian over the values present; counts refuse."""
    origin = torch.arange(1.0, 1.0 + case.rows.shape[1], dtype=torch.float64)
    if case.scale is None:
        assert_refuses(case.distribution, origin)
        return
    moved = case.distribution.affine(origin, case.scale)
    for rows in (case.rows, with_missing(case.rows)):
        jacobian = (~torch.isnan(rows)).double() @ case.scale.log()
        near(moved.log_prob(origin + case.scale * rows), case.distribution.log_prob(rows) - jacobian)
    near(moved.mean, origin + case.scale * case.distribution.mean)


DISTRIBUTION_CHECKS = (check_shapes, check_density, check_moments, check_draws)
FAMILY_CHECKS = (
    check_joint,
    check_statistics,
    check_missing,
    check_additive,
    check_complete,
    check_fitted,
    check_free,
    check_select,
    check_split,
    check_affine,
)
