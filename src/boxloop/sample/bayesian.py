"""Posteriors of whole models by Gibbs sampling: Gaussian mixtures and factor analysis."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

import torch

from boxloop.data import fingerprint_values
from boxloop.distributions import FactorPrior, MixturePrior
from boxloop.loop import Observer
from boxloop.numeric import RandomState, generator, seed, single_threaded
from boxloop.sample.factor_posterior import FactorPosterior
from boxloop.sample.gibbs_factor import gibbs_factor, start_factors, unpack_factors
from boxloop.sample.gibbs_mixture import gibbs_mixture, start_mixture
from boxloop.sample.mixture_posterior import MixturePosterior
from boxloop.sample.sampling import sample
from boxloop.sample.units import ModelGibbs, factor_task, first_seed, mixture_task


@single_threaded
def sample_mixture(
    X: object,
    n_components: int,
    *,
    covariance: Literal["full", "diag"] = "full",
    prior: MixturePrior | None = None,
    chains: int = 4,
    draws: int = 1000,
    warmup: int = 500,
    thin: int = 1,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[Any]] = (),
) -> MixturePosterior:
    r"""Draw the parameters of a Gaussian mixture from their posterior, by Gibbs sampling with many chains at once.

    .. math:: \pi \sim \mathrm{Dirichlet}(a), \quad (\mu_k, \Sigma_k) \sim \mathrm{NIW}(m, \kappa, \nu, \Psi), \quad
              x_i \sim \textstyle\sum_k \pi_k N(\mu_k, \Sigma_k)

    Components have no names, and chains exchange them. Each line of ``summary()`` says whether it is free of labels or
    relabelled (Stephens 2000).

    Reference:
        Diebolt and Robert (1994), *Journal of the Royal Statistical Society B* 56.

    Args:
        X: any table without missing values, see :func:`boxloop.data.open_source`; it is held in memory.
        n_components: k.
        covariance: ``full`` or ``diag``; a ``prior`` that is given decides.
        prior: in the units of the rows. When omitted,
            :meth:`~boxloop.distributions.priors.MixturePrior.around` the mean and covariance of the rows:
            uniform weights, :math:`m = \bar x`, :math:`\kappa = 0.01`, :math:`\nu = d + 2`, :math:`\Psi = S / k^{2/d}`.
        chains: how many; each begins at seeds of its own among the rows.
        draws: of each chain.
        warmup: steps of each chain before the first draw.
        thin: steps from one draw to the next.
        random_state: seed or generator.
        device: where to.
        checkpoint: a file to save the chains to now and then, and to go on from if it is there; it needs an integer
            ``random_state``.
        verbose: show progress; None shows it in a terminal.
        observers: of the loop.

    Returns:
        :class:`~boxloop.sample.MixturePosterior`: ``summary()``, ``labels``, ``similarity()``, ``predictive()``,
        ``responsibilities()``, ``plot()``, ``worries``; ``draws`` as the chains left them.

    Raises:
        ValueError: fewer rows than components, a missing or infinite value, a constant column without a prior.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-3, 1, (60, 2)), rng.normal(3, 1, (40, 2))])
        >>> posterior = sample_mixture(X, 2, draws=200, warmup=100, random_state=0)
        >>> posterior.relabelled(posterior.weights).mean((0, 1)).sort().values.round(decimals=1).tolist()
        [0.4, 0.6]
        >>> posterior.predictive().log_prob(posterior.rows).shape
        torch.Size([100])
    """
    task = mixture_task(X, n_components, covariance, prior, device)
    stream = generator(first_seed(random_state, checkpoint), task.rows.device)
    first = start_mixture(task.seen, task.standard, chains, stream)
    k, d = n_components, len(task.names)
    weights, means, rest = first.split([k, k * d, first.shape[1] - k - k * d], 1)
    spread = "log_variances" if task.diagonal else "factors"
    start = {
        "log_weights": weights,
        "means": means.reshape(chains, k, d),
        spread: rest.reshape(chains, k, -1),
    }
    found = sample(
        None,
        start,
        ModelGibbs(
            gibbs_mixture(task.seen, task.standard), fingerprint_values(task.seen, *task.standard.leaves())
        ),
        draws=draws,
        warmup=warmup,
        thin=thin,
        random_state=seed(stream),
        checkpoint=checkpoint,
        verbose=verbose,
        observers=observers,
    )
    return MixturePosterior(task.in_units(found), task.rows, task.prior, task.origin, task.scale, task.names)


@single_threaded
def sample_factors(
    X: object,
    n_factors: int,
    *,
    prior: FactorPrior | None = None,
    chains: int = 4,
    draws: int = 1000,
    warmup: int = 500,
    thin: int = 1,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[Any]] = (),
) -> FactorPosterior:
    r"""Draw the parameters of factor analysis from their posterior, by Gibbs sampling with many chains at once.

    .. math:: x = c + F z + \epsilon, \quad F_{jl} \sim N(0, t_j), \quad \psi_j \sim \mathrm{IG}(a_j, b_j), \quad
              c_j \sim N(m_j, s_j)

    One pass over the rows takes their mean and covariance; a step costs the same for a thousand rows and a billion.
    Factors have no axes of their own: each line of ``summary()`` says whether it is free of rotation or aligned.

    Reference:
        Lopes and West (2004), *Statistica Sinica* 14; see :mod:`boxloop.sample.gibbs_factor` for the moves.

    Args:
        X: any table without missing values, see :func:`boxloop.data.open_source`.
        n_factors: k, at most the number of columns.
        prior: in the units of the rows. When omitted, :meth:`~boxloop.distributions.priors.FactorPrior.around`
            the mean and the variances v of the rows: :math:`t_j = v_j`, :math:`\psi_j \sim \mathrm{IG}(3/2, v_j/4)`,
            :math:`s_j = 100 v_j`.
        chains: how many, from scattered loadings.
        draws: of each chain.
        warmup: steps of each chain before the first draw.
        thin: steps from one draw to the next.
        random_state: seed or generator.
        device: where to.
        checkpoint: a file to save the chains to now and then, and to go on from if it is there; it needs an integer
            ``random_state``.
        verbose: show progress; None shows it in a terminal.
        observers: of the loop.

    Returns:
        :class:`~boxloop.sample.FactorPosterior`: ``summary()``, ``covariance``, ``communalities``, ``noise``,
        ``loadings`` (aligned), ``alignment``, ``predictive()``, ``plot()``, ``worries``; ``draws`` as the chains left
        them.

    Raises:
        ValueError: a missing or infinite value, more factors than columns, a constant column without a prior.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 1)) * [1.0, 2.0, 0.5] + rng.normal(size=(300, 3))
        >>> posterior = sample_factors(X, 1, draws=300, random_state=0)
        >>> posterior.communalities.mean((0, 1)).round(decimals=1).tolist()
        [0.6, 0.8, 0.2]
    """
    task = factor_task(X, n_factors, prior, device)
    stream = generator(first_seed(random_state, checkpoint), task.origin.device)
    first = unpack_factors(start_factors(task.standard, chains, stream), len(task.names))
    found = sample(
        None,
        {"mean": first.mean, "loadings": first.loadings, "log_noise": first.noise.log()},
        ModelGibbs(
            gibbs_factor(task.seen, task.standard),
            fingerprint_values(*task.seen.leaves(), *task.standard.leaves()),
        ),
        draws=draws,
        warmup=warmup,
        thin=thin,
        random_state=seed(stream),
        checkpoint=checkpoint,
        verbose=verbose,
        observers=observers,
    )
    return FactorPosterior(task.in_units(found), task.prior, task.seen.count, task.names)
