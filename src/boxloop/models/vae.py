r"""Variational autoencoders: a prior of codes, a decoder that makes distributions of rows, an encoder of rows.

.. math:: \log p(x) \ge E_{q(z \mid x)} \log p(x \mid z) - \mathrm{KL}\left( q(z \mid x) \,\|\, p(z) \right),
          \qquad q(z \mid x) = N\left( \mu(x), \mathrm{diag}(\sigma^2(x)) \right)

Le Corff, section 3.4 (the display before eq. 3.1). Kingma and Welling (2014), "Auto-encoding variational Bayes".

A prior of codes has ``distribution``, ``log_density``, ``divergence`` in closed form or None, and ``column_divergence``
per column. A head says what a decoder's raw columns mean, as distributions over standardised columns; parameters that
all rows share are tensors of it, trained with the networks; only ``continuous`` columns may be shifted and scaled.

Deviation: eq. 3.1 asks for the argmax of the loss, minus the bound; it is the argmin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.data import check_choice
from boxloop.distributions import (
    CategoricalColumns,
    DiagonalGaussian,
    LogitBernoulli,
    LogPoisson,
    NormalMixture,
    TiedLowRankGaussian,
)
from boxloop.models.networks import Part
from boxloop.numeric import normal, sobol_normal_nodes, sobol_points
from boxloop.tree import Tree
from boxloop.types import Distribution


@dataclass(frozen=True)
class Bound(Tree):
    """The two parts of the evidence lower bound of each row, in nats."""

    reconstruction: Tensor  # E log p(x|z) under q(z|x), (n,)
    divergence: Tensor  # KL(q(z|x) || p(z)), (n,)

    def value(self, beta: float | Tensor = 1.0) -> Tensor:
        """Reconstruction less beta times the divergence, (n,): the evidence lower bound where beta is 1."""
        return self.reconstruction - beta * self.divergence


def log_encoder_density(log_variance: Tensor, noise: Tensor) -> Tensor:
    """log q(z|x) at z = mean + deviation * noise, (M, n)."""
    return -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(-1)


HERMITE = 40
"""Nodes of Gauss and Hermite's rule where a divergence of one column has no closed form."""


@dataclass(frozen=True)
class StandardNormal(Tree):
    r""":math:`z \sim N(0, I_k)`, with the divergence :math:`\tfrac12 (\mu^2 + \sigma^2 - 1 - \log \sigma^2)` per
    column."""

    columns: int  # k

    def __post_init__(self) -> None:
        _check_columns(self.columns)

    def distribution(self, like: Tensor) -> DiagonalGaussian:
        """Mean zero, variance one."""
        return DiagonalGaussian(like.new_zeros(1, self.columns), like.new_ones(1, self.columns))

    def log_density(self, z: Tensor) -> Tensor:
        """(n,). Nothing here waits for the device, as the distribution's ``log_prob`` may."""
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """The columns' divergences added up, (n,)."""
        return self.column_divergence(mean, log_variance).sum(1)

    def column_divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """(n, k); expm1 keeps the digits of a column that is next to its prior."""
        return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance)


