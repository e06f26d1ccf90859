"""The result of estimating equations, the parameters they start from, and the errors they raise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.models import flatten, unflatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class EquationError(ValueError):
    """The given function is no estimating equation: it has a wrong shape or a value that is not finite."""


class NoRootError(RuntimeError):
    """The search ended where the mean equations are not zero, or the objective has no maximum."""


class NotIdentifiedError(ValueError):
    """The data do not determine the parameters: no equation changes along some direction, which the message names."""


class EstimateWarning(UserWarning):
    """The estimate needs care: iterations ran out, or several roots were found."""


Theta = Tensor | dict[str, Tensor]
"""Parameters in the form of ``start``: a vector, or tensors by name."""


@dataclass(frozen=True)
class Parameters:
    """A starting point as one vector, and its original form."""

    vector: Tensor  # (p,), float64
    names: tuple[str, ...]  # one for each number
    like: dict[str, Tensor] | None = None  # tensors by name; None where the user gave a vector

    def restore_shape(self, vector: Tensor) -> Theta:
        """A vector in the form of ``start``."""
        return vector if self.like is None else unflatten(vector, self.like)


def read_start(start: Any, names: Sequence[str] | None = None) -> Parameters:
    """Read and check a starting point: (p,) numbers, or a dictionary of tensors, arrays or numbers of any shape."""
    like = None
    if isinstance(start, Mapping):
        like = {str(name): _to_tensor(value) for name, value in start.items()}
        if not like:
            raise ValueError("start has no parameter")
        vector = flatten(like)
        labels = [label for name, value in like.items() for label in _label_entries(name, value)]
    else:
        vector = _to_tensor(start)
        if vector.ndim != 1:
            raise ValueError(
                f"start must be a vector or a dictionary of tensors; it has {vector.ndim} dimensions"
                + (f": give [{float(vector)}]" if vector.ndim == 0 else "")
            )
        labels = _label_entries("theta", vector)
    if vector.numel() == 0:
        raise ValueError("start has no parameter")
    if names is not None and len(names) != len(labels):
        raise ValueError(f"names has {len(names)} entries for {len(labels)} parameters")
    chosen = tuple(str(name) for name in names or labels)
    bad = torch.nonzero(~torch.isfinite(vector))[:, 0].tolist()
    if bad:
        raise ValueError(f"start must be finite; {chosen[bad[0]]} is {float(vector[bad[0]])}")
    return Parameters(vector, chosen, like)


def _to_tensor(value: Any) -> Tensor:
    try:
        vector = torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"start must be numbers, got a {type(value).__name__}") from error
    return vector.detach().to(device="cpu", dtype=torch.float64).clone()


def _label_entries(name: str, value: Tensor) -> list[str]:
    if value.ndim == 0:
        return [name]
    places = itertools.product(*(range(size) for size in value.shape))
    return [f"{name}[{', '.join(map(str, place))}]" for place in places]


MAX_LINES = 20


@dataclass(frozen=True)
class JTest:
    """Hansen's test of over-identification: a small p-value says that the equations contradict one another.

    Args:
        statistic: n times the squared length of the mean equations, in units of their covariance.
        degrees: degrees of freedom of its chi-squared distribution, equations minus parameters.
        p_value: of the statistic.
    """

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True, repr=False)
class Estimate:
    r"""Parameters that solve user-defined equations, with their covariance.

    Made by :func:`boxloop.z_estimate`, :func:`boxloop.m_estimate` and :func:`boxloop.match_moments`.

    Args:
        theta: the estimate, in the form of the start: a vector, or tensors by name.
        names: one for each number.
        covariance: (p, p), of the flattened parameters.
        method: name of the method.
        weight: number of rows, or their total weight.
        n_iter: iterations of the search.
        converged: whether the equations are solved.
        residual: largest mean equation in units of its standard error; 0 at an exact root.
        n_groups: number of groups, if rows were grouped.
        information: covariance from the curvature of the likelihood alone, right only if the model is.
        j_test: if there are more equations than parameters.
        roots: every root that was found, this one first.

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
        """Sandwich standard errors, in the form of ``theta``; valid even if the model is wrong."""
        return self._restore_shape(_extract_errors(self.covariance))

    @property
    def information_errors(self) -> Theta | None:
        """Errors from the curvature of the likelihood, in the form of ``theta``; None without a likelihood."""
        return None if self.information is None else self._restore_shape(_extract_errors(self.information))

    def interval(self, level: float = 0.95) -> tuple[Theta, Theta]:
        """Normal confidence limits, in the form of ``theta``.

        Args:
            level: coverage probability.
        """
        low, high = self._limits(level)
        return self._restore_shape(low), self._restore_shape(high)

    def table(self, level: float = 0.95) -> Any:
        """A data frame with estimate, error, limits, and the test of zero for each parameter."""
        low, high = self._limits(level)
        error = _extract_errors(self.covariance).numpy()
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
        """Plot the parameters with their errors.

        Args:
            ax: axes to draw on; those of a new figure when None.

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

        error = _extract_errors(self.covariance).numpy()
        return forest(self.names, self.vector.numpy(), error, ax, title=self.method, across="estimate")

    def __repr__(self) -> str:
        status = "" if self.converged else ", not converged"
        grouped = "" if self.n_groups is None else f" in {self.n_groups} groups"
        iterations = f"{self.n_iter} iteration{'' if self.n_iter == 1 else 's'}"
        lines = [f"{self.method} from {self.weight:g} rows{grouped}, {iterations}{status}"]
        width = max(len(name) for name in self.names[:MAX_LINES])
        error = _extract_errors(self.covariance)
        inner = None if self.information is None else _extract_errors(self.information)
        for j, name in enumerate(self.names[:MAX_LINES]):
            known = "" if inner is None else f" (from the information {float(inner[j]):.3g})"
            lines.append(f"  {name:<{width}} {float(self.vector[j]):.6g} ± {float(error[j]):.3g}{known}")
        if len(self.names) > MAX_LINES:
            lines.append(f"  and {len(self.names) - MAX_LINES} more")
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
        reach = float(stats.norm.ppf(0.5 + 0.5 * level)) * _extract_errors(self.covariance)
        return self.vector - reach, self.vector + reach

    def _restore_shape(self, vector: Tensor) -> Theta:
        return unflatten(vector, self.theta) if isinstance(self.theta, dict) else vector


def _extract_errors(covariance: Tensor) -> Tensor:
    return covariance.diagonal().clamp(min=0.0).sqrt()
