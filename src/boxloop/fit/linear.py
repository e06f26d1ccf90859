r"""From a source of rows to a fitted factor model, or to probabilistic principal components.

Factor analysis of complete rows ends with Newton's method on the likelihood of the noise alone: given the noise, the
best loadings are known. With :math:`\theta_1 \ge \dots \ge \theta_d` the eigenvalues of
:math:`\Psi^{-1/2} S \Psi^{-1/2}`, :math:`\omega_j` their vectors, k factors and :math:`u = \log \psi`,

.. math:: -\tfrac{2}{n} L(u) = d \log 2\pi + \sum_i u_i + \sum_{j \le k} (1 + \log \theta_j) + \sum_{j > k} \theta_j,
   \qquad g_i = \sum_{j > k} (1 - \theta_j)\, \omega_{ij}^2,

.. math:: H_{il} = \sum_{j, m > k} \tfrac{\theta_j + \theta_m}{2}\, w_{jm}
   + \sum_{j > k \ge m} \frac{(1 - \theta_j)(\theta_m + \theta_j)}{\theta_m - \theta_j}\, w_{jm},
   \qquad w_{jm} = \omega_{ij} \omega_{lj} \omega_{im} \omega_{lm}.

Joreskog (1967), Lawley and Maxwell (1971), Clarke (1970). A handful of steps where EM takes tens of iterations, or
thousands if a column's noise vanishes (a Heywood case: EM creeps as 1/t); a floor of the noise is a bound of the
search. A step costs :math:`O(k d^3)`, so wide tables begin with EM and come here only when it creeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from torch import Generator, Tensor

from boxloop.data import ArraySource, Standardisation, StandardisedSource, shuffle_rows, summarise_moments
from boxloop.fit.em import EMState, Step, em
from boxloop.fit.fit import Coordinates, Fit, Plan, coordinates, to_standard, unstandardise
from boxloop.fit.start import Sample, race
from boxloop.loop import Iteration, Outcome, run
from boxloop.models import FactorModel, LinearGaussian, PrincipalModel
from boxloop.numeric import gram
from boxloop.types import Source

L = TypeVar("L", bound=LinearGaussian)

SAMPLE_ROWS = 4096
"""Rows that start a fit whose second moments are not known."""

EXPLAINED = 1e-6
"""Less than this part of a column's variance left by the others is rounding."""

RACED_COLUMNS, NOISE_RACE_ITERATIONS = 40, 15
"""Widest table on which two starts race, and for how many iterations: there one takes less than a millisecond."""

PROFILE_COLUMNS = 512
"""Widest table for which eigenvalues in every step are cheap beside hundreds of EM iterations."""


def fit_linear(
    source: Source,
    k: int,
    model: type[L],
    *,
    kind: Coordinates,
    generator: Generator,
    plan: Plan,
    floor: float,
    start: L | None = None,
    exact: bool = True,
) -> Fit[L]:
    """Fit a factor model or probabilistic principal components, in closed form where there is one and ``exact``.

    Complete rows are summarised by their second moments in one pass, after which the cost of an iteration does not
    depend on their number. ``floor`` is the smallest noise variance, relative to the scale of the coordinates.
    """
    source, frame, standard = prepare_rows(source, kind, generator, plan)
    summed = not isinstance(standard, StandardisedSource)
    mean, deviations = _measure_sample_moments(standard, generator)
    if plan.resume is not None:
        first: Any = plan.resume.state.model
    elif start is not None:
        first = to_standard(start, frame, kind)
    else:
        first = _start_from_principal_axes(model, mean, deviations, k, floor)
    alone = plan.resume is not None or start is not None
    outcome: Outcome[Any] = Outcome(EMState(first))
    if issubclass(model, PrincipalModel) and exact and summed and start is None:
        outcome = run(em(standard), EMState(first), max_iter=1)
        outcome = replace(outcome, state=EMState(first, outcome.state.path), converged=True)
    else:
        profile = issubclass(model, FactorModel) and summed and len(mean) <= PROFILE_COLUMNS
        helped = partial(make_profile_step, mean=mean, covariance=gram(deviations)) if profile else None
        narrow = len(mean) <= RACED_COLUMNS and plan.max_iter > NOISE_RACE_ITERATIONS
        if profile and narrow and not alone and plan.accelerate and plan.finish:
            outcome = _race_noise_starts(
                make_profile_step(em(standard), mean, gram(deviations)), first, deviations
            )
            first = outcome.state.best
        if not outcome.interrupted:
            outcome = plan.run(standard, first, generator, helped)
    fit = unstandardise(outcome, source, standard, frame, kind)
    return replace(fit, model=fit.model.to_canonical_form())


