r"""Coordinate-ascent variational inference for small user-defined models.

Choose j; replace :math:`q_j` by the optimal factor given the others; repeat (Le Corff, section 3.2). Each replacement
raises the bound by exactly :math:`KL(q_j \| \tilde q_j)`, so the gain of every step is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from boxloop.data import check_choice, make_frame
from boxloop.distributions import Node, Statistic
from boxloop.fit.evidence import MAX_POINTS, Evidence, compute_evidence
from boxloop.fit.mean_field import Conditional, LogJoint, MeanField, build_mean_field
from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.numeric import RandomState, SingleThreaded, generator, seed, single_threaded
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MAX_LINES = 20


@dataclass(frozen=True)
class CaviState(Tree):
    """State of coordinate ascent.

    Args:
        natural: natural parameters of each node, (m, p).
        settled: variables whose last update gained almost nothing, with no larger gain since, (m,).
        seed: of the next iteration in random order.
    """

    natural: tuple[Tensor, ...]
    settled: tuple[Tensor, ...]
    seed: int

    def by_name(self, field: MeanField) -> dict[str, Tensor]:
        """Natural parameters of each node by its name."""
        return dict(zip(field.nodes, self.natural, strict=True))


@dataclass(frozen=True)
class NodePosterior:
    """The factor of one node: its variables are independent.

    Args:
        node: family and size.
        natural: natural parameters of each, (m, p).
    """

    node: Node
    natural: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of each variable."""
        return self.node.moments(self.natural)[0]

    @property
    def sd(self) -> Tensor:
        """Standard deviation of each variable."""
        return self.node.moments(self.natural)[1]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Parameters under their usual names."""
        return self.node.parameters(self.natural)

    @property
    def statistics(self) -> Statistic:
        """Mean statistics under their names."""
        return self.node.named(self.node.expected(self.natural))

    @property
    def entropy(self) -> float:
        """Entropy of all variables together."""
        return float(self.node.entropy(self.natural, self.node.expected(self.natural)).sum())


@dataclass(frozen=True, repr=False)
class Cavi(SingleThreaded):
    """A factorised approximation of a posterior, from :func:`cavi`.

    Args:
        field: the model.
        outcome: of the loop.
        elbo: final evidence lower bound.
        elbos: final bound of every start, in order.

    Example:
        >>> import torch
        >>> from boxloop.distributions import Node
        >>> from boxloop.fit import cavi
        >>> spins = {"a": Node.bernoulli(), "b": Node.bernoulli()}
        >>> found = cavi(spins, lambda t: t["a"].value * t["b"].value + t["a"].value, random_state=0)
        >>> found["a"].parameters
        {'probability': tensor(0.8455, dtype=torch.float64)}
        >>> found.table().index.tolist()
        ['a', 'b']
    """

    field: MeanField
    outcome: Outcome[CaviState]
    elbo: float
    elbos: tuple[float, ...]

    def __getitem__(self, name: str) -> NodePosterior:
        return NodePosterior(self.field.nodes[name], self.outcome.state.by_name(self.field)[name])

    @property
    def trace(self) -> list[float]:
        """The bound at the start and after every iteration."""
        return [*self.outcome.trace, self.elbo]

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return self.outcome.n_iter

    @property
    def converged(self) -> bool:
        """Whether the last iteration gained less than the tolerance."""
        return self.outcome.converged

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit."""
        return self.outcome.interrupted

    def evidence(
        self, *, collapse: str | None = None, tol: float = 1e-6, max_points: int = MAX_POINTS
    ) -> Evidence:
        """The log evidence by quadrature, for small models: see :func:`compute_evidence`."""
        natural = self.outcome.state.by_name(self.field)
        return compute_evidence(self.field, natural, collapse=collapse, tol=tol, max_points=max_points)

    def table(self) -> Any:
        """A data frame with mean and standard deviation of each variable."""
        lines = [line for name in self.field.nodes for line in self._summary_lines(name)]
        return make_frame(
            {"mean": [line[1] for line in lines], "sd": [line[2] for line in lines]},
            [line[0] for line in lines],
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the bound over iterations.

        Args:
            ax: axes to draw on; those of a new figure when None.

        Returns:
            The axes.
        """
        from boxloop.figures import trace

        status = "converged" if self.converged else "not converged"
        return trace(self.trace, ax, title="Evidence lower bound", up="bound", label=status)

    def __repr__(self) -> str:
        ended = "" if self.converged else ", interrupted" if self.interrupted else ", not converged"
        iterations = f"{self.n_iter} iteration{'' if self.n_iter == 1 else 's'}"
        lines = [f"Coordinate ascent, {iterations}{ended}: bound {self.elbo:.6g}"]
        rows = [line for name in self.field.nodes for line in self._summary_lines(name)]
        width = max(len(name) for name, _, _ in rows[:MAX_LINES])
        lines += [f"  {name:<{width}} {mean:.6g} ± {sd:.3g}" for name, mean, sd in rows[:MAX_LINES]]
        if len(rows) > MAX_LINES:
            lines.append(f"  and {len(rows) - MAX_LINES} more")
        return "\n".join(lines)

    def _summary_lines(self, name: str) -> list[tuple[str, float, float]]:
        """Name, mean and standard deviation of each variable of a node."""
        mean, sd = self[name].mean, self[name].sd
        if mean.dim() == 0:
            return [(name, float(mean), float(sd))]
        places = [tuple(place) for place in (mean == mean).nonzero().tolist()]
        return [
            (f"{name}[{', '.join(map(str, place))}]", float(mean[place]), float(sd[place]))
            for place in places
        ]


Order = Literal["sweep", "random"]
Step = Callable[[CaviState], Iteration[CaviState]]


@single_threaded
def cavi(
    nodes: Mapping[str, Node],
    log_joint: LogJoint | None = None,
    *,
    conditionals: Mapping[str, Conditional] | None = None,
    order: Order = "sweep",
    max_iter: int = 1000,
    tol: float = 1e-9,
    n_starts: int = 1,
    random_state: RandomState = None,
    observers: Sequence[Observer[CaviState]] = (),
    resume: Cavi | None = None,
) -> Cavi:
    r"""Approximate a posterior by a product of independent distributions, one per latent variable.

    .. math:: q_j(z_j) \propto \exp\left(E_{q_{-j}}[\log p(z_j \mid Z_{-j}, x)]\right), \qquad
              L(q) = E_q[\log p(Z, x)] - E_q[\log q(Z)] \le \log p(x)

    Le Corff, sections 3.1 and 3.2; Blei, Kucukelbir and McAuliffe (2017).

    A model is its log-joint as a function of the *statistics* of its nodes (see :class:`boxloop.distributions.Node`),
    linear in those of each node. Its gradient gives every update and its value at mean statistics is the expected
    log-joint, so nothing is derived by hand. The variables of one node must be independent given all others; those
    that are not belong in nodes of their own.

    Args:
        nodes: latent variables by name, in the order in which a sweep visits them. The first needs no start.
        log_joint: named statistics of every node -> log p(z, x), a tensor with one element, with respect to Lebesgue or
            counting measure, in torch operations that :func:`torch.vmap` supports.
        conditionals: complete conditionals instead of, or in addition to, the log-joint: by name, functions from the
            statistics of the other nodes to the coefficients of this node's statistics in
            :math:`\log p(z_j \mid z_{-j}, x)`, in their order. With a log-joint they are checked against it; without
            one, every node needs one, they are checked against one another, and the bound lacks a constant.
        order: ``"sweep"`` visits every node in turn; ``"random"`` draws one variable after another, uniformly among
            all variables of all nodes, as in Le Corff's algorithm. An iteration has as many updates as variables.
        max_iter: most iterations.
        tol: stop when a sweep gains less or, in random order, when no variable gains its share of ``tol``.
        n_starts: number of starts, of which the highest bound wins. They differ in nodes without a given start.
        random_state: seed or generator, for starts and random order.
        observers: called after each iteration, such as :class:`boxloop.progress.ProgressBar`.
        resume: an earlier result of the same model to continue.

    Returns:
        The factors, the bound, its trace, and its comparison with quadrature.

    Raises:
        ConditionalError: a log-joint that is not linear in a node, a conditional that is not normalisable or disagrees
            with the log-joint; the message names the node.
        MonotonicityError: the bound fell.

    Example:
        A normal sample with unknown mean and precision, :math:`\mu \sim N(0, 100)`, :math:`\tau \sim G(1, 1)`:

        >>> import torch
        >>> from boxloop.distributions import Node
        >>> from boxloop.fit import cavi
        >>> x = torch.tensor([1.0, 2.0, 2.5, 4.0, 5.5]).double()
        >>> def log_joint(t):
        ...     mu, tau = t["mu"], t["tau"]
        ...     apart = (x**2 - 2 * x * mu.value + mu.square).sum()
        ...     return (
        ...         0.5 * 5 * (tau.log - 1.8379) - 0.5 * tau.value * apart
        ...         - 0.5 * (mu.square / 100 + 6.4430) - tau.value
        ...     )
        >>> found = cavi({"mu": Node.normal(), "tau": Node.gamma()}, log_joint, random_state=0)
        >>> found["mu"].mean, found["mu"].sd
        (tensor(2.9856, dtype=torch.float64), tensor(0.6933, dtype=torch.float64))
        >>> found["tau"].parameters
        {'shape': tensor(3.5000, dtype=torch.float64), 'rate': tensor(8.4522, dtype=torch.float64)}
        >>> round(found.elbo, 3)
        -13.08
        >>> check = found.evidence()
        >>> round(check.log_evidence, 3), round(check.gap, 3), check.error < 1e-6
        (-13.0, 0.08, True)
    """
    check_choice(order, "order", ("sweep", "random"))
    if n_starts < 1:
        raise ValueError(f"n_starts must be at least 1, got {n_starts}")
    stream = generator(random_state)
    field = build_mean_field(nodes, log_joint, conditionals, stream)
    step = _sweep_step(field, tol) if order == "sweep" else _random_scan_step(field, tol)
    if resume is not None:
        before = [replace(resume.outcome, converged=False)]
    else:
        before = [Outcome(_initialise(field, seed(stream))) for _ in range(n_starts)]
    outcomes: list[Outcome[CaviState]] = []
    for start in before:
        outcomes.append(
            run(step, start.state, max_iter=max_iter, monotone=True, observers=observers, resume=start)
        )
        if outcomes[-1].interrupted:
            break
    posteriors = [outcome.state.by_name(field) for outcome in outcomes]
    bounds = [field.bound(natural, field.expected(natural)) for natural in posteriors]
    best = max(range(len(bounds)), key=bounds.__getitem__)
    return Cavi(field, outcomes[best], bounds[best], tuple(bounds))


def _initialise(field: MeanField, number: int) -> CaviState:
    stream = generator(number)
    natural = tuple(node.begin(stream) for node in field.nodes.values())
    settled = tuple(torch.zeros(node.size, dtype=torch.bool) for node in field.nodes.values())
    return CaviState(natural, settled, seed(stream))


def _sweep_step(field: MeanField, tol: float) -> Step:
    """An iteration that updates every node in turn; the last one gains less than ``tol``."""

    def step(state: CaviState) -> Iteration[CaviState]:
        natural = state.by_name(field)
        expected = field.expected(natural)
        height = field.bound(natural, expected)
        gained = 0.0
        for name, node in field.nodes.items():
            fresh = field.optimal_natural(name, expected)
            gained += float(_bound_gain(node, natural[name], fresh, expected[name]).sum())
            natural[name], expected[name] = fresh, node.expected(fresh)
        return Iteration(replace(state, natural=tuple(natural.values())), height, final=gained < tol)

    return step


def _random_scan_step(field: MeanField, tol: float) -> Step:
    """An iteration that updates variables drawn uniformly, one by one; the last one ends with all of them settled."""
    names = list(field.nodes)
    owner = torch.cat([torch.full((field.nodes[name].size,), j) for j, name in enumerate(names)])
    first = [int((owner < j).sum()) for j in range(len(names))]
    enough = tol / len(owner)

    def step(state: CaviState) -> Iteration[CaviState]:
        natural = state.by_name(field)
        expected = field.expected(natural)
        height = field.bound(natural, expected)
        settled = torch.cat(state.settled)
        stream = generator(state.seed)
        for place in torch.randint(len(owner), (len(owner),), generator=stream).tolist():
            name = names[int(owner[place])]
            node, member = field.nodes[name], place - first[int(owner[place])]
            one = slice(member, member + 1)
            fresh = field.optimal_natural(name, expected)[one]
            gained = float(_bound_gain(node, natural[name][one], fresh, expected[name][one]))
            natural[name] = natural[name].index_copy(0, torch.tensor([member]), fresh)
            expected[name] = expected[name].index_copy(0, torch.tensor([member]), node.expected(fresh))
            settled = settled if gained < enough else torch.zeros_like(settled)
            settled[place] = True
        sizes = [field.nodes[name].size for name in names]
        after = CaviState(tuple(natural.values()), settled.split(sizes), seed(stream))
        return Iteration(after, height, final=bool(settled.all()))

    return step


def _bound_gain(node: Node, before: Tensor, after: Tensor, expected: Tensor) -> Tensor:
    r"""Increase of the bound, :math:`KL(q_j \| \tilde q_j)`, by the replacement of each variable, (m,)."""
    change = torch.where(expected == 0.0, 0.0, (after - before) * expected).sum(1)
    return node.log_partition(after) - node.log_partition(before) - change
