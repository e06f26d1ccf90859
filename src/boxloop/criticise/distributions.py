r"""``torch.distributions`` as batches of laws, with exact second moments where these are known.

Columns of one event are correlated unless the distribution says otherwise: variances alone would make a diagonal
covariance of whatever it is. Where mean or covariance has no closed form, criticism draws rows and counts their error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, distributions
from torch.distributions import Distribution as TorchDistribution

from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.numeric import covariance as forms
from boxloop.types import Distribution


@dataclass(frozen=True)
class DistributionLaw:
    """A batch of ``torch.distributions`` as a law.

    Args:
        distribution: batch shape (m,) or () and an event of d columns; or, of scalars, batch shape (m, d) of
            independent columns, or (d,) for one law.
    """

    distribution: TorchDistribution

    def __post_init__(self) -> None:
        batch, event = self.distribution.batch_shape, self.distribution.event_shape
        if event and len(batch) > 1:
            raise ValueError(
                f"{type(self.distribution).__name__} has batch shape {tuple(batch)} and event shape {tuple(event)}: a "
                "batch of m laws has batch shape (m,); reshape it, or make columns of it by Independent(..., 1)"
            )

    @property
    def columns(self) -> int:
        """d."""
        batch, event = self.distribution.batch_shape, self.distribution.event_shape
        return event.numel() if event else (batch[1:] if len(batch) > 1 else batch).numel()

    @property
    def mean(self) -> Tensor:
        """(m, d); NaN where it has no closed form."""
        mean = _mean(self.distribution)
        if mean is not None:
            return mean.reshape(-1, self.columns)
        drawn = self._sample(1)
        return torch.full_like(drawn[0], torch.nan)

    @property
    def has_moments(self) -> bool:
        """Whether mean and covariance have a closed form."""
        return (
            _mean(self.distribution) is not None and _covariance(self.distribution, self.columns) is not None
        )

    def covariance(self) -> forms.Dense | forms.Diagonal | forms.LowRank:
        """In the cheapest form that is exact.

        Raises:
            ValueError: it has no closed form.
        """
        found = _covariance(self.distribution, self.columns)
        if found is None:
            raise ValueError(
                f"{type(self.distribution).__name__} has no covariance in closed form: draw rows from it instead "
                '(method="sample")'
            )
        return found

    def log_prob(self, rows: Tensor) -> Tensor:
        """(m, n)."""
        event, batch = self.distribution.event_shape, self.distribution.batch_shape
        shape = event or (batch[1:] if len(batch) > 1 else batch)
        batched = len(batch) > (0 if event else 1)
        placed = rows.reshape(len(rows), *((1,) if batched else ()), *shape)
        value = self.distribution.log_prob(placed)
        return (value if event else value.flatten(2 if batched else 1).sum(-1)).reshape(len(rows), -1).mT

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d). The distribution draws from torch's global stream, seeded here and put back."""
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(generator.get_state())
            drawn = self._sample(n)
            generator.set_state(torch.random.get_rng_state())
        return drawn.transpose(0, 1)

    def _sample(self, n: int) -> Tensor:
        """(n, m, d)."""
        try:
            drawn = self.distribution.sample(torch.Size((n,)))
        except NotImplementedError as error:
            name = type(self.distribution).__name__
            raise TypeError(f"{name} draws no samples: criticism needs a sample() of it") from error
        rows = drawn if drawn.is_floating_point() else drawn.double()
        return rows.reshape(n, -1, self.columns)


def distribution_law(given: TorchDistribution) -> Distribution:
    """A batch of distributions as the law with the most closed forms."""
    law = DistributionLaw(given)
    if isinstance(_base(given), distributions.Normal):
        return DiagonalGaussian(law.mean, given.variance.reshape(-1, law.columns))
    if isinstance(given, distributions.MultivariateNormal):
        return FullGaussian(law.mean, given.scale_tril.reshape(-1, law.columns, law.columns))
    return law


def repeated(given: TorchDistribution, members: int) -> Distribution:
    """The same distribution of rows so many times."""
    columns = () if given.event_shape else (DistributionLaw(given).columns,)
    try:
        return distribution_law(given if members == 1 else given.expand(torch.Size((members, *columns))))
    except NotImplementedError as error:
        raise TypeError(f"{type(given).__name__} has no expand(), which batches of it need") from error


