r"""Mixtures of any exponential family: log-joint and statistics are two matrix products.

.. math:: p(x) = \sum_k \pi_k \, p_k(x)

Le Corff, *Introduction to computational statistics*, sections 2.4 and 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Generator, Tensor, threshold_

from boxloop.distributions import Categorical, Family, PooledSums, Sums
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree
from boxloop.types import Expected

S = TypeVar("S", Sums, PooledSums)

EMPTY = 1e-8
"""A component with less than this share of the total weight is empty."""

FAINT = {torch.float32: -80.0, torch.float64: -700.0}
"""A log-share below this is zero: its exponential would be a subnormal number, slow in all that follows."""


@dataclass(frozen=True)
class Mixture(Tree, Generic[S]):
    """Weights over the members of a family.

    Args:
        log_weight: log of the mixing weights, (k,); or (s, k) for s mixtures side by side, which one E step and one
            M step serve (``expect``, ``repair_statistics``, ``solve``, ``select``).
        family: k distributions, see :mod:`boxloop.distributions`; or s times k.

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> family = DiagonalGaussian(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
        >>> model = Mixture(torch.tensor([0.5, 0.5]).log(), family)
        >>> model.posterior(torch.zeros(1, 1))
        tensor([[0.5000, 0.5000]])
    """

    log_weight: Tensor
    family: Family[S]

    @property
    def n_components(self) -> int:
        """k."""
        return self.log_weight.shape[0]

    def prior(self) -> Categorical:
        """The distribution of the component index."""
        return Categorical(self.log_weight[None])

    def emission(self, z: Tensor) -> Family[S]:
        """The distributions of the components at indices z, (m,) or (m, 1)."""
        return self.family.select(z.reshape(-1).long())

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[S]:
        """E step: responsibilities are a softmax over components, and stay in this function."""
        view = self.family.view(rows)
        share = view.log_joint(self.log_weight.reshape(-1)).unflatten(0, self.log_weight.shape)
        peak = share.amax(-2, keepdim=True)
        total = threshold_(share.sub_(peak), FAINT[share.dtype], -torch.inf).exp_().sum(-2, keepdim=True)
        statistics = view.summarise(share.mul_(weight.to(share.dtype) / total).reshape(-1, len(weight)))
        log_density = peak.add_(total.log_())[..., 0, :]
        return Expected(statistics, log_density.double() @ weight, weight.sum())

    def repair_statistics(self, statistics: S) -> tuple[S, tuple[str, ...]]:
        """Give every empty component a part of the largest one, which is split in as many as it takes."""
        count = statistics.features[:, 0].reshape(-1, self.log_weight.shape[-1])
        empty = count <= EMPTY * count.sum(1, keepdim=True)
        if not bool(empty.any()):
            return statistics, ()
        events = []
        for i in torch.nonzero(empty.any(1))[:, 0].tolist():
            parts = {k: [k] for k in range(count.shape[1])}
            for target in torch.nonzero(empty[i])[:, 0].tolist():
                largest = max(parts, key=lambda k: float(count[i, k]) / len(parts[k]))
                parts[largest].append(target)
            for largest, members in parts.items():
                if len(members) > 1:
                    index = i * count.shape[1] + torch.tensor(members, device=count.device)
                    pieces = self.family.split(int(index[0]), len(members))
                    statistics = statistics.replace_members(
                        index, pieces * (count[i, largest] / len(members))
                    )
                    events += [f"component {m} was empty; component {largest} was split" for m in members[1:]]
        return statistics, tuple(events)

    def solve(self, statistics: S) -> Self:
        """M step: weights are shares of the total, members match their averaged features."""
        count = statistics.features[:, 0].reshape(self.log_weight.shape)
        weight = count / count.sum(-1, keepdim=True)
        return type(self)(weight.log(), self.family.fit_statistics(statistics))

    def select(self, index: Tensor) -> Self:
        """The mixtures at ``index``, where several stand side by side."""
        k = self.log_weight.shape[1]
        members = (index[:, None] * k + torch.arange(k, device=index.device)).reshape(-1)
        return type(self)(self.log_weight[index], self.family.select(members))

    def expected_log_likelihood(self, statistics: S) -> Tensor:
        """Expected complete-data log-likelihood Q of this model under statistics from any other."""
        return statistics.features[:, 0] @ self.log_weight + self.family.expected_log_likelihood(statistics)

    def log_base(self, rows: Tensor) -> Tensor | None:
        """The family's base measure."""
        return self.family.log_base(rows)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""
        density = self.family.view(rows).log_joint(self.log_weight).logsumexp(0)
        base = self.family.log_base(rows)
        return density if base is None else density + base

    def posterior(self, rows: Tensor) -> Tensor:
        """Probability of each component given each row, (n, k)."""
        return self.family.view(rows).log_joint(self.log_weight).softmax(0).mT

    def moments(self) -> tuple[Tensor, forms.Dense]:
        """Exact mean (d,) and covariance (1, d, d) of a row, by the law of total variance."""
        weight, centres = self.log_weight.exp(), self.family.mean
        mean = weight @ centres
        apart = centres - mean
        between = (weight[:, None] * apart).mT @ apart
        within = torch.einsum("k,kij->ij", weight, self.family.covariance().dense())
        return mean, forms.Dense((within + between)[None])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) with their components (n,), grouped by component."""
        z = torch.multinomial(self.log_weight.exp(), n, replacement=True, generator=generator)
        member = torch.arange(len(self.log_weight), device=z.device)[:, None]
        sizes = torch.bincount(z, minlength=len(member)).tolist()
        rows = [
            self.family.select(member[k]).draw(size, generator)[0] for k, size in enumerate(sizes) if size
        ]
        return torch.cat(rows), torch.sort(z).values

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The mixture of ``origin + scale * x``."""
        return type(self)(self.log_weight, self.family.affine(origin, scale))

    def free_parameters(self) -> dict[str, Tensor]:
        """Free parameters, any values of which are a model."""
        return {"logits": self.log_weight[1:] - self.log_weight[0], **self.family.free_parameters()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The mixture at other values of the free parameters."""
        logits = torch.cat([free["logits"].new_zeros(1), free["logits"]])
        return type(self)(logits.log_softmax(0), self.family.with_free_parameters(free))

    def identification_constraints(self) -> Tensor:
        """None: the free parameters are identified, up to the order of the components."""
        return self.log_weight.new_zeros(0)

    def named_parameters(self) -> dict[str, Any]:
        """Parameters under their public names."""
        return {"weights": self.log_weight.exp(), **self.family.named_parameters()}
