"""Small grouped data sets, and the maximum of their likelihood by quadrature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.models import BernoulliResponse, GroupedRows, PoissonResponse, RandomEffects, Response
from boxloop.numeric import generator, normal

RESPONSES: dict[str, Response] = {"bernoulli": BernoulliResponse(), "poisson": PoissonResponse()}
FACTORS = {1: torch.tensor([[0.9]]).double(), 2: torch.tensor([[0.9, 0.0], [0.3, 0.6]]).double()}


@dataclass(frozen=True)
class Table:
    """Columns before they are sorted by group."""

    response: Tensor
    fixed: Tensor
    random: Tensor
    group: Tensor

    def rows(self) -> GroupedRows:
        return GroupedRows.from_rows(self.response, self.fixed, self.random, self.group)


def make_table(kind: str, q: int = 1, groups: int = 30, each: int = 6, seed: int = 0) -> Table:
    """Groups of unlike sizes in random order; the truth is that of ``make_model``."""
    stream = generator(seed)
    n = groups * each
    group = torch.cat([torch.arange(groups), torch.randint(groups, (n - groups,), generator=stream)])
    fixed = torch.cat([torch.ones(n, 1).double(), normal((n, 1), stream)], 1)
    random = fixed[:, :q]
    effects = normal((groups, q), stream) @ FACTORS[q].mT
    level = fixed @ make_model(kind, q).coefficients + (random * effects[group]).sum(1)
    mean = RESPONSES[kind].mean(level)
    draw = torch.bernoulli if kind == "bernoulli" else torch.poisson
    return Table(draw(mean, generator=stream), fixed, random, group)


def make_model(kind: str, q: int = 1, shared: bool = True) -> RandomEffects:
    coefficients = torch.tensor([0.4, -0.7]).double()
    return RandomEffects(coefficients, FACTORS[q], RESPONSES[kind], tuple(range(q)) if shared else ())