@dataclass(frozen=True)
class NormalMixturePrior(Tree):
    r"""A learned prior, :math:`z \sim \sum_c \pi_c N(m_c, \mathrm{diag}(v_c))`; a bound estimates its divergence
    from draws.

    Args:
        log_weight: (p,); any numbers, their softmax is pi.
        mean: (p, k).
        log_variance: (p, k).
    """

    log_weight: Tensor
    mean: Tensor
    log_variance: Tensor

    def __post_init__(self) -> None:
        p = len(self.log_weight)
        if self.mean.shape != self.log_variance.shape or self.mean.dim() != 2 or len(self.mean) != p:
            raise ValueError(
                f"{p} weights need means and log-variances of shape ({p}, k), got {tuple(self.mean.shape)} and "
                f"{tuple(self.log_variance.shape)}"
            )

    @classmethod
    def initial(
        cls, components: int, columns: int, generator: Generator, dtype: torch.dtype = torch.float64
    ) -> Self:
        """Equal weights; means of variance 3/4 and variances 1/4, together near the standard normal distribution."""
        _check_columns(columns)
        if components < 1:
            raise ValueError(f"a mixture needs at least one component, got {components}")
        mean = math.sqrt(0.75) * normal((components, columns), generator, dtype)
        zero = torch.zeros(components, dtype=dtype, device=generator.device)
        return cls(zero, mean, torch.full_like(mean, math.log(0.25)))

    @property
    def columns(self) -> int:
        """k."""
        return self.mean.shape[1]

    def distribution(self, like: Tensor) -> NormalMixture:
        """The mixture as one distribution."""
        members = DiagonalGaussian(self.mean.to(like), self.log_variance.to(like).exp())
        return NormalMixture(self.log_weight.to(like).log_softmax(0), members)

    def log_density(self, z: Tensor) -> Tensor:
        """(n,)."""
        return self.distribution(z).log_prob(z)[0]

    def divergence(self, mean: Tensor, log_variance: Tensor) -> None:
        """None: it is estimated from draws."""

    def column_divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """(n, k), against the prior's marginal of each column, by Gauss and Hermite's rule.
        They do not add up to the divergence of z: the columns of a mixture depend on one another."""
        node, weight = (
            torch.as_tensor(part).to(mean) for part in np.polynomial.hermite_e.hermegauss(HERMITE)
        )
        weight = weight / math.sqrt(2 * math.pi)
        deviation = (0.5 * log_variance).exp()
        total = torch.zeros_like(mean)
        for at, share in zip(node, weight, strict=True):
            total = total + share * self._column_log_density(mean + deviation * at)
        return -0.5 * (log_variance + 1.0 + math.log(2 * math.pi)) - total

    def _column_log_density(self, z: Tensor) -> Tensor:
        """Log-density of every value under its own column of the mixture, (n, k)."""
        level = self.log_weight.to(z).log_softmax(0)[:, None, None]
        variance = self.log_variance.to(z)[:, None]
        square = (z - self.mean.to(z)[:, None]).square() * (-variance).exp()
        return (level - 0.5 * (square + variance + math.log(2 * math.pi))).logsumexp(0)


def _check_columns(columns: int) -> None:
    if columns < 1:
        raise ValueError(f"a code needs at least one column, got {columns}")


FLOOR = 1e-4
"""Smallest variance of a Gaussian head, in units of a column's own."""

Variance = Literal["diagonal", "shared", "spherical"]


@dataclass(frozen=True)
class GaussianHead(Tree):
    r"""Independent Gaussian columns, :math:`x_j \mid z \sim N(\mu_j(z), \epsilon + e^{r_j})`.

    Without the floor :math:`\epsilon` the likelihood of an autoencoder is unbounded: it grows without limit as the
    noise of a row that is met exactly goes to zero.

    Args:
        variance: ``diagonal`` takes r from the decoder, a number for every row and column; ``shared`` learns one per
            column, ``spherical`` one for all.
        log_variance: r where it is learned, (d,) or (1,).
        floor: epsilon, in standard coordinates: 1e-4 is noise of one hundredth of a column's standard deviation.

    Example:
        >>> import torch
        >>> GaussianHead().distribution(torch.zeros(1, 2)).covariance().dense()
        tensor([[[1.0001]]])
    """

    variance: Variance = "diagonal"
    log_variance: Tensor | None = None
    floor: float = FLOOR
    continuous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice(self.variance, "variance", ("diagonal", "shared", "spherical"))
        if (self.log_variance is None) != (self.variance == "diagonal"):
            raise ValueError(
                "log_variance belongs to a shared or a spherical variance, which requires it: use GaussianHead.initial"
            )
        _check_floor(self.floor)

    @classmethod
    def initial(
        cls,
        variance: Variance,
        columns: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        floor: float = FLOOR,
    ) -> Self:
        """A head for so many columns, whose learned variances start at 1."""
        if variance == "diagonal":
            return cls(variance, None, floor)
        size = columns if variance == "shared" else 1
        return cls(variance, torch.zeros(size, dtype=dtype, device=device), floor)

    def raw_columns(self, columns: int) -> int:
        """Means, and raw log-variances where the decoder gives them."""
        return 2 * columns if self.log_variance is None else columns

    def distribution(self, raw: Tensor) -> DiagonalGaussian:
        """Means first, then raw log-variances."""
        if self.log_variance is None:
            mean, level = raw.chunk(2, dim=1)
            return DiagonalGaussian(mean, self.floor + level.exp())
        variance = self.floor + self.log_variance.to(raw.dtype).exp()
        return DiagonalGaussian(raw, variance.expand_as(raw))


