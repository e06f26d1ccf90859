r"""Posteriors of models of this library: over the latent values of rows, and over parameters.

.. math:: p(z_i \mid x_i) \propto p(z_i) \, p(x_i \mid z_i), \qquad
          p(\theta \mid x) \propto p(\theta) \prod_i p(x_i \mid \theta)

Rows are independent given the parameters, so that their latent values are chains that never meet: all rows move at
once. The gradient in the parameters is a by-product of one E step (Fisher's identity), on any source of rows.
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
from boxloop.models import likelihood_and_score
from boxloop.numeric import RandomState, generator, seed, single_threaded, spawn
from boxloop.sample.draws import Draws
from boxloop.sample.sampling import sample
from boxloop.sample.space import Space
from boxloop.sample.target import Target
from boxloop.tree import flatten, unflatten
from boxloop.types import Distribution, ExpectationModel, LatentModel

TILE = 32
"""Rows whose densities under laws of another kind are found at once, all pairs of them."""

LogPrior = Callable[[Mapping[str, Tensor]], Tensor]


def latent_target(model: LatentModel, rows: Tensor) -> Target:
    """The posterior of the latent values of rows, one chain a row.

    Args:
        model: with a prior over vectors, such as factors or the code of a decoder.
        rows: (n, d); NaN where a value is missing.

    Returns:
        A target over (n, k), or (r n, k) for r chains a row, rows in order within each.

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
        here = rows if len(z) == len(rows) else rows.repeat(len(z) // len(rows), 1)
        return prior.log_prob(z)[0] + _paired(model, z, here)

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
    """Draws of the latent values behind rows, from their posterior.

    Args:
        model: with a prior over vectors; :func:`boxloop.as_model` makes one of a decoder.
        rows: (n, d).
        kernel: as of :func:`sample`.
        chains: of each row, started at the prior.
        random_state: seed or generator.
        options: others of :func:`sample`, such as ``draws`` and ``warmup``.

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
    drawn = sample(latent_target(model, table), start, kernel, random_state=rest, **options)
    k = start.shape[1]
    space = Space.of({"z": start.new_zeros(chains, len(table), k)})
    return replace(
        drawn,
        positions=drawn.positions.reshape(drawn.n_draws, chains, len(table) * k),
        log_density=drawn.log_density.reshape(drawn.n_draws, chains, -1).sum(2),
        space=space,
        acceptance=None if drawn.acceptance is None else drawn.acceptance.reshape(chains, -1).mean(1),
        refused=drawn.refused.reshape(chains, -1).sum(1),
        outside=None,
        diverging=None if drawn.diverging is None else drawn.diverging.unflatten(1, (chains, -1)).any(2),
    )


def parameter_target(
    model: ExpectationModel[Any], rows: Any, log_prior: LogPrior, sample_weight: Any = None
) -> Target:
    """The posterior of a model's free parameters given rows.

    Args:
        model: any that EM can fit.
        rows: a table, a path, or a source.
        log_prior: the free parameters by name, each (c, ...), -> their log-density (c,). They are those of
            ``model.free()``: any values of them are a model.
        sample_weight: of the rows.

    Returns:
        A target over vectors in the order of ``model.free()``, with its gradient.

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
    free = model.free()
    base = _log_base(model, source)

    def prior(position: Tensor) -> Tensor:
        flat = 0.0 * position.sum(1)  # so that a constant prior can be differentiated too
        return log_prior(_unflattened(position, free)) + flat

    def likelihood(point: Tensor) -> Tensor:
        return source.reduce(model.with_free(unflatten(point, free)).expect).log_likelihood + base

    def log_density(position: Tensor) -> Tensor:
        return torch.stack([likelihood(point) for point in position.detach()]) + prior(position)

    def gradient(position: Tensor) -> tuple[Tensor, Tensor]:
        found = [likelihood_and_score(model, source, free, point) for point in position]
        before, tilt = Target(prior).value_and_gradient(position)
        value, slope = (torch.stack(side) for side in zip(*found))
        return value + base + before, slope + tilt

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
    """Draws of a model's free parameters from their posterior, started around its own.

    Args:
        model: a fitted one, whose parameters are where chains begin.
        rows: a table, a path, or a source.
        log_prior: of the free parameters, see :func:`parameter_target`.
        kernel: as of :func:`sample`.
        chains: how many.
        sample_weight: of the rows.
        options: others of :func:`sample`; ``spread`` is 0.1 when omitted.

    Returns:
        Draws of each free parameter by name. ``model.with_free({name: draws[name][c, i]})`` is the model of one draw.
        Components of a mixture have no names: their draws are label-free only after relabelling.

    Example:
        >>> import torch
        >>> from boxloop.distributions import Poisson
        >>> from boxloop.models import Mixture
        >>> model = Mixture(torch.zeros(1).double(), Poisson(torch.tensor([[2.0]]).double()))
        >>> rows = torch.tensor([[1.0], [4.0], [2.0]]).double()
        >>> flat = lambda free: free["log_rate"].new_zeros(len(free["log_rate"]))  # a gamma law with shape 7
        >>> draws = sample_parameters(model, rows, flat, draws=300, warmup=200, random_state=0)
        >>> bool((draws["log_rate"].exp().mean() - 7 / 3).abs() < 0.2)
        True
    """
    free = model.free()
    target = parameter_target(model, rows, log_prior, sample_weight)
    settings = {"spread": 0.1, **options}
    drawn = sample(target, flatten(free), kernel, chains=chains, **settings)
    space = Space.of(
        {name: value.expand(chains, *value.shape) for name, value in free.items() if value.numel()}
    )
    return replace(drawn, space=space)


def _unflattened(position: Tensor, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(position, [value.numel() for value in free.values()], dim=1)
    return {
        name: part.reshape(len(position), *value.shape)
        for part, (name, value) in zip(parts, free.items(), strict=True)
    }


def _log_base(model: ExpectationModel[Any], source: Any) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for tile, weight in source.chunks():
        base = model.log_base(tile)
        total = total if base is None else total + base.double() @ weight
    return total


def _paired(model: LatentModel, z: Tensor, rows: Tensor) -> Tensor:
    """Log-density of each row under the law of its own latent value, (n,)."""
    law: Distribution = model.emission(z)
    if isinstance(law, DiagonalGaussian):
        known = ~torch.isnan(rows)
        gap = torch.where(known, rows.nan_to_num() - law.mean, 0.0)
        each = gap.square() / law.variance + (law.variance.log() + math.log(2.0 * math.pi)) * known
        return -0.5 * each.sum(1)
    tiles = zip(z.split(TILE), rows.split(TILE))
    return torch.cat([model.emission(part).log_prob(tile).diagonal() for part, tile in tiles])
