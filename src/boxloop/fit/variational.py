r"""Coordinate-ascent variational inference is EM whose M step is a conjugate posterior.

With :math:`q(\theta) \prod_i q(z_i)` and every :math:`q(z_i)` at its best for :math:`q(\theta)`, the bound is

.. math:: L(q) = \sum_i w_i \log \int e^{E_{q(\theta)}[\log p(x_i, z \mid \theta)]} \, dz - KL(q(\theta) \| p(\theta))

(document 002, sections 3.1 and 3.2). The sum is what ``expect`` returns as its log-likelihood, the statistics that it
adds up are those of EM, and ``solve`` adds them to the prior: batch, accelerated and online EM are coordinate ascent,
accelerated coordinate ascent and stochastic variational inference (Hoffman et al. 2013) without a line of their own.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import ExpectationModel, Expected

S = TypeVar("S", bound=Tree)


class VariationalModel(ExpectationModel[S], Protocol[S]):
    """A law over the parameters of a model, refined by ``solve`` from averaged statistics and a total weight."""

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence of the law over parameters from their prior, a number."""


def elbo(model: VariationalModel[Any], expected: Expected[Any]) -> float:
    """The evidence lower bound per unit weight, less the base measure: what coordinate ascent climbs.

    Args:
        model: a law over parameters.
        expected: what its ``expect`` added up over all rows.
    """
    return float((expected.log_likelihood - model.divergence()) / expected.weight)
