r"""A generative model whose few latent variables lie in the span of the relevant ones.

.. math:: z = W^\top u(x), \qquad \hat x = \text{network}(z), \qquad \min_{W, \text{network}} E \|x - \hat x\|^2

Learning relevant features for statistical inference, section 5.4: if the canonical variables u are functions of a few
independent ones within their span, a linear layer finds those, and a network makes the row from them. After training z
is given a distribution, and the residual of the network becomes noise: :math:`p(z) \, N(x; \hat x(z),
\mathrm{diag}(\psi))` is then a model like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, MappedSource, Standardisation, find_array, standardise_rows
from boxloop.distributions import DiagonalGaussian
from boxloop.fit import AUTO, SINGLE_PROCESS, Plan, Workers, best_start, coordinates, unstandardise
from boxloop.models import NormalMixturePrior, Part, StandardNormal
from boxloop.numeric import column_signs, product
from boxloop.tree import Tree
from boxloop.twoview.canonical import CanonicalVariables, MomentSums, RelevanceModel
from boxloop.types import Distribution, Source

Variance = Literal["diagonal", "spherical"]

TILE = 1 << 12
"""Rows that are decoded at once where nothing is learned."""

COLLAPSED = 1e-10
"""Variance of a direction of the code, relative to the largest, below which the direction is empty."""

SMALLEST_CODE = 0.01
"""Standard deviation of a code at the start, relative to the first, however little it explains."""


@dataclass(frozen=True)
class CodeNetwork(Tree):
    """The linear layer and the network, in training: canonical variables (n, r) to standardised rows (n, d)."""

    code: Tensor  # W, (r, k)
    decoder: Part  # (n, k) -> (n, d)

    def trainable(self) -> tuple[Tensor, ...]:
        """The layer, then the network's parameters."""
        return (self.code, *self.decoder.parameters)

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The same at other values of these."""
        code, *rest = learned
        return replace(self, code=code, decoder=replace(self.decoder, parameters=tuple(rest)))

    def __call__(self, variables: Tensor) -> Tensor:
        """(n, r) -> (n, d)."""
        return self.decoder(variables @ self.code)


@dataclass(frozen=True)
class SquaredErrorLoss:
    r"""Mean squared error of a batch, over rows and columns, :math:`\frac{1}{nd} \sum_i w_i \|x_i - \hat x_i\|^2`."""

    variables: int  # r; a row of the batch holds u(x), then x in standard units
    unit: float = 1.0  # mean weight of a row
    workers: Workers = SINGLE_PROCESS  # which share the rows of a batch

    def __call__(
        self, model: CodeNetwork, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The error; it draws nothing from the stream."""
        mine, count = self.workers.local_rows(len(rows))
        own = rows[mine]
        error = (model(own[:, : self.variables]) - own[:, self.variables :]).square().mean(1)
        return error @ (weight[mine] / (self.unit * count)).to(error), {}


