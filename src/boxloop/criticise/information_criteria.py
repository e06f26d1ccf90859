r"""Likelihood of rows under a model, and information criteria."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from boxloop.criticise.adapt import as_model, check_independent_rows, open_rows_for_model
from boxloop.criticise.parameter_error import ParametricModel
from boxloop.models import Mixture, flatten
from boxloop.numeric import single_threaded
from boxloop.tree import Tree


@dataclass(frozen=True)
class Criteria:
    """Likelihood of rows and criteria; smaller criteria are better.

    Args:
        log_likelihood: mean per row.
        error: its standard error.
        n_parameters: number of free parameters.
        aic: Akaike's criterion.
        bic: Schwarz's criterion.
        icl: BIC plus twice the entropy of the assignment (Biernacki, Celeux and Govaert 2000): prefers components that
            are apart; None for models without components.
    """

    log_likelihood: float
    error: float
    n_parameters: int
    aic: float
    bic: float
    icl: float | None


@dataclass(frozen=True)
class _LikelihoodSums(Tree):
    weight: Tensor
    square_weight: Tensor
    first: Tensor
    second: Tensor
    entropy: Tensor


@single_threaded
def information_criteria(model: object, X: Any, sample_weight: Any = None) -> Criteria:
    r"""Likelihood of rows under a model, with AIC, BIC and ICL.

    .. math:: \mathrm{AIC} = 2p - 2\ell, \quad \mathrm{BIC} = p \log n - 2\ell, \quad
              \mathrm{ICL} = \mathrm{BIC} - 2 \sum_{ik} r_{ik} \log r_{ik}

    Deviation: Beaulac (2023), eq. 20, takes p = 2K for a mixture; here p counts every free number,
    K - 1 + Kd + Kd(d+1)/2 with full covariances, minus the rotations of a factor model.

    Args:
        model: a fitted mixture or factor model, ours or scikit-learn's.
        X: the rows it was fitted to (for criteria), or others (for their likelihood).
        sample_weight: one non-negative weight per row.

    Example:
        >>> import numpy as np
        >>> from sklearn.mixture import GaussianMixture
        >>> rows = np.random.default_rng(0).normal(size=(100, 2))
        >>> fit = GaussianMixture(2, random_state=0).fit(rows)
        >>> abs(information_criteria(fit, rows).bic - fit.bic(rows)) < 1e-6
        True
    """
    adapted = as_model(model)
    check_independent_rows(adapted, "this likelihood and its criteria are those")
    if not isinstance(adapted, ParametricModel):
        raise TypeError(f"{type(adapted).__name__} has no likelihood and no parameters to count")
    fitted = cast(Any, adapted)
    source = open_rows_for_model(model, X, sample_weight, fitted.prior().mean.device)
    mixture = isinstance(fitted, Mixture)

    def sum_tile(rows: Tensor, weight: Tensor) -> _LikelihoodSums:
        density = fitted.log_prob(rows)
        entropy = weight.new_zeros(())
        if mixture:
            share = fitted.posterior(rows)
            entropy = -weight @ torch.special.xlogy(share, share).sum(1)
        return _LikelihoodSums(
            weight.sum(), weight.square().sum(), weight @ density, weight @ density.square(), entropy
        )

    s = source.reduce(sum_tile)
    count = flatten(fitted.free_parameters()).numel() - fitted.identification_constraints().numel()
    n, total = float(s.weight), float(s.first)
    variance = max(float(s.second) / n - (total / n) ** 2, 0.0)
    error = math.sqrt(variance * float(s.square_weight)) / n
    bic = count * math.log(n) - 2 * total
    icl = bic + 2 * float(s.entropy) if mixture else None
    return Criteria(total / n, error, count, 2 * count - 2 * total, bic, icl)
