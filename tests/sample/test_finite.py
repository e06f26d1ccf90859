"""Kernels on finite spaces, where pi P = pi and detailed balance are sums: to 1e-12, by running the real steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample import (
    RULES as DISTRIBUTIONS_OF_ACCEPTANCE,
    Gibbs,
    Independent,
    MetropolisHastings,
    ParameterSpace,
    PseudoMarginal,
    RandomWalk,
    RuleName,
    Target,
    check_reversible,
    make_metropolis_kernel,
    transition,
)
from sample.cases import RULES, extended

EXACT = {"rtol": 0.0, "atol": 1e-12}
SIZE = 7
PARTS = 24
both_rules = pytest.mark.parametrize("rule", RULES)
Moves = Sequence[tuple[Any, float]]


def states(size: int = SIZE) -> Tensor:
    return torch.arange(size).double()[:, None]


def distribution(seed: int, size: int = SIZE) -> Tensor:
    weight = torch.rand(size, generator=Generator().manual_seed(seed)).double() + 0.05
    return weight / weight.sum()


def at(weight: Tensor) -> Any:
    """The log-density of states by their number; other places have none."""

    def log_density(position: Tensor) -> Tensor:
        place = position[:, 0].round().long()
        inside = (place >= 0) & (place < len(weight))
        return torch.where(inside, weight.log()[place.clamp(0, len(weight) - 1)], -torch.inf)

    return log_density


def random_proposals(seed: int) -> Tensor:
    """Counts (s, s) of PARTS equal parts of each row: some moves are never proposed, in one direction or both."""
    stream = Generator().manual_seed(seed)
    share = torch.rand(SIZE, SIZE, generator=stream).masked_fill_(
        torch.rand(SIZE, SIZE, generator=stream) < 0.3, 0
    )
    draws = torch.multinomial(share + 1e-9, PARTS, replacement=True, generator=stream)
    return torch.stack([torch.bincount(row, minlength=SIZE) for row in draws])


def by_inverse_cdf(weight: Tensor, counts: Tensor, rule: RuleName) -> tuple[Kernel, Moves]:
    """The Metropolis core with any proposal matrix: an item is a number u, and each state looks up where it leads."""
    ends = counts.cumsum(1)
    log_q = (counts.double() / PARTS).log()
    density = at(weight)

    def propose(chains: Chains, u: int) -> tuple[Chains, Info]:
        here = chains.position[:, 0].long()
        there = (ends[here] <= u).sum(1)
        moved = Chains(there.double()[:, None], density(there.double()[:, None]))
        ratio = moved.log_density - chains.log_density + log_q[there, here] - log_q[here, there]
        return moved, Info(ratio)

    kernel = make_metropolis_kernel(lambda x: Chains(x, density(x)), lambda *_: [], propose, rule)
    return kernel, [(u, 1.0 / PARTS) for u in range(PARTS)]


@both_rules
@pytest.mark.parametrize("seed", range(5))
def test_random_proposals(seed: int, rule: RuleName) -> None:
    weight, counts = distribution(seed), random_proposals(seed + 50)
    kernel, moves = by_inverse_cdf(weight, counts, rule)
    check = check_reversible(kernel, weight, states=states(), moves=moves)
    assert check.exact
    assert check.invariant, check
    assert check.reversible, check
    # And it is the textbook's matrix: q(x, y) alpha(x, y) off the diagonal.
    q = counts.double() / PARTS
    flow, back = weight[:, None] * q, (weight[:, None] * q).T
    alpha = (back / flow).clamp(max=1.0) if rule == "metropolis" else back / (flow + back)
    wanted = torch.where(q > 0, q * alpha, 0.0)
    wanted.diagonal().zero_()
    found = transition(kernel, states(), moves)
    assert_close(found.sum(1), torch.ones(SIZE).double(), **EXACT)
    assert_close(found - torch.diag(found.diagonal()), wanted, **EXACT)


def test_barker_accepts_less_often() -> None:
    """Peskun (1973): off the diagonal, Barker's matrix lies below that of Metropolis, and above half of it."""
    weight, counts = distribution(3), random_proposals(53)
    first, second = (transition(*_with_states(by_inverse_cdf(weight, counts, name))) for name in RULES)
    off = ~torch.eye(SIZE, dtype=torch.bool)
    assert bool((second[off] <= first[off] + 1e-15).all())
    assert bool((second[off] >= 0.5 * first[off] - 1e-15).all())


def _with_states(pair: tuple[Kernel, Moves]) -> tuple[Kernel, Tensor, Moves]:
    return pair[0], states(), pair[1]


