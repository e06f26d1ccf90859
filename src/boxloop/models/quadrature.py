r"""The likelihood of a random-effects model by adaptive Gauss-Hermite quadrature, for a few effects a group.

.. math:: \log \int e^{h_i(u)} du \approx \log \sum_k v_k \exp\!\left( h_i(\hat u_i + \sqrt 2 C_i x_k) + |x_k|^2 \right)
          + \frac q2 \log 2 + \log |C_i|

with :math:`h_i` the log-joint of group i, :math:`\hat u_i` its mode, :math:`C_i C_i^\top = (-\nabla^2 h_i)^{-1}` and
:math:`x_k, v_k` the product rule (Liu and Pierce 1994; Pinheiro and Bates 1995). One node is Laplace's approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.models.grouped import GroupedRows
from boxloop.models.random_effects import RandomEffects
from boxloop.tree import Tree

MOST = 3
"""Most effects a group for which a product rule is sensible."""
ROUNDS = 60
SETTLED = 1e-10


@dataclass(frozen=True)
class Modes(Tree):
    """Where each group's effects are most probable given its rows.

    Args:
        place: modes, (g, q).
        factor: C with C C' the inverse curvature there, (g, q, q).
    """

    place: Tensor
    factor: Tensor


def modes(model: RandomEffects, rows: GroupedRows) -> Modes:
    """Newton's method for all groups at once; the log-joint is concave, and a step that lowers it is halved.

    Args:
        model: at which parameters.
        rows: of g groups.

    Returns:
        Modes and curvatures.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import BernoulliResponse
        >>> one = torch.ones(2, 1).double()
        >>> rows = GroupedRows.of(torch.tensor([0.0, 1.0]), one, one, torch.tensor([0, 0]))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), BernoulliResponse())
        >>> modes(model, rows).place.abs() < 1e-9  # one zero and one one: the effect is zero
        tensor([[True]])
    """
    q = len(model.factor)
    prior = torch.cholesky_inverse(model.factor)
    place = model.factor.new_zeros((rows.n_groups, q))
    height = model.log_joint(rows, place)
    precision = prior.expand(rows.n_groups, q, q)
    for _ in range(ROUNDS):
        mean = model.response.mean(model.predictor(rows, place))[:, 0]
        curve = (rows.weight * model.response.variance(mean))[:, None, None]
        slope = rows.total(rows.random * (rows.weight * (rows.response - mean))[:, None]) - place @ prior
        precision = rows.total(curve * rows.random[:, :, None] * rows.random[:, None, :]) + prior
        move = torch.linalg.solve(precision, slope[:, :, None])[:, :, 0]
        if bool(((slope * move).sum(1) < SETTLED**2).all()):
            break
        place, height = _raised(lambda u: model.log_joint(rows, u), place, height, move)
    half = torch.linalg.cholesky(precision)
    eye = torch.eye(q, dtype=half.dtype, device=half.device)
    return Modes(place, torch.linalg.solve_triangular(half.mT, eye, upper=True))


def _raised(
    level: Callable[[Tensor], Tensor], place: Tensor, height: Tensor, move: Tensor
) -> tuple[Tensor, Tensor]:
    """Each group moved by the longest of the steps 1, 1/2, 1/4, ... that does not lower it."""
    for _ in range(40):
        there = level(place + move)
        worse = ~(there >= height - 1e-12 * height.abs())
        if not bool(worse.any()):
            break
        move = torch.where(worse[:, None], 0.5 * move, move)
    better = there >= height
    return torch.where(better[:, None], place + move, place), torch.where(better, there, height)


def group_log_likelihood(
    model: RandomEffects, rows: GroupedRows, nodes: int = 20, at: Modes | None = None
) -> Tensor:
    """Log-likelihood of each group, its effects integrated out.

    Args:
        model: at which parameters; differentiable in them.
        rows: of g groups.
        nodes: of the rule, for each effect; 1 is Laplace's approximation.
        at: where the nodes are centred; at the modes when omitted. Give them to differentiate with the nodes fixed.

    Returns:
        One value for each group, (g,).

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import BernoulliResponse
        >>> one = torch.ones(1, 1).double()
        >>> rows = GroupedRows.of(torch.ones(1), one, one, torch.tensor([0]))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), BernoulliResponse())
        >>> group_log_likelihood(model, rows).exp()  # by symmetry
        tensor([0.5000], dtype=torch.float64)
    """
    q = len(model.factor)
    if q > MOST:
        raise ValueError(f"quadrature serves at most {MOST} effects a group, not {q}")
    if at is None:
        with torch.no_grad():
            at = modes(model, rows)
    point, weight = np.polynomial.hermite.hermgauss(nodes)
    grid = torch.cartesian_prod(*[torch.from_numpy(point)] * q).reshape(-1, q).to(at.place)
    logs = torch.cartesian_prod(*[torch.from_numpy(np.log(weight))] * q).reshape(-1, q).to(at.place).sum(1)
    z = at.place[:, None, :] + math.sqrt(2.0) * grid @ at.factor.mT
    joint = model.log_joint(rows, z.reshape(-1, q)).reshape(rows.n_groups, -1)
    volume = at.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * q * math.log(2.0)
    return torch.logsumexp(joint + logs + grid.square().sum(1), dim=1) + volume
