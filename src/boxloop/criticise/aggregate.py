r"""Whether the codes of an autoencoder are where its prior says.

A sample starts from p(z). Where the codes of rows, all taken together,

.. math:: q(z) = \frac1n \sum_i q(z \mid x_i),

are not distributed as p(z), samples come from places that the decoder never learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from boxloop.criticise.adapt import as_rows, check_columns
from boxloop.criticise.latent import Array, as_array, autoencoder_of, check_complete, code_names
from boxloop.criticise.mmd import MMDResult, mmd
from boxloop.data import make_frame, on_device, open_source, sample_rows
from boxloop.numeric import RandomState, generator, normal, single_threaded, spawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: the number.
        error: its standard error.
    """

    value: float
    error: float


@dataclass(frozen=True)
class AggregateGap:
    """How far the codes of all rows together are from the prior.

    Args:
        discrepancy: squared maximum mean discrepancy between codes and prior, with its permutation p-value.
        first: mean of the codes less that of the prior, (k,).
        first_error: its standard errors.
        second: second moment of the codes about the prior's mean, less the prior's covariance, (k, k).
        second_error: its standard errors.
        rate: mean KL(q(z|x) || p(z)): what a row's code costs, in nats.
        least: estimate of KL(q(z) || p(z)) that is too low on average.
        most: estimate of it that is too high on average.
        n_rows: judged by.
    """

    discrepancy: MMDResult
    first: Array
    first_error: Array
    second: Array
    second_error: Array
    rate: Estimate
    least: Estimate
    most: Estimate
    n_rows: int

    @property
    def p_value(self) -> float:
        """Of the hypothesis that codes and prior are one law."""
        found = self.discrepancy.p_value
        return math.nan if found is None else found

    def z(self) -> dict[str, float]:
        """Each moment's gap in units of its error, means first."""
        k = len(self.first)
        i, j = np.triu_indices(k)
        names = [f"mean of {name}" for name in code_names(range(k))]
        names += [f"variance of z{a}" if a == b else f"z{a} x z{b}" for a, b in zip(i, j, strict=True)]
        gap = np.concatenate([self.first, self.second[i, j]])
        error = np.concatenate([self.first_error, self.second_error[i, j]])
        scores = np.divide(gap, error, out=np.zeros_like(gap), where=error > 0)
        return dict(zip(names, scores.tolist(), strict=True))

    def summary(self) -> Any:
        """One line a measure, as a frame: value, error, p-value where there is one."""
        worst = max(self.z().values(), key=abs)
        tested = 2.0 * float(stats.norm.sf(abs(worst))) * len(self.z())
        value = float(self.discrepancy.value)
        lines = {
            "squared MMD of codes and prior": (value, self.discrepancy.standard_error, self.p_value),
            "KL(q(z) || p(z)), at least": (self.least.value, self.least.error, math.nan),
            "KL(q(z) || p(z)), at most": (self.most.value, self.most.error, math.nan),
            "mean KL(q(z|x) || p(z))": (self.rate.value, self.rate.error, math.nan),
            "worst moment, in errors": (worst, 1.0, min(tested, 1.0)),
        }
        columns = zip(*lines.values(), strict=True)
        return make_frame(dict(zip(("value", "error", "p_value"), columns, strict=True)), list(lines))

    def plot(self, ax: Axes | None = None, *, top: int = 24) -> Axes:
        """Gaps between the moments of the codes and of the prior, in units of their errors.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most moments that are shown: those with the largest gaps, in their own order.

        Returns:
            The axes.
        """
        from boxloop.figures import dots

        names, z = list(self.z()), np.array(list(self.z().values()))
        kept = np.sort(np.argsort(-np.abs(z), kind="stable")[:top])
        part = f" ({len(kept)} of {len(z)})" if len(kept) < len(z) else ""
        title = f"Codes of rows less prior, p = {self.p_value:.3g}{part}"
        return dots(z[kept], [names[p] for p in kept], ax, title=title)