@both_rules
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_threshold_is_passed_as_often_as_the_rule_says(rule: RuleName, dtype: torch.dtype) -> None:
    """The exact checks put chances in; here are the random thresholds behind them, on an even grid of uniforms."""
    n = 1 << 14
    uniform = (torch.arange(n, dtype=dtype) + 0.5) / n
    bars = DISTRIBUTIONS_OF_ACCEPTANCE[rule].threshold(uniform)
    kernel = make_metropolis_kernel(
        lambda x: Chains(x, torch.zeros(len(x))),
        lambda *_: [],
        lambda chains, ratio: (chains._replace(position=chains.position + 1.0), Info(ratio)),
        rule,
    )
    start = Chains(torch.zeros(n, 1), torch.zeros(n))
    for log_ratio in (-9.0, -2.0, -0.3, 0.0, 0.7, 3.0, torch.inf, -torch.inf, torch.nan):
        ratio = torch.full((n,), log_ratio, dtype=dtype)
        moved = float(kernel.step(start, (ratio, bars))[0].position.mean())
        chance = float(kernel.chance(ratio[:1]).nan_to_num(nan=0.0))
        assert abs(moved - chance) <= 1.0 / n, log_ratio


@both_rules
def test_a_walk_on_a_ring(rule: RuleName) -> None:
    """Symmetric by its moves alone: a state of the ring has its own step to the next."""
    weight, places = distribution(1), torch.arange(SIZE)
    kernel = RandomWalk(scale=1.0, rule=rule).kernel(Target(at(weight)))
    steps = [(states()[(places + move) % SIZE] - states(), 0.25) for move in (-2, -1, 1, 2)]
    check = check_reversible(kernel, weight, states=states(), moves=steps)
    assert check.invariant, check
    assert check.reversible, check


