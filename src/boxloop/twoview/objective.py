r"""The relevance of two families of features: the loss that training minimises, and scores of fits on other rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from boxloop.data import ArraySource, check_kind, check_number
from boxloop.fit import SINGLE_PROCESS, Workers
from boxloop.numeric import gram, product
from boxloop.twoview.canonical import NULL, CanonicalVariables, MomentSums
from boxloop.twoview.channels import Channel
from boxloop.twoview.views import ViewPair
from boxloop.types import Source

Constant = Literal["enforced", "learned"]

SINGULAR = 1e-10
"""Squared pivot of a matrix with unit diagonal below which it is searched for null directions."""

FLOAT32_INFLATION = 1e4
"""Variance inflation of a feature (that of its coefficient, by the others) up to which float32 is precise enough."""

FLOAT32_CANCELLATION = 1e6
"""The same, times the squared ratio of the two terms of a gradient to their difference."""

FLOAT32_SQUARE = 1e10
"""Mean squares between this and its inverse have products that float32 holds."""

ROWS_PER_FEATURE = 10
"""Rows of a mini-batch for each feature below which its relevances are spurious: Learning relevant features, A.2."""

RIDGE_TOLERANCE = 0.01
"""Share of the best validation score that a smaller ridge may lose and still be chosen."""


def relevance_loss(
    left: Tensor,
    right: Tensor,
    weight: Tensor | None = None,
    *,
    ridge: float = 0.0,
    constant: Constant = "enforced",
    workers: Workers = SINGLE_PROCESS,
) -> Tensor:
    r"""The part of two families of features that neither predicts of the other.

    .. math:: C = k_0 - \mathrm{Tr}(K^{+} A^\top L^{+} A), \qquad
        K = \overline{f f^\top}, \; L = \overline{g g^\top}, \; A = \overline{g f^\top}

    Learning relevant features for statistical inference, eq. 7 and 8. :math:`\mathrm{Tr}` is the sum of squared
    canonical correlations, the relevances, so C is 0 where each family is a function of the other, and k0 - 1 for
    independent views (k0 where the constant is enforced, which C then leaves out). Moments and inverses are in float64
    whatever the features are in; the pseudo-inverses are those of features of unit size, so that C does not change
    with their units. The gradient

    .. math:: \nabla_{[F \, G]} C = -\frac{2}{n} \, [F \; G]
        \begin{pmatrix} -K^{+} A^\top M & M^\top \\ M & -M A^\top L^{+} \end{pmatrix},
        \qquad M = L^{+} A K^{+}

    is one product (in float32 for such features, where they are not nearly collinear), and finite where K or L is
    singular: no factorisation is differentiated.

    Args:
        left: F, features of the first view, (n, k).
        right: G, features of the second view, (n, l).
        weight: (n,), not negative; equal weights when omitted.
        ridge: :math:`\epsilon` in :math:`(K + \epsilon I)^{-1}`, in the units of squared features; 0 takes
            pseudo-inverses.
        constant: ``enforced``: K, L, A are covariances, as if the constant were a feature of both views;
            ``learned``: they are raw moments, and the networks must find it.
        workers: processes with features of other rows. K, L and A are then those of all rows, and so is C, on every
            process; the gradient is such that its mean over processes is that of C with respect to shared parameters.

    Returns:
        C, a scalar in float64 between 0 and k0 = min(k, l); NaN, with a gradient of NaN, where a feature is not finite
        or too large for its square.

    Deviation: the paper's sums count from 1, which hides the constant; see ``constant``.

    Example:
        >>> import torch
        >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
        >>> round(float(relevance_loss(x, 2 * x + 1)), 6), round(float(relevance_loss(x, x**2)), 6)
        (0.0, 1.0)
    """
    for name, value in (("left", left), ("right", right), *(() if weight is None else (("weight", weight),))):
        check_kind(value, name, Tensor, f"torch.as_tensor({name}) makes one")
    check_number(ridge, "ridge")
    if left.dim() != 2 or right.dim() != 2 or len(left) != len(right):
        raise ValueError(
            f"features must be (n, k) and (n, l), got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    if weight is not None and weight.shape != (len(left),):
        raise ValueError(f"weight must have the shape ({len(left)},), got {tuple(weight.shape)}")
    function: Any = _RelevanceFunction
    return cast(Tensor, function.apply(left, right, weight, ridge, constant == "enforced", workers))


class _RelevanceFunction(torch.autograd.Function):
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
        k, dtypes = left.shape[1], (left.dtype, right.dtype)
        floor = torch.zeros_like(both[0])
        if centred:
            mean = workers.sum(both.sum(0) if share is None else share @ both) / rows
            both -= mean
            coarse = max(torch.finfo(dtype).eps for dtype in dtypes)
            floor = mean.abs() * max(8.0 * coarse, 1e-13)
        moment = workers.sum(gram(both, share) if share is not None else gram(both)) / rows
        if not bool(torch.isfinite(moment).all()):  # the trainer refuses such a step, and goes on
            ctx.save_for_backward(torch.full_like(both, torch.nan), moment * torch.nan, share)
            ctx.sizes = *dtypes, k, workers.size / rows
            return moment.sum() * torch.nan
        inner, outer, cross = moment[:k, :k], moment[k:, k:], moment[k:, :k]
        one = invert_second_moments(inner, ridge, floor[:k])
        two = invert_second_moments(outer, ridge, floor[k:])
        middle = two @ cross @ one
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            upper, lower = one @ cross.mT @ middle, middle @ cross.mT @ two
            slope = torch.cat([torch.cat([upper, -middle.mT], 1), torch.cat([-middle, lower], 1)])
            inflation = torch.cat([one.diagonal(), two.diagonal()]) * moment.diagonal()
            if set(dtypes) == {torch.float32} and _is_float32_precise_enough(
                moment.diagonal(), inflation, middle @ cross.mT
            ):
                both = both.float()
            ctx.save_for_backward(both, slope, share)
            ctx.sizes = *dtypes, k, workers.size / rows
        most = float(min(k, right.shape[1]))
        return (most - (middle * cross).sum()).clamp(0.0, most)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        both, slope, share = ctx.saved_tensors
        left_dtype, right_dtype, k, factor = ctx.sizes
        slope = slope * (2.0 * gradient * factor)
        gradients = product(both, slope.to(both.dtype))
        if share is not None:
            gradients *= share[:, None].to(gradients)
        return gradients[:, :k].to(left_dtype), gradients[:, k:].to(right_dtype), None, None, None, None


def _is_float32_precise_enough(moment: Tensor, inflation: Tensor, relevant: Tensor) -> bool:
    r"""Whether a product in float32 keeps about four digits of the gradient of features that come in float32.

    In canonical variables it is :math:`\eta_i (v_i - \eta_i u_i)`, of mean square :math:`\eta_i^2 (1 - \eta_i^2)`: near
    the optimum two terms of size :math:`\eta_i` cancel.
    """
    sizes = (moment == 0.0) | ((moment > 1.0 / FLOAT32_SQUARE) & (moment < FLOAT32_SQUARE))
    total = relevant.trace()
    left = (total - (relevant * relevant.mT).sum()).clamp(min=0.0)
    precise = (inflation < FLOAT32_INFLATION) & (inflation * total <= FLOAT32_CANCELLATION * left)
    return bool((sizes & precise).all())


def invert_second_moments(matrix: Tensor, ridge: float = 0.0, floor: Tensor | float = 0.0) -> Tensor:
    r"""The inverse of a matrix of second moments, or a pseudo-inverse in units in which its diagonal is 1.

    .. math:: D^{-1/2} (D^{-1/2} K D^{-1/2})^{+} D^{-1/2}, \qquad D = \mathrm{diag}(K)
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
        inverse = torch.cholesky_inverse(factor)
    else:
        values, vectors = torch.linalg.eigh(scaled)
        real = values > NULL * values[-1].clamp(min=1e-300)
        inverse = (vectors * torch.where(real, 1.0 / values, 0.0)) @ vectors.mT
    return unit[:, None] * inverse * unit


