"""Summary tables of draws: mean, standard deviation, interval and diagnostics of named quantities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.sample.diagnostics import Array, Diagnosis, diagnose

NO_DRAWS = "there are no draws: sampling was interrupted in warm-up"


def summarise_table(table: Array, diagnosis: Diagnosis, level: float) -> dict[str, list[float]]:
    """Columns of a summary of draws (c, n, p)."""
    check_level(level)
    draws = table.reshape(-1, table.shape[2])
    with np.errstate(invalid="ignore"):  # of draws that are not finite
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        mean, sd = draws.mean(0), standard_deviation(draws)
    columns = {
        "mean": mean,
        "sd": sd,
        "low": low,
        "high": high,
        "mcse": diagnosis.mcse,
        "ess_bulk": diagnosis.ess_bulk,
        "ess_tail": diagnosis.ess_tail,
        "r_hat": diagnosis.r_hat,
    }
    return {name: values.tolist() for name, values in columns.items()}


def standard_deviation(draws: Array) -> Any:
    """Over the first axis; NaN for a single draw."""
    return draws.std(0, ddof=1) if len(draws) > 1 else np.full(draws.shape[1:], np.nan)


@dataclass(frozen=True, eq=False)
class Quantities:
    """Named quantities of c chains of n draws.

    Args:
        values: each (c, n).
        identification: of all of them: ``label-invariant``, ``rotation-invariant``, ``relabelled`` or ``aligned``.
    """

    values: Mapping[str, Tensor]
    identification: str

    @cached_property
    def table(self) -> Array:
        """(c, n, p)."""
        return np.asarray(torch.stack(list(self.values.values()), 2).double().cpu().numpy())

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """R-hat, effective sample sizes and Monte Carlo errors."""
        return diagnose(self.table)

    @property
    def concerns(self) -> tuple[str, ...]:
        """What the diagnostics give reason to look at."""
        return self.diagnosis.concerns(tuple(self.values))


def summarise_quantities(parts: Sequence[Quantities], level: float) -> Any:
    """A frame with one row per quantity.

    Args:
        parts: each with its own number of draws.
        level: of the central interval from ``low`` to ``high``.

    Example:
        >>> import torch
        >>> draws = torch.arange(8.0).reshape(2, 4)
        >>> parts = [Quantities({"a": draws}, "label-invariant")]
        >>> summarise_quantities(parts, 0.5)[["mean", "low", "high", "identification"]]
           mean   low  high   identification
        a   3.5  1.75  5.25  label-invariant
    """
    columns: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in summarise_table(part.table, part.diagnosis, level).items():
            columns.setdefault(name, []).extend(values)
        columns.setdefault("identification", []).extend([part.identification] * len(part.values))
    return make_frame(columns, [name for part in parts for name in part.values])


def spaced_indices(count: int, most: int) -> Tensor:
    """At most ``most`` indices below ``count``, evenly spaced, including the last."""
    step = max(1, -(-count // most))
    return torch.arange(count - 1, -1, -step).flip(0)


def format_html(head: str, frame: Any, concerns: Iterable[str]) -> str:
    """A heading, a table and a list of concerns as HTML, every text escaped."""
    table = "" if frame is None else frame.to_html(float_format=lambda value: f"{value:.4g}", max_rows=24)
    items = "".join(f"<li>{escape(concern)}</li>" for concern in concerns)
    return f"<p>{escape(head)}</p>{table}" + (f"<p>Concerns</p><ul>{items}</ul>" if items else "")