def prepare_rows(
    source: Source, kind: Coordinates, generator: Generator, plan: Plan
) -> tuple[Source, Standardisation, Source]:
    """The rows in the order of the engine, their frame, and what is fitted: second moments where these are enough."""
    if plan.engine != "em":
        source = shuffle_rows(source, generator)
    summary = summarise_moments(source, plan.dtype) if plan.engine == "em" else None
    if summary is None:
        frame = coordinates(source, kind)
        return source, frame, StandardisedSource(source, frame, plan.dtype)
    frame = coordinates(source, kind, summary.frame)
    return source, frame, summary.rows(frame.origin, frame.scale)


def _measure_sample_moments(source: Source, generator: Generator) -> tuple[Tensor, Tensor]:
    """Mean (d,) and rows whose Gram matrix is the covariance: enough for principal directions of any width."""
    if isinstance(source, ArraySource) and source.weight is not None:  # moments, as rows
        filled, weight = source.rows, source.weight
    else:
        sample = Sample.draw(source, SAMPLE_ROWS, generator)
        filled, weight = sample.filled, sample.weight
    share = weight / weight.sum()
    mean = share @ filled
    return mean, (filled - mean) * share.sqrt()[:, None]


def _start_from_principal_axes(model: type[L], mean: Tensor, deviations: Tensor, k: int, floor: float) -> L:
    """Principal directions of the sample, noise from what they leave; for factors, from what columns share."""
    d = len(mean)
    values, axes = _find_principal_axes(deviations, k)
    rest = (deviations.square().sum() - values.sum()).clamp(min=0.0) / max(d - k, 1)
    noise = rest.clamp(min=floor)
    loadings = axes * (values - noise).clamp(min=0.0).sqrt()
    if not issubclass(model, FactorModel):
        return model(mean, loadings, noise[None], floor)
    variance = deviations.square().sum(0)
    own = _estimate_unique_variances(deviations, k)
    if own is None:
        own = (variance - loadings.square().sum(1)).maximum(0.05 * variance)
    return model(mean, loadings, own.clamp(min=floor), floor)


def _race_noise_starts(
    step: Step[FactorModel], first: FactorModel, deviations: Tensor
) -> Outcome[EMState[FactorModel]]:
    """The better of two starts after some iterations: what columns share, and what principal directions leave."""
    variance, k = deviations.square().sum(0), first.loadings.shape[1]
    values, axes = _find_principal_axes(deviations, k)
    left = (variance - (axes.square() * values).sum(1)).maximum(0.05 * variance)
    other = replace(first, noise=left.clamp(min=first.floor))
    outcomes = race(step, [EMState(first), EMState(other)], iterations=NOISE_RACE_ITERATIONS, tol=1e-9)
    return next((outcome for outcome in outcomes if outcome.interrupted), outcomes[0])


def _estimate_unique_variances(deviations: Tensor, k: int) -> Tensor | None:
    """Variance of each column that the others do not explain, Joreskog's start, (d,); None where they explain all."""
    n, d = deviations.shape
    factor, failed = torch.linalg.cholesky_ex(gram(deviations)) if n > d else (deviations, True)
    if bool(failed):
        return None
    own = (1.0 - 0.5 * k / d) / torch.cholesky_inverse(factor).diagonal()
    return own if bool((own > EXPLAINED * deviations.square().sum(0)).all()) else None


