"""What criticism finds: gaps by test function, with errors, p-values and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from boxloop.criticise import norms
from boxloop.criticise.null import Measure, measure
from boxloop.criticise.probes import Probe
from boxloop.data import make_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Norm = Literal["frobenius", "entrywise", "schatten", "operator"]


@dataclass(frozen=True)
class Gap:
    """One test function: data minus model, and the three sources of its error.

    Args:
        probe: the test function.
        data: mean over rows, a vector or a matrix, in the data's units (see ``moment``).
        model: expectation under the model, in the same units.
        gap: data minus model, from values about the origin: it keeps digits that ``data`` and ``model`` have not.
        row_error: standard error of each distinct entry from the rows, (p,).
        node_error: from Monte Carlo nodes, zero where the moment is exact.
        training_error: from the estimated parameters, zero where it was left out.
        null_error: what the standard error would be if the model were true, (p,): the unit of ``z``.
        p_value: how often the model itself gives entries as large, taken together; None without draws.
        norm_p_value: the same for the norm of the gap.
        norm_null: mean of the norm under the model: what a true model would show.
    """

    probe: Probe
    data: Tensor
    model: Tensor
    gap: Tensor
    row_error: Tensor
    node_error: Tensor
    training_error: Tensor
    null_error: Tensor
    p_value: float | None = None
    norm_p_value: float | None = None
    norm_null: float | None = None

    @property
    def name(self) -> str:
        """Of the test function."""
        return self.probe.name

    @property
    def moment(self) -> str:
        """What ``data`` and ``model`` are: of which quantity, in which units."""
        return self.probe.moment

    @property
    def labels(self) -> list[str]:
        """A name for each distinct entry."""
        return self.probe.labels()

    @property
    def flat_error(self) -> Tensor:
        """Standard error of each distinct entry, all sources together, (p,)."""
        parts = (self.row_error, self.node_error, self.training_error)
        return torch.stack([part.square() for part in parts]).sum(0).sqrt()

    @property
    def z(self) -> Tensor:
        """Distinct entries in units of a true model's errors, (p,); 0 where there is none: matched by the fit.

        Also 0 where the error is infinite, as it cannot be estimated; NaN where the model has none to offer.
        """
        error = self.null_error
        return torch.where(error == 0, 0.0, self.probe.flat(self.gap) / error.clamp(min=1e-300))

    def norm(self, kind: Norm = "frobenius", order: float = 2.0) -> float:
        """A norm of the gap (document 000, section 5.1).

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
        flat = self.probe.flat(self.gap)
        return flat - reach, flat + reach

    def plot(self, ax: Axes | None = None, *, top: int = 24) -> Axes:
        """Entries in units of their errors: a heat map of pairs of columns, dots for anything else.

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
        title = f"Data minus model: {self.name}" + (
            "" if self.p_value is None else f", p = {self.p_value:.3g}"
        )
        if self.gap.dim() == 2:
            names = self.probe.scene.names
            i, j = np.triu_indices(len(names))
            matrix = np.zeros((len(names), len(names)))
            matrix[i, j] = matrix[j, i] = z
            return heat_map(matrix, names, ax, title=title, label="gap in units of its error")
        kept = np.sort(np.argsort(-np.abs(z), kind="stable")[:top])
        title += f" ({len(kept)} of {len(z)})" if len(kept) < len(z) else ""
        return dots(z[kept], [self.labels[p] for p in kept], ax, title=title)

    def direction(self) -> tuple[float, dict[str, float]]:
        """The combination of columns along which the gap is largest, and its signed size there."""
        value, vector = norms.operator(self.gap)
        signed = float(vector @ self.gap @ vector) if self.gap.dim() == 2 else float(value)
        names = self.probe.scene.names if self.gap.dim() == 2 else self.labels
        return signed, dict(zip(names, vector.tolist(), strict=True))


@dataclass(frozen=True, repr=False)
class Mega:
    """Gaps of all test functions and what they say together.

    Args:
        gaps: one for each test function.
        n_rows: judged by.
        training: whether the error of the fitted parameters is in the errors.
        p_value: of the whole: how often the model itself shows a test function as bad as its worst one here; None
            without draws.
        refused: why there are no errors, z-scores and p-values; empty where there are.
    """

    gaps: tuple[Gap, ...]
    n_rows: int
    training: str
    p_value: float | None = field(default=None)
    refused: str = ""

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
                "norm if true": [g.norm_null for g in self.gaps],
                "largest |z|": [float(g.z.abs().max()) for g in self.gaps],
                "p_value": [g.p_value for g in self.gaps],
            },
            [g.name for g in self.gaps],
        )

    def table(self, level: float = 0.95) -> Any:
        """One line for each entry of each test function, worst first, as a frame.

        The column ``moment`` says what ``data`` and ``model`` are: column means in the units of the column; second
        moments as covariances about the model's mean (of ``Second("zero")`` as mean products) in products of the units;
        higher powers of columns that are standardised by the model's mean and standard deviation; shares of rows.
        ``gap``, ``error``, ``low`` and ``high`` are in the same units; ``z`` is the gap over the error it would have if
        the model were true. ``discovery`` is the false-discovery rate at which the entry counts as a misfit
        (Benjamini and Hochberg 1995).
        """
        columns = self._columns(level)
        order = np.argsort(-np.abs(columns["z"]), kind="stable")
        return make_frame({name: np.asarray(values)[order].tolist() for name, values in columns.items()})

    def _columns(self, level: float) -> dict[str, Any]:
        z = np.concatenate([g.z.cpu().numpy() for g in self.gaps])
        chance = 2.0 * stats.t.sf(np.abs(z), max(self.n_rows - 1, 1))
        low, high = (np.concatenate([g.interval(level)[i].cpu().numpy() for g in self.gaps]) for i in (0, 1))
        return {
            "function": [g.name for g in self.gaps for _ in g.labels],
            "entry": [label for g in self.gaps for label in g.labels],
            "moment": [g.moment for g in self.gaps for _ in g.labels],
            "data": np.concatenate([g.probe.flat(g.data).cpu().numpy() for g in self.gaps]),
            "model": np.concatenate([g.probe.flat(g.model).cpu().numpy() for g in self.gaps]),
            "gap": np.concatenate([g.probe.flat(g.gap).cpu().numpy() for g in self.gaps]),
            "error": np.concatenate([g.flat_error.cpu().numpy() for g in self.gaps]),
            "low": low,
            "high": high,
            "z": z,
            "p_value": chance,
            "discovery": stats.false_discovery_control(np.nan_to_num(chance, nan=1.0)),
        }

    def misfits(self, rate: float = 0.05) -> Any:
        """The entries that misfit at a false-discovery rate, worst first.

        Raises:
            ValueError: the gaps have no errors (``refused`` says why), so that no entry can be told to misfit or not.
        """
        self._check_errors()
        table = self.table()
        return table[table["discovery"] <= rate]

    def plot(self, ax: Axes | None = None, *, top: int = 12, rate: float = 0.05) -> Axes:
        """The moments that misfit most, in units of their errors; one test function is ``result["second"].plot()``.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: how many moments.
            rate: false-discovery rate at which a moment is marked as a misfit.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture, mega
            >>> rows = np.random.default_rng(0).normal(size=(200, 3))
            >>> axes = mega(GaussianMixture(1).fit(rows[:100]), rows[100:], draws=0).plot(top=4)
            >>> len(axes.get_yticks())
            4

        Raises:
            ValueError: the gaps have no errors.
        """
        from boxloop.figures import dots, short

        self._check_errors()

        table = self.table()[:top]
        names = [
            f"{function}: {' x '.join(map(short, entry.split(' x ')))}"
            for function, entry in zip(table["function"], table["entry"], strict=True)
        ]
        marked = table["discovery"].to_numpy() <= rate
        across = f"gap in units of its error\n(marked: {rate:.0%} false discovery)"
        return dots(table["z"].to_numpy(), names, ax, marked=marked, title="Worst moments", across=across)

    def _check_errors(self) -> None:
        if self.refused:
            raise ValueError(f"no moment can be called a misfit: {self.refused}; table() has the gaps alone")

    def __repr__(self) -> str:
        lines = [f"moment gaps on {self.n_rows} rows; training error {self.training}"]
        for g in self.gaps:
            chance = "" if g.p_value is None else f", p = {g.p_value:.3g}"
            worst = int(torch.nan_to_num(g.z.abs(), nan=-1.0).argmax())
            which = f"; worst {g.labels[worst]} (z = {float(g.z[worst]):.1f})"
            lines.append(f"  {g.name}: norm {g.norm():.4g}{chance}{'' if self.refused else which}")
        if self.refused:
            lines.append(f"  no errors and no p-values: {self.refused}")
        if self.p_value is not None:
            lines.append(f"  together: p = {self.p_value:.3g}")
        return "\n".join(lines)


def null_p_values(gaps: Sequence[Gap], laws: Sequence[Measure], n_rows: int, training: str) -> Mega:
    """Gaps with p-values; the whole by the test function that stands out most, beside the most of every draw."""
    done, scores, nulls = [], [], []
    for gap, null in zip(gaps, laws, strict=True):
        seen = measure(gap.probe, gap.probe.flat(gap.gap), gap.null_error)
        unknown = torch.isinf(gap.null_error)
        matched = not bool(((gap.null_error > 0) & ~unknown).any())
        chance: float | None = _chance(seen.score, null.score)
        if matched:
            chance = None if bool(unknown.any()) else 1.0
        else:
            level, spread = null.score.log().mean(), null.score.log().std().clamp(min=1e-12)
            scores.append((seen.score.log() - level) / spread)
            nulls.append((null.score.log() - level) / spread)
        norm_chance, norm_null = _chance(seen.norm, null.norm), float(null.norm.mean())
        done.append(replace(gap, p_value=chance, norm_p_value=norm_chance, norm_null=norm_null))
    if scores:
        together: float | None = _chance(torch.stack(scores).amax(), torch.stack(nulls).amax(0))
    else:
        together = None if any(gap.p_value is None for gap in done) else 1.0
    return Mega(tuple(done), n_rows, training, together)


def _chance(seen: Tensor, null: Tensor) -> float:
    return (1 + int((null >= seen).sum())) / (1 + len(null))
