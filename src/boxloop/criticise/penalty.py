r"""Moment gaps as a penalty for any trainer, and the document's own estimator.

.. math:: \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

Document 000, eq. 17 to 19.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Generator, Tensor

from boxloop.criticise.adapt import as_model
from boxloop.criticise.closed import averaged
from boxloop.criticise.forward import latent_nodes, marginal
from boxloop.criticise.fused import TINY, fused_gap
from boxloop.criticise.wide import narrow, second_gap_norm
from boxloop.distributions import Categorical
from boxloop.numeric import column_means, covariance as forms, gram, single_threaded
from boxloop.types import Distribution, LatentModel


@dataclass(frozen=True)
class MomentPenalty:
    r"""A differentiable term that pulls a model's first two moments to those of a batch of rows.

    Args:
        alpha: its weight.
        nodes: latent draws where the model's moments are not exact.
        method: ``sobol`` or ``monte_carlo`` nodes; exact moments are used where the model has them.

    Example:
        >>> import torch
        >>> from boxloop.criticise.adapt import as_model
        >>> from boxloop.numeric import generator
        >>> shift = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        >>> model = as_model(2, lambda z: (z @ torch.ones(2, 3).double() + shift, torch.ones(len(z), 3).double()))
        >>> penalty = MomentPenalty(alpha=0.1, nodes=256)
        >>> penalty(model, torch.ones(10, 3).double(), generator(0)).backward()
        >>> bool((shift.grad < 0).all())
        True
    """

    alpha: float
    nodes: int = 5000
    method: Literal["sobol", "monte_carlo"] = "sobol"

    def __post_init__(self) -> None:
        alpha: object = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, Real):
            raise TypeError(f"alpha must be a number, got {self.alpha!r}")
        if not self.alpha >= 0.0:
            raise ValueError(f"alpha must not be negative, got {self.alpha}")

    def __call__(self, model: LatentModel, rows: Tensor, generator: Generator) -> Tensor:
        """The penalty of a model on a batch of rows (n, d)."""
        return self.alpha * self.gap(model, rows, generator)

    def gap(self, model: LatentModel, rows: Tensor, generator: Generator) -> Tensor:
        """The penalty without its weight."""
        finite = marginal(model)
        if finite is None:
            quasi = self.method == "sobol"
            z = torch.cat(list(latent_nodes(model.prior(), self.nodes, generator, quasi=quasi)))
            law = model.emission(z.to(rows))
            weight = None
        else:
            law, weight = finite
        if weight is None and not narrow(rows, law):
            return fused_gap(rows, law.mean, _mean_covariance(law))
        share = law.mean.new_full((len(law.mean),), 1.0 / len(law.mean)) if weight is None else weight
        first = rows.mean(0) - share @ law.mean
        if narrow(rows, law):
            second = second_gap_norm(rows, law, share)
        else:
            second = torch.linalg.matrix_norm(gram(rows) / len(rows) - second_moment(law, weight))
        return torch.linalg.vector_norm(first) + (second + TINY).sqrt()


def moment_penalty(
    alpha: float, nodes: int = 5000, method: Literal["sobol", "monte_carlo"] = "sobol"
) -> MomentPenalty:
    r"""The penalty of document 000, eq. 18, as a function of (model, rows, generator); see :class:`MomentPenalty`.

    .. math:: \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

    Args:
        alpha: its weight.
        nodes: latent draws where the model's moments are not exact.
        method: ``sobol`` or ``monte_carlo``.

    Example:
        >>> moment_penalty(0.1)
        MomentPenalty(alpha=0.1, nodes=5000, method='sobol')
    """
    return MomentPenalty(alpha, nodes, method)


def second_moment(law: Distribution, weight: Tensor | None = None) -> Tensor:
    """Second moment about zero of m laws with these weights, or equal ones, (d, d); differentiable."""
    if weight is None:
        m = len(law.mean)
        return averaged(law.covariance(), law.mean.new_full((m,), 1.0 / m)) + gram(law.mean) / m
    return averaged(law.covariance(), weight) + (law.mean * weight[:, None]).mT @ law.mean


def _mean_covariance(law: Distribution) -> Tensor:
    """Of m laws of equal weight: its diagonal (d,) when it has nothing else, or (d, d)."""
    covariance = law.covariance()
    if isinstance(covariance, forms.Diagonal):
        return column_means(covariance.variance)
    return averaged(covariance, law.mean.new_full((len(law.mean),), 1.0 / len(law.mean)))


@single_threaded
def paper_gaps(
    model: object, rows: Tensor, generator: Generator, nodes: int = 5000, *, sample: bool = False
) -> tuple[Tensor, Tensor]:
    """1MEGA (d,) and 2MEGA (d, d) as document 000 computes them: eq. 7 for the data, plain Monte Carlo for the model.

    Deviation: none. Eq. 7 overshoots the second moment by Cov/n, and the nodes have an error that the document does not
    give; :func:`boxloop.criticise.mega` has neither fault.

    Args:
        model: prior and emission.
        rows: (n, d), at least two.
        generator: for the nodes.
        nodes: m.
        sample: use draws of x (the sample estimator, SE) instead of laws (the forward estimator, FME).
    """
    model = as_model(model)
    if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) < 2:
        raise ValueError("rows must be a tensor (n, d) of at least 2 rows")
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, got {nodes}")
    mean = rows.mean(0)
    data = torch.cov(rows.mT).reshape(len(mean), -1) + mean[:, None] * mean
    if sample:
        from boxloop.criticise.sampling import sample_rows

        fresh = sample_rows(model, nodes, generator)
        return mean - fresh.mean(0), data - gram(fresh) / nodes
    prior = model.prior()
    if isinstance(prior, Categorical):  # equal nodes have equal laws: count them
        drawn = prior.draw(nodes, generator).reshape(-1)
        share = torch.bincount(drawn, minlength=len(prior.support)).to(mean) / nodes
        law = model.emission(prior.support)
        return mean - share @ law.mean, data - second_moment(law, share)
    first, second = torch.zeros_like(mean), torch.zeros_like(data)
    for z in latent_nodes(prior, nodes, generator, quasi=False):
        law = model.emission(z)
        part = len(law.mean) / nodes
        first = first + part * law.mean.mean(0)
        second = second + part * second_moment(law)
    return mean - first, data - second
