r"""A law over the weights of the last layer against the exact posterior given the features of the mean network.

Exact for regression; Laplace's for classes. The exact law holds the other layers fixed. A law over all layers may be
wider by what they vary, never narrower: for Gaussians a marginal covariance is at least the conditional one. Classes
leave one direction open, the same vector added to the weights of all of them, which changes no probability: it is taken
out of both laws.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxloop.concerns import Concern, Level
from boxloop.data import make_frame
from boxloop.numeric import relative_error, wasserstein
from boxloop.weights.audit_chain import AWRY, FAR, NEAR, OFF
from boxloop.weights.functional import Buffers
from boxloop.weights.laplace import Kind, LastLayerPosterior, last_layer_laplace
from boxloop.weights.law import WeightLaw
from boxloop.weights.method import Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

SHAPE = 0.5
"""Relative error of a covariance of the right size up to which its shape is right."""
MOST, SQUARES = 2048, 1024
"""Weights up to which covariances are compared, and up to which a Wasserstein distance is worth its eigenvalues."""
ROUNDING = 1e-12
"""Share of the largest variance below which another is rounding."""


@dataclass(frozen=True)
class LastLayerCheck:
    r"""How far a law over the weights of the last layer is from the exact posterior.

    Args:
        kind: ``regression``, whose posterior is exact; ``classification``, where it is Laplace's.
        alone: whether no other layer varies under the law, so that both are laws of the same thing.
        prior_precision: alpha, of the exact posterior.
        noise: standard deviations of outputs behind it, (k,); None for classes.
        mean_error: :math:`|m - m^*| / |m^*|`.
        off: :math:`\sqrt{(m - m^*)^\top S^{*-1} (m - m^*) / D}`, the mean's distance in posterior deviations.
        covariance_error: :math:`|S - S^*|_F / |S^*|_F`.
        shape_error: the same, of S scaled to the trace of the exact one.
        variance_ratio: :math:`\operatorname{tr} S / \operatorname{tr} S^*`, of weights. Directions that no row
            determines count as much as the prior lets them.
        output_ratio: the same of outputs at the training rows, :math:`\operatorname{tr} \Phi S \Phi^\top /
            \operatorname{tr} \Phi S^* \Phi^\top`.
        distance: 2-Wasserstein, between the two laws; NaN for over 1024 weights.
        deviation: of every weight under the law, (D,).
        true_deviation: under the exact posterior, (D,).
    """

    kind: str
    alone: bool
    prior_precision: float
    noise: Array | None
    mean_error: float
    off: float
    covariance_error: float
    shape_error: float
    variance_ratio: float
    output_ratio: float
    distance: float
    deviation: Array
    true_deviation: Array

    @property
    def worries(self) -> tuple[Concern, ...]:
        """One."""
        whose = "the exact" if self.kind == "regression" else "Laplace's"
        level, said, then = self._verdict()
        why = (
            f"outputs have {self.output_ratio:.2g} times, weights {self.variance_ratio:.2g} times the variance of "
            f"{whose} posterior given the features; covariance off by {self.covariance_error:.0%}, mean by "
            f"{self.mean_error:.1%} ({self.off:.2g} posterior deviations){said}"
        )
        return (Concern(level, "Last layer", why, then),)

    def table(self) -> Any:
        """One line a measure."""
        names = (
            "mean_error",
            "off",
            "covariance_error",
            "shape_error",
            "variance_ratio",
            "output_ratio",
            "distance",
        )
        return make_frame({"value": [float(getattr(self, name)) for name in names]}, list(names))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Standard deviations of all weights, relative to the exact ones.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.
        """
        from boxloop.figures import width_ratios

        title = f"Last layer: outputs {self.output_ratio:.2g} × the variance"
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.deviation / self.true_deviation
        return width_ratios(self.true_deviation, ratio, ax, title=title)

    def _verdict(self) -> tuple[Level, str, str]:
        """Level, in a word, and what to do. Outputs count first: weights that no row determines change them little."""
        low, high = min(self.output_ratio, NEAR * self.variance_ratio), self.output_ratio
        mend = "scale the covariance on validation rows, or follow means of windows (Windowed)"
        check = "check the weight decay, and whether training has settled"
        if self.output_ratio < 1.0 / FAR:
            return "bad", ": far too narrow", mend
        if self.off > AWRY:
            return "bad", ": the mean is elsewhere", check
        if high > FAR and self.alone:
            return "bad", ": far too wide", "a smaller learning rate, larger batches, or a smaller scale"
        if low < 1.0 / NEAR:
            return "doubtful", self._narrow(), mend
        if high > NEAR:
            return (
                "doubtful",
                ": too wide" if self.alone else ": wide, unless other layers vary so much",
                mend,
            )
        if self.off > OFF:
            return "doubtful", ": the mean is not quite there", check
        if self.shape_error > SHAPE and self.alone:
            return "doubtful", ": right in size, not in shape", "scaling does not mend it"
        return "good", "", ""

    def _narrow(self) -> str:
        if self.output_ratio < 1.0 / NEAR:
            return ": too narrow"
        rest = "too narrow in weights that no row determines"
        return f": too wide in what rows tell, {rest}" if self.output_ratio > NEAR else f": {rest}"


