r"""Posteriors of models of this library: of the latent values of rows, and of parameters.

.. math:: p(z_i \mid x_i) \propto p(z_i) \, p(x_i \mid z_i), \qquad
          p(\theta \mid x) \propto p(\theta) \prod_i p(x_i \mid \theta)

Rows are independent given the parameters, so that their latent values are independent chains: all rows move at once.
The gradient in the parameters is a by-product of one E step (Fisher's identity), on any source of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from boxloop.data import open_source
from boxloop.distributions import Categorical, DiagonalGaussian
from boxloop.models import flatten, likelihood_and_score, unflatten
from boxloop.numeric import RandomState, generator, seed, single_threaded, spawn
from boxloop.sample.draws import Draws
from boxloop.sample.sampler import sample_density
from boxloop.sample.target import ParameterSpace, Target
from boxloop.types import Distribution, ExpectationModel, LatentModel

TILE = 32
"""Rows whose densities under general emissions are evaluated at once, all pairs of them."""

LogPrior = Callable[[Mapping[str, Tensor]], Tensor]


def latent_target(model: LatentModel, rows: Tensor) -> Target:
    """The posterior of the latent values of rows, one chain per row.

    Args:
        model: with a prior over vectors, such as factors or the code of a decoder.
        rows: (n, d); NaN where a value is missing.

    Returns:
        A target over (n, k), or (r n, k) for r chains per row, rows in order within each.

    Example:
        >>> import torch
        >>> from boxloop.models import FactorModel
        >>> model = FactorModel(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> latent_target(model, torch.zeros(2, 3)).log_density(torch.zeros(2, 1))
        tensor([-3.6758, -3.6758])
    """
    prior = model.prior()
    if isinstance(prior, Categorical):
        raise ValueError("the latent values are classes: their posterior is exact, model.posterior(rows)")

    def log_density(z: Tensor) -> Tensor:
        repeated = rows if len(z) == len(rows) else rows.repeat(len(z) // len(rows), 1)
        return prior.log_prob(z)[0] + _compute_log_emission(model, z, repeated)

    return Target(log_density)


@single_threaded
def sample_latent(
    model: LatentModel,
    rows: Any,
    kernel: Any = None,
    *,
    chains: int = 4,
    random_state: RandomState = None,
    **options: Any,
) -> Draws:
    """Draw the latent values of rows from their posterior.

    Args:
        model: with a prior over vectors; :func:`boxloop.as_model` makes one of a decoder.
        rows: (n, d).
        kernel: as in :func:`sample_density`.
        chains: of each row, started at the prior.
        random_state: seed or generator.
        options: others of :func:`sample_density`, such as ``draws`` and ``warmup``.

    Returns:
        Draws of ``z``, (chains, draws, n, k).

    Example:
        >>> import torch
        >>> from boxloop.models import FactorModel
        >>> model = FactorModel(torch.zeros(3).double(), torch.ones(3, 1).double(), torch.ones(3).double())
        >>> rows = torch.ones(5, 3).double()
        >>> draws = sample_latent(model, rows, draws=500, warmup=300, random_state=0)
        >>> draws["z"].shape, bool((draws["z"].mean() - 0.75).abs() < 0.05)
        (torch.Size([4, 500, 5, 1]), True)
    """
    device = model.prior().mean.device
    table = torch.cat([tile for tile, _ in open_source(rows).chunks()]).to(device)
    first, rest = spawn(generator(seed(random_state), device), 2)
    start = model.prior().draw(chains * len(table), first)[0]
    draws = sample_density(latent_target(model, table), start, kernel, random_state=rest, **options)
    k = start.shape[1]
    space = ParameterSpace.from_start({"z": start.new_zeros(chains, len(table), k)})
    return replace(
        draws,
        positions=draws.positions.reshape(draws.n_draws, chains, len(table) * k),
        log_density=draws.log_density.reshape(draws.n_draws, chains, -1).sum(2),
        space=space,
        acceptance=None if draws.acceptance is None else draws.acceptance.reshape(chains, -1).mean(1),
        nan_proposals=draws.nan_proposals.reshape(chains, -1).sum(1),
        zero_density_proposals=None,
        diverging=None if draws.diverging is None else draws.diverging.unflatten(1, (chains, -1)).any(2),
    )


def parameter_target(
    model: ExpectationModel[Any], rows: Any, log_prior: LogPrior, sample_weight: Any = None
) -> Target:
    """The posterior of a model's free parameters given rows.

    Args:
        model: any model that EM can fit.
        rows: a table, a path, or a source.
        log_prior: the free parameters by name, each (c, ...), -> their log-density (c,). They are those of
            ``model.free_parameters()``: all their values are valid.
        sample_weight: of the rows.

    Returns:
        A target over vectors in the order of ``model.free_parameters()``, with its gradient.

    Example:
        >>> import torch
        >>> from boxloop.distributions import Poisson
        >>> from boxloop.models import Mixture
        >>> model = Mixture(torch.zeros(1).double(), Poisson(torch.tensor([[2.0]]).double()))
        >>> rows = torch.tensor([[1.0], [4.0]]).double()
        >>> target = parameter_target(model, rows, lambda free: -0.5 * free["log_rate"].flatten(1).square().sum(1))
        >>> value, slope = target.value_and_gradient(torch.tensor([[0.0], [1.0]]).double())
        >>> slope.flatten()
        tensor([ 3.0000, -1.4366], dtype=torch.float64)
    """
    source = open_source(rows, sample_weight)
    free = model.free_parameters()
    base = torch.zeros((), dtype=torch.float64)  # log-density of the rows that does not depend on parameters
    for tile, weight in source.chunks():
        part = model.log_base(tile)
        base = base if part is None else base + part.double() @ weight

    def prior(position: Tensor) -> Tensor:
        columns = torch.split(position, [value.numel() for value in free.values()], dim=1)
        by_name = {
            name: column.reshape(len(position), *value.shape)
            for column, (name, value) in zip(columns, free.items(), strict=True)
        }
        return log_prior(by_name) + 0.0 * position.sum(1)  # so that a constant prior has a gradient

    def likelihood(point: Tensor) -> Tensor:
        return source.reduce(model.with_free_parameters(unflatten(point, free)).expect).log_likelihood + base

    def log_density(position: Tensor) -> Tensor:
        return torch.stack([likelihood(point) for point in position.detach()]) + prior(position)

    def gradient(position: Tensor) -> tuple[Tensor, Tensor]:
        found = [likelihood_and_score(model, source, free, point) for point in position]
        log_p, of_prior = Target(prior).value_and_gradient(position)
        value, score = (torch.stack(side) for side in zip(*found))
        return value + base + log_p, score + of_prior

    return Target(log_density, gradient)


@single_threaded
def sample_parameters(
    model: ExpectationModel[Any],
    rows: Any,
    log_prior: LogPrior,
    kernel: Any = None,
    *,
    chains: int = 4,
    sample_weight: Any = None,
    **options: Any,
) -> Draws:
    """Draw a model's free parameters from their posterior, starting around its own.

    Args:
        model: a fitted model, at whose parameters chains begin.
        rows: a table, a path, or a source.
        log_prior: of the free parameters, see :func:`parameter_target`.
        kernel: as in :func:`sample_density`.
        chains: number of chains.
        sample_weight: of the rows.
        options: others of :func:`sample_density`; ``start_sd`` is 0.1 when omitted.

    Returns:
        Draws of each free parameter by name; ``model.with_free_parameters({name: draws[name][c, i]})`` is the model
        of one draw. The labels of mixture components are not identified: relabel draws before averaging them.

    Example:
        >>> import torch
        >>> from boxloop.distributions import Poisson
        >>> from boxloop.models import Mixture
        >>> model = Mixture(torch.zeros(1).double(), Poisson(torch.tensor([[2.0]]).double()))
        >>> rows = torch.tensor([[1.0], [4.0], [2.0]]).double()
        >>> flat = lambda free: free["log_rate"].new_zeros(len(free["log_rate"]))  # a gamma posterior with shape 7
        >>> draws = sample_parameters(model, rows, flat, draws=300, warmup=200, random_state=0)
        >>> bool((draws["log_rate"].exp().mean() - 7 / 3).abs() < 0.2)
        True
    """
    free = model.free_parameters()
    target = parameter_target(model, rows, log_prior, sample_weight)
    settings = {"start_sd": 0.1, **options}
    draws = sample_density(target, flatten(free), kernel, chains=chains, **settings)
    space = ParameterSpace.from_start(
        {name: value.expand(chains, *value.shape) for name, value in free.items() if value.numel()}
    )
    return replace(draws, space=space)


def _compute_log_emission(model: LatentModel, z: Tensor, rows: Tensor) -> Tensor:
    """Log-density of each row given its own latent value, (n,)."""
    emission: Distribution = model.emission(z)
    if isinstance(emission, DiagonalGaussian):
        observed = ~torch.isnan(rows)
        residual = torch.where(observed, rows.nan_to_num() - emission.mean, 0.0)
        log_variance = (emission.variance.log() + math.log(2.0 * math.pi)) * observed
        return -0.5 * (residual.square() / emission.variance + log_variance).sum(1)
    tiles = zip(z.split(TILE), rows.split(TILE))
    return torch.cat([model.emission(part).log_prob(tile).diagonal() for part, tile in tiles])
