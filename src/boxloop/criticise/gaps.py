"""Moment gaps as results: the gap of one test function, and those of all of them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from boxloop.criticise import norms
from boxloop.criticise.parameter_error import combine_errors
from boxloop.criticise.test_functions import Statistic
from boxloop.data import make_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Norm = Literal["frobenius", "entrywise", "schatten", "operator"]


@dataclass(frozen=True)
class Gap:
    """The gap of one test function: data minus model, and the three sources of its error.

    Args:
        statistic: the test function, prepared for these columns.
        data: mean over rows, a vector or a matrix, in the units of the data (see ``moment``).
        model: expectation under the model, in the same units.
        gap: data minus model, computed about the origin, so that it keeps digits which ``data`` and ``model`` lose.
        row_error: standard error of each distinct entry from the rows, (p,).
        node_error: from Monte Carlo nodes, zero where the moment is exact.
        parameter_error: from the estimated parameters, zero where it was left out.
        null_error: standard error if the model were true, (p,): the unit of ``z``.
        p_value: how often the model itself gives entries as large, taken together; None without draws.
        norm_p_value: the same for the norm of the gap.
        expected_norm: mean of the norm if the model were true.
    """

    statistic: Statistic
    data: Tensor
    model: Tensor
    gap: Tensor
    row_error: Tensor
    node_error: Tensor
    parameter_error: Tensor
    null_error: Tensor
    p_value: float | None = None
    norm_p_value: float | None = None
    expected_norm: float | None = None

    @property
    def name(self) -> str:
        """Name of the test function."""
        return self.statistic.name

    @property
    def moment(self) -> str:
        """What ``data`` and ``model`` are: of which quantity, in which units."""
        return self.statistic.moment

    @property
    def labels(self) -> list[str]:
        """A name for each distinct entry."""
        return self.statistic.label_entries()

    @property
    def flat_error(self) -> Tensor:
        """Standard error of each distinct entry, all sources together, (p,)."""
        return combine_errors(self.row_error, self.node_error, self.parameter_error)

    @property
    def z(self) -> Tensor:
        """Distinct entries over ``null_error``, (p,); 0 where that is 0, since the fit matches the entry.

        Also 0 where the error is infinite, as it cannot be estimated; NaN where the model has no error to offer.
        """
        error = self.null_error
        return torch.where(error == 0, 0.0, self.statistic.flatten(self.gap) / error.clamp(min=1e-300))

    def norm(self, kind: Norm = "frobenius", order: float = 2.0) -> float:
        """A norm of the gap; Beaulac (2023), section 5.1.

        Args:
            kind: ``frobenius`` (1MEGA-F, 2MEGA-F), ``entrywise`` or ``schatten`` of an order, ``operator``.
            order: of the entrywise or Schatten norm.
        """
        if kind == "operator":
            return float(norms.operator(self.gap)[0])
        if kind == "schatten":
            return float(norms.schatten(self.gap, order))
        return float(norms.entrywise(self.gap, 2.0 if kind == "frobenius" else order))

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence limits of each distinct entry of the gap, (p,) each."""
        reach = float(stats.norm.ppf(0.5 + 0.5 * level)) * self.flat_error
        flat = self.statistic.flatten(self.gap)
        return flat - reach, flat + reach

    def direction(self) -> tuple[float, dict[str, float]]:
        """The combination of columns along which the gap is largest, and its signed size there."""
        value, vector = norms.operator(self.gap)
        signed = float(vector @ self.gap @ vector) if self.gap.dim() == 2 else float(value)
        names = self.statistic.frame.names if self.gap.dim() == 2 else self.labels
        return signed, dict(zip(names, vector.tolist(), strict=True))

    def plot(self, ax: Axes | None = None, *, top: int = 24) -> Axes:
        """Z-scores of the entries: a heat map of pairs of columns, dots for anything else.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most entries of a vector that are shown: those with the largest gaps, in their own order.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture, mega
            >>> rows = np.random.default_rng(0).normal(size=(200, 3))
            >>> result = mega(GaussianMixture(1).fit(rows[:100]), rows[100:], draws=0)
            >>> result["second"].plot().get_title(loc="left")
            'Data minus model: second'
        """
        from boxloop.figures import dots, heat_map

        z = self.z.cpu().numpy()
        p_value = "" if self.p_value is None else f", p = {self.p_value:.3g}"
        title = f"Data minus model: {self.name}{p_value}"
        if self.gap.dim() == 2:
            names = self.statistic.frame.names
            i, j = np.triu_indices(len(names))
            matrix = np.zeros((len(names), len(names)))
            matrix[i, j] = matrix[j, i] = z
            return heat_map(matrix, names, ax, title=title, label="gap in units of its error")
        largest = np.sort(np.argsort(-np.abs(z), kind="stable")[:top])
        title += f" ({len(largest)} of {len(z)})" if len(largest) < len(z) else ""
        return dots(z[largest], [self.labels[entry] for entry in largest], ax, title=title)


