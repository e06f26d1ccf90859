r"""Both acceptance rules on finite spaces, exactly: invariance, and Peskun's order.

With the matrices of two rules on the same proposals, :math:`P^b \le P^{MH} \le 2 P^b` off the diagonal. So for every
function f the asymptotic variance of its average obeys

.. math:: \sigma^2(f, P^{MH}) \le \sigma^2(f, P^b) \le 2 \sigma^2(f, P^{MH}) + \mathrm{Var}_\pi f

Peskun (1973); Latuszynski and Roberts (2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.chain import Kernel
from boxloop.numeric import generator, normal
from boxloop.sample import Generalised, RandomWalk, Target, check_reversible, transition

STATES = 12
JUMPS = {1: 0.4, -1: 0.1, 3: 0.3, -3: 0.2}
"""Steps on a ring, and how often each is proposed: not symmetric, so that the ratio needs the proposal's part."""
STEPS = {1: 0.3, -1: 0.3, 2: 0.2, -2: 0.2}
"""Steps on a path, whose ends are walls."""


@dataclass(frozen=True)
class Finite:
    """What the matrices of both rules showed.

    Args:
        invariance: largest error of a probability after a step, over kernels and rules.
        reversibility: largest error of detailed balance.
        planted: error of a probability after a step with the proposal's part left out of the ratio.
        order: smallest eigenvalue of the difference that Peskun's order says is positive.
        ratios: of the asymptotic variances of Barker's rule and Metropolis', for random functions.
        slack: smallest of the right-hand side of the bound less the left, for the same functions.
    """

    invariance: float
    reversibility: float
    planted: float
    order: float
    ratios: list[float]
    slack: float


def finite(seed: int, functions: int = 500) -> Finite:
    """Run every check."""
    stream = generator(seed)
    law = (1.5 * normal((STATES,), stream)).exp()
    law = law / law.sum()
    states = torch.arange(STATES, dtype=torch.float64)[:, None]
    checks, orders, ratios, slacks = [], [], [], []
    for build, moves in ((_walk, _moves(STEPS)), (_ring, _moves(JUMPS))):
        kernels = [build(law, rule) for rule in ("metropolis", "barker")]
        checks += [check_reversible(kernel, law, states=states, moves=moves) for kernel in kernels]
        best, barker = (transition(kernel, states, moves) for kernel in kernels)
        root = law.sqrt()
        apart = root[:, None] * (barker - best) / root
        orders.append(float(torch.linalg.eigvalsh(0.5 * (apart + apart.mT)).min()))
        f = normal((STATES, functions), stream)
        f = f - law @ f
        spread = law @ f.square()
        first, second = (variances(matrix, law, f) for matrix in (best, barker))
        ratios += (second / first).tolist()
        slacks.append(float(((2.0 * first + spread - second) / spread).min()))
    planted = check_reversible(
        _ring(law, "metropolis", planted=True), law, states=states, moves=_moves(JUMPS)
    )
    return Finite(
        max(check.invariance for check in checks),
        max(check.reversibility for check in checks),
        planted.invariance,
        min(orders),
        ratios,
        min(slacks),
    )


def variances(matrix: Tensor, law: Tensor, f: Tensor) -> Tensor:
    """Asymptotic variances of the averages of functions with mean zero, (s, functions)."""
    inverse = torch.eye(len(law), dtype=law.dtype) - matrix + law  # the law as every row keeps it regular
    return 2.0 * (law[:, None] * f * torch.linalg.solve(inverse, f)).sum(0) - law @ f.square()


def _walk(law: Tensor, rule: Any) -> Kernel:
    def density(position: Tensor) -> Tensor:
        place = position[:, 0].round().long()
        inside = (place >= 0) & (place < len(law))
        return torch.where(inside, law.log()[place.clamp(0, len(law) - 1)], -torch.inf)

    return RandomWalk(scale=1.0, rule=rule).kernel(Target(density))


def _ring(law: Tensor, rule: Any, planted: bool = False) -> Kernel:
    share = torch.zeros(len(law), dtype=law.dtype)
    for jump, probability in JUMPS.items():
        share[jump % len(law)] = probability

    def log_ratio(here: Tensor, there: Tensor) -> Tensor:
        x, y = here[:, 0].round().long(), there[:, 0].round().long()
        ratio = law[y].log() - law[x].log()
        back, forth = share[(x - y) % len(law)], share[(y - x) % len(law)]
        return ratio if planted else ratio + back.log() - forth.log()

    def move(position: Tensor, jump: Any) -> Tensor:
        return (position + jump) % len(law)

    return Generalised(move, log_ratio, rule).kernel()


def _moves(steps: dict[int, float]) -> list[tuple[Tensor, float]]:
    return [(torch.tensor([float(step)], dtype=torch.float64), share) for step, share in steps.items()]
