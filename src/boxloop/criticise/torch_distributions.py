r"""``torch.distributions`` as batches of distributions, with exact second moments where these are known.

Columns of one event are correlated unless the distribution says otherwise: its variances alone would make any
covariance diagonal. Where mean or covariance has no closed form, criticism draws rows and counts their error.
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
class TorchBatch:
    """A batch of m distributions over d columns from ``torch.distributions``.

    Its batch shape is (m,) or () with an event of d columns; or, of scalars, (m, d), or (d,) for one distribution.
    """

    distribution: TorchDistribution

    def __post_init__(self) -> None:
        batch, event = self.distribution.batch_shape, self.distribution.event_shape
        if event and len(batch) > 1:
            raise ValueError(
                f"{type(self.distribution).__name__} has batch shape {tuple(batch)} and event shape {tuple(event)}: a "
                "batch of m distributions has batch shape (m,); reshape it, or make columns by Independent(..., 1)"
            )

    @property
    def columns(self) -> int:
        """d."""
        batch, event = self.distribution.batch_shape, self.distribution.event_shape
        return event.numel() if event else (batch[1:] if len(batch) > 1 else batch).numel()

    @property
    def mean(self) -> Tensor:
        """(m, d); NaN where it has no closed form."""
        mean = _closed_form_mean(self.distribution)
        return (
            torch.full_like(self._sample(1)[0], torch.nan) if mean is None else mean.reshape(-1, self.columns)
        )

    @property
    def has_closed_form_moments(self) -> bool:
        """Whether mean and covariance have a closed form."""
        return (
            _closed_form_mean(self.distribution) is not None
            and _closed_form_covariance(self.distribution, self.columns) is not None
        )

    def covariance(self) -> forms.Dense | forms.Diagonal | forms.LowRank:
        """In the cheapest form that is exact; a ValueError where it has no closed form."""
        found = _closed_form_covariance(self.distribution, self.columns)
        if found is None:
            raise ValueError(
                f"{type(self.distribution).__name__} has no covariance in closed form: draw rows from it with "
                "method='sample'"
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
            raise TypeError(f"{name} draws no samples: criticism needs its sample()") from error
        rows = drawn if drawn.is_floating_point() else drawn.double()
        return rows.reshape(n, -1, self.columns)


def from_torch(distribution: TorchDistribution) -> Distribution:
    """The distribution, as the class with the most closed forms."""
    batch = TorchBatch(distribution)
    if isinstance(_unwrap_independent(distribution), distributions.Normal):
        return DiagonalGaussian(batch.mean, distribution.variance.reshape(-1, batch.columns))
    if isinstance(distribution, distributions.MultivariateNormal):
        return FullGaussian(batch.mean, distribution.scale_tril.reshape(-1, batch.columns, batch.columns))
    return batch


def repeat_batch(distribution: TorchDistribution, m: int) -> Distribution:
    """The same distribution of rows m times."""
    columns = () if distribution.event_shape else (TorchBatch(distribution).columns,)
    try:
        return from_torch(distribution if m == 1 else distribution.expand(torch.Size((m, *columns))))
    except NotImplementedError as error:
        raise TypeError(f"{type(distribution).__name__} has no expand(), which batches of it need") from error


def _closed_form_mean(distribution: TorchDistribution) -> Tensor | None:
    """The mean, None where it has no closed form, or where ``mean`` is another quantity."""
    if isinstance(distribution, distributions.Independent):
        return _closed_form_mean(distribution.base_dist)
    part = _unwrap_independent(getattr(distribution, "component_distribution", distribution))  # of a mixture
    if isinstance(part, distributions.VonMises | distributions.Categorical):
        return None  # the circular mean; no mean at all
    try:
        return distribution.mean
    except NotImplementedError:
        return None


def _closed_form_covariance(
    distribution: TorchDistribution, columns: int
) -> forms.Dense | forms.Diagonal | forms.LowRank | None:
    """Of all members, over (d,) columns; None where it has no closed form."""
    if isinstance(distribution, distributions.LowRankMultivariateNormal):
        factor = distribution.cov_factor.reshape(-1, *distribution.cov_factor.shape[-2:])
        return forms.LowRank(factor, distribution.cov_diag.reshape(-1, columns))
    is_mixture_of_events = (
        isinstance(distribution, distributions.MixtureSameFamily) and distribution.event_shape
    )
    has_independent_columns = not _unwrap_independent(distribution).event_shape and not is_mixture_of_events
    if has_independent_columns and _closed_form_mean(distribution) is not None:
        return forms.Diagonal(distribution.variance.reshape(-1, columns))
    dense = _dense_covariance(distribution)
    return None if dense is None else forms.Dense(dense.reshape(-1, columns, columns))


def _unwrap_independent(distribution: Any) -> Any:
    while isinstance(distribution, distributions.Independent):
        distribution = distribution.base_dist
    return distribution


def _dense_covariance(distribution: TorchDistribution) -> Tensor | None:
    """Covariance over the flattened event, (*batch, d, d); None where it has no closed form."""
    d = distribution.event_shape.numel()
    if isinstance(distribution, distributions.MultivariateNormal | distributions.LowRankMultivariateNormal):
        return distribution.covariance_matrix
    if isinstance(distribution, distributions.Independent):
        return _block_diagonal_covariance(distribution)
    if isinstance(distribution, distributions.MixtureSameFamily):
        return _mixture_covariance(distribution)
    if isinstance(distribution, distributions.Dirichlet):
        total = distribution.concentration.sum(-1)[..., None, None]
        return _multinomial_covariance(distribution.mean) / (total + 1.0)
    if isinstance(distribution, distributions.Multinomial):
        return distribution.total_count * _multinomial_covariance(distribution.probs)
    if isinstance(distribution, distributions.OneHotCategorical):
        return _multinomial_covariance(distribution.probs)
    if not distribution.event_shape and _closed_form_mean(distribution) is not None:
        return distribution.variance.reshape(*distribution.batch_shape, d, d)
    return None


def _multinomial_covariance(probability: Tensor) -> Tensor:
    """diag(p) - p p'."""
    return torch.diag_embed(probability) - probability[..., :, None] * probability[..., None, :]


def _block_diagonal_covariance(distribution: distributions.Independent[Any]) -> Tensor | None:
    """Columns of different events are independent: their covariances are blocks along the diagonal."""
    within = _dense_covariance(distribution.base_dist)
    if within is None:
        return None
    size = within.shape[-1]
    outer = distribution.event_shape.numel() // size
    blocks = within.reshape(*distribution.batch_shape, outer, size, size)
    eye = torch.eye(outer, dtype=within.dtype, device=within.device)
    placed = eye[:, None, :, None] * blocks[..., :, :, None, :]
    return placed.reshape(*distribution.batch_shape, outer * size, outer * size)


def _mixture_covariance(distribution: distributions.MixtureSameFamily) -> Tensor | None:
    """Mean covariance of the components plus covariance of their means."""
    part = distribution.component_distribution
    within, mean = _dense_covariance(part), _closed_form_mean(part)
    if within is None or mean is None:
        return None
    weight = distribution.mixture_distribution.probs
    means = mean.reshape(*part.batch_shape, -1)
    apart = means - (weight[..., None] * means).sum(-2, keepdim=True)
    between = (apart * weight[..., None]).mT @ apart
    return (weight[..., None, None] * within).sum(-3) + between
