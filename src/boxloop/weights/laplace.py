r"""The posterior of the last layer given what enters it: exact for regression, Laplace's for classification.

With features :math:`\phi(x)` fixed, the outputs :math:`W \phi(x)` are linear in the weights W that are left. Under a
prior :math:`N(0, \alpha^{-1} I)` regression with Gaussian noise is Bayesian linear regression (document 004, section
2.2). For classes the log-posterior is concave, with

.. math:: -\nabla^2 \log p(W \mid y) = \alpha I + \sum_n (\mathrm{diag}(p_n) - p_n p_n^\top) \otimes \phi_n \phi_n^\top

whatever the labels: Hessian, Fisher information and Gauss-Newton matrix are one. Laplace's law is the Gaussian with
this precision at the mode, which Newton's method finds (MacKay, 1992; Daxberger et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from boxloop.data import check_choice, check_kind, share_memory
from boxloop.loop import Iteration, run
from boxloop.numeric import safe_cholesky, single_threaded
from boxloop.weights.last_layer import LastLayer
from boxloop.weights.law import WeightLaw
from boxloop.weights.layout import Layout
from boxloop.weights.linear_evidence import positive
from boxloop.weights.linear_regression import linear_regression
from boxloop.weights.method import Part
from boxloop.weights.regression_moments import RegressionMoments

Kind = Literal["regression", "classification"]

MOST = 4096
"""Weights of a last layer whose full covariance is worth its square."""
STEPS = 200
"""Most steps of Newton's method; five to ten are usual."""
STRONGEST = 1e4
"""Precision of a prior that is looked at where none is stated, and one over the weakest."""
SETTLED = 1e-12
"""Squared length of the last Newton step in posterior standard deviations, over the height of the log-posterior."""


@dataclass(frozen=True)
class LastLayerPosterior:
    """A Gaussian law over the weights of the last layer, the others fixed.

    Args:
        last: the layer, and what enters it.
        law: of its weights, in the order of ``last.layout``.
        alpha: precision of the prior, one for each output.
        noise: standard deviation of observations, (k,); None for classes.
        log_evidence: of the labels given the features; Laplace's approximation for classes.
    """

    last: LastLayer
    law: WeightLaw
    alpha: Tensor
    noise: Tensor | None
    log_evidence: float

    @property
    def layout(self) -> Layout:
        """Which parameters vary."""
        return self.last.layout

    @property
    def net(self) -> nn.Module:
        """Whose parameters vary; they are not changed."""
        return self.last.net

    def parts(self) -> tuple[Part, ...]:
        """As a posterior that predictions can be made from."""
        return (Part(1.0, self.net, self.layout, self.law),)

    def features(self, X: Any) -> Tensor:
        """What the law's weights multiply, with a column of ones where a bias varies, (n, h) or (n, h + 1)."""
        return self.last.features(X)


@single_threaded
def last_layer_laplace(
    net: nn.Module,
    X: Any,
    y: Any,
    kind: Kind,
    prior_precision: float | None = None,
    noise: float | Sequence[float] | None = None,
    *,
    mode: bool = True,
) -> LastLayerPosterior:
    """The posterior of the last layer of a network.

    Args:
        net: any module that ends in an ``nn.Linear``; it is not changed.
        X: inputs, as the network takes them.
        y: outputs (n,) or (n, k) of a regression, numbers of the classes (n,) otherwise.
        kind: ``"regression"`` or ``"classification"``.
        prior_precision: alpha, of weights and bias alike; that of the highest evidence when None, for classes between
            1e-4 and 1e4.
        noise: standard deviation of observations, one or one for each output; found by the evidence when None.
        mode: centre the law at the best weights of the layer; at those that it has when False.

    Raises:
        ValueError: no linear layer at the end, over 4096 weights in it, labels that do not fit.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(1, 1).double()
        >>> x = torch.tensor([[1.0], [2.0]]).double()
        >>> found = last_layer_laplace(net, x, x, "regression", prior_precision=1e-9, noise=0.1)
        >>> found.law.mean.round(decimals=3)  # slope and bias
        tensor([1., 0.], dtype=torch.float64)
    """
    check_choice(kind, "kind", ("regression", "classification"))
    check_kind(net, "net", nn.Module, "a network that ends in an nn.Linear is needed")
    last = LastLayer.of(net)
    if last.layout.size > MOST:
        raise ValueError(
            f"the last layer has {last.layout.size} weights; a full covariance is for {MOST} at most"
        )
    if prior_precision is not None:
        positive("prior_precision", prior_precision, 1)
    labels = y if isinstance(y, Tensor) else share_memory(np.asarray(y))
    phi = last.features(X).double()
    if len(labels) != len(phi):
        raise ValueError(f"X has {len(phi)} rows and y has {len(labels)}")
    if kind == "regression":
        return _regression(last, phi, labels, prior_precision, noise, mode)
    if noise is not None:
        raise ValueError("classes have no noise of observations: leave out noise")
    alpha = _likeliest(last, phi, labels) if prior_precision is None else float(prior_precision)
    return _classification(last, phi, labels, alpha, mode)