@dataclass(frozen=True)
class LowRankHead(Tree):
    r"""Gaussian columns whose noise is correlated, :math:`x \mid z \sim N(\mu(z), W W^\top + \mathrm{diag}(\psi))`.

    Args:
        loadings: W, (d, r), shared by all rows.
        log_noise: raw numbers of psi = floor + exp(raw), (d,), shared by all rows.
        floor: of psi.
    """

    loadings: Tensor
    log_noise: Tensor
    floor: float = FLOOR
    continuous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    @classmethod
    def initial(
        cls,
        columns: int,
        rank: int,
        generator: Generator,
        dtype: torch.dtype = torch.float64,
        floor: float = FLOOR,
    ) -> Self:
        """A head for so many columns: small random loadings, which zeros could never leave, and noise near 1."""
        if rank < 1:
            raise ValueError(f"the rank of a low-rank head must be at least 1, got {rank}")
        loadings = normal((columns, rank), generator, dtype) * 0.1
        return cls(loadings, torch.zeros(columns, dtype=dtype, device=generator.device), floor)

    def raw_columns(self, columns: int) -> int:
        """The means."""
        return columns

    def distribution(self, raw: Tensor) -> TiedLowRankGaussian:
        """Means, with the shared covariance."""
        noise = self.floor + self.log_noise.to(raw.dtype).exp()
        return TiedLowRankGaussian(raw, self.loadings.to(raw.dtype), noise)


@dataclass(frozen=True)
class BernoulliHead(Tree):
    """Zeros and ones by their log-odds; see :class:`boxloop.distributions.LogitBernoulli` for grey values."""

    continuous: ClassVar[bool] = False

    def raw_columns(self, columns: int) -> int:
        """The log-odds."""
        return columns

    def distribution(self, raw: Tensor) -> LogitBernoulli:
        """Log-odds."""
        return LogitBernoulli(raw)


@dataclass(frozen=True)
class PoissonHead(Tree):
    """Counts by their log-rates."""

    continuous: ClassVar[bool] = False

    def raw_columns(self, columns: int) -> int:
        """The log-rates."""
        return columns

    def distribution(self, raw: Tensor) -> LogPoisson:
        """Log-rates."""
        return LogPoisson(raw)


@dataclass(frozen=True)
class CategoricalHead(Tree):
    """Columns of codes 0 to c_j - 1, by the logits of all columns side by side.

    Args:
        sizes: c, (d,), whole numbers; a tensor, so that it is where the logits are.
    """

    sizes: Tensor
    continuous: ClassVar[bool] = False

    @classmethod
    def from_sizes(cls, sizes: Sequence[int], device: torch.device | str = "cpu") -> Self:
        """A head for columns with so many categories each."""
        if not len(sizes) or min(sizes) < 1:
            raise ValueError(f"every column needs at least one category, got {list(sizes)}")
        return cls(torch.tensor(list(sizes), dtype=torch.int64, device=device))

    def raw_columns(self, columns: int) -> int:
        """One logit a category of each of these columns."""
        if columns != len(self.sizes):
            raise ValueError(f"the head is for {len(self.sizes)} columns of categories, not for {columns}")
        return int(self.sizes.sum())

    def distribution(self, raw: Tensor) -> CategoricalColumns:
        """Logits."""
        return CategoricalColumns(raw, self.sizes)


def _check_floor(floor: float) -> None:
    if not floor > 0.0:
        raise ValueError(
            f"the floor of a variance must be positive, got {floor}: without it there is no best fit"
        )


MAX_SCORE_DRAWS = 1 << 20
"""Draws behind the score of a row: their points are held in memory, and more add no precision worth having."""

BLOCK = 1 << 21
"""Values (rows x draws x columns) of an importance bound, or of a sample, in memory at once."""

ENCODER_LIMIT = 30.0
"""Standard deviations from the mean beyond which the encoder sees a value as no further away: a value that no row came
near in training would make a code without bound, and a score of minus infinity where a poor one is owed."""

Noise = Callable[[Tensor, int, int], Tensor]
"""Rows (n, d), the first draw and how many (M) -> standard normal numbers, (M, n, k)."""


