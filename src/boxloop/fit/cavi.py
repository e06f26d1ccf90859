r"""Coordinate-ascent variational inference for small user-defined models.

Choose j; replace :math:`q_j` by the optimal factor given the others; repeat (Le Corff, section 3.2). Each replacement
raises the bound by exactly :math:`KL(q_j \| \tilde q_j)`, so the gain of every step is known.

With :math:`q(z) = \prod_j q_j(z_j)` and :math:`\log p(z, x)` linear in each statistic :math:`T_j(z_j)`, expectations go
inside: :math:`E_q[\log p(Z, x)] = f(E[T_1], \dots, E[T_d])`. The complete conditional of node j is then in its family,
and the best :math:`q_j` for the others has as coefficients of :math:`T_j` the derivative

.. math:: \tilde q_j(z_j) \propto \exp\left(E_{q_{-j}}[\log p(z_j \mid Z_{-j}, x)]\right)
          \propto \exp \left\langle \frac{\partial f}{\partial T_j}, T_j(z_j) \right\rangle .

Complete conditionals alone determine f up to a constant, by Brook's (1964) lemma: with :math:`c_j` the coefficients
that the conditional of node j has at the statistics of the others,

.. math:: f(T_1, \dots, T_d) = \sum_j \langle c_j(T_1, \dots, T_{j-1}, 0, \dots, 0), T_j \rangle + \text{constant}.

The evidence of a small model, to compare with its bound: one node is integrated out in closed form,

.. math:: \int e^{f(T_1, \dots, T_d)} dz_j = \exp\left( A_j\!\left(\frac{\partial f}{\partial T_j} - b_j\right)
          + f(T_1, \dots, 0, \dots, T_d) \right),

with b the base measure of the node's family. The other nodes are enumerated, or integrated by the trapezoidal rule in
unconstrained coordinates (logs, log-ratios): for smooth functions that vanish at both ends its error falls
exponentially with the number of points (Trefethen and Weideman 2014). The error estimate is the change when every other
point is left out, which is the error of the coarser rule and so far too large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Generator, Tensor

from boxloop.data import check_choice, make_frame
from boxloop.distributions import Node, Statistic
from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.numeric import RandomState, SingleThreaded, generator, normal, seed, single_threaded
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LogJoint = Callable[[dict[str, Any]], Tensor]
"""Named statistics of every node -> log p(z, x), a number."""

Conditional = Callable[[dict[str, Any]], Sequence[Any]]
"""Named statistics of every other node -> coefficients of this node's statistics, in their order."""

Statistics = Mapping[str, Tensor]
"""Flat statistics of every node, (m, p)."""

LINEARITY_TOLERANCE = 1e-10
"""Largest relative second difference that is attributed to rounding."""


class ConditionalError(ValueError):
    """A complete conditional is invalid; the message names the node."""