@dataclass(frozen=True, repr=False)
class Mega:
    """Gaps of all test functions, and one p-value for them together.

    Args:
        gaps: one for each test function.
        n_rows: rows that the model was compared with.
        parameter_error: whether the error of the fitted parameters is in the errors: ``included``, ``left out``, and
            of rows that the model was fitted to ``training rows`` or ``training rows, left out``.
        p_value: how often the model itself has a test function that deviates as much as the most deviant one here;
            None without draws.
        no_errors: why there are no errors, z-scores and p-values; empty where there are.
    """

    gaps: tuple[Gap, ...]
    n_rows: int
    parameter_error: str
    p_value: float | None = None
    no_errors: str = ""

    def __getitem__(self, name: str) -> Gap:
        for gap in self.gaps:
            if gap.name == name:
                return gap
        raise KeyError(f"no test function {name!r}; there are {', '.join(g.name for g in self.gaps)}")

    def summary(self) -> Any:
        """One line for each test function, as a frame."""
        return make_frame(
            {
                "entries": [len(g.labels) for g in self.gaps],
                "norm": [g.norm() for g in self.gaps],
                "expected norm": [g.expected_norm for g in self.gaps],
                "largest |z|": [float(g.z.abs().max()) for g in self.gaps],
                "p_value": [g.p_value for g in self.gaps],
            },
            [g.name for g in self.gaps],
        )

    def table(self, level: float = 0.95) -> Any:
        """One line for each entry of each test function, the largest z-score first, as a frame.

        The column ``moment`` says what ``data`` and ``model`` are: column means in the units of the column; second
        moments as covariances about the model's mean (of ``Second("zero")`` as mean products) in products of the units;
        higher powers of columns that are standardised by the model's mean and standard deviation; shares of rows.
        ``gap``, ``error``, ``low`` and ``high`` are in the same units; ``z`` is the gap over the error it would have if
        the model were true. ``p_adjusted`` is the false-discovery rate at which the entry counts as a misfit
        (Benjamini and Hochberg 1995).
        """
        z = np.concatenate([g.z.cpu().numpy() for g in self.gaps])
        order = np.argsort(-np.abs(z), kind="stable")
        p_value = 2.0 * stats.t.sf(np.abs(z), max(self.n_rows - 1, 1))
        low, high = (np.concatenate([g.interval(level)[i].cpu().numpy() for g in self.gaps]) for i in (0, 1))
        columns = {
            "function": [g.name for g in self.gaps for _ in g.labels],
            "entry": [label for g in self.gaps for label in g.labels],
            "moment": [g.moment for g in self.gaps for _ in g.labels],
            "data": np.concatenate([g.statistic.flatten(g.data).cpu().numpy() for g in self.gaps]),
            "model": np.concatenate([g.statistic.flatten(g.model).cpu().numpy() for g in self.gaps]),
            "gap": np.concatenate([g.statistic.flatten(g.gap).cpu().numpy() for g in self.gaps]),
            "error": np.concatenate([g.flat_error.cpu().numpy() for g in self.gaps]),
            "low": low,
            "high": high,
            "z": z,
            "p_value": p_value,
            "p_adjusted": stats.false_discovery_control(np.nan_to_num(p_value, nan=1.0)),
        }
        return make_frame({name: np.asarray(values)[order].tolist() for name, values in columns.items()})

    def misfits(self, rate: float = 0.05) -> Any:
        """The entries that misfit at a false-discovery rate, the largest z-score first.

        Raises:
            ValueError: the gaps have no errors (``no_errors`` says why), so that no entry can be tested.
        """
        self._require_standard_errors()
        table = self.table()
        return table[table["p_adjusted"] <= rate]

    def plot(self, ax: Axes | None = None, *, top: int = 12, rate: float = 0.05) -> Axes:
        """The moments with the largest z-scores; one test function is ``result["second"].plot()``.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: how many moments.
            rate: false-discovery rate at which a moment is marked as a misfit.

        Returns:
            The axes.

        Raises:
            ValueError: the gaps have no errors.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture, mega
            >>> rows = np.random.default_rng(0).normal(size=(200, 3))
            >>> axes = mega(GaussianMixture(1).fit(rows[:100]), rows[100:], draws=0).plot(top=4)
            >>> len(axes.get_yticks())
            4
        """
        from boxloop.figures import dots, short

        self._require_standard_errors()
        table = self.table()[:top]
        names = [
            f"{function}: {' x '.join(map(short, entry.split(' x ')))}"
            for function, entry in zip(table["function"], table["entry"], strict=True)
        ]
        marked = table["p_adjusted"].to_numpy() <= rate
        across = f"gap in units of its error\n(marked: {rate:.0%} false discovery)"
        return dots(table["z"].to_numpy(), names, ax, marked=marked, title="Worst moments", across=across)

    def _require_standard_errors(self) -> None:
        if self.no_errors:
            raise ValueError(
                f"misfits need standard errors, and there are none: {self.no_errors}; see table()"
            )

    def _format_headline(self) -> str:
        p_value = "" if self.p_value is None else f"; p = {self.p_value:.3g} for all test functions together"
        return f"Moment gaps on {self.n_rows} rows; parameter error: {self.parameter_error}{p_value}"

    def __repr__(self) -> str:
        lines = [self._format_headline()]
        for g in self.gaps:
            line = f"  {g.name}: norm {g.norm():.4g}"
            if g.p_value is not None:
                line += f", p = {g.p_value:.3g}"
            if not self.no_errors:
                worst = int(torch.nan_to_num(g.z.abs(), nan=-1.0).argmax())
                line += f"; largest z-score {float(g.z[worst]):.1f} at {g.labels[worst]}"
            lines.append(line)
        if self.no_errors:
            lines.append(f"  no errors and no p-values: {self.no_errors}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._format_headline())}</p>\n{self.summary().to_html()}"
