r"""Random walk, MALA and HMC on Gaussians of 2 to 200 columns: scales, acceptance and effective draws.

Le Corff, Introduction to computational statistics, sections 1.3 and 1.4.1. Chains begin in stationarity, and mean and
variance are known. So the integrated autocorrelation time :math:`\tau` follows from the mean square of chain averages
over all chains and columns, with nothing to truncate; for an autocorrelation that falls by a constant factor

.. math:: n \, E[\bar x^2] = \tau - \tau^2 / 2n

up to terms of higher order. Effective draws per draw are :math:`1 / \tau`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    MALA,
    Metric,
    MetropolisHastings,
    RandomWalk,
    SampleWarning,
    Target,
    check_reversible,
    diagnose,
    sample_density,
    transition,
)
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target

Array = NDArray[np.float64]


# --- Settings ---

GOALS = {"random walk": 0.234, "MALA": 0.574, "HMC": 0.651}
BARKER_GOALS = {"random walk": 0.158, "MALA": 0.347}
POWERS = {"random walk": 2.0, "MALA": 2.0 / 3.0, "HMC": 0.5}
"""Power of s in the efficiency of large d."""
EXPONENTS = {"random walk": -1.0 / 2.0, "MALA": -1.0 / 6.0, "HMC": -1.0 / 4.0}
"""Power of d in the best scale."""
WORTH = {"random walk": -1.0, "MALA": -1.0 / 3.0, "HMC": -1.0 / 4.0}
"""Power of d in effective draws, by evaluations."""
FAR = np.asarray([1e4, 1e5, 1e6])
LENGTH = math.pi
"""T, of the longest trajectory: a uniform share of it leaves a column uncorrelated with its start."""
GRIDS = {
    "random walk": (0.06, 0.09, 0.13, 0.17, 0.21, 0.25, 0.3, 0.35, 0.42, 0.5, 0.6, 0.75),
    "MALA": (0.2, 0.28, 0.36, 0.44, 0.51, 0.58, 0.65, 0.72, 0.79, 0.86, 0.92, 0.97),
    "HMC": (0.2, 0.28, 0.36, 0.44, 0.51, 0.58, 0.65, 0.72, 0.79, 0.86, 0.92, 0.97),
}
"""Acceptances of Metropolis at which scales are tried; Barker's rule gets the same scales."""
SWEPT = [(name, rule) for name in POWERS for rule in ("metropolis", "barker")]
BLOCK = 1 << 18
"""Numbers of a path in memory at once."""
KEPT, SEEN = 1000, 64
"""Draws of each chain, and chains, that Monte Carlo errors are computed from."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        columns: numbers of them.
        repeats: warm-ups of each.
        warmup: steps of them.
        replicates: chains times columns behind an autocorrelation time.
        steps: of the random walk, those of the others being half as many.
        swept: columns of the sweep over scales.
        every: which of the scales.
        resamples: of chains, behind errors of maxima.
    """

    columns: tuple[int, ...]
    repeats: int
    warmup: int
    replicates: int
    steps: int
    swept: int
    every: int
    resamples: int

    def chains(self, d: int) -> int:
        """Of a run."""
        return min(max(self.replicates // d, 32), 2048)

    def length(self, name: str, d: int) -> int:
        """Steps of a run: a random walk of many columns needs more."""
        return max(self.steps, 50 * d) if name == "random walk" else self.steps // 2


QUICK = Size((2, 8, 32), 2, 300, 1000, 600, 20, 2, 40)
FULL = Size((2, 3, 5, 10, 20, 50, 100, 200), 8, 1000, 8000, 4000, 50, 1, 400)


# --- Theory: acceptance of d columns in closed form, and its limit for many ---


def acceptance(name: str, h: float, d: float) -> float:
    """Mean chance of acceptance of Metropolis in stationarity.

    Args:
        name: of the algorithm.
        h: its scale.
        d: columns.

    Example:
        >>> round(acceptance("random walk", 2.38 / 1000**0.5, 1000), 2)
        0.23
    """
    if name == "HMC":
        return _trajectories(h, d)
    keep = 1.0 if name == "random walk" else 1.0 - 0.5 * h * h
    low, high = np.linalg.eigvalsh([[1.0 - keep * keep, -keep * h], [-keep * h, -h * h]])
    return float(2.0 * special.fdtrc(d, d, -low / high))


def _trajectories(h: float, d: float) -> float:
    """Mean over the lengths of trajectories; each is a rotation in coordinates that are a little stretched."""
    steps, share = _lengths(h)
    angle = math.acos(1.0 - 0.5 * h * h)
    stretch = (1.0 - 0.25 * h * h) ** -0.5
    half = 0.5 * ((stretch - 1.0 / stretch) * np.sin(steps * angle)) ** 2
    growth = 1.0 + half + np.sqrt(half * (half + 2.0))  # the larger singular value, squared
    return float(share @ (2.0 * special.fdtrc(d, d, growth)))


def _lengths(h: float) -> tuple[Array, Array]:
    """Numbers of leapfrog steps, and how often each is made."""
    steps = np.arange(1.0, math.ceil(LENGTH / h) + 1.0)
    return steps, np.minimum(steps * h / LENGTH, 1.0) - (steps - 1.0) * h / LENGTH


def mean_cost(name: str, h: float) -> float:
    """Mean number of densities or gradients per draw."""
    if name != "HMC":
        return 1.0
    steps, share = _lengths(h)
    return float(share @ steps)


def scale_for(name: str, goal: float, d: float) -> float:
    """The largest h at which the acceptance is ``goal``."""
    most = {"random walk": 60.0, "MALA": 3.0, "HMC": 1.99}[name]
    grid = np.geomspace(most, 1e-4, 100)
    for long, short in pairwise(grid):
        if acceptance(name, float(short), d) >= goal:
            return float(optimize.brentq(lambda h: acceptance(name, h, d) - goal, short, long))
    raise ValueError(f"{name} accepts no {goal} of its moves in {d} columns")


NODE = np.linspace(-9.0, 9.0, 721)
WEIGHT = np.exp(-0.5 * NODE**2) / np.exp(-0.5 * NODE**2).sum()
"""The trapezoidal rule for the standard normal density, exact to rounding for functions as smooth as these."""


def limit_chance(s: float, rule: str) -> float:
    """Mean chance of acceptance by a rule when the log-ratio is N(-s²/2, s²)."""
    if rule == "metropolis":
        return float(2.0 * special.ndtr(-0.5 * s))
    return float(WEIGHT @ special.expit(-0.5 * s * s + s * NODE))


def limit_best(name: str, rule: str) -> float:
    """The acceptance at which efficiency is highest for large d."""
    power = POWERS[name]
    best = optimize.minimize_scalar(
        lambda s: -power * math.log(s) - math.log(limit_chance(s, rule)), bounds=(0.05, 6.0), method="bounded"
    )
    return limit_chance(float(best.x), rule)


def limit_curve(name: str, rule: str) -> tuple[list[float], list[float]]:
    """Acceptance, and efficiency over its maximum by Metropolis, along s."""
    power = POWERS[name]
    along = np.geomspace(0.02, 6.0, 80)
    worth = {r: np.asarray([s**power * limit_chance(s, r) for s in along]) for r in ("metropolis", rule)}
    return [limit_chance(s, rule) for s in along], (worth[rule] / worth["metropolis"].max()).tolist()


# --- Both rules on finite spaces, exactly: Peskun's order (Peskun 1973; Latuszynski and Roberts 2013) ---

STATES = 12
JUMPS = {1: 0.4, -1: 0.1, 3: 0.3, -3: 0.2}
"""Steps on a ring, and how often each is proposed: not symmetric, so that the ratio needs the proposal's part."""
STEPS = {1: 0.3, -1: 0.3, 2: 0.2, -2: 0.2}
"""Steps on a path, whose ends are walls."""


@dataclass(frozen=True)
class FiniteSpaces:
    r"""What the matrices of both rules show.

    With two rules on the same proposals :math:`P^b \le P^{MH} \le 2 P^b` off the diagonal, so for every function f

    .. math:: \sigma^2(f, P^{MH}) \le \sigma^2(f, P^b) \le 2 \sigma^2(f, P^{MH}) + \mathrm{Var}_\pi f .

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


def check_finite_spaces(seed: int, functions: int = 500) -> FiniteSpaces:
    """Check invariance, detailed balance and Peskun's order."""
    stream = generator(seed)
    pi = (1.5 * normal((STATES,), stream)).exp()
    pi = pi / pi.sum()
    states = torch.arange(STATES, dtype=torch.float64)[:, None]
    checks, orders, ratios, slacks = [], [], [], []
    for build, moves in ((_path_kernel, _moves(STEPS)), (_ring_kernel, _moves(JUMPS))):
        kernels = [build(pi, rule) for rule in ("metropolis", "barker")]
        checks += [check_reversible(kernel, pi, states=states, moves=moves) for kernel in kernels]
        best, barker = (transition(kernel, states, moves) for kernel in kernels)
        root = pi.sqrt()
        apart = root[:, None] * (barker - best) / root
        orders.append(float(torch.linalg.eigvalsh(0.5 * (apart + apart.mT)).min()))
        f = normal((STATES, functions), stream)
        f = f - pi @ f
        spread = pi @ f.square()
        first, second = (asymptotic_variances(matrix, pi, f) for matrix in (best, barker))
        ratios += (second / first).tolist()
        slacks.append(float(((2.0 * first + spread - second) / spread).min()))
    planted = check_reversible(
        _ring_kernel(pi, "metropolis", planted=True), pi, states=states, moves=_moves(JUMPS)
    )
    return FiniteSpaces(
        max(check.invariance for check in checks),
        max(check.reversibility for check in checks),
        planted.invariance,
        min(orders),
        ratios,
        min(slacks),
    )


def asymptotic_variances(matrix: Tensor, pi: Tensor, f: Tensor) -> Tensor:
    """Asymptotic variances of the averages of functions with mean zero, (s, functions)."""
    inverse = torch.eye(len(pi), dtype=pi.dtype) - matrix + pi  # pi in every row makes it regular
    return 2.0 * (pi[:, None] * f * torch.linalg.solve(inverse, f)).sum(0) - pi @ f.square()


def _path_kernel(pi: Tensor, rule: Any) -> Kernel:
    def density(position: Tensor) -> Tensor:
        place = position[:, 0].round().long()
        inside = (place >= 0) & (place < len(pi))
        return torch.where(inside, pi.log()[place.clamp(0, len(pi) - 1)], -torch.inf)

    return RandomWalk(scale=1.0, rule=rule).kernel(Target(density))


def _ring_kernel(pi: Tensor, rule: Any, planted: bool = False) -> Kernel:
    share = torch.zeros(len(pi), dtype=pi.dtype)
    for jump, probability in JUMPS.items():
        share[jump % len(pi)] = probability

    def log_ratio(here: Tensor, there: Tensor) -> Tensor:
        x, y = here[:, 0].round().long(), there[:, 0].round().long()
        ratio = pi[y].log() - pi[x].log()
        back, forth = share[(x - y) % len(pi)], share[(y - x) % len(pi)]
        return ratio if planted else ratio + back.log() - forth.log()

    def move(position: Tensor, jump: Any) -> Tensor:
        return (position + jump) % len(pi)

    return MetropolisHastings(move, log_ratio, rule).kernel()


def _moves(steps: dict[int, float]) -> list[tuple[Tensor, float]]:
    return [(torch.tensor([float(step)], dtype=torch.float64), share) for step, share in steps.items()]


# --- Chains on standard Gaussians ---


def gaussian() -> Target:
    """The standard Gaussian, with its gradient."""

    def density(position: Tensor) -> Tensor:
        return position.square().sum(1).mul_(-0.5)

    return Target(density, lambda position: (density(position), -position))


def build_algorithm(
    name: str, scale: float | None = None, rule: Any = "metropolis", metric: Metric = None
) -> Any:
    """An algorithm by its name."""
    if name == "HMC":
        return HMC(scale=scale, trajectory=LENGTH, metric=metric, rule=rule, jitter=1.0, stages=1)
    kind = RandomWalk if name == "random walk" else MALA
    return kind(scale=scale, metric=metric, rule=rule)


@dataclass(frozen=True, eq=False)
class FixedGoal:
    """An algorithm whose warm-up aims at one acceptance and starts from one scale, for any number of columns."""

    name: str
    accept: float
    scale: float | None = None
    metric: Metric = None
    dense: bool | None = None

    stores_gradient: ClassVar[bool] = True

    def kernel(self, target: Target) -> Kernel:
        """The kernel of the algorithm."""
        kernel: Kernel = build_algorithm(self.name, self.scale, metric=self.metric).kernel(target)
        return kernel

    def initial_scale(self, columns: int) -> float:
        """1, for every d."""
        return 1.0

    def target_acceptance(self, columns: int) -> float:
        """The same for every d."""
        return self.accept

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """With another scale."""
        return replace(self, scale=scale, metric=metric)


def tune_scale(name: str, goal: float, d: int, chains: int, warmup: int, seed: int) -> float:
    """The scale that warm-up finds."""
    algorithm = FixedGoal(name, goal, metric=torch.ones(d, dtype=torch.float64))
    start = normal((chains, d), generator(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleWarning)  # few draws on purpose
        draws = sample_density(gaussian(), start, algorithm, warmup=warmup, draws=8, random_state=seed)
    return float(draws.algorithm.scale)


@dataclass(frozen=True)
class ChainRun:
    """What a run of chains showed.

    Args:
        name: of the algorithm.
        rule: of acceptance.
        d: columns.
        scale: h.
        steps: n, of each chain.
        accepted: mean chance of acceptance.
        cost: densities or gradients a draw, in the mean.
        means: of each chain and column, (c, d).
        table: a column, the mean square of all and a product of two, of some draws and chains, (c, n, 3).
    """

    name: str
    rule: str
    d: int
    scale: float
    steps: int
    accepted: float
    cost: float
    means: Array
    table: Array

    @property
    def squares(self) -> Array:
        """n times the mean square of the averages of each chain, (c,)."""
        return self.steps * np.asarray((self.means**2).mean(1))

    @property
    def worth(self) -> float:
        """Effective draws per draw."""
        return solve_efficiency(float(self.squares.mean()), self.steps)

    @property
    def error(self) -> float:
        """Its standard error."""
        squares = self.squares
        return self.worth * float(squares.std() / squares.mean() / max(len(squares) - 1, 1) ** 0.5)

    @property
    def z(self) -> Array:
        """Means of the functions less their exact values, in Monte Carlo errors from effective draws."""
        return np.asarray((self.table.mean((0, 1)) - np.asarray([0.0, 1.0, 0.0])) / diagnose(self.table).mcse)


def solve_efficiency(square: float, steps: int) -> float:
    """Solve for 1 / tau, from n times the mean square of averages."""
    return 1.0 / (steps * (1.0 - max(1.0 - 2.0 * square / steps, 0.0) ** 0.5))


def measure(
    name: str, scale: float, d: int, steps: int, chains: int, seed: int, rule: str = "metropolis"
) -> ChainRun:
    """Run chains from exact draws."""
    kernel = build_algorithm(name, scale, rule).kernel(gaussian())
    stream = generator(seed)
    chained = kernel.init(normal((chains, d), stream))
    total, chance = torch.zeros(chains, d, dtype=torch.float64), 0.0
    seen = []
    every = max(1, steps // KEPT)
    block = every * max(1, BLOCK // (chains * d * every))
    for first in range(0, steps, block):
        path = advance(kernel, chained, min(block, steps - first), stream)
        chained = path.chains
        total += path.position.sum(0)
        assert path.log_ratio is not None
        assert kernel.chance is not None
        chance += float(kernel.chance(path.log_ratio).sum())
        seen.append(_test_functions(path.position[every - 1 :: every, :SEEN]))
    return ChainRun(
        name,
        rule,
        d,
        scale,
        steps,
        chance / (steps * chains),
        mean_cost(name, scale),
        (total / steps).numpy(),
        torch.cat(seen, 1).numpy(),
    )


def _test_functions(position: Tensor) -> Tensor:
    """The first column, the mean square of all, and a product of two, (c, n, 3)."""
    found = [position[..., 0], position.square().mean(-1), position[..., 0] * position[..., 1]]
    return torch.stack(found, -1).transpose(0, 1)


Sweep = dict[tuple[str, str], list[ChainRun]]


def run_columns(
    size: Size, seed: int, report: Callable[[str], None]
) -> tuple[dict[str, dict[int, Array]], list[ChainRun]]:
    """Tuned scales by algorithm and columns, one per warm-up; and runs at their geometric mean."""
    scales: dict[str, dict[int, Array]] = {}
    runs = []
    for i, (name, goal) in enumerate(GOALS.items()):
        for d in size.columns:
            report(f"{name}, {d} columns")
            first = seed + 100_000 * i + 100 * d
            found = [
                tune_scale(name, goal, d, 64, size.warmup, first + repeat) for repeat in range(size.repeats)
            ]
            scales.setdefault(name, {})[d] = np.asarray(found)
            middle = float(np.exp(np.log(found).mean()))
            runs.append(measure(name, middle, d, size.length(name, d), size.chains(d), first + 50))
    return scales, runs


def run_scales(size: Size, seed: int, report: Callable[[str], None]) -> Sweep:
    """Runs by algorithm and rule, along scales."""
    found: Sweep = {}
    d = size.swept
    for name, rule in SWEPT:
        report(f"{name}, {rule}, along scales")
        grid = [scale_for(name, goal, d) for goal in GRIDS[name][:: size.every]]
        found[name, rule] = [
            measure(name, h, d, size.length(name, d), 2 * size.chains(d), seed + 777 + j, rule)
            for j, h in enumerate(grid)
        ]
    return found


Tops = Mapping[tuple[str, str], tuple[float, float, float, float]]


def find_maximum(runs: list[ChainRun], resamples: int, seed: int) -> tuple[float, float, float, float]:
    """Where efficiency along scales is highest: acceptance there with its error, efficiency with its error.

    A cubic in log h through the logarithms of efficiency by cost; errors by resampling chains.
    """
    squares = np.stack([run.squares for run in runs])
    steps, cost = runs[0].steps, np.asarray([run.cost for run in runs])
    log_h = np.log([run.scale for run in runs])
    accepted = np.asarray([run.accepted for run in runs])

    def summit(means: Array) -> tuple[float, float]:
        worth = np.log(np.asarray([solve_efficiency(float(mean), steps) for mean in means]) / cost)
        near = worth > worth.max() - 0.7
        fitted = np.polynomial.Polynomial.fit(log_h[near], worth[near], min(3, int(near.sum()) - 1))
        grid = np.linspace(log_h[near].min(), log_h[near].max(), 400)
        best = grid[int(np.argmax(fitted(grid)))]
        order = np.argsort(log_h)
        return float(np.interp(best, log_h[order], accepted[order])), float(np.exp(fitted(best)))

    at, height = summit(squares.mean(1))
    stream = np.random.default_rng(generator(seed).initial_seed())
    again = np.asarray(
        [
            summit(np.asarray([row[stream.integers(len(row), size=len(row))].mean() for row in squares]))
            for _ in range(resamples)
        ]
    )
    return at, float(again[:, 0].std()), height, float(again[:, 1].std())


# --- Findings ---


def judge_exponents(scales: Mapping[str, Mapping[int, Array]]) -> list[Finding]:
    """Tuned scales against columns: fitted exponents, the closed form's, and those of large d."""
    lines = []
    for name, by in scales.items():
        d = np.asarray(list(by), dtype=np.float64)
        logs = [np.log(found) for found in by.values()]
        errors = np.asarray([log.std() / max(len(log) - 1, 1) ** 0.5 for log in logs])
        errors = np.maximum(
            errors, float(np.sqrt(np.mean(errors**2)))
        )  # of few warm-ups one alone is a poor guess
        values = np.exp([log.mean() for log in logs])
        exact = np.asarray([scale_for(name, GOALS[name], columns) for columns in d])
        fitted, error = fit_exponent(d, values, errors)
        closed, _ = fit_exponent(d, exact, errors)
        high, _ = fit_exponent(d[-3:], values[-3:], errors[-3:])
        far, _ = fit_exponent(
            FAR, np.asarray([scale_for(name, GOALS[name], columns) for columns in FAR]), np.zeros(3)
        )
        target = EXPONENTS[name]
        why = (
            f"At acceptance {GOALS[name]} the closed form has {closed:.3f} over these columns and {far:.4f} from "
            f"1e4 to 1e6; the fit to the last three is {high:.3f}. "
            + (
                "Numbers of leapfrog steps are whole."
                if name == "HMC"
                else "Few columns want longer steps than that."
            )
        )
        right = abs(fitted - closed) < 4.0 * error + 0.002 and abs(far - target) < 1e-3
        in_paper = name == "MALA"
        lines.append(
            Finding(
                f"{name}, best scale against columns",
                "h ~ d^(-1/6)" if in_paper else f"not in the document; theory says h ~ d^({target:.3g})",
                f"h ~ d^({fitted:.3f}) from {d[0]:.0f} to {d[-1]:.0f} columns",
                error,
                judge_claim(right) if in_paper else judge_target(right),
                why,
            )
        )
    return lines


def fit_exponent(columns: Array, values: Array, errors: Array) -> tuple[float, float]:
    """Of log values against log columns by least squares, with the error that those of the values leave."""
    x = np.log(columns)
    x = (x - x.mean()) / ((x - x.mean()) @ (x - x.mean()))
    return float(x @ np.log(values)), float(((x * errors) ** 2).sum() ** 0.5)


def judge_efficiency(runs: list[ChainRun]) -> list[Finding]:
    """Effective draws against columns."""
    lines = []
    for name, target in WORTH.items():
        mine = [run for run in runs if run.name == name]
        d = np.asarray([float(run.d) for run in mine])
        worth = np.asarray([run.worth / run.cost for run in mine])
        errors = np.asarray([run.error / run.worth for run in mine])
        fitted, _ = fit_exponent(d, worth, errors)
        late, late_error = fit_exponent(d[-3:], worth[-3:], errors[-3:])
        what = "gradient" if name == "HMC" else "draw"
        lines.append(
            Finding(
                f"{name}, effective draws a {what} against columns",
                f"not in the document; theory says d^({target:.3g})",
                f"d^({late:.2f}) over the last three, d^({fitted:.2f}) over all; {worth[0]:.2g} to {worth[-1]:.2g}",
                late_error,
                judge_target(abs(late - target) < 3.0 * late_error + 0.01),
                _explain_efficiency(name),
            )
        )
    return lines


def _explain_efficiency(name: str) -> str:
    if name == "random walk":
        return "The limit is 0.331 / d; with few columns d times the effective draws is less."
    if name == "MALA":
        return "The limit needs small h; here steps are so long that a proposal forgets much of where it came from."
    return "Numbers of leapfrog steps are whole and few, so that the limit of many columns shows through only slowly."


def judge_maxima(sweep: Sweep, tops: Tops, d: int) -> list[Finding]:
    """Where efficiency is highest along scales."""
    lines = []
    for (name, rule), (at, error, height, _) in tops.items():
        goal = limit_best(name, rule)
        runs = sweep[name, rule]
        order = np.argsort([run.accepted for run in runs])
        worth = np.asarray([run.worth / run.cost for run in runs])[order]
        there = float(np.interp(goal, np.asarray([run.accepted for run in runs])[order], worth)) / height
        cited = GOALS[name] if rule == "metropolis" else BARKER_GOALS.get(name, goal)
        lines.append(
            Finding(
                f"{name} by {rule.capitalize()}, best acceptance at d = {d}",
                f"not in the document; theory says {cited:.3f}",
                f"{at:.3f}",
                error,
                judge_target(there > 0.9 and abs(at - goal) < 3.0 * error + 0.03),
                f"At {goal:.3f}, the best of many columns, efficiency is {min(there, 1.0):.2f} of the highest. "
                + (
                    "By gradients; whole numbers of steps make it jagged."
                    if name == "HMC"
                    else "The top is flat."
                ),
            )
        )
    return lines


def judge_rules(sweep: Sweep, tops: Tops, exact: FiniteSpaces) -> list[Finding]:
    """Barker's rule beside Metropolis'."""
    lines = []
    for name in GOALS:
        pairs = list(zip(sweep[name, "metropolis"], sweep[name, "barker"]))
        ratio = np.asarray([barker.worth / best.worth for best, barker in pairs])
        error = ratio * np.asarray([np.hypot(p.error / p.worth, q.error / q.worth) for p, q in pairs])
        least = np.asarray([1.0 / (2.0 / best.worth + 1.0) / best.worth for best, _ in pairs])
        right = bool((ratio < 1.0 + 4.0 * error).all() and (ratio > least - 4.0 * error).all())
        (_, _, high, high_error), (_, _, low, low_error) = tops[name, "metropolis"], tops[name, "barker"]
        limit = max(limit_curve(name, "barker")[1])
        lines.append(
            Finding(
                f"{name}, efficiency of Barker's rule over Metropolis', each at its best",
                "both are in detailed balance (lemma 1.8); Peskun: Metropolis is never worse",
                f"{low / high:.2f}, at equal scales {ratio.min():.2f} to {ratio.max():.2f}",
                low / high * float(np.hypot(high_error / high, low_error / low)),
                judge_claim(right and low / high < 1.0),
                f"{limit:.2f} in the limit of many columns, and less where one step forgets the last.",
            )
        )
    right = exact.order > -1e-12 and min(exact.ratios) > 1.0 - 1e-9 and exact.slack > -1e-9
    lines.append(
        Finding(
            "asymptotic variance of Barker's rule over Metropolis', finite spaces",
            "not in the document; theory says at least 1, and at most 2 + Var f / variance",
            f"{min(exact.ratios):.2f} to {max(exact.ratios):.2f} over {len(exact.ratios)} random functions",
            None,
            judge_target(right),
            f"Exact matrices; the difference of kernels has no eigenvalue below {exact.order:.0e}.",
        )
    )
    return lines


def judge_exactness(runs: list[ChainRun], exact: FiniteSpaces) -> list[Finding]:
    """Invariance and reversibility on finite spaces; moments and acceptance on Gaussians."""
    z = np.abs(np.concatenate([run.z for run in runs]))
    apart = [
        abs(run.accepted - acceptance(run.name, run.scale, run.d))
        for run in runs
        if run.rule == "metropolis" and run.name != "HMC"
    ]
    return [
        Finding(
            "lemmas 1.7, 1.8 and 1.10: the distribution is invariant and the kernel reversible, both rules",
            "exactly",
            f"largest errors {exact.invariance:.0e} and {exact.reversibility:.0e}",
            None,
            "reproduced" if max(exact.invariance, exact.reversibility) < 1e-12 else "not reproduced",
            f"Matrices of our steps on 12 states; the same check says {exact.planted:.2f} where the proposal's part is "
            "left out of the ratio.",
            exact=True,
        ),
        Finding(
            "means of a column, a square and a product on Gaussians",
            "0, 1 and 0",
            f"largest of {len(z)} absolute z-scores {z.max():.2f}",
            None,
            judge_claim(float(z.max()) < 4.0),
            f"Errors from effective draws; by chance one run in {1.0 / (len(z) * 6.33e-5):.0f} would exceed 4.",
        ),
        Finding(
            "acceptance of the random walk and of MALA",
            "not in the document; closed form 2 P(F > ratio of eigenvalues)",
            f"largest difference {max(apart):.4f}",
            None,
            judge_target(max(apart) < 0.01),
            f"{len(apart)} runs, from exact draws.",
        ),
    ]


# --- Figure ---

STYLE = {name: (COLOURS[j], MARKERS[j]) for j, name in enumerate(POWERS)}
LIMITS = {"random walk": 2.38, "MALA": 1.65}
WORDS = {-1.0 / 2.0: "-1/2", -1.0 / 6.0: "-1/6", -1.0 / 4.0: "-1/4"}


def draw_figure(
    scales: Mapping[str, Mapping[int, Array]],
    runs: list[ChainRun],
    sweep: Mapping[tuple[str, str], list[ChainRun]],
    tops: Mapping[tuple[str, str], tuple[float, float, float, float]],
    d: int,
) -> Figure:
    """Five panels.

    Args:
        scales: tuned ones, by algorithm and columns.
        runs: at tuned scales.
        sweep: runs along scales, by algorithm and rule.
        tops: acceptance at the maximum and its error, efficiency there and its error.
        d: columns of the sweep.
    """
    figure = new_figure(12.4, 8.6)
    grid: Any = figure.add_gridspec(2, 6, height_ratios=(1.1, 1.0))
    _draw_scales(figure.add_subplot(grid[0, :3]), scales)
    _draw_efficiency(figure.add_subplot(grid[0, 3:]), runs)
    for j, name in enumerate(POWERS):
        axes = figure.add_subplot(grid[1, 2 * j : 2 * j + 2])
        _draw_sweep(axes, name, {rule: sweep[name, rule] for rule in ("metropolis", "barker")}, tops, d)
        if j == 0:
            axes.set_ylabel("efficiency over the best of Metropolis", color=INK)
    return figure


def _plain_ticks(axes: Any, ticks: list[int]) -> None:
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_scales(axes: Any, scales: Mapping[str, Mapping[int, Array]]) -> None:
    dress(axes, "Scales tuned to 0.234, 0.574 and 0.651", "columns d", "scale h")
    axes.set(xscale="log", yscale="log")
    columns = sorted(next(iter(scales.values())))
    dense = np.geomspace(columns[0], columns[-1], 60)
    for name, by in scales.items():
        colour, marker = STYLE[name]
        middle = [float(np.exp(np.log(found).mean())) for found in by.values()]
        axes.plot(list(by), middle, marker, color=colour, markersize=6.5, label=f"{name}, tuned in warm-up")
        axes.plot(dense, [scale_for(name, GOALS[name], d) for d in dense], "-", color=colour, lw=1.4)
        power = EXPONENTS[name]
        last = LIMITS.get(name, middle[-1] * columns[-1] ** -power)
        axes.plot(dense, last * dense**power, ":", color=colour, lw=1.6)
        axes.annotate(
            f"$d^{{{WORDS[power]}}}$",
            (dense[-1], last * dense[-1] ** power),
            xytext=(7, -3 if name != "HMC" else -9),
            textcoords="offset points",
            color=colour,
            fontsize=11,
        )
    axes.plot([], [], "-", color=FAINT, lw=1.4, label="closed form for d columns")
    axes.plot([], [], ":", color=FAINT, lw=1.6, label="limit of many columns")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([0.2, 0.5, 1.0, 2.0], ["0.2", "0.5", "1", "2"])
    axes.set_xlim(right=1.5 * columns[-1])
    _plain_ticks(axes, columns)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_efficiency(axes: Any, runs: list[ChainRun]) -> None:
    dress(axes, "What an evaluation is worth", "columns d", "effective draws, column mean")
    axes.set(xscale="log", yscale="log")
    columns = sorted({run.d for run in runs})
    for name in POWERS:
        colour, marker = STYLE[name]
        mine = [run for run in runs if run.name == name]
        worth = [run.worth / run.cost for run in mine]
        label = f"{name}, a {'gradient' if name == 'HMC' else 'draw'}"
        axes.errorbar(
            [run.d for run in mine],
            worth,
            yerr=[2.0 * run.error / run.cost for run in mine],
            fmt=marker + "-",
            color=colour,
            lw=1.4,
            markersize=6,
            label=label,
        )
    dense = np.asarray([10.0, float(columns[-1])])
    axes.plot(dense, 0.331 / dense, ":", color=STYLE["random walk"][0], lw=1.6)
    axes.annotate(
        "0.331 / d",
        (dense[0], 0.331 / dense[0]),
        xytext=(-50, -14),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    axes.set_xlim(0.8 * columns[0], 1.25 * columns[-1])
    _plain_ticks(axes, columns)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_sweep(
    axes: Any,
    name: str,
    runs: Mapping[str, list[ChainRun]],
    tops: Mapping[tuple[str, str], tuple[float, float, float, float]],
    d: int,
) -> None:
    dress(axes, f"{name}, d = {d}" + (", by gradients" if name == "HMC" else ""), "acceptance")
    best = tops[name, "metropolis"][2]
    for j, (rule, found) in enumerate(runs.items()):
        colour = (STYLE[name][0], INK)[j]
        axes.errorbar(
            [run.accepted for run in found],
            [run.worth / run.cost / best for run in found],
            yerr=[2.0 * run.error / run.cost / best for run in found],
            fmt=("o", "v")[j],
            color=colour,
            markersize=5,
            elinewidth=1,
            label=rule.capitalize(),
        )
        axes.plot(*limit_curve(name, rule), "-", color=colour, lw=1.3, alpha=0.7)
        goal = limit_best(name, rule)
        axes.axvline(goal, color=colour, lw=1.1, ls="--", alpha=0.7)
        side = ("left", "right")[j]
        axes.text(goal, 1.2, f" {goal:.3f} ", color=colour, fontsize=9, va="top", ha=side)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.22))
    if name == "random walk":
        axes.plot([], [], "-", color=FAINT, lw=1.3, label="limit of many columns")
        axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1.0, 0.9))


def _tabulate_curves(
    scales: dict[str, dict[int, Array]], runs: list[ChainRun], sweep: Sweep
) -> dict[str, Any]:
    def line(run: ChainRun) -> dict[str, float]:
        return {
            "columns": run.d,
            "scale": run.scale,
            "acceptance": run.accepted,
            "closed form": acceptance(run.name, run.scale, run.d)
            if run.rule == "metropolis"
            else float("nan"),
            "effective draws per draw": run.worth,
            "error": run.error,
            "cost": run.cost,
        }

    return {
        "tuned scales": {
            name: {str(d): list(map(float, found)) for d, found in by.items()} for name, by in scales.items()
        },
        "against columns": {name: [line(run) for run in runs if run.name == name] for name in POWERS},
        "along scales": {
            f"{name}, {rule}": [line(run) for run in found] for (name, rule), found in sweep.items()
        },
    }


def experiment(options: Options) -> Report:
    """Tune, run, sweep, and check."""
    size = QUICK if options.quick else FULL
    total = len(POWERS) * len(size.columns) + len(SWEPT) + 1
    done = 0

    def report(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    scales, runs = run_columns(size, options.seed, report)
    sweep = run_scales(size, options.seed, report)
    report("finite spaces")
    exact = check_finite_spaces(options.seed)
    tops = {pair: find_maximum(sweep[pair], size.resamples, options.seed) for pair in SWEPT}
    findings = [
        *judge_exponents(scales),
        *judge_efficiency(runs),
        *judge_maxima(sweep, tops, size.swept),
        *judge_rules(sweep, tops, exact),
        *judge_exactness(runs, exact),
    ]
    settings = {
        "columns": list(size.columns),
        "warm-ups of each": size.repeats,
        "steps of warm-up": size.warmup,
        "steps": size.steps,
        "columns of the sweep": size.swept,
        "seed": options.seed,
    }
    title = "Random walk, MALA and HMC on Gaussians: scales, acceptance, effective draws"
    figure = draw_figure(scales, runs, sweep, tops, size.swept)
    return Report(
        "mcmc-scaling", title, settings, findings, _tabulate_curves(scales, runs, sweep), {"scaling": figure}
    )