@dataclass(frozen=True)
class SquaredErrorValidation:
    """Mean squared error on held-out rows."""

    rows: ArraySource  # u(x), then x in standard units
    variables: int  # r
    workers: Workers = SINGLE_PROCESS

    def __call__(self, model: CodeNetwork, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean squared error, over rows by their weight."""
        assert self.rows.weight is not None
        unit = float(self.rows.weight.mean())
        loss = SquaredErrorLoss(self.variables, unit if unit > 0.0 else 1.0, self.workers)
        shares = [
            loss(model, rows, weight, stream)[0] * (len(rows) / self.rows.n_rows)
            for rows, weight in self.rows.chunks(TILE)
        ]
        return torch.stack(shares).sum(), {}


def prepend_canonical_variables(
    source: Source, relevance: RelevanceModel, frame: Standardisation, dtype: torch.dtype
) -> Source:
    """Rows that hold u(x), then x in standard units: computed once for rows in memory, else as they are read."""

    def stack_both(rows: Tensor) -> Tensor:
        with torch.no_grad():
            standard = (rows - frame.origin) / frame.scale
            return torch.cat([relevance.left(rows).to(dtype), standard.to(dtype)], 1)

    mapped = MappedSource(source, stack_both)
    if find_array(source) is None:
        return mapped
    rows, weight = (torch.cat(parts) for parts in zip(*mapped.chunks(), strict=True))
    return ArraySource(rows, weight)


def solve_reduced_rank_code(sums: MomentSums, variables: int, components: int) -> Tensor:
    r"""The start of the linear layer: the code W, (r, k), from which the best *linear* map makes the rows.

    .. math:: W = R P_k \max(S_k / s_1, 0.01), \qquad R^\top K R = I, \; R^\top \overline{u x^\top} = P S Q^\top

    Reduced-rank regression of x on u (Izenman 1975), from means of products: uncorrelated codes, each scaled by what it
    explains relative to the first.

    Deviation: the paper does not say where its layer starts; a random start has to find these directions first.
    """
    if variables < 1:
        raise ValueError("there are no relevant variables to make a code of: are all columns constant?")
    _, covariance = sums.moments()
    values, vectors = torch.linalg.eigh(covariance[:variables, :variables])
    real = values > COLLAPSED * values[-1].clamp(min=1e-300)
    if components > int(real.sum()):
        raise ValueError(
            f"n_components={components} is more than the {int(real.sum())} relevant variables there are: "
            "lower it, or give features that have more"
        )
    root = vectors[:, real] / values[real].sqrt()
    left, sizes, _ = torch.linalg.svd(root.mT @ covariance[:variables, variables:], full_matrices=True)
    share = torch.full((components,), SMALLEST_CODE).to(left)
    share[: len(sizes)] = (sizes / sizes[0].clamp(min=1e-300))[:components].clamp(min=SMALLEST_CODE)
    code = root @ left[:, :components]
    return code * column_signs(code) * share


def estimate_residual_variance(
    network: CodeNetwork, source: Source, variables: int, variance: Variance, floor: float
) -> Tensor:
    """Mean squared residual of each column, (d,), or of all, (1,), not below a floor."""

    def sum_squares(rows: Tensor, weight: Tensor) -> MomentSums:
        with torch.no_grad():
            residual = (network(rows[:, :variables]) - rows[:, variables:]).double().square()
        return MomentSums(weight.double().sum(), weight.double() @ residual, weight.new_zeros(0))

    sums = source.reduce(sum_squares)
    mean = sums.first / sums.weight
    return (mean if variance == "diagonal" else mean.mean()[None]).clamp(min=floor)


@dataclass(frozen=True)
class GeneratorModel(Tree):
    r"""p(z) and p(x|z) from relevant variables, with the code :math:`z(x)` of a row.

    .. math:: z(x) = C^\top u(x) + c, \qquad x \mid z \sim N\left(o + s \, \text{network}(B^\top z + b), \;
        s^2 \mathrm{diag}(\psi)\right)

    Codes have mean 0 and covariance I on the rows of the fit, so that their best Gaussian distribution is the standard
    normal; the first explains most of the rows linearly, and so on.

    Args:
        relevance: the canonical variables.
        code: C, (r, k).
        shift: c, (k,).
        colour: B, (k, k), from codes to what the network was trained on.
        centre: b, (k,).
        decoder: the network.
        latent: the distribution of codes, see :mod:`boxloop.models.vae`.
        noise: psi, (d,), or (1,) for all columns, in standard units.
        origin: o, (d,).
        scale: s, (d,).

    Example:
        >>> import numpy as np
        >>> from boxloop import RelevantGenerator, mega
        >>> angle = np.random.default_rng(0).uniform(-2.5, 2.5, size=1000)
        >>> X = np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)], 1)
        >>> fit = RelevantGenerator(2, hidden=(64,), learning_rate=0.01, max_iter=20, patience=None, random_state=0)
        >>> model = fit.fit(X).model_  # its Gaussian codes fill a disk, and the true ones an arc
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
        """The distribution of z."""
        prior: Distribution = self.latent.distribution(self.origin)
        return prior

    def emission(self, z: Tensor) -> DiagonalGaussian:
        """The distribution of x given each row of z, in the units of the data."""
        mean = self.decoder(z.to(self.colour) @ self.colour + self.centre).to(self.origin.dtype)
        return DiagonalGaussian(mean, self.noise.expand_as(mean)).affine(self.origin, self.scale)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z], (n, d)."""
        return torch.cat([self.emission(part).mean for part in z.split(TILE)])

    def reconstruct(self, rows: Tensor) -> Tensor:
        """E[x | z] at the code of each row, (n, d)."""
        return torch.cat([self.emission(self.encode(part)).mean for part in rows.split(TILE)])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) with noise, and their codes (n, k)."""
        z = self.prior().draw(n, generator)[0]
        return torch.cat([self.emission(part).draw(1, generator)[:, 0] for part in z.split(TILE)]), z

    def trainable(self) -> tuple[Tensor, ...]:
        """The linear layer and the network's parameters."""
        return (self.code, *self.decoder.parameters)