def _regression(
    last: LastLayer,
    phi: Tensor,
    labels: Tensor,
    alpha: float | None,
    noise: float | Sequence[float] | None,
    mode: bool,
) -> LastLayerPosterior:
    k = last.outputs
    targets = labels.to(phi).reshape(len(phi), -1)
    if targets.shape[1] != k or not bool(targets.isfinite().all()):
        raise ValueError(f"a regression with {k} output(s) needs as many finite numbers a row in y")
    sums = RegressionMoments.of(phi, targets - last.offset()).to("cpu")
    beta = None if noise is None else [value**-2 for value in positive("noise", noise, k)]
    found, _ = linear_regression(sums, alpha, beta)
    mean = found.mean if mode else last.weights()
    root = torch.block_diag(*(found.root(j) for j in range(k)))
    evidence = float(found.log_evidence.sum())
    return LastLayerPosterior(last, _law(last, mean, root), found.alpha, found.beta.rsqrt(), evidence)


def _law(last: LastLayer, mean: Tensor, root: Tensor) -> WeightLaw:
    """In the order, dtype and place of the parameters."""
    order, weight = last.order(), last.layer.weight
    flat, rows = mean.reshape(-1).cpu()[order], root.cpu()[order]
    return WeightLaw(flat, rows, torch.zeros_like(flat)).to(weight.device, last.dtype)


@dataclass(frozen=True)
class _Softmax:
    """Labels given features: log-posterior of W (k, h) with its gradient and curvature."""

    phi: Tensor
    target: Tensor
    offset: Tensor
    alpha: float

    def logits(self, weights: Tensor) -> Tensor:
        return self.phi @ weights.mT + self.offset

    def log_posterior(self, weights: Tensor) -> Tensor:
        """Less the constant of the prior."""
        chosen = self.logits(weights).log_softmax(1).gather(1, self.target[:, None]).sum()
        return chosen - 0.5 * self.alpha * weights.square().sum()

    def gradient(self, weights: Tensor) -> Tensor:
        surplus = nn.functional.one_hot(self.target, len(weights)).to(self.phi) - self.logits(
            weights
        ).softmax(1)
        return surplus.mT @ self.phi - self.alpha * weights

    def precision(self, weights: Tensor) -> Tensor:
        """Of Laplace's law, (k h, k h)."""
        share = self.logits(weights).softmax(1)
        k, h = weights.shape
        found = self.phi.new_empty(k, h, k, h)
        for a in range(k):
            for b in range(a, k):
                curve = share[:, a] * ((1.0 if a == b else 0.0) - share[:, b])
                block = (self.phi * curve[:, None]).mT @ self.phi
                found[a, :, b] = block
                found[b, :, a] = block.mT
        whole = found.reshape(k * h, k * h)
        whole.diagonal().add_(self.alpha)
        return whole


def _likeliest(last: LastLayer, phi: Tensor, labels: Tensor) -> float:
    """The prior precision of the highest evidence of classes."""

    def surprise(log_alpha: float) -> float:
        return -_classification(last, phi, labels, math.exp(log_alpha), True).log_evidence

    most = math.log(STRONGEST)
    best = minimize_scalar(surprise, bounds=(-most, most), method="bounded", options={"xatol": 0.05})
    return math.exp(float(best.x))


def _classification(
    last: LastLayer, phi: Tensor, labels: Tensor, alpha: float, mode: bool
) -> LastLayerPosterior:
    k = last.outputs
    if k < 2:
        raise ValueError("classification needs an output for each class: two for two classes")
    target = labels.to(phi.device).reshape(-1)
    if target.is_floating_point() and not bool((target == target.round()).all()):
        raise ValueError("y must hold the numbers of the classes, 0 to k - 1")
    target = target.long()
    if bool((target < 0).any()) or bool((target >= k).any()):
        raise ValueError(f"y must hold the numbers of {k} classes, from 0 to {k - 1}")
    problem = _Softmax(phi, target, last.offset(), alpha)
    weights = _mode(problem, last.weights()) if mode else last.weights()
    lower = safe_cholesky(problem.precision(weights), "precision of the last layer")
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    prior = 0.5 * len(lower) * math.log(alpha)
    evidence = float(problem.log_posterior(weights) - lower.diagonal().log().sum()) + prior
    return LastLayerPosterior(
        last, _law(last, weights, root), torch.full((k,), alpha, dtype=torch.float64), None, evidence
    )


def _mode(problem: _Softmax, start: Tensor) -> Tensor:
    """Newton's method with halved steps: the log-posterior is strictly concave."""

    def step(weights: Tensor) -> Iteration[Tensor]:
        height = float(problem.log_posterior(weights))
        slope = problem.gradient(weights).reshape(-1, 1)
        lower = safe_cholesky(problem.precision(weights), "precision of the last layer")
        move = torch.cholesky_solve(slope, lower)
        size = float((slope * move).sum())
        move = move.reshape(weights.shape)
        if size < SETTLED * max(1.0, abs(height)):  # the last step squares what is left
            return Iteration(weights + move, height, final=True)
        share = 1.0
        while (
            float(problem.log_posterior(weights + share * move)) < height + 1e-4 * share * size
            and share > 1e-9
        ):
            share *= 0.5
        return Iteration(weights + share * move, height)

    found = run(step, start, max_iter=STEPS)
    if not found.converged:
        raise RuntimeError(f"the mode of the last layer was not found in {STEPS} steps of Newton's method")
    return found.state