@dataclass(frozen=True)
class Autoencoder(Tree):
    """p(z), p(x|z) and an approximation q(z|x) of the posterior.

    The networks see standardised rows :math:`u = (x - o) / s`; all that goes in and comes out is in the units of the
    data, and in the precision of ``origin``, whatever that of the networks is. Missing values are not taken: a NaN in
    a row makes all results of that row NaN.

    Args:
        encoder: (n, d) -> (n, 2k): mean and log-variance of q(z|x).
        decoder: (n, k) -> (n, width of the head).
        head: what the decoder's columns mean, for example :class:`GaussianHead`.
        latent: the prior, :class:`StandardNormal` or :class:`NormalMixturePrior`.
        origin: o, (d,).
        scale: s, (d,), positive. Counts, zeros and ones, and categories keep o = 0 and s = 1.
        score_draws: draws of z behind a row's ``log_prob``.
    """

    encoder: Part
    decoder: Part
    head: Any
    latent: Any
    origin: Tensor
    scale: Tensor
    score_draws: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.score_draws <= MAX_SCORE_DRAWS:
            raise ValueError(f"score_draws must be from 1 to {MAX_SCORE_DRAWS}, got {self.score_draws}")

    @classmethod
    def from_parts(cls, encoder: Part, decoder: Part, head: Any, latent: Any, columns: int) -> Self:
        """A model of standardised rows, in the precision of its networks, whose widths must fit."""
        like = decoder.parameters[0]
        _check_width("encoder", encoder, like.new_zeros(1, columns), 2 * latent.columns)
        _check_width("decoder", decoder, like.new_zeros(1, latent.columns), head.raw_columns(columns))
        return cls(encoder, decoder, head, latent, like.new_zeros(columns), like.new_ones(columns))

    def trainable(self) -> tuple[Tensor, ...]:
        """All that is learned: encoder, decoder, head, prior, in this order."""
        parts = (self.encoder, self.decoder, self.head, self.latent)
        return tuple(leaf for part in parts for _, leaf in part.leaves() if leaf.is_floating_point())

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model at other values of what is learned; differentiable."""
        if len(learned) != len(self.trainable()):
            raise ValueError(f"{len(self.trainable())} tensors are learned, got {len(learned)}")
        fresh = iter(learned)

        def take(leaf: Tensor) -> Tensor:
            return next(fresh) if leaf.is_floating_point() else leaf

        parts = {name: getattr(self, name).map(take) for name in ("encoder", "decoder", "head", "latent")}
        return replace(self, **parts)

    def standardise(self, rows: Tensor) -> Tensor:
        """u = (x - o) / s, in the precision of the networks."""
        u = (rows.to(self.origin.dtype) - self.origin) / self.scale
        return u.to(self.encoder.parameters[0].dtype)

    def _encode(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x) from standardised rows, (n, k) each."""
        seen = standard.clamp(-ENCODER_LIMIT, ENCODER_LIMIT) if self.head.continuous else standard
        mean, log_variance = self.encoder(seen).chunk(2, dim=1)
        return mean, log_variance

    def prior(self) -> Distribution:
        """The distribution of z."""
        distribution: Distribution = self.latent.distribution(self.origin)
        return distribution

    def emission(self, z: Tensor) -> Distribution:
        """The distributions of x given each row of z, in the units of the data."""
        distribution = self.head.distribution(self.decoder(z).to(self.origin.dtype))
        in_units: Distribution = (
            distribution.affine(self.origin, self.scale) if self.head.continuous else distribution
        )
        return in_units

    def posterior(self, rows: Tensor) -> DiagonalGaussian:
        """q(z|x), one member per row: (n, k)."""
        mean, log_variance = (part.to(self.origin.dtype) for part in self._encode(self.standardise(rows)))
        return DiagonalGaussian(mean, log_variance.exp())

    def evidence_bound(self, rows: Tensor, generator: Generator, draws: int = 1) -> Bound:
        r"""Both parts of the evidence lower bound, from M draws :math:`z_j = \mu(x) + \sigma(x) \epsilon_j` per row,
        (n,). The divergence is in closed form, or from the same draws where it has none. Nothing here waits for the
        device."""
        return self.evidence_bound_at(rows, self.draw_noise((draws, len(rows)), generator))

    def draw_noise(self, shape: tuple[int, int], generator: Generator) -> Tensor:
        """Standard normal numbers behind M draws of the codes of n rows, (M, n, k)."""
        return normal((*shape, self.latent.columns), generator, self.encoder.parameters[0].dtype)

    def evidence_bound_at(self, rows: Tensor, noise: Tensor) -> Bound:
        """:meth:`bound` of rows (n, d) at given noise, (M, n, k)."""
        bound = self.standard_bound(self.standardise(rows), noise)
        fit = bound.reconstruction.to(self.origin.dtype) - self.scale.log().sum()
        return Bound(fit, bound.divergence.to(self.origin.dtype))

    def standard_bound(self, standard: Tensor, noise: Tensor) -> Bound:
        """The bound of standardised rows (n, d), as a density of these, at given noise, (M, n, k)."""
        mean, log_variance = self._encode(standard)
        z = mean + (0.5 * log_variance).exp() * noise
        fit = self._log_likelihood(standard, z).mean(0)
        with torch.autocast(standard.device.type, enabled=False):
            divergence = self.latent.divergence(mean, log_variance)
            if divergence is None:
                divergence = (log_encoder_density(log_variance, noise) - self._log_prior(z)).mean(0)
        return Bound(fit, divergence)

    def importance_bound(self, rows: Tensor, generator: Generator, draws: int = 64) -> Tensor:
        r"""Importance-weighted bound, :math:`\log \frac1M \sum_j p(x, z_j) / q(z_j \mid x)`, which rises to log p(x)
        with M, (n,). Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", eq. 8."""
        if draws < 1:
            raise ValueError(f"an importance bound needs at least one draw, got {draws}")
        k, dtype = self.latent.columns, self.decoder.parameters[0].dtype
        return self._importance_bound(
            rows, draws, lambda part, start, size: normal((size, len(part), k), generator, dtype)
        )

    def log_prob(self, rows: Tensor) -> Tensor:
        """Importance bound of each row's log-density from ``score_draws`` Sobol nodes that depend on this row
        alone, (n,): its score is the same in every call, whatever rows are beside it."""
        points = sobol_points(self.score_draws, self.latent.columns).to(self.origin.device)

        def noise(part: Tensor, start: int, size: int) -> Tensor:
            return sobol_normal_nodes(points[start : start + size], part).to(self.decoder.parameters[0].dtype)

        return self._importance_bound(rows, self.score_draws, noise)

    def _importance_bound(self, rows: Tensor, draws: int, noise: Noise) -> Tensor:
        """The importance bound in blocks of rows and of draws, (n,)."""
        bounds = []
        for part in rows.split(max(1, BLOCK // self._largest_width)):
            standard = self.standardise(part)
            code = self._encode(standard)
            step = max(1, BLOCK // (self._largest_width * len(part)))
            sums = []
            for start in range(0, draws, step):
                drawn = noise(part, start, min(step, draws - start))
                sums.append(self._log_importance_ratios(standard, code, drawn).logsumexp(0))
            bounds.append(torch.stack(sums).logsumexp(0))
        return torch.cat(bounds) - math.log(draws) - self.scale.log().sum()

    @property
    def _largest_width(self) -> int:
        """Columns of the widest thing that is made for every row and draw, of those known here."""
        return max(len(self.origin), self.decoder.parameters[-1].numel(), 2 * int(self.latent.columns))

    def _log_importance_ratios(self, standard: Tensor, code: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        """log p(u, z) / q(z|u) at the codes of noise (M, n, k): (M, n)."""
        mean, log_variance = code
        z = mean + (0.5 * log_variance).exp() * noise
        fit = self._log_likelihood(standard, z)
        with torch.autocast(standard.device.type, enabled=False):
            ratio = fit + self._log_prior(z) - log_encoder_density(log_variance, noise)
        return ratio.to(self.origin.dtype)

    def _log_likelihood(self, standard: Tensor, z: Tensor) -> Tensor:
        """log p(u|z) of standardised rows (n, d) under codes (M, n, k): (M, n), never in half precision."""
        raw = self.decoder(z.flatten(0, 1))
        rows = standard.expand(len(z), -1, -1).flatten(0, 1)
        with torch.autocast(standard.device.type, enabled=False):
            log_prob: Tensor = self.head.distribution(raw).paired_log_prob(rows)
        return log_prob.reshape(z.shape[:2])

    def _log_prior(self, z: Tensor) -> Tensor:
        """log p(z) of codes (M, n, k): (M, n)."""
        log_density: Tensor = self.latent.log_density(z.flatten(0, 1))
        return log_density.reshape(z.shape[:2])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) and the codes behind them (n, k)."""
        z = self.prior().draw(n, generator)[0]
        parts = z.split(max(1, BLOCK // self._largest_width))
        return torch.cat([self.emission(part).draw(1, generator)[:, 0] for part in parts]), z

    def reconstruct(self, rows: Tensor) -> Tensor:
        """E[x | z] at the posterior mean of z, (n, d)."""
        parts = rows.split(max(1, BLOCK // self._largest_width))
        return torch.cat([self.emission(self.posterior(part).mean).mean for part in parts])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``, where its columns are continuous."""
        if not self.head.continuous:
            raise ValueError(
                f"{type(self.head).__name__} has no affine image: its columns have no other units"
            )
        return replace(self, origin=origin + scale * self.origin, scale=scale * self.scale)


def _check_width(name: str, part: Part, rows: Tensor, wanted: int) -> None:
    """That a part makes so many columns from these rows."""
    requirement = f"the {name} must make {wanted} columns from {rows.shape[1]}"
    try:
        with torch.no_grad():
            output = part(rows)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{requirement}, but does not take a row: {error}") from error
    if output.shape != (len(rows), wanted):
        raise ValueError(f"{requirement}; one row becomes {tuple(output.shape)}")