@dataclass(frozen=True)
class MeanField:
    """A model: nodes, and the log-joint of their statistics."""

    nodes: Mapping[str, Node]  # by name, in the order in which a sweep visits them
    log_joint: LogJoint  # a number from named statistics, linear in those of each node
    conditionals: Mapping[str, Conditional]  # of some nodes or all; else by autograd

    def name_statistics(self, statistics: Statistics) -> dict[str, Any]:
        """Statistics under their names."""
        return {name: self.nodes[name].name_statistics(value) for name, value in statistics.items()}

    def evaluate_log_joint(self, statistics: Statistics) -> Tensor:
        """The log-joint at any statistics; at expected ones, its expectation."""
        value = self.log_joint(self.name_statistics(statistics))
        if not isinstance(value, Tensor) or value.numel() != 1:
            tensor = isinstance(value, Tensor)
            kind = f"one of shape {tuple(value.shape)}" if tensor else type(value).__name__
            raise TypeError(f"log_joint must return a tensor with one element, not {kind}")
        return value.reshape(())

    def differentiate_log_joint(self, name: str, statistics: Statistics) -> Tensor:
        """Gradient of the log-joint in the statistics of one node, (m, p), by autograd."""
        here = statistics[name].detach().clone().requires_grad_()
        with torch.enable_grad():
            value = self.evaluate_log_joint({**statistics, name: here})
            if not value.requires_grad:
                return torch.zeros_like(here)
            gradient = torch.autograd.grad(value, here, allow_unused=True)[0]
        return torch.zeros_like(here) if gradient is None else gradient

    def conditional_coefficients(self, name: str, statistics: Statistics) -> Tensor:
        """Coefficients of the complete conditional of one node, averaged over the others, (m, p)."""
        if name not in self.conditionals:
            return self.differentiate_log_joint(name, statistics)
        others = self.name_statistics({other: value for other, value in statistics.items() if other != name})
        return self.nodes[name].flatten_coefficients(self.conditionals[name](others))

    def find_optimal_natural(self, name: str, statistics: Statistics) -> Tensor:
        """Natural parameters of the optimal factor of one node given the others, (m, p)."""
        node = self.nodes[name]
        natural = self.conditional_coefficients(name, statistics) - node.family.base_coefficients()
        inside = node.family.is_valid(natural)
        if not bool(inside.all()):
            member = int(torch.nonzero(~inside)[0])
            raise ConditionalError(
                f"The complete conditional of node {name!r} cannot be normalised: the natural parameter of "
                f"member {member} is {[round(x, 6) for x in natural[member].tolist()]}"
            )
        return natural

    def expected_statistics(self, natural: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mean statistics of every node."""
        return {name: node.expected_statistics(natural[name]) for name, node in self.nodes.items()}

    def compute_bound(self, natural: Mapping[str, Tensor], expected: Statistics) -> float:
        """The evidence lower bound: the expected log-joint and the entropies."""
        entropies = [node.entropy(natural[name], expected[name]).sum() for name, node in self.nodes.items()]
        with torch.no_grad():
            return float(self.evaluate_log_joint(expected) + torch.stack(entropies).sum())

    def check_linearity(self, stream: Generator) -> None:
        """Check linearity and conditionals at random statistics."""
        here, one, two = (self._random_statistics(stream) for _ in range(3))
        for name, node in self.nodes.items():
            corners = [here[name], one[name], two[name], one[name] + two[name] - here[name]]
            with torch.no_grad():
                values = torch.stack([self.evaluate_log_joint({**here, name: corner}) for corner in corners])
            curvature = float(values[0] - values[1] - values[2] + values[3])
            if not abs(curvature) <= LINEARITY_TOLERANCE * max(float(values.abs().max()), 1.0):
                raise ConditionalError(
                    f"The log-joint is not linear in the statistics of node {name!r} "
                    f"({', '.join(node.name_statistics(here[name])._fields)}): its second difference is "
                    f"{curvature:.3g}, not 0. "
                    "Products of members of one node belong in nodes of their own; functions of a variable other "
                    "than its statistics do not belong in this family."
                )
        for name in self.conditionals:
            self._check_against_log_joint(name, here)

    def _check_against_log_joint(self, name: str, here: Statistics) -> None:
        gradient = self.differentiate_log_joint(name, here)
        conditional = self.conditional_coefficients(name, here)
        difference = (gradient - conditional).abs()
        if not bool((difference <= 1e-8 * (1.0 + gradient.abs())).all()):
            member, which = divmod(int(difference.argmax()), difference.shape[1])
            raise ConditionalError(
                f"The complete conditional of node {name!r} disagrees with the log-joint: coefficient {which} of "
                f"member {member} is {float(conditional[member, which]):.6g}, and the log-joint gives "
                f"{float(gradient[member, which]):.6g}"
            )

    def _random_statistics(self, stream: Generator) -> dict[str, Tensor]:
        """Statistics near those of a random start, but not the mean statistics of any distribution."""
        statistics = {}
        for name, node in self.nodes.items():
            mean = node.expected_statistics(node.draw_start(stream))
            statistics[name] = mean + (0.1 + 0.5 * mean.abs()) * normal(tuple(mean.shape), stream)
        return statistics


def build_mean_field(
    nodes: Mapping[str, Node],
    log_joint: LogJoint | None,
    conditionals: Mapping[str, Conditional] | None,
    stream: Generator,
) -> MeanField:
    """Build and check a model; without a log-joint it is derived from the conditionals by Brook's lemma."""
    given_nodes: object = nodes
    if not isinstance(given_nodes, Mapping):
        raise TypeError(f"nodes must be a mapping from names to nodes, got a {type(given_nodes).__name__}")
    if not nodes:
        raise ValueError("nodes must not be empty")
    given = dict(conditionals or {})
    unknown = set(given) - set(nodes)
    if unknown:
        raise ValueError(f"conditionals has names that are not nodes: {', '.join(sorted(unknown))}")
    if log_joint is None:
        missing = [name for name in nodes if name not in given]
        if missing:
            raise ValueError(
                f"Without log_joint every node needs a conditional; missing: {', '.join(missing)}"
            )
        log_joint = joint_from_conditionals(nodes, given)
    field = MeanField(dict(nodes), log_joint, given)
    field.check_linearity(stream)
    return field


def joint_from_conditionals(nodes: Mapping[str, Node], conditionals: Mapping[str, Conditional]) -> LogJoint:
    """The log-joint with these complete conditionals up to a constant, by Brook's lemma from zero."""

    def log_joint(t: dict[str, Any]) -> Tensor:
        seen = {name: type(parts)(*(torch.zeros_like(part) for part in parts)) for name, parts in t.items()}
        terms = []
        for name in nodes:
            others = {other: parts for other, parts in seen.items() if other != name}
            pairs = zip(conditionals[name](others), t[name], strict=True)
            terms += [
                (torch.as_tensor(c, dtype=part.dtype).expand(part.shape) * part).sum() for c, part in pairs
            ]
            seen[name] = t[name]
        return torch.stack(terms).sum()

    return log_joint


MAX_LINES = 20
MAX_POINTS = 4_000_000
"""Most points of the grid of a quadrature."""


@dataclass(frozen=True)
class CaviState(Tree):
    """State of coordinate ascent."""

    natural: tuple[Tensor, ...]  # natural parameters of each node, (m, p)
    updated: tuple[Tensor, ...]  # variables updated since the last gain worth counting, (m,)
    seed: int  # of the next iteration in random order

    def natural_by_name(self, field: MeanField) -> dict[str, Tensor]:
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
        return self.node.name_statistics(self.node.expected_statistics(self.natural))

    @property
    def entropy(self) -> float:
        """Entropy of all variables together."""
        return float(self.node.entropy(self.natural, self.node.expected_statistics(self.natural)).sum())


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
        return NodePosterior(self.field.nodes[name], self.outcome.state.natural_by_name(self.field)[name])

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
        natural = self.outcome.state.natural_by_name(self.field)
        return compute_evidence(self.field, natural, collapse=collapse, tol=tol, max_points=max_points)

    def table(self) -> Any:
        """A data frame with mean and standard deviation of each variable."""
        names, means, deviations = (list(column) for column in zip(*self._summarise_variables(), strict=True))
        return make_frame({"mean": means, "sd": deviations}, names)

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
        rows = self._summarise_variables()
        width = max(len(name) for name, _, _ in rows[:MAX_LINES])
        lines += [f"  {name:<{width}} {mean:.6g} ± {sd:.3g}" for name, mean, sd in rows[:MAX_LINES]]
        if len(rows) > MAX_LINES:
            lines.append(f"  and {len(rows) - MAX_LINES} more")
        return "\n".join(lines)

    def _summarise_variables(self) -> list[tuple[str, float, float]]:
        """Name, mean and standard deviation of each variable of each node."""
        lines = []
        for name in self.field.nodes:
            mean, sd = self[name].mean, self[name].sd
            for place in itertools.product(*(range(size) for size in mean.shape)):
                label = f"{name}[{', '.join(map(str, place))}]" if place else name
                lines.append((label, float(mean[place]), float(sd[place])))
        return lines


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
    step = _make_sweep_step(field, tol) if order == "sweep" else _make_random_scan_step(field, tol)
    if resume is not None:
        before = [replace(resume.outcome, converged=False)]
    else:
        before = [Outcome(_draw_start(field, seed(stream))) for _ in range(n_starts)]
    outcomes: list[Outcome[CaviState]] = []
    for start in before:
        outcomes.append(
            run(step, start.state, max_iter=max_iter, monotone=True, observers=observers, resume=start)
        )
        if outcomes[-1].interrupted:
            break
    posteriors = [outcome.state.natural_by_name(field) for outcome in outcomes]
    bounds = [field.compute_bound(natural, field.expected_statistics(natural)) for natural in posteriors]
    best = max(range(len(bounds)), key=bounds.__getitem__)
    return Cavi(field, outcomes[best], bounds[best], tuple(bounds))


def _draw_start(field: MeanField, number: int) -> CaviState:
    stream = generator(number)
    natural = tuple(node.draw_start(stream) for node in field.nodes.values())
    updated = tuple(torch.zeros(node.size, dtype=torch.bool) for node in field.nodes.values())
    return CaviState(natural, updated, seed(stream))


def _make_sweep_step(field: MeanField, tol: float) -> Step:
    """An iteration that updates every node in turn; the last one gains less than ``tol``."""

    def step(state: CaviState) -> Iteration[CaviState]:
        natural = state.natural_by_name(field)
        expected = field.expected_statistics(natural)
        height = field.compute_bound(natural, expected)
        gained = 0.0
        for name, node in field.nodes.items():
            fresh = field.find_optimal_natural(name, expected)
            gained += float(_compute_bound_gain(node, natural[name], fresh, expected[name]).sum())
            natural[name], expected[name] = fresh, node.expected_statistics(fresh)
        return Iteration(replace(state, natural=tuple(natural.values())), height, final=gained < tol)

    return step


def _make_random_scan_step(field: MeanField, tol: float) -> Step:
    """An iteration that updates variables drawn uniformly, one by one, until all are at their optimum."""
    names = list(field.nodes)
    owner = torch.cat([torch.full((field.nodes[name].size,), j) for j, name in enumerate(names)])
    first = [int((owner < j).sum()) for j in range(len(names))]
    enough = tol / len(owner)

    def step(state: CaviState) -> Iteration[CaviState]:
        natural = state.natural_by_name(field)
        expected = field.expected_statistics(natural)
        height = field.compute_bound(natural, expected)
        updated = torch.cat(state.updated)
        stream = generator(state.seed)
        for place in torch.randint(len(owner), (len(owner),), generator=stream).tolist():
            name = names[int(owner[place])]
            node, member = field.nodes[name], place - first[int(owner[place])]
            one = slice(member, member + 1)
            fresh = field.find_optimal_natural(name, expected)[one]
            gained = float(_compute_bound_gain(node, natural[name][one], fresh, expected[name][one]))
            natural[name] = natural[name].index_copy(0, torch.tensor([member]), fresh)
            expected[name] = expected[name].index_copy(
                0, torch.tensor([member]), node.expected_statistics(fresh)
            )
            updated = updated if gained < enough else torch.zeros_like(updated)
            updated[place] = True
        sizes = [field.nodes[name].size for name in names]
        after = CaviState(tuple(natural.values()), updated.split(sizes), seed(stream))
        return Iteration(after, height, final=bool(updated.all()))

    return step


def _compute_bound_gain(node: Node, before: Tensor, after: Tensor, expected: Tensor) -> Tensor:
    r"""Increase of the bound, :math:`KL(q_j \| \tilde q_j)`, by the replacement of each variable, (m,)."""
    change = torch.where(expected == 0.0, 0.0, (after - before) * expected).sum(1)
    return node.log_partition(after) - node.log_partition(before) - change


CHUNK = 4096
HALF_WIDTH = 6.0
"""Half of the width of the first grid, in standard deviations of the factorised approximation."""
EDGE_SHARE = 1e-11
"""Largest share of the integral at the outermost points."""
TYPICAL_POINTS = 40
"""Points per axis assumed in choosing the node to integrate out."""


@dataclass(frozen=True, repr=False)
class Evidence:
    """The evidence lower bound and the evidence.

    Args:
        elbo: the evidence lower bound.
        log_evidence: log p(x) by quadrature.
        error: of ``log_evidence``: its change when every other point of the grid is left out.
        collapsed: name of the node that was integrated out in closed form.
        points: number of grid points.
        statistics: exact posterior means of the statistics of every node, under their names.
    """

    elbo: float
    log_evidence: float
    error: float
    collapsed: str
    points: int
    statistics: dict[str, Statistic]

    @property
    def gap(self) -> float:
        """Log evidence minus bound: the Kullback-Leibler divergence of the approximation from the posterior."""
        return self.log_evidence - self.elbo

    def __repr__(self) -> str:
        return (
            f"bound {self.elbo:.6g} below log evidence {self.log_evidence:.6g} ± {self.error:.1g}: "
            f"short by {self.gap:.3g}"
        )


@dataclass(frozen=True)
class GridAxis:
    """One coordinate of the grid."""

    name: str  # of the node
    points: Tensor  # values of an unconstrained coordinate, or indices of the support, (g,)
    spacing: float | None = None  # between values; None where the support is enumerated

    def widen(self, low: bool, high: bool) -> GridAxis:
        """Extend by half as many points on each side that needs them."""
        if self.spacing is None:
            return self
        more = self.spacing * torch.arange(1, len(self.points) // 4 * 2 + 1, dtype=torch.float64)
        before = [self.points[0] - more.flip(0)] if low else []
        after = [self.points[-1] + more] if high else []
        return GridAxis(self.name, torch.cat([*before, self.points, *after]), self.spacing)

    def trim(self, share: Tensor) -> GridAxis:
        """Drop the ends with almost none of the integral; ``share`` is that of each point, (g,)."""
        if self.spacing is None:
            return self
        inside = torch.nonzero(share > 0.1 * EDGE_SHARE)[:, 0]
        points = self.points[max(int(inside[0]) - 1, 0) : int(inside[-1]) + 2]
        return GridAxis(self.name, points, self.spacing)

    def refine(self) -> GridAxis:
        """Halve the spacing."""
        if self.spacing is None:
            return self
        low, high = float(self.points[0]), float(self.points[-1])
        points = torch.linspace(low, high, 2 * len(self.points) - 1, dtype=torch.float64)
        return GridAxis(self.name, points, 0.5 * self.spacing)


def compute_evidence(
    field: MeanField,
    natural: Mapping[str, Tensor],
    *,
    collapse: str | None = None,
    tol: float = 1e-6,
    max_points: int = MAX_POINTS,
) -> Evidence:
    """Log evidence of a small model, its error and the bound, from natural parameters of the approximation by name.

    The first grid spans the factorised approximation; it is widened where it truncates the integrand and refined until
    the error is small. Variables of one node share their range, so that every mode of an exchangeable posterior is
    covered.
    """
    if collapse is None:
        collapse = max(field.nodes, key=lambda name: _estimate_log_grid_size(field, name))
    elif collapse not in field.nodes:
        raise ValueError(
            f"collapse={collapse!r}: there is no node {collapse!r}; the nodes are {', '.join(field.nodes)}"
        )
    grid = QuadratureGrid(field, collapse)
    axes = [
        axis for name in field.nodes if name != collapse for axis in _build_axes(field, name, natural[name])
    ]
    axes, log_integrand = _widen_axes(grid, axes, max_points)
    while True:
        total = _compute_log_integral(log_integrand, axes, stride=1)
        coarse = _compute_log_integral(log_integrand, axes, stride=2)
        finer = [axis.trim(_marginalise_to_axis(log_integrand, j)).refine() for j, axis in enumerate(axes)]
        if abs(total - coarse) <= tol or _count_grid_points(finer) > max_points:
            break
        axes, log_integrand = finer, grid.evaluate_log_integrand(finer)
    error = max(abs(total - coarse), 1e-14 * abs(total))
    bound = field.compute_bound(natural, field.expected_statistics(natural))
    statistics = grid.average_statistics(axes, log_integrand)
    return Evidence(bound, total, error, collapse, _count_grid_points(axes), statistics)


@dataclass(frozen=True)
class QuadratureGrid:
    """The log-joint with one node integrated out, over the product of axes."""

    field: MeanField
    collapse: str

    def evaluate_log_integrand(self, axes: list[GridAxis]) -> Tensor:
        """Log of the integrand at every grid point, with one dimension per axis."""
        chunks = torch.arange(_count_grid_points(axes)).split(CHUNK)
        parts = []
        for chunk in chunks:
            statistics, volume = self._evaluate_statistics(axes, chunk)
            parts.append(torch.vmap(self._integrate_collapsed_node)(statistics) + volume)
        return torch.cat(parts).reshape([len(axis.points) for axis in axes])

    def average_statistics(self, axes: list[GridAxis], log_integrand: Tensor) -> dict[str, Statistic]:
        """Posterior means of the statistics of every node."""
        share = log_integrand.reshape(-1).softmax(0)
        sums = {
            name: torch.zeros(node.size, len(node.family.base_coefficients())).double()
            for name, node in self.field.nodes.items()
        }
        for chunk in torch.nonzero(share > 1e-18)[:, 0].split(CHUNK):
            statistics, _ = self._evaluate_statistics(axes, chunk)
            statistics[self.collapse] = torch.vmap(self._average_collapsed_statistics)(statistics)
            for name, values in statistics.items():
                sums[name] += torch.einsum("n,nmp->mp", share[chunk], values)
        return self.field.name_statistics(sums)

    def _evaluate_statistics(self, axes: list[GridAxis], chunk: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Statistics (n, m, p) of each node at grid points, and the log-Jacobian at each point, (n,)."""
        columns: dict[str, list[Tensor]] = {name: [] for name in self.field.nodes if name != self.collapse}
        rest = chunk
        for axis in reversed(axes):
            columns[axis.name].insert(0, axis.points[rest % len(axis.points)])
            rest = rest // len(axis.points)
        statistics, volume = {}, torch.zeros(len(chunk), dtype=torch.float64)
        for name, many in columns.items():
            node, values = self.field.nodes[name], torch.stack(many, dim=1)
            support = node.family.support()
            if support is not None:
                statistics[name] = support[values]
                continue
            flat, one = node.family.from_free_coordinates(values.reshape(len(chunk) * node.size, -1))
            statistics[name] = flat.reshape(len(chunk), node.size, -1)
            volume = volume + one.reshape(len(chunk), -1).sum(1)
        return statistics, volume

    def _condition_collapsed_node(self, statistics: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Natural parameters of the collapsed node given the others, and the log-joint without it."""
        node = self.field.nodes[self.collapse]
        zero = torch.zeros(node.size, len(node.family.base_coefficients()), dtype=torch.float64)
        log_joint = torch.func.grad_and_value(
            lambda own: self.field.evaluate_log_joint({**statistics, self.collapse: own})
        )
        slope, rest = log_joint(zero)
        return slope - node.family.base_coefficients(), rest

    def _integrate_collapsed_node(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, rest = self._condition_collapsed_node(statistics)
        return rest + self.field.nodes[self.collapse].log_partition(natural).sum()

    def _average_collapsed_statistics(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, _ = self._condition_collapsed_node(statistics)
        return torch.func.grad(lambda n: self.field.nodes[self.collapse].log_partition(n).sum())(natural)


def _widen_axes(grid: QuadratureGrid, axes: list[GridAxis], max_points: int) -> tuple[list[GridAxis], Tensor]:
    """Widen axes until almost nothing is outside; returns them and the log of the integrand."""
    while True:
        if _count_grid_points(axes) > max_points:
            raise ValueError(
                f"Quadrature over {len(axes)} coordinates needs {_count_grid_points(axes)} points, more than "
                f"max_points = {max_points}"
            )
        log_integrand = grid.evaluate_log_integrand(axes)
        ends = [_marginalise_to_axis(log_integrand, j)[[0, -1]] > EDGE_SHARE for j in range(len(axes))]
        if not any(bool(end.any()) for axis, end in zip(axes, ends) if axis.spacing):
            return axes, log_integrand
        axes = [axis.widen(bool(end[0]), bool(end[1])) for axis, end in zip(axes, ends)]


def _build_axes(field: MeanField, name: str, natural: Tensor) -> list[GridAxis]:
    """The coordinates of one node, each over the range that all its variables need."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return [GridAxis(name, torch.arange(len(support)))] * node.size
    centre, sd = node.family.quadrature_window(natural)
    low, high = (centre - HALF_WIDTH * sd).amin(0), (centre + HALF_WIDTH * sd).amax(0)
    axes = []
    for j in range(centre.shape[1]):
        steps = math.ceil(float((high[j] - low[j]) / sd[:, j].min()))
        points = torch.linspace(float(low[j]), float(high[j]), steps + 1, dtype=torch.float64)
        axes.append(GridAxis(name, points, float(points[1] - points[0])))
    return axes * node.size


def _estimate_log_grid_size(field: MeanField, name: str) -> float:
    """Log of the number of grid points due to a node."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return node.size * math.log(len(support))
    centre, _ = node.family.quadrature_window(node.family.draw_start(1, generator(0)))
    return node.size * centre.shape[1] * math.log(TYPICAL_POINTS)


def _count_grid_points(axes: list[GridAxis]) -> int:
    return math.prod(len(axis.points) for axis in axes)


def _marginalise_to_axis(log_integrand: Tensor, j: int) -> Tensor:
    """Share of the integral at each point of an axis, (g,)."""
    return log_integrand.movedim(j, 0).reshape(log_integrand.shape[j], -1).logsumexp(1).softmax(0)


def _compute_log_integral(log_integrand: Tensor, axes: list[GridAxis], stride: int) -> float:
    """Log of the integral from every point, or every other point, of the axes that are not enumerated."""
    volume = 0.0
    for j, axis in enumerate(axes):
        if axis.spacing is not None:
            log_integrand = log_integrand.movedim(j, 0)[::stride].movedim(0, j)
            volume += math.log(stride * axis.spacing)
    return float(log_integrand.reshape(-1).logsumexp(0)) + volume
