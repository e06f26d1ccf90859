r"""The relevance of two families of features, as something to minimise, with a backward of its own."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxloop.data import check_kind, check_number
from boxloop.fit import ALONE, Workers
from boxloop.numeric import gram, product

Constant = Literal["enforced", "learned"]

SINGULAR = 1e-10
"""Squared pivot of a matrix with unit diagonal below which its null directions are looked for."""

NULL = 1e-12
"""Eigenvalue of a matrix with unit diagonal, beside its largest, below which a direction is taken to be null."""

INFLATED = 1e4
"""Variance inflation of a feature (that of its coefficient, by the others) up to which float32 is enough."""

CANCELS = 1e6
"""The same, times how much larger the two terms of a gradient are than their difference, squared."""

SPREAD = 1e10
"""Mean squares between this and its inverse have products that float32 holds."""


def relevance_loss(
    left: Tensor,
    right: Tensor,
    weight: Tensor | None = None,
    *,
    ridge: float = 0.0,
    constant: Constant = "enforced",
    workers: Workers = ALONE,
) -> Tensor:
    r"""What two families of features fail to say about each other.

    .. math:: C = k_0 - \mathrm{Tr}(K^{+} A^\top L^{+} A), \qquad
        K = \overline{f f^\top}, \; L = \overline{g g^\top}, \; A = \overline{g f^\top}

    Document 003, eq. 7 and 8. :math:`\mathrm{Tr}` is the sum of squared canonical correlations, the relevances, so C
    is 0 where each family is a function of the other, and k0 - 1 for independent views (k0 where the constant is
    enforced, of which C does not speak). Moments and inverses are in float64 whatever the features are in; the
    pseudo-inverses are those of features of unit size, so that C does not change with their units. The gradient

    .. math:: \nabla_{[F \, G]} C = -\frac{2}{n} \, [F \; G]
        \begin{pmatrix} -K^{+} A^\top M & M^\top \\ M & -M A^\top L^{+} \end{pmatrix},
        \qquad M = L^{+} A K^{+}

    is one product (in float32 for such features, where they are not nearly collinear), and finite where K or L is
    singular: no factorisation is differentiated.

    Args:
        left: F, features of the first view, (n, k).
        right: G, features of the second view, (n, l).
        weight: (n,), not negative; all alike when omitted.
        ridge: :math:`\epsilon` in :math:`(K + \epsilon I)^{-1}`, in the units of squared features; 0 takes
            pseudo-inverses.
        constant: ``enforced``: K, L, A are covariances, as if the constant were a feature of both views;
            ``learned``: they are raw moments, and the networks must find it.
        workers: processes with features of other rows. K, L and A are then those of all rows, and so is C, on every
            process; the gradient is such that its mean over processes is that of C in what they share.

    Returns:
        C, a scalar in float64 between 0 and k0 = min(k, l); NaN, with a gradient of NaN, where a feature is not finite
        or too large for its square.

    Deviation: the document's sums count from 1, which hides the constant; see ``constant``.

    Example:
        >>> import torch
        >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
        >>> round(float(relevance_loss(x, 2 * x + 1)), 6), round(float(relevance_loss(x, x**2)), 6)
        (0.0, 1.0)
    """
    for name, given in (("left", left), ("right", right), *(() if weight is None else (("weight", weight),))):
        check_kind(given, name, Tensor, f"torch.as_tensor({name}) makes one")
    check_number(ridge, "ridge")
    if left.dim() != 2 or right.dim() != 2 or len(left) != len(right):
        raise ValueError(
            f"features must be (n, k) and (n, l), got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    if weight is not None and weight.shape != (len(left),):
        raise ValueError(f"weight must have the shape ({len(left)},), got {tuple(weight.shape)}")
    function: Any = _Relevance
    return cast(Tensor, function.apply(left, right, weight, ridge, constant == "enforced", workers))


class _Relevance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        weight: Tensor | None,
        ridge: float,
        centred: bool,
        workers: Workers,
    ) -> Tensor:
        both = torch.cat([left.detach().double(), right.detach().double()], 1)
        share = None if weight is None else weight.double() / workers.sum(weight.double().sum())
        rows = workers.count(len(both), both.device) if share is None else 1
        k, kinds = left.shape[1], (left.dtype, right.dtype)
        floor = torch.zeros_like(both[0])
        if centred:
            mean = workers.sum(both.sum(0) if share is None else share @ both) / rows
            both -= mean
            coarse = max(torch.finfo(kind).eps for kind in kinds)
            floor = mean.abs() * max(8.0 * coarse, 1e-13)
        moment = workers.sum(gram(both, share) if share is not None else gram(both)) / rows
        if not bool(torch.isfinite(moment).all()):  # a step to refuse, not one to stop at
            ctx.save_for_backward(torch.full_like(both, torch.nan), moment * torch.nan, share)
            ctx.kinds = *kinds, k, workers.size / rows
            return moment.sum() * torch.nan
        inner, outer, cross = moment[:k, :k], moment[k:, k:], moment[k:, :k]
        one, two = inverse(inner, ridge, floor[:k]), inverse(outer, ridge, floor[k:])
        middle = two @ cross @ one
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            upper, lower = one @ cross.mT @ middle, middle @ cross.mT @ two
            turn = torch.cat([torch.cat([upper, -middle.mT], 1), torch.cat([-middle, lower], 1)])
            inflation = torch.cat([one.diagonal(), two.diagonal()]) * moment.diagonal()
            if set(kinds) == {torch.float32} and _mild(moment.diagonal(), inflation, middle @ cross.mT):
                both = both.float()
            ctx.save_for_backward(both, turn, share)
            ctx.kinds = *kinds, k, workers.size / rows
        most = float(min(k, right.shape[1]))
        return (most - (middle * cross).sum()).clamp(0.0, most)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        both, turn, share = ctx.saved_tensors
        kind, other, k, heavy = ctx.kinds
        turn = turn * (2.0 * gradient * heavy)
        slope = product(both, turn.to(both.dtype))
        if share is not None:
            slope *= share[:, None].to(slope)
        return slope[:, :k].to(kind), slope[:, k:].to(other), None, None, None, None


def _mild(moment: Tensor, inflation: Tensor, relevant: Tensor) -> bool:
    r"""Whether a product in float32 keeps about four digits of the gradient of features that come in float32.

    In canonical variables it is :math:`\eta_i (v_i - \eta_i u_i)`, of mean square :math:`\eta_i^2 (1 - \eta_i^2)`: near
    the optimum two terms of size :math:`\eta_i` cancel.

    Args:
        moment: mean squares of features.
        inflation: of their variances.
        relevant: a matrix whose eigenvalues are the relevances.
    """
    sizes = (moment == 0.0) | ((moment > 1.0 / SPREAD) & (moment < SPREAD))
    total = relevant.trace()
    left = (total - (relevant * relevant.mT).sum()).clamp(min=0.0)
    return bool((sizes & (inflation < INFLATED) & (inflation * total <= CANCELS * left)).all())


def inverse(matrix: Tensor, ridge: float = 0.0, floor: Tensor | float = 0.0) -> Tensor:
    r"""The inverse of a matrix of second moments, or a pseudo-inverse in units in which its diagonal is 1.

    .. math:: D^{-1/2} (D^{-1/2} K D^{-1/2})^{+} D^{-1/2}, \qquad D = \mathrm{diag}(K)

    Args:
        matrix: K, (k, k), symmetric and not negative.
        ridge: added to the diagonal.
        floor: (k,), sizes up to which a feature is taken to be 0: what rounding leaves of a constant.
    """
    size = matrix.diagonal().clamp(min=0.0).sqrt()
    varies = size > floor
    if ridge > 0.0:
        matrix = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        size = (size.square() + ridge).sqrt()
    unit = torch.where(varies, 1.0 / size, 0.0)
    scaled = unit[:, None] * matrix * unit
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if not bool(failed) and bool(factor.diagonal().square().min() > SINGULAR):
        found = torch.cholesky_inverse(factor)
    else:
        values, vectors = torch.linalg.eigh(scaled)
        kept = values > NULL * values[-1].clamp(min=1e-300)
        found = (vectors * torch.where(kept, 1.0 / values, 0.0)) @ vectors.mT
    return unit[:, None] * found * unit
