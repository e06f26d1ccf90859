"""An estimate with its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.fit.equations.parameters import Theta
from boxloop.tree import flatten, unflatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOWN = 20


@dataclass(frozen=True)
class JTest:
    """Hansen's test of more equations than parameters: small p-values say that they contradict one another.

    Args:
        statistic: n times the squared length of the mean equations, in units of their covariance.
        degrees: equations less parameters; the law of the statistic is chi-squared with so many degrees of freedom.
        p_value: of the statistic.
    """

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True, repr=False)
class Estimate:
    r"""Parameters that solve equations of one's own, with their covariance.

    Made by :func:`boxloop.z_estimate`, :func:`boxloop.m_estimate` and :func:`boxloop.match_moments`.

    Args:
        theta: the estimate, in the form of the start: a vector, or tensors by name.
        names: one for each number.
        covariance: (p, p), of the flattened parameters.
        method: how it was found, in words.
        weight: rows, or their weight in all.
        n_iter: rounds of the search.
        converged: whether the equations are solved.
        residual: largest mean equation in units of its standard error; 0 at an exact root.
        n_groups: number of groups, where rows were grouped.
        information: covariance from the curvature of the likelihood alone, right only if the model is.
        j_test: where there are more equations than parameters.
        roots: every root that the starts led to, this one first.

    Example:
        >>> import torch
        >>> from boxloop import z_estimate
        >>> rows = torch.tensor([[1.0], [2.0], [6.0]])
        >>> found = z_estimate(lambda theta, x: x - theta, rows, [0.0])
        >>> found.theta, found.standard_errors
        (tensor([3.], dtype=torch.float64), tensor([1.2472], dtype=torch.float64))
        >>> found.table().columns.tolist()
        ['estimate', 'error', 'low', 'high', 'z', 'p_value']
    """

    theta: Theta
    names: tuple[str, ...]
    covariance: Tensor
    method: str
    weight: float
    n_iter: int
    converged: bool
    residual: float
    n_groups: int | None = None
    information: Tensor | None = None
    j_test: JTest | None = None
    roots: tuple[Theta, ...] = ()

    @property
    def vector(self) -> Tensor:
        """The parameters as one vector, (p,), in the order of ``names``."""
        return flatten(self.theta) if isinstance(self.theta, dict) else self.theta

    @property
    def standard_errors(self) -> Theta:
        """One for each number, in the form of ``theta``; right whether or not a model is."""
        return self._shaped(_errors(self.covariance))

    @property
    def information_errors(self) -> Theta | None:
        """From the curvature of the likelihood, in the form of ``theta``; None where it is no likelihood."""
        return None if self.information is None else self._shaped(_errors(self.information))

    def interval(self, level: float = 0.95) -> tuple[Theta, Theta]:
        """Confidence limits by the normal law, in the form of ``theta``.

        Args:
            level: share of samples whose interval covers the truth.
        """
        low, high = self._limits(level)
        return self._shaped(low), self._shaped(high)

    def table(self, level: float = 0.95) -> Any:
        """One line a parameter, as a frame: estimate, error, limits, and the test that it is zero."""
        low, high = self._limits(level)
        error = _errors(self.covariance).numpy()
        value = self.vector.numpy()
        z = np.divide(value, error, out=np.full(len(value), np.nan), where=error > 0)
        return make_frame(
            {
                "estimate": value.tolist(),
                "error": error.tolist(),
                "low": low.tolist(),
                "high": high.tolist(),
                "z": z.tolist(),
                "p_value": (2.0 * stats.norm.sf(np.abs(z))).tolist(),
            },
            list(self.names),
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """The parameters one under another, each with its error.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import torch
            >>> from boxloop import z_estimate
            >>> rows = torch.arange(12.0).reshape(6, 2)
            >>> axes = z_estimate(lambda theta, x: x - theta, rows, [0.0, 0.0]).plot()
            >>> [text.get_text() for text in axes.get_yticklabels()]
            ['theta[0]', 'theta[1]']
        """
        from boxloop.figures import forest

        error = _errors(self.covariance).numpy()
        return forest(self.names, self.vector.numpy(), error, ax, title=self.method, across="estimate")

    def __repr__(self) -> str:
        found = "" if self.converged else ", not converged"
        grouped = "" if self.n_groups is None else f" in {self.n_groups} groups"
        counted = f"{self.n_iter} round{'' if self.n_iter == 1 else 's'}"
        lines = [f"{self.method} from {self.weight:g} rows{grouped}, {counted}{found}"]
        width = max(len(name) for name in self.names[:MOST_SHOWN])
        error = _errors(self.covariance)
        inner = None if self.information is None else _errors(self.information)
        for j, name in enumerate(self.names[:MOST_SHOWN]):
            known = "" if inner is None else f" (from the information {float(inner[j]):.3g})"
            lines.append(f"  {name:<{width}} {float(self.vector[j]):.6g} ± {float(error[j]):.3g}{known}")
        if len(self.names) > MOST_SHOWN:
            lines.append(f"  and {len(self.names) - MOST_SHOWN} more")
        if self.j_test is not None:
            test = self.j_test
            lines.append(
                f"  more equations than parameters: J = {test.statistic:.4g} on {test.degrees} degrees of freedom, "
                f"p = {test.p_value:.3g}"
            )
        if len(self.roots) > 1:
            lines.append(f"  {len(self.roots)} roots were found; this is that of the first start")
        return "\n".join(lines)

    def _limits(self, level: float) -> tuple[Tensor, Tensor]:
        check_level(level)
        reach = float(stats.norm.ppf(0.5 + 0.5 * level)) * _errors(self.covariance)
        return self.vector - reach, self.vector + reach

    def _shaped(self, vector: Tensor) -> Theta:
        return unflatten(vector, self.theta) if isinstance(self.theta, dict) else vector


def _errors(covariance: Tensor) -> Tensor:
    return covariance.diagonal().clamp(min=0.0).sqrt()
