r"""Mean-field variational families whose log-joint is linear in every node's statistics.

With :math:`q(z) = \prod_j q_j(z_j)` and :math:`\log p(z, x)` linear in each :math:`T_j(z_j)`, expectations go inside:
:math:`E_q[\log p(Z, x)] = f(E[T_1], \dots, E[T_d])`. The complete conditional of node j is then in its family, and the
best :math:`q_j` for the others (Le Corff, section 3.2) has as coefficients of :math:`T_j` the derivative

.. math:: \tilde q_j(z_j) \propto \exp\left(E_{q_{-j}}[\log p(z_j \mid Z_{-j}, x)]\right)
          \propto \exp \left\langle \frac{\partial f}{\partial T_j}, T_j(z_j) \right\rangle .

Complete conditionals alone determine f up to a constant, by Brook's (1964) lemma: with :math:`c_j` the coefficients
that the conditional of node j has at the statistics of the others,

.. math:: f(T_1, \dots, T_d) = \sum_j \langle c_j(T_1, \dots, T_{j-1}, 0, \dots, 0), T_j \rangle + \text{constant}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.distributions import Node
from boxloop.numeric import normal

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
    """A model: nodes, and the log-joint of their statistics.

    Args:
        nodes: by name, in the order in which a sweep visits them.
        log_joint: a number from named statistics, linear in those of each node.
        conditionals: complete conditionals by name, for some nodes or all; the others are derived by autograd.
    """

    nodes: Mapping[str, Node]
    log_joint: LogJoint
    conditionals: Mapping[str, Conditional]

    def named(self, statistics: Statistics) -> dict[str, Any]:
        """Statistics under their names."""
        return {name: self.nodes[name].named(value) for name, value in statistics.items()}

    def value(self, statistics: Statistics) -> Tensor:
        """The log-joint at any statistics; at expected ones, its expectation."""
        value = self.log_joint(self.named(statistics))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError(f"log_joint must return a tensor with one element, not {_describe(value)}")
        return value.reshape(())

    def gradient(self, name: str, statistics: Statistics) -> Tensor:
        """Gradient of the log-joint in the statistics of one node, (m, p), by autograd."""
        here = statistics[name].detach().clone().requires_grad_()
        with torch.enable_grad():
            value = self.value({**statistics, name: here})
            if not value.requires_grad:
                return torch.zeros_like(here)
            gradient = torch.autograd.grad(value, here, allow_unused=True)[0]
        return torch.zeros_like(here) if gradient is None else gradient

    def coefficients(self, name: str, statistics: Statistics) -> Tensor:
        """Coefficients of the complete conditional of one node, averaged over the others, (m, p)."""
        if name not in self.conditionals:
            return self.gradient(name, statistics)
        others = self.named({other: value for other, value in statistics.items() if other != name})
        return self.nodes[name].flat(self.conditionals[name](others))

    def optimal_natural(self, name: str, statistics: Statistics) -> Tensor:
        """Natural parameters of the optimal factor of one node given the others, (m, p).

        Raises:
            ConditionalError: the complete conditional cannot be normalised.
        """
        node = self.nodes[name]
        natural = self.coefficients(name, statistics) - node.family.base()
        inside = node.family.is_valid(natural)
        if not bool(inside.all()):
            member = int(torch.nonzero(~inside)[0])
            raise ConditionalError(
                f"The complete conditional of node {name!r} cannot be normalised: the natural parameter of "
                f"member {member} is {[round(x, 6) for x in natural[member].tolist()]}"
            )
        return natural

    def expected(self, natural: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mean statistics of every node."""
        return {name: node.expected(natural[name]) for name, node in self.nodes.items()}

    def bound(self, natural: Mapping[str, Tensor], expected: Statistics) -> float:
        """The evidence lower bound: the expected log-joint and the entropies."""
        entropies = [node.entropy(natural[name], expected[name]).sum() for name, node in self.nodes.items()]
        with torch.no_grad():
            return float(self.value(expected) + torch.stack(entropies).sum())

    def check(self, stream: Generator) -> None:
        """Check linearity and conditionals at random statistics.

        Raises:
            ConditionalError: a log-joint that is not linear in a node, or conditionals that disagree with it.
        """
        here, one, two = (self._random_statistics(stream) for _ in range(3))
        for name, node in self.nodes.items():
            corners = [here[name], one[name], two[name], one[name] + two[name] - here[name]]
            with torch.no_grad():
                values = torch.stack([self.value({**here, name: corner}) for corner in corners])
            curvature = float(values[0] - values[1] - values[2] + values[3])
            if not abs(curvature) <= LINEARITY_TOLERANCE * max(float(values.abs().max()), 1.0):
                raise ConditionalError(
                    f"The log-joint is not linear in the statistics of node {name!r} "
                    f"({', '.join(node.named(here[name])._fields)}): its second difference is {curvature:.3g}, not 0. "
                    "Products of members of one node belong in nodes of their own; functions of a variable other "
                    "than its statistics do not belong in this family."
                )
        for name in self.conditionals:
            self._check_conditional(name, here)

    def _check_conditional(self, name: str, here: Statistics) -> None:
        gradient, conditional = self.gradient(name, here), self.coefficients(name, here)
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
            mean = node.expected(node.begin(stream))
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
    field.check(stream)
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


def _describe(value: object) -> str:
    return f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