@dataclass(frozen=True)
class RelevanceLoss:
    """:func:`relevance_loss` of a mini-batch, in the form that a trainer takes.

    Args:
        ridge: see :func:`relevance_loss`.
        constant: see :func:`relevance_loss`.
        weighted: whether rows have weights of their own.
        channel: draws the second view of rows that hold the first one alone.
        workers: the processes that share the rows of a batch; each of them draws the channel for all rows.
    """

    ridge: float = 0.0
    constant: Constant = "enforced"
    weighted: bool = False
    channel: Channel | None = None
    workers: Workers = SINGLE_PROCESS

    def __call__(
        self, pair: ViewPair, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and the total relevance in the batch."""
        mine, _ = self.workers.local_rows(len(rows))
        if self.channel is not None:
            rows = torch.cat([rows, self.channel(rows, stream)], 1)
        left, right = pair(rows[mine])
        mass = weight[mine] if self.weighted else None
        function: Any = _RelevanceFunction
        loss = function.apply(left, right, mass, self.ridge, self.constant == "enforced", self.workers)
        return loss, {"relevance": min(left.shape[1], right.shape[1]) - loss}


def conditional_distance(fitted: CanonicalVariables, sums: MomentSums) -> Tensor:
    r"""Distance of the fitted conditional distribution from that of other rows, up to a term that no fit changes.

    .. math:: \sum_{x, y} \frac{(q(x, y) - p(x, y))^2}{p(x) p(y)} - \sum_i \eta_i^2 =
        \sum_{ij} \hat\eta_i \hat\eta_j \overline{\hat u_i \hat u_j} \, \overline{\hat v_i \hat v_j}
        - 2 \sum_i \hat\eta_i \overline{\hat u_i \hat v_i}

    Learning relevant features for statistical inference, theorem 1 (eq. 22); bars are means over the other rows. It
    needs no inverse of their moments, so few of them suffice, and relevances that were fitted to noise increase it: a
    proper score, known for Markov processes as VAMP-E (Wu and Noé, 2020).

    Two approximations are small where rows are many. The first term is a product of two means over the same rows, too
    large by one part in their number. And the means of the fit stand for those of the other rows: a term
    :math:`2 \sum_i \hat\eta_i \, \overline{\hat u_i} \, \overline{\hat v_i}` is left out, of mean
    :math:`2 \sum_i \eta_i^2 / n` for n rows of the fit. An estimate of it from few other rows would do more harm than
    good: with 30 rows of three classes it made a network's validation choose a ridge of 1 where 0 was right.

    Args:
        fitted: canonical variables from the rows of the fit.
        sums: of features and their products, over other rows.

    Returns:
        A scalar; minus the total relevance where the other rows are those of the fit.
    """
    check_kind(fitted, "fitted", CanonicalVariables, "the field canonical of a RelevanceModel is one")
    check_kind(sums, "sums", MomentSums, "MomentSums.of(pair, rows, weight) makes one")
    return measure_channel_error(fitted, sums)


def measure_channel_error(fitted: CanonicalVariables, sums: MomentSums) -> Tensor:
    """:func:`conditional_distance` of arguments that need no check."""
    k = fitted.left.shape[0]
    mean, moment = sums.moments()
    shift = mean - torch.cat([fitted.left_mean, fitted.right_mean])
    moment = moment + shift[:, None] * shift
    left = fitted.left.mT @ moment[:k, :k] @ fitted.left
    right = fitted.right.mT @ moment[k:, k:] @ fitted.right
    cross = ((fitted.left.mT @ moment[:k, k:]) * fitted.right.mT).sum(1)
    eta = fitted.correlation
    return eta @ (left * right) @ eta - 2.0 * eta @ cross


@dataclass(frozen=True)
class RelevanceValidation:
    """Validation of features: canonical variables from rows of the fit, scored on held-out rows."""

    train: Source  # some rows of the fit, both views
    rows: ArraySource  # held-out rows, both views
    ridges: tuple[float, ...] = (0.0,)  # relative, in increasing order

    def __call__(self, pair: ViewPair, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The error of the channel relative to that of independence, and the relevances on both sets of rows."""
        error, fitted, ridge = self.fit_best_ridge(pair)
        return error, {
            "relevance": -error,
            "fitted_relevance": fitted.relevance.sum(),
            "ridge": torch.tensor(ridge, dtype=error.dtype),
        }

    def fit_best_ridge(self, pair: ViewPair) -> tuple[Tensor, CanonicalVariables, float]:
        """Error, variables and ridge of the smallest ridge that is about as good as any on held-out rows.

        Features that nearly repeat each other differ in directions that hold for single rows of the fit; on others
        these are far off. A ridge damps them.
        """
        k, most = pair.left.n_features, min(pair.left.n_features, pair.right.n_features)
        with torch.no_grad():
            train, rows = (source.reduce(partial(MomentSums.of, pair)) for source in (self.train, self.rows))
            fits = [(CanonicalVariables.solve(train, k, most, ridge), ridge) for ridge in self.ridges]
            errors = [measure_channel_error(variables, rows) for variables, _ in fits]
        low = min(float(error) for error in errors)
        near = (i for i, error in enumerate(errors) if float(error) <= low + RIDGE_TOLERANCE * abs(low))
        place = next(near, 0)
        return errors[place], *fits[place]