def has_moments(law: Distribution) -> bool:
    """Whether mean and covariance of a law are known; else its draws must tell, and their error counts."""
    return not isinstance(law, DistributionLaw) or law.has_moments


def _mean(given: TorchDistribution) -> Tensor | None:
    """The mean, None where it has no closed form, or where ``mean`` is another quantity."""
    if isinstance(given, distributions.Independent):
        return _mean(given.base_dist)
    part = given.component_distribution if isinstance(given, distributions.MixtureSameFamily) else given
    if isinstance(part, distributions.Independent):
        part = part.base_dist
    if isinstance(part, distributions.VonMises | distributions.Categorical):
        return None  # the circular mean; no mean at all
    try:
        return given.mean
    except NotImplementedError:
        return None


def _covariance(
    given: TorchDistribution, columns: int
) -> forms.Dense | forms.Diagonal | forms.LowRank | None:
    """Of all members, over (d,) columns; None where it has no closed form."""
    if isinstance(given, distributions.LowRankMultivariateNormal):
        factor = given.cov_factor
        return forms.LowRank(factor.reshape(-1, *factor.shape[-2:]), given.cov_diag.reshape(-1, columns))
    if _mean(given) is not None and not _base(given).event_shape and not _is_mixture_of_events(given):
        return forms.Diagonal(given.variance.reshape(-1, columns))
    dense = _dense(given)
    return None if dense is None else forms.Dense(dense.reshape(-1, columns, columns))


def _base(given: TorchDistribution) -> TorchDistribution:
    return _base(given.base_dist) if isinstance(given, distributions.Independent) else given


def _is_mixture_of_events(given: TorchDistribution) -> bool:
    return isinstance(given, distributions.MixtureSameFamily) and bool(given.event_shape)


def _dense(given: TorchDistribution) -> Tensor | None:
    """Covariance over the flattened event, (*batch, d, d); None where it has no closed form."""
    d = given.event_shape.numel()
    if isinstance(given, distributions.MultivariateNormal | distributions.LowRankMultivariateNormal):
        return given.covariance_matrix
    if isinstance(given, distributions.Independent):
        return _blocks(given)
    if isinstance(given, distributions.MixtureSameFamily):
        return _between_and_within(given)
    if isinstance(given, distributions.Dirichlet):
        return _shares(given.mean) / (given.concentration.sum(-1) + 1.0)[..., None, None]
    if isinstance(given, distributions.Multinomial):
        return given.total_count * _shares(given.probs)
    if isinstance(given, distributions.OneHotCategorical):
        return _shares(given.probs)
    if not given.event_shape and _mean(given) is not None:
        return given.variance.reshape(*given.batch_shape, d, d)
    return None


def _shares(probability: Tensor) -> Tensor:
    """diag(p) - p p'."""
    return torch.diag_embed(probability) - probability[..., :, None] * probability[..., None, :]


def _blocks(given: distributions.Independent[Any]) -> Tensor | None:
    """Columns of different events are independent: their covariances are blocks along the diagonal."""
    within = _dense(given.base_dist)
    if within is None:
        return None
    size = within.shape[-1]
    outer = given.event_shape.numel() // size
    blocks = within.reshape(*given.batch_shape, outer, size, size)
    eye = torch.eye(outer, dtype=within.dtype, device=within.device)
    spread = eye[:, None, :, None] * blocks[..., :, :, None, :]
    return spread.reshape(*given.batch_shape, outer * size, outer * size)


def _between_and_within(given: distributions.MixtureSameFamily) -> Tensor | None:
    """Mean covariance of the components plus covariance of their means."""
    part = given.component_distribution
    within, mean = _dense(part), _mean(part)
    if within is None or mean is None:
        return None
    weight = given.mixture_distribution.probs
    means = mean.reshape(*part.batch_shape, -1)
    apart = means - (weight[..., None] * means).sum(-2, keepdim=True)
    between = (apart * weight[..., None]).mT @ apart
    return (weight[..., None, None] * within).sum(-3) + between