def _find_principal_axes(deviations: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of ``deviations.T @ deviations`` and their vectors (d, k), zero beyond the rank."""
    n, d = deviations.shape
    if n >= d:
        squares, vectors = torch.linalg.eigh(gram(deviations))
        return squares[-k:].flip(0).clamp(min=0.0), vectors[:, -k:].flip(1)
    _, size, right = torch.linalg.svd(deviations, full_matrices=False)
    values, axes = size.new_zeros(k), size.new_zeros(d, k)
    values[: min(k, n)] = size[:k].square()
    axes[:, : min(k, n)] = right[:k].mT
    return values, axes


Array = NDArray[np.float64]

CREEPING = 1e-2
"""Noise below this part of a column's variance is on its way to the floor."""

QUICK_COLUMNS = 128
"""Widest table for which a Newton step costs less than the EM iterations it saves."""

CLOSE = 0.1
"""Residual eigenvalues this near to 1 leave an error of a tenth a step if their expected curvature is used."""

BLOCK_VALUES = 1 << 22
"""Values held at once for the second derivatives."""


def make_profile_step(step: Step[FactorModel], mean: Tensor, covariance: Tensor) -> Step[FactorModel]:
    """Newton's method over the noise; on wide tables the given EM step, until a noise variance nears its floor."""
    second: Array = covariance.cpu().numpy()
    lowest = CREEPING * covariance.diagonal()
    # The point behind the last model, so as not to compute it twice.
    known: list[tuple[FactorModel, NoiseProfile]] = []

    def iterate(state: EMState[FactorModel]) -> Iteration[EMState[FactorModel]]:
        model = state.model
        wide = len(second) > QUICK_COLUMNS
        if state.safe is not None or (wide and not bool((model.noise < lowest).any())):
            return step(state)
        if known and known[0][0] is model:
            here = known.pop()[1]
        else:
            noise: Array = model.noise.double().cpu().numpy()
            here = NoiseProfile.at_noise(noise, second, model.loadings.shape[1])
        known.clear()
        there = here.take_step(max(model.floor, 1e-300))
        point = here if there is None else there
        fitted = torch.from_numpy(point.loadings).to(mean), torch.from_numpy(point.noise).to(mean)
        better = type(model)(mean, *fitted, model.floor, model.expand)
        known.append((better, point))
        return Iteration(EMState(better), -0.5 * here.value, final=there is None)

    return iterate


@dataclass(frozen=True)
class NoiseProfile:
    """Minus twice the mean log-likelihood at one noise, with the best loadings for it."""

    noise: Array  # psi, (d,)
    second: Array  # covariance of the rows, S, (d, d)
    k: int  # most factors
    value: float  # minus twice the mean log-likelihood per row
    size: Array  # theta, largest first, (d,)
    axes: Array  # omega, their vectors, (d, d)
    used: int  # factors that explain more than noise would: those with theta above 1, at most k

    @classmethod
    def at_noise(cls, noise: Array, second: Array, k: int) -> NoiseProfile:
        """The profile at this noise."""
        root = np.sqrt(noise)
        values, vectors = np.linalg.eigh(second / root[:, None] / root)
        size, axes = values[::-1], vectors[:, ::-1]
        used = min(k, int((size > 1.0).sum()))
        value = len(noise) * np.log(2.0 * np.pi) + np.log(noise).sum()
        value += used + np.log(size[:used]).sum() + size[used:].sum()
        return cls(noise, second, k, float(value), size, axes, used)

    @property
    def loadings(self) -> Array:
        """The best loadings, (d, k); zero for factors that explain nothing."""
        loadings = np.zeros((len(self.noise), self.k))
        length = np.sqrt(self.size[: self.used] - 1.0)
        loadings[:, : self.used] = np.sqrt(self.noise)[:, None] * self.axes[:, : self.used] * length
        return loadings

    def gradient(self) -> Array:
        """Slope of the value in log noise, (d,)."""
        rest = self.axes[:, self.used :]
        return np.asarray(np.square(rest) @ (1.0 - self.size[self.used :]))

    def hessian(self) -> Array:
        """Second derivatives of the value in log noise, (d, d)."""
        top, rest = self.axes[:, : self.used], self.axes[:, self.used :]
        t, r = self.size[: self.used, None], self.size[self.used :]
        result = (rest @ rest.T) * ((rest * r) @ rest.T)
        weight = (1.0 - r) * (t + r) / np.maximum(t - r, 1e-12)
        block = max(1, BLOCK_VALUES // max(rest.size, 1))
        for start in range(0, self.used, block):
            some = slice(start, start + block)
            pairs = (top[:, some, None] * rest[:, None, :]).reshape(len(top), -1)
            result += (pairs * weight[some].reshape(-1)) @ pairs.T
        return np.asarray(result)

    def take_step(self, floor: float) -> NoiseProfile | None:
        """A point of lower value one Newton step on, no noise below the floor; None at a minimum."""
        u, slope = np.log(self.noise), self.gradient()
        low = np.full_like(u, np.log(floor))
        high = np.maximum(np.log(np.maximum(self.second.diagonal(), 1e-300)), low)
        free = ~(((u <= low + 1e-12) & (slope > 0.0)) | ((u >= high - 1e-12) & (slope < 0.0)))
        if not free.any():
            return None
        move = np.zeros_like(u)
        move[free] = -self._newton_step(slope, free)
        if -float(slope @ move) < 1e-15 * abs(self.value):
            return None
        for length in 0.5 ** np.arange(12):
            target = np.clip(u + length * move, low, high)
            there = NoiseProfile.at_noise(np.exp(target), self.second, self.k)
            if there.value < self.value + 1e-4 * float(slope @ (target - u)):
                return there
        return None

    def _newton_step(self, slope: Array, free: NDArray[np.bool_]) -> Array:
        """Newton's step over the free columns; with the expected curvature where it is as good, or the only one."""
        rest = self.axes[:, self.used :]
        expected = np.square(rest @ rest.T)
        expected.flat[:: len(expected) + 1] += 1e-6  # a column that factors explain wholly has none
        close = float(np.abs(1.0 - self.size[self.used :]).max(initial=0.0)) < CLOSE
        for curvature in (expected,) if close else (self.hessian(), expected):
            try:
                factor: Any = cho_factor(curvature[np.ix_(free, free)], check_finite=False)
            except LinAlgError:
                continue
            return np.asarray(cho_solve(factor, slope[free], check_finite=False))
        return slope[free]