def mean_network(part: Part, buffers: Buffers | None = None) -> nn.Module:
    """A copy of the network with the mean of the law as weights.

    Args:
        part: the law, with its network.
        buffers: statistics of BatchNorm at the mean, with a leading axis of one.
    """
    net = copy.deepcopy(part.net)
    part.layout.write(net, part.law.mean)
    here = dict(net.named_buffers())
    for name, value in ({} if buffers is None else buffers).items():
        here[name].copy_(value[0])
    return net


def exact_last_layer(
    net: nn.Module, X: Any, y: Any, kind: Kind, prior_precision: float | None, noise: Any
) -> LastLayerPosterior:
    """The posterior of the last layer; what is not stated is that of the highest evidence.

    Raises:
        ValueError: the network does not end in a linear layer, or its rows and outputs do not fit.
    """
    given = None if noise is None else [float(value) for value in np.ravel(noise)]
    sigma = given[0] if given is not None and len(given) == 1 else given
    return last_layer_laplace(net, X, y, kind, prior_precision, sigma)


def check_last_layer(part: Part, exact: LastLayerPosterior, X: Any, kind: str) -> LastLayerCheck:
    """Compare a law with the exact posterior of the last layer.

    Args:
        part: the law, with its network.
        exact: the posterior of the last layer of the mean network.
        X: training rows.
        kind: ``regression`` or ``classification``.

    Raises:
        ValueError: the law is not over all weights of that layer, or they are too many.
    """
    if missing := set(exact.layout.names) - set(part.layout.names):
        raise ValueError(f"the law is not over {', '.join(sorted(missing))} of the last layer")
    size = exact.layout.size
    if size > MOST:
        raise ValueError(f"the last layer has {size} weights; covariances are compared up to {MOST}")
    places = part.layout.places
    chosen = torch.cat([torch.arange(part.layout.size)[places[name]] for name in exact.layout.names])
    order, k = exact.last.order().argsort(), exact.last.outputs
    laws = (part.law.part(chosen.to(part.law.mean.device)), exact.law)
    (mean, ours), (middle, theirs) = (_moments(law, order, k, kind) for law in laws)
    phi = exact.features(X).double().cpu()
    second = phi.mT @ phi / len(phi)
    if not float(theirs.trace()) > 0.0:
        raise ValueError(
            "the exact posterior of the last layer has no spread: y does not vary, or is fitted exactly"
        )
    apart, ratio = mean - middle, float(ours.trace() / theirs.trace())
    return LastLayerCheck(
        kind=kind,
        alone=part.layout.size == size,
        prior_precision=float(exact.alpha.mean()),
        noise=None if exact.noise is None else exact.noise.double().cpu().numpy(),
        mean_error=float(apart.norm() / middle.norm()),
        off=_off(theirs, apart),
        covariance_error=relative_error(ours, theirs),
        shape_error=relative_error(ours / ratio, theirs) if ratio > 0.0 else 1.0,
        variance_ratio=ratio,
        output_ratio=_of_outputs(ours, second) / _of_outputs(theirs, second),
        distance=wasserstein(ours, theirs, mean, middle) if size <= SQUARES else math.nan,
        deviation=ours.diagonal().clamp(min=0.0).sqrt().numpy(),
        true_deviation=theirs.diagonal().clamp(min=0.0).sqrt().numpy(),
    )


def _moments(law: WeightLaw, order: Tensor, k: int, kind: str) -> tuple[Tensor, Tensor]:
    """Mean (k h,) and covariance of the weights, output by output; without what changes no probability."""
    here = law.to("cpu").map(Tensor.double).part(order)
    mean, loadings = here.mean, here.loadings
    covariance = loadings @ loadings.mT + here.noise.diag()
    if kind == "classification":
        mean = _centred(mean, k)
        covariance = _centred(_centred(covariance, k).mT, k)
    return mean, covariance


def _centred(rows: Tensor, k: int) -> Tensor:
    """Rows (k h, ...) less their mean over the k outputs."""
    parts = rows.reshape(k, -1, *rows.shape[1:])
    return (parts - parts.mean(0)).reshape(rows.shape)


def _of_outputs(covariance: Tensor, second: Tensor) -> float:
    """Variance of all outputs, the mean over rows with second moment (h, h)."""
    h = len(second)
    blocks = covariance.reshape(-1, h, len(covariance) // h, h).diagonal(dim1=0, dim2=2)
    return float((blocks.sum(2) * second).sum())


def _off(covariance: Tensor, apart: Tensor) -> float:
    """Root mean square of a vector along the axes of a covariance, in deviations of each."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > ROUNDING * values[-1]
    return float(((vectors.mT @ apart)[kept] / values[kept].sqrt()).square().mean().sqrt())
