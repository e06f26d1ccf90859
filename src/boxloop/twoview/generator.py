r"""Rows from few latent variables in the span of the relevant ones.

.. math:: z = W^\top u(x), \qquad \hat x = \text{network}(z), \qquad \min_{W, \text{network}} E \|x - \hat x\|^2

Document 003, section 5.4: if the canonical variables u are functions of a few independent ones within their span, a
linear layer finds those, and a network makes the row from them. After training z is given a law, and what the network
leaves over becomes noise: :math:`p(z) \, N(x; \hat x(z), \mathrm{diag}(\psi))` is then a model like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, Standardisation, standardise_rows
from boxloop.distributions import DiagonalGaussian
from boxloop.fit import AUTO, Plan, best_start, coordinates, unstandardise
from boxloop.models import NormalMixturePrior, Part, StandardNormal
from boxloop.numeric import column_signs, product
from boxloop.tree import Tree
from boxloop.twoview.canonical import Canonical, RelevanceModel
from boxloop.twoview.coder import COLLAPSED, TILE, Coder
from boxloop.twoview.moments import Products
from boxloop.types import Distribution


@dataclass(frozen=True)
class GeneratorModel(Tree):
    r"""p(z) and p(x|z) from relevant variables, with the code :math:`z(x)` of a row.

    .. math:: z(x) = C^\top u(x) + c, \qquad x \mid z \sim N\left(o + s \, \text{network}(B^\top z + b), \;
        s^2 \mathrm{diag}(\psi)\right)

    Codes have mean 0 and covariance I on the rows of the fit, so that the best Gaussian law of them is the standard
    one; the first explains most of the rows linearly, and so on.

    Args:
        relevance: the canonical variables.
        code: C, (r, k).
        shift: c, (k,).
        colour: B, (k, k), from codes to what the network was trained on.
        centre: b, (k,).
        decoder: the network.
        latent: the law of codes, see :mod:`boxloop.models.vae`.
        noise: psi, (d,), or (1,) for all columns, in standard units.
        origin: o, (d,).
        scale: s, (d,).

    Example:
        >>> import numpy as np
        >>> from boxloop import RelevantGenerator, mega
        >>> angle = np.random.default_rng(0).uniform(-2.5, 2.5, size=1000)
        >>> X = np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)], 1)
        >>> fit = RelevantGenerator(2, hidden=(64,), learning_rate=0.01, max_iter=20, patience=None, random_state=0)
        >>> model = fit.fit(X).model_  # its Gaussian law of codes is that of a disk, not of an arc
        >>> model.prior().mean.shape, bool(mega(model, X).p_value < 0.01)
        (torch.Size([1, 2]), True)
    """

    relevance: RelevanceModel
    code: Tensor
    shift: Tensor
    colour: Tensor
    centre: Tensor
    decoder: Part
    latent: Any
    noise: Tensor
    origin: Tensor
    scale: Tensor

    def encode(self, rows: Tensor) -> Tensor:
        """The code of each row, (n, k)."""
        return product(self.relevance.left(rows), self.code) + self.shift

    def prior(self) -> Distribution:
        """The law of z."""
        law: Distribution = self.latent.distribution(self.origin)
        return law

    def emission(self, z: Tensor) -> DiagonalGaussian:
        """The laws of x given each row of z, in the units of the data."""
        mean = self.decoder(z.to(self.colour) @ self.colour + self.centre).to(self.origin.dtype)
        return DiagonalGaussian(mean, self.noise.expand_as(mean)).affine(self.origin, self.scale)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z], (n, d)."""
        return torch.cat([self.emission(part).mean for part in z.split(TILE)])

    def reconstruct(self, rows: Tensor) -> Tensor:
        """E[x | z] at the code of each row, (n, d)."""
        return torch.cat([self.emission(self.encode(part)).mean for part in rows.split(TILE)])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d), noise and all, and the codes behind them (n, k)."""
        z = self.prior().draw(n, generator)[0]
        return torch.cat([self.emission(part).draw(1, generator)[:, 0] for part in z.split(TILE)]), z

    def trainable(self) -> tuple[Tensor, ...]:
        """The linear layer and the network's parameters."""
        return (self.code, *self.decoder.parameters)


def most_relevant(model: RelevanceModel, most: int | None) -> RelevanceModel:
    """The model with its first variables alone; the last of many depend on how many there are (section 5.4)."""
    c = model.canonical
    if most is None or most >= len(c.correlation):
        return model
    cut = Canonical(c.left_mean, c.right_mean, c.left[:, :most], c.right[:, :most], c.correlation[:most])
    return replace(model, canonical=cut)


def standardised(
    coder: Coder, relevance: RelevanceModel, moments: Products, frame: Standardisation, residual: Tensor
) -> GeneratorModel:
    """A trained coder as a model: codes in standard form, a Gaussian law of them, noise from what is left over.

    Args:
        coder: trained.
        relevance: its variables.
        moments: of u and x over the rows of the fit.
        frame: in which it was trained.
        residual: psi, (d,) or (1,).
    """
    r = relevance.canonical.left.shape[1]
    mean, covariance = moments.moments()
    layer = coder.code.double()
    values, vectors = torch.linalg.eigh(layer.mT @ covariance[:r, :r] @ layer)
    spread = values.clamp(min=COLLAPSED * float(values[-1].clamp(min=1e-300))).sqrt()
    turn, _, _ = torch.linalg.svd((vectors / spread).mT @ layer.mT @ covariance[:r, r:], full_matrices=True)
    code = layer @ (vectors / spread) @ turn
    sign = column_signs(code)
    code, colour = code * sign, (sign * turn).mT @ (vectors * spread).mT
    place = frame.origin.to(code), frame.scale.to(code)
    latent = StandardNormal(layer.shape[1])
    shift, centre = -(mean[:r] @ code), mean[:r] @ layer
    return GeneratorModel(
        relevance, code, shift, colour, centre, coder.decoder, latent, residual.to(code), *place
    )


def with_mixture(
    model: GeneratorModel, codes: Tensor, weight: Tensor, components: int, stream: Generator
) -> GeneratorModel:
    """The model with a mixture of Gaussians, fitted by EM, as the law of its codes.

    Args:
        model: any.
        codes: of the rows of the fit, (n, k).
        weight: of these rows.
        components: members of the mixture.
        stream: of the starts, on the CPU.
    """
    zero = codes.new_zeros(components, codes.shape[1])
    template = DiagonalGaussian(zero, zero + 1.0, 1e-6)
    source, plan = ArraySource(codes, weight), Plan(max_iter=200)
    frame = coordinates(source, "columns")
    standard = standardise_rows(source, frame)
    start, interrupted = best_start(standard, template, AUTO, stream, plan.tol)
    outcome = plan.run(standard, start, stream, interrupted=interrupted)
    fit = unstandardise(outcome, source, standard, frame, "columns")
    family = fit.model.family
    assert isinstance(family, DiagonalGaussian)
    return replace(model, latent=NormalMixturePrior(fit.model.log_weight, family.mean, family.variance.log()))