@single_threaded
def aggregate_gap(
    model: object, X: Any, random_state: RandomState = 0, *, most: int = 2000, permutations: int = 199
) -> AggregateGap:
    r"""The aggregate posterior of an autoencoder against its prior.

    .. math:: q(z) = \frac1n \sum_i q(z \mid x_i) \quad\text{beside}\quad p(z)

    One code is drawn a row. They are compared with draws of the prior by the maximum mean discrepancy, and by their
    first two moments, for which the draws are not needed. The divergence comes twice:

    .. math:: \frac1n \sum_i \log \frac{\hat q(z_i)}{p(z_i)}, \qquad
              \hat q(z_i) = \frac1n \sum_{j} q(z_i \mid x_j)
              \quad\text{or}\quad \frac1{n-1} \sum_{j \ne i} q(z_i \mid x_j).

    With a row's own term it is that of the n rows at hand, too high on average for those to come; without it, it is too
    low, by Jensen's inequality. The less the codes of different rows overlap, the farther apart the two are. The mean
    divergence of q(z|x) less that of q(z) is the mutual information of row and code. Hoffman and Johnson (2016), "ELBO
    surgery"; Makhzani and others (2016), "Adversarial autoencoders".

    Args:
        model: an autoencoder, or a fitted estimator of one.
        X: rows, held out.
        random_state: seed of codes, prior draws and permutations.
        most: about so many rows are taken at random; all pairs of them are compared.
        permutations: behind the p-value of the discrepancy.

    Raises:
        TypeError: the model has no encoder.
        ValueError: fewer than two rows, or missing values.

    Example:
        >>> import torch
        >>> from boxloop.models.vae import Autoencoder
        >>> from boxloop.models.vae import GaussianHead
        >>> from boxloop.models.vae import StandardNormal
        >>> from boxloop.models.networks import Layers, Part
        >>> to_code = Part(Layers(1, (), 2), (torch.tensor([[2.0, 0.0]]), torch.zeros(2)))
        >>> to_row = Part(Layers(1, (), 2), (torch.zeros(1, 2), torch.zeros(2)))
        >>> model = Autoencoder.start(to_code, to_row, GaussianHead(), StandardNormal(1), 1)
        >>> rows = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        >>> aggregate_gap(model, rows).p_value  # codes have variance 1 + 4
        0.005
    """
    own = autoencoder_of(model)
    streams = spawn(generator(random_state, own.origin.device), 2)
    source = on_device(open_source(as_rows(X)), own.origin.device)
    check_columns(own, source.n_columns)
    if source.n_rows < 2:
        raise ValueError(f"at least 2 rows are needed, got {source.n_rows}")
    kept = sample_rows(source, most, generator(streams[0], "cpu")).rows
    check_complete(kept, source.names)
    with torch.no_grad():
        law = own.posterior(kept)
        z = law.mean + law.variance.sqrt() * normal(tuple(law.mean.shape), streams[1], law.mean.dtype)
        prior = own.prior()
        every = law.log_prob(z).double()
        log_p = prior.log_prob(z)[0].double()
        itself = every.diagonal()
        n = len(z)
        others = every.masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), -torch.inf)
        rate = own.latent.divergence(law.mean, law.variance.log())
        moments = _moments(law.mean.double(), law.variance.double(), prior)
        drawn = prior.draw(n, streams[1])[0]
    discrepancy = mmd(z.cpu(), drawn.cpu(), permutations=permutations, random_state=streams[0])
    return AggregateGap(
        discrepancy,
        *moments,
        _estimate(itself - log_p if rate is None else rate.double()),
        _estimate(others.logsumexp(0) - math.log(n - 1) - log_p),
        _estimate(every.logsumexp(0) - math.log(n) - log_p),
        n,
    )


def _moments(mean: Tensor, variance: Tensor, prior: Any) -> tuple[Array, Array, Array, Array]:
    """Gaps of the first two moments and their errors over rows; the spread of each q is added, not drawn."""
    n = len(mean)
    apart = mean - prior.mean[0].double()
    own = apart.square() + variance
    second, square = apart.mT @ apart / n, apart.square().mT @ apart.square() / n
    second.diagonal().copy_(own.mean(0))
    square.diagonal().copy_(own.square().mean(0))
    error = ((square - second.square()).clamp(min=0.0) / (n - 1)).sqrt()
    gap = second - prior.covariance().dense()[0].double()
    return as_array(apart.mean(0)), as_array(apart.std(0) / n**0.5), as_array(gap), as_array(error)


def _estimate(values: Tensor) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)))
