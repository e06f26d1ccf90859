"""Small Bayesian mixtures of every kind, and exact evidences of few rows; what the tests of them share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from boxloop.distributions import (
    Dirichlet,
    MixturePrior,
    PooledSums,
    StickBreaking,
    Sums,
    WordDirichlet,
    weakly_informative_components,
)
from boxloop.fit import elbo
from boxloop.models import VariationalMixture
from boxloop.numeric import generator, normal

GAUSSIAN = ("full", "tied", "diag", "spherical")
KINDS = (*GAUSSIAN, "words")
WEIGHTS = ("dirichlet", "sticks")
D = 2


def weights_of(kind: str, k: int, concentration: float = 0.7) -> Dirichlet | StickBreaking:
    level = torch.tensor(concentration, dtype=torch.float64)
    return (
        Dirichlet(level.expand(k).clone())
        if kind == "dirichlet"
        else StickBreaking.dirichlet_process(k, level)
    )


def prior_of(
    kind: str, k: int, weights: str = "dirichlet", d: int = D, strength: float = 0.3
) -> MixturePrior:
    """One prior for all components, of middling strength."""
    if kind == "words":
        return MixturePrior(weights_of(weights, k), WordDirichlet(torch.full((1, d), 0.6).double(), total=6))
    eye = torch.eye(d, dtype=torch.float64)
    covariance = 1.3 * eye + 0.2 * (1.0 - eye)
    components = weakly_informative_components(torch.full((d,), 0.1).double(), covariance, k, kind)
    fields = {name: getattr(components, name) for name in ("mean", "strength", "dof", "scale")}
    fields["strength"] = fields["strength"] * 0 + strength
    return MixturePrior(weights_of(weights, k), type(components)(**fields))


def rows_of(kind: str, n: int, seed: int = 0, d: int = D) -> Tensor:
    """Rows of two clusters, or of two topics."""
    stream = generator(seed)
    side = torch.arange(n) % 2
    if kind == "words":
        chance = torch.tensor([0.8, *[0.2 / (d - 1)] * (d - 1)]).double()
        distributions = torch.where(side[:, None] == 0, chance, chance.flip(0))
        drawn = torch.multinomial(distributions, 6, replacement=True, generator=stream)
        return torch.nn.functional.one_hot(drawn, d).sum(1).double()
    return normal((n, d), stream) + 2.0 * (2.0 * side[:, None] - 1.0)


def shares(k: int, n: int, seed: int = 1) -> Tensor:
    share = torch.rand(k, n, generator=generator(seed), dtype=torch.float64)
    return share / share.sum(0)


def begun(prior: MixturePrior, rows: Tensor, seed: int = 1) -> VariationalMixture[Any]:
    return VariationalMixture.from_responsibilities(prior, rows, shares(prior.n_components, len(rows), seed))


def bound(model: VariationalMixture[Any], rows: Tensor, weight: Tensor | None = None) -> float:
    """The evidence bound of the rows, base measure included."""
    weight = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight
    base = model.log_base(rows)
    extra = 0.0 if base is None else float(base @ weight)
    return elbo(model, model.expect(rows, weight)) * float(weight.sum()) + extra


def climbed(model: VariationalMixture[Any], rows: Tensor, iterations: int = 200) -> VariationalMixture[Any]:
    """The model after so many iterations, or when the last one has changed nothing but the last digits."""
    weight = torch.ones(len(rows), dtype=torch.float64)
    for _ in range(iterations):
        before, model = model, model.solve(model.expect(rows, weight).statistics)
        pairs = zip(model.parameter_posterior.leaves(), before.parameter_posterior.leaves(), strict=True)
        if all(torch.allclose(new, old, rtol=1e-12, atol=1e-12) for (_, new), (_, old) in pairs):
            break
    return model


def hard_sums(kind: str, row: Tensor, component: int, k: int) -> Sums | PooledSums:
    """Statistics of one row that belongs to one component."""
    share = torch.zeros(k, dtype=torch.float64)
    share[component] = 1.0
    first = share[:, None] * torch.cat([row.new_ones(1), row])
    if kind == "words":
        return Sums(first)
    if kind == "tied":
        return PooledSums(first, torch.outer(row, row))
    i, j = torch.triu_indices(len(row), len(row))
    second = row[i] * row[j] if kind == "full" else row.square()
    return Sums(torch.cat([first, share[:, None] * second], 1))


def joints(kind: str, prior: MixturePrior, rows: Tensor) -> Tensor:
    """Exact log p(rows, assignment) of all k^n assignments of rows to components, by the chain of predictives.

    The component of the first row turns slowest. Only the last row may have missing values: nothing is predicted after
    it.
    """
    k = prior.n_components
    found: list[Tensor] = []

    def follow(at: int, distribution: Any, count: Tensor, value: Tensor) -> None:
        if at == len(rows):
            found.append(value)
            return
        ahead = (
            distribution.predictive().log_prob(rows[at : at + 1])[:, 0]
            + prior.weights.posterior(count).mean().log()
        )
        for component in range(k):
            seen = hard_sums(kind, torch.nan_to_num(rows[at]), component, k)
            after = distribution if at + 1 == len(rows) else distribution.update(seen)
            follow(at + 1, after, count + seen.features[:, 0], value + ahead[component])

    zero = torch.zeros(k, dtype=torch.float64)
    follow(0, prior.components.expand_members(k), zero, zero[0])
    return torch.stack(found)


def evidence(kind: str, prior: MixturePrior, rows: Tensor) -> float:
    """Exact log-evidence."""
    return float(joints(kind, prior, rows).logsumexp(0))
