r"""Checks of kernels and samplers: invariance, reversibility, joint distribution (Geweke), ranks (SBC).

A kernel P leaves a distribution :math:`\pi` invariant, or is reversible, if

.. math:: \pi P = \pi, \qquad \pi(dx) P(x, dy) = \pi(dy) P(y, dx)

(Le Corff, definitions 1.4 and 1.5). On a finite space both are matrices, and the check is exact. Elsewhere chains
begin at exact draws of the distribution and make a step: then every function has the same mean at both ends, and an
antisymmetric function of both ends has mean zero.

A sampler of posteriors is right if both sides of :math:`p(\theta) p(y \mid \theta)` agree.

*Joint distribution* (Geweke 2004): parameters from the prior, data given them, and then in turn the kernel on the
parameters and new data. No distribution may change, so that parameters at the end are compared with those at the
beginning.

*Ranks* (simulation-based calibration; Talts et al. 2018): among draws given the data, the parameters behind the data
have every rank with equal probability. Draws of a chain are dependent; with the true parameters at a random place of a
reversible chain that runs both ways from them, ranks are uniform without thinning (Besag and Clifford 1989).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.chain import Chains, Kernel, advance
from boxloop.numeric import RandomState, generator, single_threaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-12
"""Largest error of an exact check that rounding may cause."""

TestFunctions = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KernelCheck:
    """Result of :func:`check_reversible`.

    Args:
        invariance: largest error of the distribution after a step; of a probability if exact, else a z-score.
        reversibility: largest error of detailed balance; of a probability if exact, else a z-score.
        limit: largest error by rounding or by chance.
        exact: whether errors are of probabilities rather than z-scores.
        tests: number of z-scores; 0 when exact.
    """

    invariance: float
    reversibility: float
    limit: float
    exact: bool
    tests: int = 0

    @property
    def invariant(self) -> bool:
        """Whether the kernel leaves the distribution invariant, as far as the check shows."""
        return self.invariance <= self.limit

    @property
    def reversible(self) -> bool:
        """Whether it satisfies detailed balance, as far as the check shows."""
        return self.reversibility <= self.limit

    def __str__(self) -> str:
        kind = "error" if self.exact else f"largest of {self.tests} |z|"
        return (
            f"{'invariant' if self.invariant else 'NOT invariant'} ({kind} {self.invariance:.2g}), "
            f"{'reversible' if self.reversible else 'NOT reversible'} ({kind} {self.reversibility:.2g}), "
            f"limit {self.limit:.2g}"
        )


@single_threaded
def check_reversible(
    kernel: Kernel,
    distribution: Tensor | Callable[[int, Generator], Tensor],
    *,
    states: Tensor | None = None,
    moves: Sequence[tuple[Any, float]] | None = None,
    functions: TestFunctions | None = None,
    chains: int = 20_000,
    steps: int = 1,
    level: float = 1e-3,
    random_state: RandomState = 0,
    device: torch.device | str = "cpu",
) -> KernelCheck:
    """Check whether a kernel leaves a distribution invariant, and whether it is reversible.

    Args:
        kernel: the kernel to check.
        distribution: on a finite space the probability of each state, (s,); else ``(n, stream) -> exact draws (n, d)``.
        states: the positions of a finite space, (s, d).
        moves: of a finite space: every item of noise that a step may get, with its probability. For a kernel with a
            ratio an item is the proposal's part alone; acceptance probabilities are computed exactly.
        functions: positions (n, d) -> (n, f), whose means are compared; columns, their squares and products of
            neighbours when omitted. They should be bounded or have light tails.
        chains: independent chains of a statistical check.
        steps: of each chain, in a statistical check.
        level: probability that a correct kernel fails, in a statistical check.
        random_state: seed or generator.
        device: of the chains, and of the stream passed to ``distribution``.

    Returns:
        A :class:`KernelCheck`: ``invariant``, ``reversible``, and the errors behind them.

    Example:
        >>> import torch
        >>> from boxloop.sample import MALA, Target, check_reversible
        >>> kernel = MALA(scale=1.0).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> exact = lambda n, stream: torch.randn(n, 2, generator=stream).double()
        >>> check = check_reversible(kernel, exact)
        >>> check.invariant, check.reversible
        (True, True)
    """
    if isinstance(distribution, Tensor):
        if states is None or moves is None:
            raise ValueError("a finite space needs its states and the moves of the kernel's noise")
        weight = distribution.double() / distribution.sum()
        flow = weight[:, None] * transition(kernel, states, moves)
        error = float((flow.sum(0) - weight).abs().max())
        return KernelCheck(error, float((flow - flow.T).abs().max()), ROUNDING, True)
    stream = generator(random_state, device)
    with torch.no_grad():
        start = kernel.init(distribution(chains, stream))
        path = advance(kernel, start, steps, stream)
    evaluate = functions or evaluate_default_functions
    before, after = evaluate(start.position).double(), evaluate(path.chains.position).double()
    invariance = compute_z_scores(after - before)
    balance = compute_z_scores(evaluate_antisymmetric_functions(before, after))
    tests = len(invariance) + len(balance)
    limit = float(stats.norm.isf(0.5 * level / tests))
    both = torch.cat([invariance, balance])
    return KernelCheck(float(invariance.max()), float(both.max()), limit, False, tests)


def transition(kernel: Kernel, states: Tensor, moves: Sequence[tuple[Any, float]]) -> Tensor:
    """The transition matrix of a kernel on a finite space, (s, s), by running its step on every state with every move.

    Args:
        kernel: with moves that lead from states to states.
        states: (s, d).
        moves: items of noise with their probabilities, which sum to one.
    """
    total = sum(probability for _, probability in moves)
    if abs(total - 1.0) > ROUNDING:
        raise ValueError(f"the probabilities of the moves must sum to one, and sum to {total!r}")
    start = kernel.init(states)
    matrix = torch.zeros(len(states), len(states), dtype=torch.float64, device=states.device)
    accepted = torch.full_like(start.log_density, -torch.inf)
    rows = torch.arange(len(states), device=states.device)
    for item, probability in moves:
        after, info = kernel.step(start, item if kernel.chance is None else (item, accepted))
        chance = torch.ones_like(matrix[0])
        if kernel.chance is not None:
            assert info.log_ratio is not None
            chance = kernel.chance(info.log_ratio).double().nan_to_num(nan=0.0)
        ends = torch.where(chance > 0, _find_state_indices(after, states), rows)
        matrix[rows, ends] += probability * chance
        matrix[rows, rows] += probability * (1.0 - chance)
    return matrix


def _find_state_indices(chains: Chains, states: Tensor) -> Tensor:
    """Index of each chain's state; a position that is not among the states is an error."""
    distance = (chains.position[:, None] - states).abs().amax(2)
    nearest, index = distance.min(1)
    known = (nearest < 1e-9) | torch.isnan(nearest) | torch.isneginf(chains.log_density)
    if not bool(known.all()):
        raise ValueError(
            f"a move leads to {chains.position[~known][0].tolist()}, which is not among the states"
        )
    return index