def keep_leading_variables(model: RelevanceModel, most: int | None) -> RelevanceModel:
    """The model with its first variables alone; the last of many depend on how many there are (section 5.4)."""
    c = model.canonical
    if most is None or most >= len(c.correlation):
        return model
    first = CanonicalVariables(
        c.left_mean, c.right_mean, c.left[:, :most], c.right[:, :most], c.correlation[:most]
    )
    return replace(model, canonical=first)


def standardise_codes(
    network: CodeNetwork,
    relevance: RelevanceModel,
    sums: MomentSums,
    frame: Standardisation,
    residual: Tensor,
) -> GeneratorModel:
    """A trained network as a model: codes in standard form with a Gaussian prior, noise from the residual."""
    r = relevance.canonical.left.shape[1]
    mean, covariance = sums.moments()
    layer = network.code.double()
    values, vectors = torch.linalg.eigh(layer.mT @ covariance[:r, :r] @ layer)
    deviation = values.clamp(min=COLLAPSED * float(values[-1].clamp(min=1e-300))).sqrt()
    cross = (vectors / deviation).mT @ layer.mT @ covariance[:r, r:]
    rotation, _, _ = torch.linalg.svd(cross, full_matrices=True)
    code = layer @ (vectors / deviation) @ rotation
    sign = column_signs(code)
    code, colour = code * sign, (sign * rotation).mT @ (vectors * deviation).mT
    return GeneratorModel(
        relevance=relevance,
        code=code,
        shift=-(mean[:r] @ code),
        colour=colour,
        centre=mean[:r] @ layer,
        decoder=network.decoder,
        latent=StandardNormal(layer.shape[1]),
        noise=residual.to(code),
        origin=frame.origin.to(code),
        scale=frame.scale.to(code),
    )


def fit_code_mixture(
    model: GeneratorModel, codes: Tensor, weight: Tensor, components: int, stream: Generator
) -> GeneratorModel:
    """The model with a mixture of Gaussians, fitted by EM to codes (n, k), as the distribution of its codes."""
    zero = codes.new_zeros(components, codes.shape[1])
    template = DiagonalGaussian(zero, zero + 1.0, 1e-6)
    source, plan = ArraySource(codes, weight), Plan(max_iter=200)
    frame = coordinates(source, "columns")
    standard = standardise_rows(source, frame)
    start, interrupted = best_start(standard, template, AUTO, stream)
    outcome = plan.run(standard, start, stream, interrupted=interrupted)
    fit = unstandardise(outcome, source, standard, frame, "columns")
    family = fit.model.family
    assert isinstance(family, DiagonalGaussian)
    return replace(model, latent=NormalMixturePrior(fit.model.log_weight, family.mean, family.variance.log()))
