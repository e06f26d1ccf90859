r"""Whether a sampler of posteriors is right: both sides of :math:`p(\theta) p(y \mid \theta)` must agree.

*Joint distribution* (Geweke 2004): parameters from the prior, data from them, and then in turn the kernel on the
parameters and fresh data. Nothing may change in law, so that parameters at the end are compared with those at the
beginning.

*Ranks* (Talts et al. 2018): among draws given the data, the parameters behind the data have every rank equally often.
Draws of a chain depend on one another; with the true parameters at a random place of a reversible chain that runs
both ways from them, ranks are uniform all the same, with no need to thin (Besag and Clifford 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.chain import Kernel, advance
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.sample.check import default_functions, z_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Prior = Callable[[int, Generator], Tensor]
Simulator = Callable[[Tensor, Generator], Any]
Posterior = Callable[[Any], Kernel]


@dataclass(frozen=True)
class JointCheck:
    """What a joint-distribution test found.

    Args:
        z: of each function, (f,).
        limit: of the largest.
    """

    z: Tensor
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the sampler is right, as far as the test can see."""
        return bool(self.z.max() <= self.limit)


@single_threaded
def check_joint(
    prior: Prior,
    simulate: Simulator,
    posterior: Posterior,
    *,
    chains: int = 5000,
    rounds: int = 10,
    steps: int = 1,
    functions: Callable[[Tensor], Tensor] | None = None,
    level: float = 1e-3,
    random_state: RandomState = 0,
    device: torch.device | str = "cpu",
) -> JointCheck:
    """The joint-distribution test, every chain with data of its own.

    Args:
        prior: (n, stream) -> parameters (n, d), unconstrained.
        simulate: (parameters, stream) -> data, with a leading axis of chains.
        posterior: data -> the kernel whose chain i has the posterior of data i.
        chains: independent repetitions.
        rounds: of parameters and data in turn.
        steps: of the kernel in a round.
        functions: parameters (n, d) -> (n, f); columns, squares and products when omitted.
        level: chance that a right sampler fails.
        random_state: seed or generator.
        device: of the stream that all three are given.

    Example:
        >>> import torch
        >>> from boxloop.sample import RandomWalk, Target, check_joint
        >>> def posterior(data):
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
        for _ in range(rounds):
            kernel = posterior(simulate(theta, stream))
            theta = advance(kernel, kernel.init(theta), steps, stream).chains.position
    describe = functions or default_functions
    z = z_scores(describe(theta).double() - describe(first).double())
    return JointCheck(z, float(stats.norm.isf(0.5 * level / len(z))))


@dataclass(frozen=True, eq=False)
class RankCheck:
    """Ranks of the true parameters among draws.

    Args:
        ranks: (simulations, d), from 0 to ``draws``.
        draws: of each simulation.
        bins: of the tests.
        level: chance that a right sampler fails.
    """

    ranks: NDArray[np.int64]
    draws: int
    bins: int
    level: float

    @property
    def counts(self) -> NDArray[np.int64]:
        """Simulations in each bin of ranks, (bins, d)."""
        place = self.ranks * self.bins // (self.draws + 1)
        return np.stack([np.bincount(column, minlength=self.bins) for column in place.T], 1)

    @property
    def p_values(self) -> NDArray[np.float64]:
        """Of a chi-squared test that ranks are even, (d,)."""
        counts = self.counts
        expected = np.bincount(np.arange(self.draws + 1) * self.bins // (self.draws + 1), minlength=self.bins)
        expected = expected[:, None] / expected.sum() * len(self.ranks)
        return np.asarray(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(0), self.bins - 1))

    @property
    def passed(self) -> bool:
        """Whether the sampler is right, as far as the test can see; Bonferroni over columns."""
        return bool(self.p_values.min() * len(self.p_values) > self.level)

    def plot(self, ax: Axes | None = None, *, column: int | None = None) -> Axes:
        """Ranks of one column beside what is even; the least even one unless named.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            column: which.
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
    """Simulation-based calibration with chains that run both ways from the truth.

    Args:
        prior: (n, stream) -> parameters (n, d), unconstrained.
        simulate: (parameters, stream) -> data, with a leading axis of simulations.
        posterior: data -> the kernel whose chain i has the posterior of data i. It must be reversible; for one that is
            not, ranks are even only if ``thin`` makes draws independent.
        simulations: how many.
        draws: of each, besides the truth.
        thin: steps from one draw to the next. Draws far apart see more.
        bins: of the test.
        level: chance that a right sampler fails.
        random_state: seed or generator.
        device: of the stream that all three are given.

    Example:
        >>> import torch
        >>> from boxloop.sample import MALA, Target, check_ranks
        >>> def posterior(data):
        ...     return MALA(scale=1.0).kernel(
        ...         Target(lambda theta: -0.5 * (theta**2).sum(1) - 0.5 * ((data - theta) ** 2).sum(1))
        ...     )
        >>> check_ranks(
        ...     prior=lambda n, stream: torch.randn(n, 1, generator=stream).double(),
        ...     simulate=lambda theta, stream: theta + torch.randn(len(theta), 3, generator=stream),
        ...     posterior=posterior,
        ... ).passed
        True
    """
    stream = generator(random_state, device)
    truth = prior(simulations, stream)
    with torch.no_grad():
        kernel = posterior(simulate(truth, stream))
        ways = [
            advance(kernel, kernel.init(truth), draws * thin, stream).position[thin - 1 :: thin] for _ in "ab"
        ]
    ahead = torch.randint(draws + 1, (simulations,), generator=stream, device=stream.device)
    turn = torch.arange(1, draws + 1, device=stream.device)[:, None]
    taken = torch.cat([turn <= ahead, turn <= draws - ahead])
    below = torch.cat(ways) < truth
    tied = torch.cat(ways) == truth
    lower = (below & taken[:, :, None]).sum(0)
    same = (tied & taken[:, :, None]).sum(0)
    even = torch.rand(same.shape, generator=stream, dtype=torch.float64, device=stream.device)
    broken = (even * (same + 1)).floor().long()
    return RankCheck((lower + broken).cpu().numpy(), draws, bins, level)
