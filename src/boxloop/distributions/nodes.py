"""Nodes: blocks of latent variables that are independent of one another under a factorised distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.distributions.exponential import (
    BernoulliFamily,
    CategoricalFamily,
    DirichletFamily,
    GammaFamily,
    LatentFamily,
    MultivariateNormalFamily,
    NormalFamily,
    Statistic,
)

Shape = int | Sequence[int]


@dataclass(frozen=True)
class Node:
    r"""A block of latent variables of one family, :math:`q(z) = \prod_i q_i(z_i)`, for :func:`boxloop.cavi`.

    Made by one of its constructors; each takes the shape of the block (one variable when omitted) and where to start
    (at random when omitted). Statistics have that shape too, and these names:

    ============================  =============================  ====================================
    constructor                   statistics                     parameters
    ============================  =============================  ====================================
    ``normal(shape)``             ``value``, ``square``          ``mean``, ``variance``
    ``gamma(shape)``              ``log``, ``value``             ``shape``, ``rate``
    ``bernoulli(shape)``          ``value``                      ``probability``
    ``categorical(k, shape)``     ``value`` (..., k)             ``probability`` (..., k)
    ``dirichlet(k, shape)``       ``log`` (..., k)               ``concentration`` (..., k)
    ``gaussian(d, shape)``        ``value``, ``outer`` (d, d)    ``mean``, ``covariance``
    ============================  =============================  ====================================

    Args:
        family: of the variables.
        shape: of the block.
        start: natural parameters, (m, p) for m variables, or None.

    Example:
        >>> import torch
        >>> node = Node.gamma(2, parameters={"shape": 3.0, "rate": [1.0, 2.0]})
        >>> node.name_statistics(node.expected_statistics(node.start)).value
        tensor([3.0000, 1.5000], dtype=torch.float64)
    """

    family: LatentFamily
    shape: tuple[int, ...]
    start: Tensor | None = None

    @classmethod
    def normal(cls, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """Real numbers, of which the log-joint knows ``value`` and ``square``."""
        return _make_node(NormalFamily(), shape, parameters)

    @classmethod
    def gamma(cls, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """Positive numbers, of which the log-joint knows ``log`` and ``value``."""
        return _make_node(GammaFamily(), shape, parameters)

    @classmethod
    def bernoulli(cls, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """Zeros and ones."""
        return _make_node(BernoulliFamily(), shape, parameters)

    @classmethod
    def categorical(cls, k: int, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """One of k kinds, as zeros and a one along a last axis of length k."""
        return _make_node(CategoricalFamily(k), shape, parameters)

    @classmethod
    def dirichlet(cls, k: int, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """Shares of k kinds, of which the log-joint knows the ``log``; a density over the first k - 1 of them."""
        return _make_node(DirichletFamily(k), shape, parameters)

    @classmethod
    def gaussian(cls, d: int, shape: Shape = (), parameters: Mapping[str, Any] | None = None) -> Node:
        """Vectors of d numbers with a covariance of their own; the log-joint knows ``value`` and ``outer``."""
        return _make_node(MultivariateNormalFamily(d), shape, parameters)

    @property
    def size(self) -> int:
        """Number of variables, m."""
        return int(torch.Size(self.shape).numel())

    def name_statistics(self, statistic: Tensor) -> Statistic:
        """Statistics (m, p), or (..., m, p), under their names and in the shape of the block."""
        return self.family.name_statistics(
            statistic.reshape(*statistic.shape[:-2], *self.shape, statistic.shape[-1])
        )

    def flatten_coefficients(self, coefficients: Sequence[Any]) -> Tensor:
        """Coefficients of the named statistics, in their order, as coefficients of the flat ones, (m, p)."""
        here = torch.zeros(
            self.size, len(self.family.base_coefficients()), dtype=torch.float64, requires_grad=True
        )
        with torch.enable_grad():
            parts = self.name_statistics(here)
            if len(coefficients) != len(parts):
                raise ValueError(f"{len(coefficients)} coefficients for the statistics {parts._fields}")
            pairs = zip(coefficients, parts, strict=True)
            terms = [
                (torch.as_tensor(c, dtype=part.dtype).detach().expand(part.shape) * part).sum()
                for c, part in pairs
            ]
            return torch.autograd.grad(torch.stack(terms).sum(), here)[0]

    def log_partition(self, natural: Tensor) -> Tensor:
        """A of each member, (m,)."""
        return self.family.log_partition(natural)

    def expected_statistics(self, natural: Tensor) -> Tensor:
        """Mean statistics, the gradient of A, (m, p)."""
        return self.family.mean(natural)

    def entropy(self, natural: Tensor, expected: Tensor) -> Tensor:
        r""":math:`-E_q[\log q(z)] = A(\eta) - \langle \eta + b, E_q[T] \rangle` of each member, (m,)."""
        # A kind of probability zero has no part in the entropy, whatever its coefficient.
        product = torch.where(expected == 0.0, 0.0, (natural + self.family.base_coefficients()) * expected)
        return self.log_partition(natural) - product.sum(1)

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """Usual parameters by name, in the shape of the block."""
        parameters = self.family.parameters(natural)
        return {name: self._to_block_shape(value) for name, value in parameters.items()}

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the variables themselves, in the shape of the block."""
        mean, variance = self.family.moments(natural)
        return self._to_block_shape(mean), self._to_block_shape(variance.sqrt())

    def draw_start(self, stream: Generator) -> Tensor:
        """Natural parameters to start from, (m, p): those given, or random ones."""
        return self.family.draw_start(self.size, stream) if self.start is None else self.start

    def _to_block_shape(self, value: Tensor) -> Tensor:
        """One line a member, (m, ...), in the shape of the block."""
        return value.reshape((*self.shape, *value.shape[1:]))


def _make_node(family: LatentFamily, shape: Shape, parameters: Mapping[str, Any] | None) -> Node:
    """A node; each parameter is broadcast to the shape of the block, and of a member where that is a vector."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    node = Node(family, shape)
    if node.size < 1:
        raise ValueError(f"a node of shape {shape} has no variables")
    if parameters is None:
        return node
    # Parameters of any members, for their names and shapes.
    example = node.parameters(family.draw_start(node.size, Generator().manual_seed(0)))
    wanted = {name: value.shape[len(shape) :] for name, value in example.items()}
    if set(parameters) != set(wanted):
        raise ValueError(
            f"{type(family).__name__} is given by {', '.join(wanted)}, not {', '.join(parameters)}"
        )
    full = {
        name: torch.as_tensor(value, dtype=torch.float64)
        .expand(*shape, *wanted[name])
        .reshape(-1, *wanted[name])
        for name, value in parameters.items()
    }
    members = [family.to_natural({name: v[i] for name, v in full.items()}) for i in range(node.size)]
    start = torch.stack(members)
    if not bool(family.is_valid(start).all()):
        raise ValueError(f"{dict(parameters)} are not valid parameters")
    return Node(family, shape, start)
