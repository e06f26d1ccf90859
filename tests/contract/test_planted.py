"""Planted bugs: each must be caught by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import pytest
import torch
from torch import Generator, Tensor

from boxloop import distributions, models
from boxloop.distributions import MissingValueView, PatternView, Sums
from boxloop.models import LinearStatistics
from boxloop.numeric import ConditionError
from boxloop.types import Expected
from contract import distribution_checks, model_checks
from contract.distributions import distribution_case
from contract.models import MODELS


class NoJacobian(distributions.DiagonalGaussian):
    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        return type(self)(origin + scale * self.mean, self.variance, self.floor)


class UnbiasedVariance(distributions.DiagonalGaussian):
    def fit_statistics(self, statistics: Sums) -> Self:
        best = super().fit_statistics(statistics)
        count = statistics.count[:, None]
        return replace(best, variance=best.variance * count / (count - 1.0))


class AddedRidge(distributions.FullGaussian):
    def fit_statistics(self, statistics: Sums) -> Self:
        best = super().fit_statistics(statistics)
        ridge = 1e-6 * torch.eye(best.mean.shape[1], dtype=torch.float64)
        return type(self).from_covariance(best.mean, best.covariance().dense() + ridge)


class VarianceAsDeviation(distributions.DiagonalGaussian):
    def draw(self, n: int, generator: Generator) -> Tensor:
        noise = torch.randn(*self.mean.shape, n, generator=generator, dtype=torch.float64).mT
        return self.mean[:, None] + self.variance[:, None] * noise


class NoBaseMeasure(distributions.Poisson):
    def log_base(self, rows: Tensor) -> None:
        return None


class MovableCounts(distributions.Poisson):
    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        return type(self)(origin + scale * self.mean)


class EqualParts(distributions.FullGaussian):
    def split(self, member: int, pieces: int) -> Tensor:
        return super().split(member, 2)[[0] * pieces]


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        (NoJacobian, distribution_checks.check_affine),
        (UnbiasedVariance, distribution_checks.check_fitted),
        (AddedRidge, distribution_checks.check_fitted),
        (VarianceAsDeviation, distribution_checks.check_draws),
        (NoBaseMeasure, distribution_checks.check_density),
        (MovableCounts, distribution_checks.check_affine),
        (EqualParts, distribution_checks.check_split),
    ],
)
def test_a_bug_in_a_distribution_is_caught(bug: type, check: Callable[[Any], None]) -> None:
    case = distribution_case(bug.__base__)
    check(case)
    values = {f.name: getattr(case.distribution, f.name) for f in fields(case.distribution)}
    with pytest.raises(AssertionError):
        check(replace(case, distribution=bug(**values)))


class _Certain(PatternView):
    def _conditional_covariance(self, batch: Any, factor: Tensor) -> Tensor:
        return torch.zeros_like(factor)


_summarise_patterns = PatternView.summarise


def _without_conditional_covariance(self: PatternView, share: Tensor) -> Sums:
    certain = _Certain(self.mean, self.covariance, self.rows.mT)
    return _summarise_patterns(certain, share)


def _absent_as_zero(self: MissingValueView, share: Tensor) -> Sums:
    d = self.seen.shape[0]
    return Sums(torch.cat([share.sum(1, keepdim=True), (share @ self.features.mT)[:, d:]], dim=1))


@pytest.mark.parametrize(
    ("view", "bug", "family"),
    [
        (PatternView, _without_conditional_covariance, distributions.FullGaussian),
        (PatternView, _without_conditional_covariance, distributions.TiedGaussian),
        (MissingValueView, _absent_as_zero, distributions.DiagonalGaussian),
        (MissingValueView, _absent_as_zero, distributions.Poisson),
    ],
)
def test_forgetting_what_missing_values_might_have_been_is_caught(
    view: type, bug: Callable[..., Sums], family: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = distribution_case(family)
    mixture = dict(MODELS[models.Mixture]())[family.__name__]
    monkeypatch.setattr(view, "summarise", bug)
    with pytest.raises(AssertionError):
        distribution_checks.check_missing(case)
    with pytest.raises(AssertionError):
        model_checks.check_fisher(mixture)
    with pytest.raises(AssertionError):
        model_checks.check_monotone(mixture)


@dataclass(frozen=True)
class DroppedWeight(models.Mixture):
    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Any]:
        return super().expect(rows, torch.ones_like(weight))


@dataclass(frozen=True)
class MeanNotSum(models.Mixture):
    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Any]:
        return super().expect(rows, weight / weight.sum())


@dataclass(frozen=True)
class SharesOverRows(models.Mixture):
    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Any]:
        right = super().expect(rows, weight)
        view = self.family.view(rows)
        share = view.log_joint(self.log_weight).softmax(1) * len(rows) / self.n_components
        return replace(right, statistics=view.summarise(share * weight))


@dataclass(frozen=True)
class NoMixingWeights(models.Mixture):
    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Any]:
        right = super().expect(rows, weight)
        view = self.family.view(rows)
        return replace(
            right, statistics=view.summarise(view.log_joint(self.log_weight * 0).softmax(0) * weight)
        )


@dataclass(frozen=True)
class ShuffledLabels(models.Mixture):
    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        rows, z = super().sample(n, generator)
        return rows, z.flip(0)


@dataclass(frozen=True)
class WithinOnly(models.Mixture):
    def moments(self) -> tuple[Tensor, Any]:
        mean, covariance = super().moments()
        between = torch.cov(self.family.mean.T, correction=0, aweights=self.log_weight.exp())
        return mean, replace(covariance, matrix=covariance.matrix - between)


@dataclass(frozen=True)
class PointFactors(models.FactorModel):
    """An E step that takes the factors' posterior mean for the factors."""

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        right = super().expect(rows, weight)
        _, spread = self.posterior(rows)
        latent = right.statistics.latent.clone()
        latent[:-1, :-1] -= torch.einsum("n,nij->ij", weight, spread)
        return replace(right, statistics=replace(right.statistics, latent=latent))


@dataclass(frozen=True)
class AbsentAsZero(models.FactorModel):
    """An E step that counts a missing value as a zero that was seen."""

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        right = super().expect(rows, weight)
        return replace(right, statistics=replace(right.statistics, absent=right.statistics.absent[:1] * 0))


@pytest.mark.parametrize(
    ("bug", "checks"),
    [
        (DroppedWeight, (model_checks.check_likelihood, model_checks.check_repetition)),
        (MeanNotSum, (model_checks.check_likelihood, model_checks.check_chunks)),
        (SharesOverRows, (model_checks.check_fisher, model_checks.check_monotone)),
        (NoMixingWeights, (model_checks.check_fisher,)),
        (ShuffledLabels, (model_checks.check_sample_pairs,)),
        (WithinOnly, (model_checks.check_sample,)),
        (PointFactors, (model_checks.check_fisher,)),
        (AbsentAsZero, (model_checks.check_fisher, model_checks.check_monotone)),
    ],
)
def test_a_bug_in_a_model_is_caught(bug: type, checks: tuple[Callable[[Any], None], ...]) -> None:
    cases = dict(MODELS[bug.__base__]())
    case = cases.get("DiagonalGaussian") or cases[""]
    values = {f.name: getattr(case.model, f.name) for f in fields(case.model)}
    planted = replace(case, model=bug(**values), expanded=None)
    # Shares over rows end in a variance of zero, which is refused where it arises.
    caught = (AssertionError, ConditionError) if bug is SharesOverRows else AssertionError
    for check in checks:
        check(case)
        with pytest.raises(caught):
            check(planted)
