"""What coordinate ascent found: laws of the nodes, the bound, and how it climbed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from boxloop.data import make_frame
from boxloop.distributions import Node, Statistic
from boxloop.fit.cavi_evidence import MOST_POINTS, Evidence, evidence
from boxloop.fit.mean_field import MeanField
from boxloop.loop import Outcome
from boxloop.numeric import SingleThreaded
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOWN = 20


@dataclass(frozen=True)
class CaviState(Tree):
    """Where coordinate ascent is.

    Args:
        natural: natural parameters of each node, (m, p).
        settled: variables whose last update gained next to nothing, and after which none gained more, (m,).
        seed: of the next round's draws, in random order.
    """

    natural: tuple[Tensor, ...]
    settled: tuple[Tensor, ...]
    seed: int

    def by_name(self, field: MeanField) -> dict[str, Tensor]:
        """Natural parameters of each node by its name."""
        return dict(zip(field.nodes, self.natural, strict=True))


@dataclass(frozen=True)
class NodeLaw:
    """The law of one node: its variables are independent.

    Args:
        node: which variables.
        natural: natural parameters of each, (m, p).
    """

    node: Node
    natural: Tensor

    @property
    def mean(self) -> Tensor:
        """Of each variable."""
        return self.node.moments(self.natural)[0]

    @property
    def sd(self) -> Tensor:
        """Standard deviation of each variable."""
        return self.node.moments(self.natural)[1]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """By their usual names."""
        return self.node.parameters(self.natural)

    @property
    def statistics(self) -> Statistic:
        """Mean statistics under their names."""
        return self.node.named(self.node.expected(self.natural))

    @property
    def entropy(self) -> float:
        """Of all variables together."""
        return float(self.node.entropy(self.natural, self.node.expected(self.natural)).sum())


@dataclass(frozen=True, repr=False)
class Cavi(SingleThreaded):
    """Independent laws near a posterior, made by :func:`boxloop.fit.cavi.cavi`.

    Args:
        field: the model.
        outcome: how the loop ended.
        elbo: the evidence lower bound at the end.
        elbos: of every start, in order.

    Example:
        >>> import torch
        >>> from boxloop.fit.cavi import cavi
        >>> from boxloop.distributions.nodes import Node
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

    def __getitem__(self, name: str) -> NodeLaw:
        return NodeLaw(self.field.nodes[name], self.outcome.state.by_name(self.field)[name])

    @property
    def trace(self) -> list[float]:
        """The bound at the start and after every round."""
        return [*self.outcome.trace, self.elbo]

    @property
    def n_iter(self) -> int:
        """Rounds."""
        return self.outcome.n_iter

    @property
    def converged(self) -> bool:
        """Whether the last round gained less than the tolerance."""
        return self.outcome.converged

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.outcome.interrupted

    def evidence(
        self, *, collapse: str | None = None, tol: float = 1e-6, max_points: int = MOST_POINTS
    ) -> Evidence:
        """The log evidence by quadrature, for small models: see :func:`boxloop.fit.cavi_evidence.evidence`."""
        natural = self.outcome.state.by_name(self.field)
        return evidence(self.field, natural, collapse=collapse, tol=tol, max_points=max_points)

    def table(self) -> Any:
        """One line a variable, as a frame: mean and standard deviation."""
        lines = [line for name in self.field.nodes for line in self._lines(name)]
        return make_frame(
            {"mean": [line[1] for line in lines], "sd": [line[2] for line in lines]},
            [line[0] for line in lines],
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """How the bound climbed.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.
        """
        from boxloop.figures import trace

        told = "converged" if self.converged else "not converged"
        return trace(self.trace, ax, title="Evidence lower bound", up="bound", told=told)

    def __repr__(self) -> str:
        ended = "" if self.converged else ", interrupted" if self.interrupted else ", not converged"
        counted = f"{self.n_iter} round{'' if self.n_iter == 1 else 's'}"
        lines = [f"Coordinate ascent, {counted}{ended}: bound {self.elbo:.6g}"]
        told = [line for name in self.field.nodes for line in self._lines(name)]
        width = max(len(name) for name, _, _ in told[:MOST_SHOWN])
        lines += [f"  {name:<{width}} {mean:.6g} ± {sd:.3g}" for name, mean, sd in told[:MOST_SHOWN]]
        if len(told) > MOST_SHOWN:
            lines.append(f"  and {len(told) - MOST_SHOWN} more")
        return "\n".join(lines)

    def _lines(self, name: str) -> list[tuple[str, float, float]]:
        """Name, mean and deviation of each number of a node."""
        mean, sd = self[name].mean, self[name].sd
        if mean.dim() == 0:
            return [(name, float(mean), float(sd))]
        places = [tuple(place) for place in (mean == mean).nonzero().tolist()]
        return [
            (f"{name}[{', '.join(map(str, place))}]", float(mean[place]), float(sd[place]))
            for place in places
        ]
