r"""Variational autoencoders: a prior of codes, a decoder that makes laws of rows, an encoder that guesses the code.

.. math:: \log p(x) \ge E_{q(z \mid x)} \log p(x \mid z) - \mathrm{KL}\left( q(z \mid x) \,\|\, p(z) \right),
          \qquad q(z \mid x) = N\left( \mu(x), \mathrm{diag}(\sigma^2(x)) \right)

Document 002, section 3.4 (the display before eq. 3.1). Kingma and Welling (2014), "Auto-encoding variational Bayes".

Deviation: eq. 3.1 asks for the argmax of the loss, minus the bound; it is the argmin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Generator, Tensor

from boxloop.laws.gaussian import DiagonalGaussian
from boxloop.models.evidence import Bound, log_guess, score_noise, score_points
from boxloop.models.networks import Part
from boxloop.numeric.random import normal
from boxloop.tree import Tree
from boxloop.types import Law

MOST_DRAWS = 1 << 20
"""Behind the score of a row: their points are in memory, and more say no more of it."""

BLOCK = 1 << 21
"""Values (rows x draws x columns) of an importance bound, or of a sample, that are held at once."""

FAR = 30.0
"""Standard deviations from the mean beyond which the encoder sees a value as no further away: a value that no row came
near in training would make a code without bound, and a score of minus infinity where a poor one is owed."""

Noise = Callable[[Tensor, int, int], Tensor]
"""Rows (n, d), the first draw and how many (M) -> standard normal numbers, (M, n, k)."""


@dataclass(frozen=True)
class Autoencoder(Tree):
    r"""p(z), p(x|z) and a guess q(z|x) of the posterior.

    The networks see standardised rows :math:`u = (x - o) / s`; all that goes in and comes out is in the units of the
    data, and in the precision of ``origin``, whatever that of the networks is. Missing values are not taken: a NaN in
    a row makes all results of that row NaN.

    Args:
        encoder: (n, d) -> (n, 2k): mean and log-variance of q(z|x).
        decoder: (n, k) -> (n, width of the head).
        head: what the decoder's columns mean, see :mod:`boxloop.models.heads`.
        latent: the prior, see :mod:`boxloop.models.latent`.
        origin: o, (d,).
        scale: s, (d,), positive. Counts, zeros and ones, and categories keep o = 0 and s = 1.
        score_draws: draws of z behind a row's ``log_prob``.

    Example:
        >>> import torch
        >>> from boxloop.models.heads import GaussianHead
        >>> from boxloop.models.latent import StandardNormal
        >>> from boxloop.models.networks import Layers
        >>> stream = torch.Generator()
        >>> to_code, to_row = Layers(3, (8,), 4), Layers(2, (8,), 6)
        >>> model = Autoencoder.start(
        ...     Part(to_code, to_code.start(stream)), Part(to_row, to_row.start(stream)), GaussianHead(),
        ...     StandardNormal(2), columns=3)
        >>> rows, codes = model.sample(5, stream)
        >>> rows.shape, codes.shape, model.bound(rows, stream).value().shape
        (torch.Size([5, 3]), torch.Size([5, 2]), torch.Size([5]))
    """

    encoder: Part
    decoder: Part
    head: Any
    latent: Any
    origin: Tensor
    scale: Tensor
    score_draws: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.score_draws <= MOST_DRAWS:
            raise ValueError(f"score_draws must be from 1 to {MOST_DRAWS}, got {self.score_draws}")

    @classmethod
    def start(cls, encoder: Part, decoder: Part, head: Any, latent: Any, columns: int) -> Self:
        """A model of standardised rows, in the precision of its networks.

        Raises:
            ValueError: the parts do not fit one another.
        """
        like = decoder.parameters[0]
        _check_width("encoder", encoder, like.new_zeros(1, columns), 2 * latent.columns)
        _check_width("decoder", decoder, like.new_zeros(1, latent.columns), head.width(columns))
        return cls(encoder, decoder, head, latent, like.new_zeros(columns), like.new_ones(columns))

    def trainable(self) -> tuple[Tensor, ...]:
        """All that is learned: encoder, decoder, head, prior, in this order."""
        parts = (self.encoder, self.decoder, self.head, self.latent)
        return tuple(leaf for part in parts for _, leaf in part.leaves() if leaf.is_floating_point())

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model at other values of what is learned; differentiable.

        Raises:
            ValueError: another number of tensors than ``trainable`` gives.
        """
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

    def _code(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x) from standardised rows, (n, k) each."""
        seen = standard.clamp(-FAR, FAR) if self.head.continuous else standard
        mean, log_variance = self.encoder(seen).chunk(2, dim=1)
        return mean, log_variance

    def prior(self) -> Law:
        """The law of z."""
        law: Law = self.latent.law(self.origin)
        return law

    def emission(self, z: Tensor) -> Law:
        """The laws of x given each row of z, in the units of the data."""
        law = self.head.law(self.decoder(z).to(self.origin.dtype))
        found: Law = law.affine(self.origin, self.scale) if self.head.continuous else law
        return found

    def posterior(self, rows: Tensor) -> DiagonalGaussian:
        """q(z|x), one member a row: (n, k)."""
        mean, log_variance = (part.to(self.origin.dtype) for part in self._code(self.standardise(rows)))
        return DiagonalGaussian(mean, log_variance.exp())

    def bound(self, rows: Tensor, generator: Generator, draws: int = 1) -> Bound:
        r"""Both parts of the evidence lower bound, from M draws :math:`z_j = \mu(x) + \sigma(x) \epsilon_j` a row.

        .. math:: \frac1M \sum_j \log p(x \mid z_j) \quad\text{and}\quad \mathrm{KL}(q(z \mid x) \,\|\, p(z)),

        the latter in closed form, or from the same draws where it has none. Differentiable in all that is learned;
        nothing here waits for the device.

        Args:
            rows: (n, d).
            generator: on the device of the model.
            draws: M.

        Returns:
            The parts of each row, in the units of the data: the log-density of x, not of u.
        """
        return self.bound_at(rows, self.noise((draws, len(rows)), generator))

    def noise(self, shape: tuple[int, int], generator: Generator) -> Tensor:
        """Standard normal numbers behind M draws of the codes of n rows, (M, n, k)."""
        return normal((*shape, self.latent.columns), generator, self.encoder.parameters[0].dtype)

    def bound_at(self, rows: Tensor, noise: Tensor) -> Bound:
        """:meth:`bound` of rows (n, d) at given noise, (M, n, k)."""
        standard = self.standardise(rows)
        mean, log_variance = self._code(standard)
        z = mean + (0.5 * log_variance).exp() * noise
        fit = self._given(standard, z).mean(0)
        with torch.autocast(rows.device.type, enabled=False):
            divergence = self.latent.divergence(mean, log_variance)
            if divergence is None:
                divergence = (log_guess(log_variance, noise) - self._log_prior(z)).mean(0)
        return Bound(fit.to(self.origin.dtype) - self.scale.log().sum(), divergence.to(self.origin.dtype))

    def importance(self, rows: Tensor, generator: Generator, draws: int = 64) -> Tensor:
        r"""Importance-weighted bound of each row's log-density, (n,).

        .. math:: \log \frac1M \sum_{j=1}^M \frac{p(x, z_j)}{q(z_j \mid x)}, \qquad z_j \sim q(z \mid x)

        At least the evidence lower bound in expectation, and rising to log p(x) with M. Burda, Grosse and
        Salakhutdinov (2016), "Importance weighted autoencoders", eq. 8.

        Args:
            rows: (n, d).
            generator: on the device of the model.
            draws: M; they are made in blocks, so that memory does not grow with them.
        """
        if draws < 1:
            raise ValueError(f"an importance bound needs at least one draw, got {draws}")
        k, dtype = self.latent.columns, self.decoder.parameters[0].dtype
        return self._weighted(
            rows, draws, lambda part, start, size: normal((size, len(part), k), generator, dtype)
        )

    def log_prob(self, rows: Tensor) -> Tensor:
        """Importance bound of each row's log-density from ``score_draws`` nodes of its own, (n,).

        The nodes are Sobol points that depend on the row and on nothing else: a row's score is the same in every call,
        whatever rows are beside it, and the errors of different rows are as good as independent.
        """
        points = score_points(self.score_draws, self.latent.columns).to(self.origin.device)

        def noise(part: Tensor, start: int, size: int) -> Tensor:
            return score_noise(points[start : start + size], part).to(self.decoder.parameters[0].dtype)

        return self._weighted(rows, self.score_draws, noise)

    def _weighted(self, rows: Tensor, draws: int, noise: Noise) -> Tensor:
        """The importance bound in blocks of rows and of draws, (n,)."""
        found = []
        for part in rows.split(max(1, BLOCK // self._wide)):
            standard = self.standardise(part)
            code = self._code(standard)
            step = max(1, BLOCK // (self._wide * len(part)))
            sums = []
            for start in range(0, draws, step):
                drawn = noise(part, start, min(step, draws - start))
                sums.append(self._ratios(standard, code, drawn).logsumexp(0))
            found.append(torch.stack(sums).logsumexp(0))
        return torch.cat(found) - math.log(draws) - self.scale.log().sum()

    @property
    def _wide(self) -> int:
        """Columns of the widest thing that is made for every row and draw, of those known here."""
        return max(len(self.origin), self.decoder.parameters[-1].numel(), 2 * int(self.latent.columns))

    def _ratios(self, standard: Tensor, code: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        """log p(u, z) / q(z|u) at the codes of noise (M, n, k): (M, n)."""
        mean, log_variance = code
        z = mean + (0.5 * log_variance).exp() * noise
        fit = self._given(standard, z)
        with torch.autocast(standard.device.type, enabled=False):
            ratio = fit + self._log_prior(z) - log_guess(log_variance, noise)
        return ratio.to(self.origin.dtype)

    def _given(self, standard: Tensor, z: Tensor) -> Tensor:
        """log p(u|z) of standardised rows (n, d) under codes (M, n, k): (M, n). Laws are never in half precision."""
        raw = self.decoder(z.flatten(0, 1))
        rows = standard.expand(len(z), -1, -1).flatten(0, 1)
        with torch.autocast(standard.device.type, enabled=False):
            found: Tensor = self.head.law(raw).paired(rows)
        return found.reshape(z.shape[:2])

    def _log_prior(self, z: Tensor) -> Tensor:
        """log p(z) of codes (M, n, k): (M, n)."""
        found: Tensor = self.latent.log_density(z.flatten(0, 1))
        return found.reshape(z.shape[:2])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) and the codes behind them (n, k)."""
        z = self.prior().draw(n, generator)[0]
        parts = z.split(max(1, BLOCK // self._wide))
        return torch.cat([self.emission(part).draw(1, generator)[:, 0] for part in parts]), z

    def reconstruct(self, rows: Tensor) -> Tensor:
        """E[x | z] at the posterior mean of z, (n, d)."""
        parts = rows.split(max(1, BLOCK // self._wide))
        return torch.cat([self.emission(self.posterior(part).mean).mean for part in parts])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``.

        Raises:
            ValueError: its columns are counts, zeros and ones, or categories.
        """
        if not self.head.continuous:
            raise ValueError(
                f"{type(self.head).__name__} has no affine image: its columns have no other units"
            )
        return replace(self, origin=origin + scale * self.origin, scale=scale * self.scale)


def _check_width(name: str, part: Part, rows: Tensor, wanted: int) -> None:
    """That a part makes so many columns from these rows."""
    told = f"the {name} must make {wanted} columns from {rows.shape[1]}"
    try:
        with torch.no_grad():
            found = part(rows)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{told}, but does not take a row: {error}") from error
    if found.shape != (len(rows), wanted):
        raise ValueError(f"{told}; one row becomes {tuple(found.shape)}")
