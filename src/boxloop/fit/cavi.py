r"""Coordinate-ascent variational inference for small models of one's own.

Draw or choose j; replace :math:`q_j` by the best one for the others; repeat (document 002, section 3.2). Each
replacement raises the bound by exactly :math:`KL(q_j \| \tilde q_j)`, so the loop knows what every step was worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from boxloop.distributions import Node
from boxloop.fit.cavi_result import Cavi, CaviState
from boxloop.fit.mean_field import Conditional, LogJoint, MeanField, mean_field
from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.numeric import RandomState, generator, seed, single_threaded

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
    r"""Approximate a posterior by independent laws, one for each latent variable.

    .. math:: q_j(z_j) \propto \exp\left(E_{q_{-j}}[\log p(z_j \mid Z_{-j}, x)]\right), \qquad
              L(q) = E_q[\log p(Z, x)] - E_q[\log q(Z)] \le \log p(x)

    Document 002, sections 3.1 and 3.2; Blei, Kucukelbir and McAuliffe (2017).

    A model is its log-joint, written once as a function of the *statistics* of its nodes (see
    :class:`boxloop.distributions.nodes.Node`) and linear in those of each node. Its gradient is every update,
    its value at mean
    statistics is the expected log-joint: there is nothing to derive by hand. The variables of one node must be
    independent given all others; those that are not belong in nodes of their own.

    Args:
        nodes: latent variables by name, in the order in which a sweep visits them. The first needs no start.
        log_joint: named statistics of every node -> log p(z, x), a tensor of one number, with respect to the usual
            (Lebesgue or counting) measure. Of torch operations that :func:`torch.vmap` understands.
        conditionals: complete conditionals, instead of the log-joint or beside it: by name, functions from the
            statistics of the other nodes to the coefficients of this node's statistics in
            :math:`\log p(z_j \mid z_{-j}, x)`, in their order. Beside a log-joint they are checked against it; without
            one, each node needs one, they are checked against one another, and the bound is that of a log-joint
            without its constant.
        order: ``"sweep"`` visits every node in turn; ``"random"`` draws one variable after another, uniformly among
            all variables of all nodes, as in the document's algorithm. A round has as many updates as there are
            variables, either way.
        max_iter: most rounds.
        tol: stop when a sweep gains less, or, in random order, when no variable gains its share of it.
        n_starts: how many starts; the highest bound is kept. Only nodes without a start of their own differ.
        random_state: seed or generator, for starts and random order.
        observers: called after each round, such as :class:`boxloop.progress.ProgressBar`.
        resume: an earlier result of the same model to continue; it keeps its order of visits.

    Returns:
        The laws of the nodes, the bound, its trace, and its check against quadrature.

    Raises:
        ConditionalError: a log-joint that is not linear in a node, a conditional that is not a law or not that of the
            joint law; the message names the node.
        MonotonicityError: the bound fell.

    Example:
        A normal sample with unknown mean and precision, :math:`\mu \sim N(0, 100)`, :math:`\tau \sim G(1, 1)`:

        >>> import torch
        >>> from boxloop.fit.cavi import cavi
        >>> from boxloop.distributions.nodes import Node
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
    if order not in ("sweep", "random"):
        raise ValueError(f"order must be 'sweep' or 'random', got {order!r}")
    if n_starts < 1:
        raise ValueError(f"n_starts must be at least 1, got {n_starts}")
    stream = generator(random_state)
    field = mean_field(nodes, log_joint, conditionals, stream)
    step = _swept(field, tol) if order == "sweep" else _drawn(field, tol)
    if resume is not None:
        before = [replace(resume.outcome, converged=False)]
    else:
        before = [Outcome(_start(field, seed(stream))) for _ in range(n_starts)]
    outcomes: list[Outcome[CaviState]] = []
    for start in before:
        outcomes.append(
            run(step, start.state, max_iter=max_iter, monotone=True, observers=observers, resume=start)
        )
        if outcomes[-1].interrupted:
            break
    heights = [_height(field, outcome.state) for outcome in outcomes]
    best = max(range(len(heights)), key=heights.__getitem__)
    return Cavi(field, outcomes[best], heights[best], tuple(heights))


def _start(field: MeanField, number: int) -> CaviState:
    stream = generator(number)
    natural = tuple(node.begin(stream) for node in field.nodes.values())
    settled = tuple(torch.zeros(node.size, dtype=torch.bool) for node in field.nodes.values())
    return CaviState(natural, settled, seed(stream))


def _height(field: MeanField, state: CaviState) -> float:
    natural = state.by_name(field)
    return field.bound(natural, field.expected(natural))


def _swept(field: MeanField, tol: float) -> Step:
    """Every node in turn; the last round is one that gained less than ``tol``."""

    def step(state: CaviState) -> Iteration[CaviState]:
        natural = state.by_name(field)
        expected = field.expected(natural)
        height = field.bound(natural, expected)
        gained = 0.0
        for name, node in field.nodes.items():
            fresh = field.best(name, expected)
            gained += float(_gain(node, natural[name], fresh, expected[name]).sum())
            natural[name], expected[name] = fresh, node.expected(fresh)
        return Iteration(replace(state, natural=tuple(natural.values())), height, final=gained < tol)

    return step


def _drawn(field: MeanField, tol: float) -> Step:
    """Variables drawn uniformly, each replaced alone; the last round ends with all of them settled."""
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
            fresh = field.best(name, expected)[one]
            gained = float(_gain(node, natural[name][one], fresh, expected[name][one]))
            natural[name] = natural[name].index_copy(0, torch.tensor([member]), fresh)
            expected[name] = expected[name].index_copy(0, torch.tensor([member]), node.expected(fresh))
            settled = settled if gained < enough else torch.zeros_like(settled)
            settled[place] = True
        sizes = [field.nodes[name].size for name in names]
        after = CaviState(tuple(natural.values()), settled.split(sizes), seed(stream))
        return Iteration(after, height, final=bool(settled.all()))

    return step


def _gain(node: Node, before: Tensor, after: Tensor, expected: Tensor) -> Tensor:
    r"""What a replacement adds to the bound, :math:`KL(q_j \| \tilde q_j)`, of each member, (m,)."""
    change = torch.where(expected == 0.0, 0.0, (after - before) * expected).sum(1)
    return node.log_partition(after) - node.log_partition(before) - change
