"""Moments in which a model and the rows that judge it differ: which moment, of which columns, which way, how far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from boxloop.criticise import BelowStatistic, Gap
from boxloop.numeric import format_number, significant_digits
from boxloop.report.findings import Finalist

RATE = 0.05
"""Rate of false discoveries among the misfits that are named, and level of the test of all moments together."""

Moment = Literal["mean", "variance", "covariance", "skewness", "tails", "share"]

WORDS: dict[Moment, str] = {
    "mean": "mean of {0}",
    "variance": "variance of {0}",
    "covariance": "covariance of {0} and {1}",
    "skewness": "third moment (skewness) of {0}",
    "tails": "fourth moment (tails) of {0}",
    "share": "share of {0} up to {at}",
}
OF_COLUMNS: dict[str, Moment] = {"first": "mean", "third": "skewness", "fourth": "tails"}
"""Test functions with one entry for each column."""


@dataclass(frozen=True)
class Misfit:
    """A moment in which data and model differ.

    Args:
        moment: which one.
        columns: it is about: two for a covariance, else one.
        data: its value in the data.
        model: its value under the model.
        z: data less model, in units of its error.
        p_value: of this moment by itself.
        discovery: rate of false discoveries at which it counts as a misfit.
        at: of a share, the value up to which rows are counted.
        scale: of a share, the standard deviation of the column under the model.
    """

    moment: Moment
    columns: tuple[str, ...]
    data: float
    model: float
    z: float
    p_value: float
    discovery: float
    at: float | None = None
    scale: float | None = None

    @property
    def what(self) -> str:
        """The moment, in words."""
        at = "" if self.at is None else f"{self.at:.{significant_digits(self.at, self.scale or 0.0)}g}"
        return WORDS[self.moment].format(*self.columns, at=at)

    def values(self, digits: int = 4) -> tuple[str, str]:
        """The data's value and the model's, with digits enough to tell them apart."""
        gap = self.data - self.model
        data, model = (
            format_number(value, significant_digits(value, gap, digits)) for value in (self.data, self.model)
        )
        return data, model

    @property
    def sentence(self) -> str:
        """The misfit as a person would say it."""
        more = "too small" if self.z > 0 else "too large"
        data, model = self.values(3)
        return (
            f"the model's {self.what} is {more}: {model} where the data have {data} "
            f"({'over 999' if abs(self.z) > 999 else f'{abs(self.z):.1f}'} standard errors)"
        )


def misfits(finalist: Finalist) -> tuple[Misfit, ...]:
    """The moments in which a model differs from the rows that judge it, worst first."""
    # A label is for people, and a column may be named like one: entries are matched with their z-scores, too.
    entries = {
        (gap.name, label, z): entry
        for gap in finalist.criticism.gaps
        for label, z, entry in zip(gap.labels, gap.z.tolist(), _entries(gap), strict=True)
    }
    found = []
    for row in finalist.criticism.misfits(RATE).to_dict("records"):
        moment, columns, at, scale = entries[row["function"], row["entry"], row["z"]]
        data, model, z, p_value, discovery = (
            float(row[key]) for key in ("data", "model", "z", "p_value", "p_adjusted")
        )
        found.append(Misfit(moment, columns, data, model, z, p_value, discovery, at, scale))
    return tuple(found)


def _entries(gap: Gap) -> Iterator[tuple[Moment, tuple[str, ...], float | None, float | None]]:
    """Which moment of which columns each entry of a test function is, up to which value, in its order."""
    names = gap.statistic.frame.names
    if isinstance(gap.statistic, BelowStatistic):
        for place, at in zip(gap.statistic.places.tolist(), gap.statistic.thresholds.tolist(), strict=True):
            yield "share", (names[place],), at, float(gap.statistic.frame.scale[place])
    elif gap.gap.dim() == 2:
        for i, j in zip(*np.triu_indices(len(names)), strict=True):
            pair = (names[i],) if i == j else (names[i], names[j])
            yield "variance" if i == j else "covariance", pair, None, None
    else:
        for name in names:
            yield OF_COLUMNS[gap.name], (name,), None, None
