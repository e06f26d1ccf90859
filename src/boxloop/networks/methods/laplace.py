r"""The posterior of the last layer given its inputs: exact for regression, Laplace's approximation for classification.

With fixed features :math:`\phi(x)` regression with Gaussian noise is Bayesian linear regression (Brownlie, 2021,
section 2.2). For classes the log-posterior is concave, with

.. math:: -\nabla^2 \log p(W \mid y) = \alpha I + \sum_n (\mathrm{diag}(p_n) - p_n p_n^\top) \otimes \phi_n \phi_n^\top

whatever the labels: Hessian, Fisher information and Gauss-Newton matrix agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from boxloop.data import check_choice, check_kind, wrap_as_tensor
from boxloop.loop import Iteration, run
from boxloop.networks.distribution import Component, WeightDistribution
from boxloop.networks.function import evaluation_mode
from boxloop.networks.inputs import as_inputs, count_rows, map_tensors, slice_rows
from boxloop.networks.linear_regression import RegressionMoments, check_positive, linear_regression
from boxloop.networks.posterior import LAST, Layout
from boxloop.networks.predictor import PredictivePosterior
from boxloop.numeric import safe_cholesky, single_threaded

Kind = Literal["regression", "classification"]

CHUNK = 4096  # rows evaluated by the network at once
MAX_WEIGHTS = 4096  # largest number of weights of the last layer, since the covariance is full
MAX_ITERATIONS = 200  # of Newton's method; five to ten are usual
MAX_PRECISION = 1e4
"""Largest prior precision that the evidence may choose for classes; the smallest is its reciprocal."""
TOLERANCE = 1e-12
"""Squared length of the last Newton step in posterior standard deviations, relative to the log-posterior."""


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer of a network.

    Args:
        net: a network whose output is that of the layer.
        layout: of the layer's trainable parameters.
        layer: the layer itself.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> last = LastLayer.from_network(net)
        >>> last.layout.names, last.features(torch.zeros(5, 2)).shape  # three features and the constant
        (('2.weight', '2.bias'), torch.Size([5, 4]))
    """

    net: nn.Module
    layout: Layout
    layer: nn.Linear

    @classmethod
    def from_network(cls, net: nn.Module) -> LastLayer:
        """The last layer of a network."""
        layout = Layout.from_network(net, LAST)
        trained = {id(net.get_parameter(name)) for name in layout.names}
        owners = [module for module in net.modules() if next(module.parameters(False), None) is not None]
        layer = owners[-1]
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"The last module with parameters is a {type(layer).__name__}; a last-layer posterior needs an "
                "nn.Linear there."
            )
        if id(layer.weight) not in trained:
            raise ValueError("The weights of the last layer are frozen, so they have no posterior.")
        return cls(net, layout, layer)

    @property
    def has_bias(self) -> bool:
        """Whether a trainable bias is among the weights."""
        return len(self.layout.names) == 2

    @property
    def n_outputs(self) -> int:
        """Number of outputs, k."""
        return self.layer.out_features

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the layer, at least float32."""
        return torch.promote_types(self.layer.weight.dtype, torch.float32)

    def features(self, X: Any) -> Tensor:
        """Inputs of the layer, with a column of ones where it has a bias, (n, h) or (n, h + 1)."""
        try:
            features = torch.cat([chunk for _, chunk in self.feature_chunks(X)])
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"The network cannot be evaluated at X ({type(X).__name__}); pass the tensors that it takes."
            ) from error
        return torch.cat([features, features.new_ones(len(features), 1)], 1) if self.has_bias else features

    def feature_chunks(self, X: Any, size: int = CHUNK) -> Iterator[tuple[slice, Tensor]]:
        """Inputs of the layer for some rows at a time, without the ones."""
        weight = self.layer.weight
        inputs = map_tensors(
            as_inputs(X), lambda one: one.to(weight.device, weight.dtype if one.is_floating_point() else None)
        )
        with evaluation_mode(self.net):
            for start in range(0, count_rows(inputs), size):
                part = slice_rows(inputs, start, start + size)
                yield slice(start, start + count_rows(part)), self._record_features(part)

    def offset(self) -> Tensor:
        """Constant part of the outputs: a frozen bias, (k,) float64."""
        if self.has_bias or self.layer.bias is None:
            return self.layer.weight.new_zeros(self.n_outputs, dtype=torch.float64)
        return self.layer.bias.detach().double()

    def weights(self) -> Tensor:
        """The current weights, one row per output, the bias last, (k, h) or (k, h + 1), float64."""
        weight = self.layer.weight.detach().double()
        return torch.cat([weight, self.layer.bias.detach().double()[:, None]], 1) if self.has_bias else weight

    def order(self) -> Tensor:
        """The position in :meth:`weights`, flattened, of each entry of a vector of the layout, (D,)."""
        h = self.layer.in_features
        positions = torch.arange(self.layout.size).reshape(self.n_outputs, -1)
        parts = {id(self.layer.weight): positions[:, :h].reshape(-1)}
        if self.has_bias:
            parts[id(self.layer.bias)] = positions[:, h]
        return torch.cat([parts[id(self.net.get_parameter(name))] for name in self.layout.names])

    def _record_features(self, inputs: Any) -> Tensor:
        """Evaluate the network and record what enters the layer."""
        calls: list[tuple[Tensor, Tensor]] = []
        hook = self.layer.register_forward_hook(lambda _, args, out: calls.append((args[0], out)))
        try:
            outputs = self.net(inputs)
        finally:
            hook.remove()
        if len(calls) != 1 or calls[0][0].ndim != 2 or len(calls[0][0]) != count_rows(inputs):
            raise ValueError("The network must call its last layer once, with one vector per row.")
        features, expected = calls[0]
        same = isinstance(outputs, Tensor) and outputs.numel() == expected.numel()
        if same:
            reached = outputs.reshape(expected.shape)
            same = bool(((reached == expected) | (reached.isnan() & expected.isnan())).all())
        if not same:
            raise ValueError(
                "The output of the network is not that of its last layer: remove what follows the layer, such as a "
                "softmax, and register modules in the order of their use."
            )
        return features.detach()


@dataclass(frozen=True)
class LastLayerPosterior(PredictivePosterior):
    """A Gaussian posterior of the weights of the last layer; the other layers are fixed.

    Args:
        last: the layer.
        distribution: of its weights, in the order of ``last.layout``.
        alpha: prior precision for each output, (k,).
        noise: standard deviation of the observations, (k,); None for classes.
        log_evidence: of the labels given the features; Laplace's approximation for classes.
    """

    last: LastLayer
    distribution: WeightDistribution
    alpha: Tensor
    noise: Tensor | None
    log_evidence: float

    @property
    def layout(self) -> Layout:
        """The parameters that vary."""
        return self.last.layout

    @property
    def net(self) -> nn.Module:
        """The network; it is not changed."""
        return self.last.net

    def components(self) -> tuple[Component, ...]:
        """One component: the distribution, with the network."""
        return (Component(1.0, self.net, self.layout, self.distribution),)

    def features(self, X: Any) -> Tensor:
        """Inputs of the layer, with a column of ones where it has a bias, (n, h) or (n, h + 1)."""
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
    r"""The posterior of the last layer of a network.

    .. math:: W \mid y \sim N\bigl(\hat W, \ [-\nabla^2 \log p(\hat W \mid y)]^{-1}\bigr)

    MacKay (1992); Daxberger et al. (2021).

    Args:
        net: a module that ends in an ``nn.Linear``; it is not changed.
        X: inputs, as the network takes them.
        y: outputs (n,) or (n, k) for regression, class numbers (n,) for classification.
        kind: ``"regression"`` or ``"classification"``.
        prior_precision: alpha, of weights and bias; None maximises the evidence, for classes between 1e-4 and 1e4.
        noise: standard deviation of the observations, one or one per output; None maximises the evidence.
        mode: centre the distribution at the mode; False centres it at the current weights.

    Returns:
        :class:`LastLayerPosterior`.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(1, 1).double()
        >>> x = torch.tensor([[1.0], [2.0]]).double()
        >>> posterior = last_layer_laplace(net, x, x, "regression", prior_precision=1e-9, noise=0.1)
        >>> posterior.distribution.mean.round(decimals=3)  # slope and bias
        tensor([1., 0.], dtype=torch.float64)
    """
    check_choice(kind, "kind", ("regression", "classification"))
    check_kind(net, "net", nn.Module, "pass a network that ends in an nn.Linear")
    last = LastLayer.from_network(net)
    if last.layout.size > MAX_WEIGHTS:
        raise ValueError(
            f"A last layer may have at most {MAX_WEIGHTS} weights here; this one has {last.layout.size}."
        )
    if prior_precision is not None:
        check_positive("prior_precision", prior_precision, 1)
    labels = y if isinstance(y, Tensor) else wrap_as_tensor(np.asarray(y))
    phi = last.features(X).double()
    if len(labels) != len(phi):
        raise ValueError(f"X has {len(phi)} rows and y has {len(labels)}")
    if kind == "regression":
        return _fit_regression(last, phi, labels, prior_precision, noise, mode)
    if noise is not None:
        raise ValueError("noise applies to regression only; leave it out for classification")
    if prior_precision is not None:
        return _fit_classification(last, phi, labels, float(prior_precision), mode)
    limit = math.log(MAX_PRECISION)
    best = minimize_scalar(
        lambda log_alpha: -_fit_classification(last, phi, labels, math.exp(log_alpha), True).log_evidence,
        bounds=(-limit, limit),
        method="bounded",
        options={"xatol": 0.05},
    )
    return _fit_classification(last, phi, labels, math.exp(float(best.x)), mode)


def _fit_regression(
    last: LastLayer,
    phi: Tensor,
    labels: Tensor,
    alpha: float | None,
    noise: float | Sequence[float] | None,
    mode: bool,
) -> LastLayerPosterior:
    """The exact posterior, by Bayesian linear regression on the features."""
    k = last.n_outputs
    targets = labels.to(phi).reshape(len(phi), -1)
    if targets.shape[1] != k or not bool(targets.isfinite().all()):
        raise ValueError(f"y must hold {k} finite number(s) per row, as many as the network has outputs")
    moments = RegressionMoments.from_rows(phi, targets - last.offset()).to("cpu")
    beta = None if noise is None else [value**-2 for value in check_positive("noise", noise, k)]
    exact, _ = linear_regression(moments, alpha, beta)
    mean = exact.mean if mode else last.weights()
    root = torch.block_diag(*(exact.root(j) for j in range(k)))
    evidence = float(exact.log_evidence.sum())
    return LastLayerPosterior(
        last, _to_weight_distribution(last, mean, root), exact.alpha, exact.beta.rsqrt(), evidence
    )


def _to_weight_distribution(last: LastLayer, mean: Tensor, root: Tensor) -> WeightDistribution:
    """Mean (k, h) and root of the covariance in the order, dtype and device of the parameters."""
    order, weight = last.order(), last.layer.weight
    flat, rows = mean.reshape(-1).cpu()[order], root.cpu()[order]
    return WeightDistribution(flat, rows, torch.zeros_like(flat)).to(weight.device, last.dtype)


@dataclass(frozen=True)
class _SoftmaxRegression:
    """The log-posterior of W (k, h) for classes, with its gradient and curvature."""

    phi: Tensor
    target: Tensor
    offset: Tensor
    alpha: float

    def logits(self, weights: Tensor) -> Tensor:
        return self.phi @ weights.mT + self.offset

    def log_posterior(self, weights: Tensor) -> Tensor:
        """Up to the constant of the prior."""
        observed = self.logits(weights).log_softmax(1).gather(1, self.target[:, None]).sum()
        return observed - 0.5 * self.alpha * weights.square().sum()

    def gradient(self, weights: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(self.target, len(weights)).to(self.phi)
        return (one_hot - self.logits(weights).softmax(1)).mT @ self.phi - self.alpha * weights

    def precision(self, weights: Tensor) -> Tensor:
        """Minus the Hessian, (k h, k h)."""
        p = self.logits(weights).softmax(1)
        k, h = weights.shape
        blocks = self.phi.new_empty(k, h, k, h)
        for a in range(k):
            for b in range(a, k):
                curvature = p[:, a] * ((1.0 if a == b else 0.0) - p[:, b])
                block = (self.phi * curvature[:, None]).mT @ self.phi
                blocks[a, :, b] = block
                blocks[b, :, a] = block.mT
        matrix = blocks.reshape(k * h, k * h)
        matrix.diagonal().add_(self.alpha)
        return matrix

    def find_mode(self, start: Tensor) -> Tensor:
        """Newton's method with step halving; the log-posterior is strictly concave."""

        def step(weights: Tensor) -> Iteration[Tensor]:
            height = float(self.log_posterior(weights))
            gradient = self.gradient(weights).reshape(-1, 1)
            lower = safe_cholesky(self.precision(weights), "precision of the last layer")
            move = torch.cholesky_solve(gradient, lower)
            decrement = float((gradient * move).sum())
            move = move.reshape(weights.shape)
            if decrement < TOLERANCE * max(1.0, abs(height)):  # the last step squares the remaining error
                return Iteration(weights + move, height, final=True)
            share = 1.0
            while (
                float(self.log_posterior(weights + share * move)) < height + 1e-4 * share * decrement
                and share > 1e-9
            ):
                share *= 0.5
            return Iteration(weights + share * move, height)

        outcome = run(step, start, max_iter=MAX_ITERATIONS)
        if not outcome.converged:
            raise RuntimeError(
                f"Newton's method did not find the mode of the last layer in {MAX_ITERATIONS} steps."
            )
        return outcome.state


def _fit_classification(
    last: LastLayer, phi: Tensor, labels: Tensor, alpha: float, mode: bool
) -> LastLayerPosterior:
    """Laplace's approximation for a prior precision."""
    k = last.n_outputs
    if k < 2:
        raise ValueError("Classification needs one output per class: two outputs for two classes.")
    target = labels.to(phi.device).reshape(-1)
    whole = not target.is_floating_point() or bool((target == target.round()).all())
    if not whole or bool((target < 0).any()) or bool((target >= k).any()):
        raise ValueError(f"y must hold class numbers from 0 to {k - 1}")
    problem = _SoftmaxRegression(phi, target.long(), last.offset(), alpha)
    weights = problem.find_mode(last.weights()) if mode else last.weights()
    lower = safe_cholesky(problem.precision(weights), "precision of the last layer")
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    prior = 0.5 * len(lower) * math.log(alpha)
    evidence = float(problem.log_posterior(weights) - lower.diagonal().log().sum()) + prior
    precision = torch.full((k,), alpha, dtype=torch.float64)
    return LastLayerPosterior(last, _to_weight_distribution(last, weights, root), precision, None, evidence)