def evaluate_default_functions(position: Tensor) -> Tensor:
    """Columns, their squares, and products of neighbouring columns."""
    neighbours = position[:, :-1] * position[:, 1:]
    return torch.cat([position, position.square(), neighbours], 1)


def evaluate_antisymmetric_functions(before: Tensor, after: Tensor) -> Tensor:
    """Functions of both ends, (n, f) each, that change sign when the ends are exchanged."""
    crossed = before * after.roll(1, 1) - after * before.roll(1, 1)
    return torch.cat([crossed, (after - before) ** 3], 1)


def compute_z_scores(rows: Tensor) -> Tensor:
    """Absolute mean of each column in units of its standard error; 0 for a column of zeros."""
    error = rows.std(0) / np.sqrt(len(rows))
    mean = rows.mean(0)
    return torch.where(error > 0, mean.abs() / error, torch.where(mean == 0, 0.0, torch.inf))


Prior = Callable[[int, Generator], Tensor]
Simulator = Callable[[Tensor, Generator], Any]
Posterior = Callable[[Any], Kernel]


@dataclass(frozen=True)
class JointCheck:
    """Result of a joint-distribution test.

    Args:
        z: of each function, (f,).
        limit: of the largest.
    """

    z: Tensor
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the sampler is right, as far as the test shows."""
        return bool(self.z.max() <= self.limit)


@single_threaded
def check_joint(
    prior: Prior,
    simulate: Simulator,
    posterior: Posterior,
    *,
    chains: int = 5000,
    iterations: int = 10,
    steps: int = 1,
    functions: TestFunctions | None = None,
    level: float = 1e-3,
    random_state: RandomState = 0,
    device: torch.device | str = "cpu",
) -> JointCheck:
    """Joint-distribution test (Geweke 2004), every chain with its own data.

    Args:
        prior: (n, stream) -> parameters (n, d), unconstrained.
        simulate: (parameters, stream) -> data, with a leading axis of chains.
        posterior: data -> the kernel whose chain i has the posterior of data i.
        chains: independent repetitions.
        iterations: of parameters and data in turn.
        steps: of the kernel in an iteration.
        functions: parameters (n, d) -> (n, f); columns, squares and products when omitted.
        level: probability that a correct sampler fails.
        random_state: seed or generator.
        device: of the stream that is passed to all three.

    Example:
        >>> import torch
        >>> from boxloop.sample import RandomWalk, Target, check_joint
        >>> def posterior(data):  # of a normal mean with a normal prior
        ...     return RandomWalk(scale=1.0).kernel(
        ...         Target(lambda theta: -0.5 * (theta**2).sum(1) - 0.5 * ((data - theta) ** 2).sum(1))
        ...     )
        >>> check_joint(
        ...     prior=lambda n, stream: torch.randn(n, 1, generator=stream).double(),
        ...     simulate=lambda theta, stream: theta + torch.randn(len(theta), 3, generator=stream),
        ...     posterior=posterior,
        ... ).passed
        True
    """
    stream = generator(random_state, device)
    first = theta = prior(chains, stream)
    with torch.no_grad():
        for _ in range(iterations):
            kernel = posterior(simulate(theta, stream))
            theta = advance(kernel, kernel.init(theta), steps, stream).chains.position
    evaluate = functions or evaluate_default_functions
    z = compute_z_scores(evaluate(theta).double() - evaluate(first).double())
    return JointCheck(z, float(stats.norm.isf(0.5 * level / len(z))))


@dataclass(frozen=True, eq=False)
class RankCheck:
    """Result of simulation-based calibration: ranks of the true parameters among draws.

    Args:
        ranks: (simulations, d), from 0 to ``draws``.
        draws: of each simulation.
        bins: of the tests.
        level: probability that a correct sampler fails.
    """

    ranks: NDArray[np.int64]
    draws: int
    bins: int
    level: float

    @property
    def counts(self) -> NDArray[np.int64]:
        """Simulations in each bin of ranks, (bins, d)."""
        index = self.ranks * self.bins // (self.draws + 1)
        return np.stack([np.bincount(column, minlength=self.bins) for column in index.T], 1)

    @property
    def p_values(self) -> NDArray[np.float64]:
        """Of a chi-squared test that ranks are uniform, (d,)."""
        counts = self.counts
        expected = np.bincount(np.arange(self.draws + 1) * self.bins // (self.draws + 1), minlength=self.bins)
        expected = expected[:, None] / expected.sum() * len(self.ranks)
        return np.asarray(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(0), self.bins - 1))

    @property
    def passed(self) -> bool:
        """Whether the sampler is right, as far as the test shows; Bonferroni over columns."""
        return bool(self.p_values.min() * len(self.p_values) > self.level)

    def plot(self, ax: Axes | None = None, *, column: int | None = None) -> Axes:
        """Histogram of the ranks of one column with the band of a uniform one.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            column: index; the column of the smallest p-value when omitted.
        """
        from boxloop.figures import uniform_histogram

        chosen = int(self.p_values.argmin()) if column is None else column
        places = (self.ranks[:, chosen] + 0.5) / (self.draws + 1)
        share = 1.0 / self.bins
        low, high = stats.binom.interval(1.0 - 0.05 / self.bins, len(places), share)
        title = f"ranks of column {chosen}, p = {self.p_values[chosen]:.2g}"
        level = len(places) * share
        return uniform_histogram(places, (low / level, high / level), self.bins, ax, title=title)


@single_threaded
def check_ranks(
    prior: Prior,
    simulate: Simulator,
    posterior: Posterior,
    *,
    simulations: int = 500,
    draws: int = 99,
    thin: int = 1,
    bins: int = 20,
    level: float = 1e-3,
    random_state: RandomState = 0,
    device: torch.device | str = "cpu",
) -> RankCheck:
    """Simulation-based calibration (Talts et al. 2018) with chains that run both ways from the true parameters.

    Args:
        prior: as in :func:`check_joint`, and so are the next two.
        simulate: with a leading axis of simulations.
        posterior: must be reversible; otherwise ranks are uniform only if ``thin`` makes draws independent.
        simulations: number of simulated data sets.
        draws: of each, besides the true parameters.
        thin: steps from one draw to the next. The test has more power with larger steps.
        bins: of the test.
        level: probability that a correct sampler fails.
        random_state: seed or generator.
        device: of the stream that is passed to all three functions.

    Example:
        >>> import torch
        >>> from boxloop.sample import MALA, Target, check_ranks
        >>> prior = lambda n, stream: torch.randn(n, 1, generator=stream).double()
        >>> simulate = lambda theta, stream: theta + torch.randn(len(theta), 1, generator=stream)
        >>> density = lambda data: lambda theta: -0.5 * (theta**2 + (data - theta) ** 2)[:, 0]
        >>> check_ranks(prior, simulate, lambda data: MALA(scale=1.0).kernel(Target(density(data)))).passed
        True
    """
    stream = generator(random_state, device)
    truth = prior(simulations, stream)
    with torch.no_grad():
        kernel = posterior(simulate(truth, stream))
        paths = [
            advance(kernel, kernel.init(truth), draws * thin, stream).position[thin - 1 :: thin] for _ in "ab"
        ]
    ahead = torch.randint(draws + 1, (simulations,), generator=stream, device=stream.device)
    number = torch.arange(1, draws + 1, device=stream.device)[:, None]
    included = torch.cat([number <= ahead, number <= draws - ahead])[:, :, None]
    found = torch.cat(paths)
    lower = ((found < truth) & included).sum(0)
    same = ((found == truth) & included).sum(0)
    uniform = torch.rand(same.shape, generator=stream, dtype=torch.float64, device=stream.device)
    ties = (uniform * (same + 1)).floor().long()
    return RankCheck((lower + ties).cpu().numpy(), draws, bins, level)