@both_rules
def test_a_walk_on_a_lattice_with_edges(rule: RuleName) -> None:
    """Moves over the edge meet no density and are refused; scales and metric are the noise's alone."""
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(4)).double()
    weight = distribution(2, 12)
    kernel = RandomWalk(scale=1.0, rule=rule).kernel(Target(lambda x: _on_grid(x, weight)))
    moves = [(torch.tensor(move).double().expand(12, 2), 0.25) for move in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    check = check_reversible(kernel, weight, states=grid, moves=moves)
    assert check.invariant, check
    assert check.reversible, check


def _on_grid(x: Tensor, weight: Tensor) -> Tensor:
    inside = (x[:, 0] >= 0) & (x[:, 0] < 3) & (x[:, 1] >= 0) & (x[:, 1] < 4)
    place = (4 * x[:, 0] + x[:, 1]).round().long().clamp(0, 11)
    return torch.where(inside, weight.log()[place], -torch.inf)


class Table:
    """A proposal distribution on the states."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def draw(self, n: int, stream: Generator) -> Tensor:
        return torch.multinomial(self.weight, n, replacement=True, generator=stream).double()[None, :, None]

    def log_prob(self, rows: Tensor) -> Tensor:
        return self.weight.log()[rows[:, 0].round().long()][None]


def independent_moves(proposal: Table) -> Moves:
    items = []
    for state, chance in zip(states(), proposal.weight, strict=True):
        drawn = state.expand(SIZE, 1)
        items.append(((drawn, proposal.log_prob(drawn)[0]), float(chance)))
    return items


@both_rules
def test_independent_proposals(rule: RuleName) -> None:
    weight, proposal = distribution(4), Table(distribution(5))
    kernel = Independent(proposal, rule).kernel(Target(at(weight)))
    check = check_reversible(kernel, weight, states=states(), moves=independent_moves(proposal))
    assert check.invariant, check
    assert check.reversible, check
    exact = Independent(Table(weight), rule).kernel(Target(at(weight)))
    found = transition(exact, states(), independent_moves(Table(weight)))
    if rule == "metropolis":
        assert_close(found, weight.expand(SIZE, SIZE), **EXACT)  # the distribution itself is always accepted


@both_rules
@pytest.mark.parametrize("stored", [False, True])
def test_generalised_proposals(rule: RuleName, stored: bool) -> None:
    """A ratio of one's own, of a proposal that jumps twice as often upwards."""
    weight = distribution(6)
    shares = {1: 0.5, -1: 0.25, 3: 0.15, -3: 0.1}

    def log_ratio(x: Tensor, y: Tensor) -> Tensor:
        jump = (y - x)[:, 0].round().long() % SIZE
        log_q = torch.full((SIZE,), -torch.inf, dtype=torch.float64)
        for move, share in shares.items():
            log_q[move % SIZE] = math.log(share)
        return at(weight)(y) - at(weight)(x) + log_q[-jump % SIZE] - log_q[jump]

    algorithm = MetropolisHastings(lambda x, move: (x + move) % SIZE, log_ratio, rule)
    kernel = algorithm.kernel(Target(at(weight)) if stored else None)
    check = check_reversible(kernel, weight, states=states(), moves=list(shares.items()))
    assert check.invariant, check
    assert check.reversible, check


ESTIMATES = torch.tensor([0.2, 0.8, 1.0, 2.0], dtype=torch.float64)


def estimate(weight: Tensor) -> Any:
    """log W: the density times one of four numbers with mean one, more of them at even states than at odd."""

    def log_estimate(x: Tensor, v: Tensor) -> Tensor:
        factor = ESTIMATES[v[:, 0].round().long() % 4]
        odd = x[:, 0].round().long() % 2 == 1
        return at(weight)(x) + torch.where(odd, factor, 0.5 + 0.5 * factor).log()

    return log_estimate


@both_rules
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_pseudo_marginal_on_positions_and_estimates(rule: RuleName, correlation: float) -> None:
    """The joint distribution of positions and numbers is kept, and positions alone have the target distribution."""
    weight = distribution(7)
    pairs = torch.cartesian_prod(torch.arange(SIZE), torch.arange(4)).double()
    x, v = pairs[:, :1], pairs[:, 1:]
    log_estimate = estimate(weight)
    algorithm = PseudoMarginal(log_estimate, 1, correlation, scale=1.0, rule=rule)
    kernel = extended(algorithm.kernel(), 1, log_estimate)
    # A walk on the ring; numbers all afresh, or by a walk on a ring of their own.
    turns = range(4) if correlation == 0.0 else (1, 3)
    moves = [
        (((x + step) % SIZE - x, (v + turn) % 4 - correlation * v), 0.5 / len(turns))
        for step, turn in product((1, -1), turns)
    ]
    joint = 0.25 * log_estimate(x, v).exp()
    assert_close(joint.reshape(SIZE, 4).sum(1), weight, **EXACT)
    check = check_reversible(kernel, joint, states=pairs, moves=moves)
    assert check.invariant, check
    assert check.reversible, check


def table_of_two() -> tuple[Tensor, Target, dict[str, Any]]:
    """Two named values on a 3 x 2 table, and their conditional distributions by inverse CDF of a given number."""
    weight = torch.tensor([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]).double()
    start = {"a": torch.zeros(6).double(), "b": torch.zeros(6).double()}

    def log_density(x: Tensor) -> Tensor:
        return weight.log()[x[:, 0].long(), x[:, 1].long()]

    def draw_a(values: dict[str, Tensor], u: tuple[float, float]) -> Tensor:
        ends = weight[:, values["b"].long()].T.cumsum(1)
        return (ends <= u[0] * ends[:, -1:]).sum(1).double()

    def draw_b(values: dict[str, Tensor], u: tuple[float, float]) -> Tensor:
        ends = weight[values["a"].long()].cumsum(1)
        return (ends <= u[1] * ends[:, -1:]).sum(1).double()

    return (
        weight / weight.sum(),
        Target(log_density, None, ParameterSpace.from_start(start)),
        {"a": draw_a, "b": draw_b},
    )


def test_gibbs_keeps_the_distribution_and_is_not_reversible() -> None:
    weight, target, blocks = table_of_two()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(2)).double()
    moves = [(((i + 0.5) / 6, (j + 0.5) / 4), 1 / 24) for i, j in product(range(6), range(4))]
    kernel = Gibbs(blocks).kernel(target)
    check = check_reversible(kernel, weight.flatten(), states=pairs, moves=moves)
    assert check.invariant, check
    assert not check.reversible, check
    # The sweep is the product of its blocks, in the order they were given.
    alone = {
        name: transition(Gibbs({**_still(), name: blocks[name]}).kernel(target), pairs, moves)
        for name in blocks
    }
    assert_close(transition(kernel, pairs, moves), alone["a"] @ alone["b"], **EXACT)
    turned = Gibbs({"b": blocks["b"], "a": blocks["a"]}).kernel(target)
    assert_close(transition(turned, pairs, moves), alone["b"] @ alone["a"], **EXACT)


def _still() -> dict[str, Any]:
    return {"a": lambda values, _: values["a"], "b": lambda values, _: values["b"]}


def test_finite_checks_refuse_what_they_cannot_use() -> None:
    weight = distribution(1)
    kernel = RandomWalk(scale=1.0).kernel(Target(at(weight)))
    with pytest.raises(ValueError, match="needs its states and the moves"):
        check_reversible(kernel, weight)
    with pytest.raises(ValueError, match=r"sum to one, and sum to 0\.5"):
        transition(kernel, states(), [(torch.ones(SIZE, 1), 0.5)])
    with pytest.raises(ValueError, match=r"leads to \[0\.5\], which is not among the states"):
        transition(kernel, states(), [(torch.full((SIZE, 1), 0.5), 1.0)])
