"""One method less another over tables and splits, with errors that count the rows which splits share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from papers.uci_networks_data import HELD
from papers.uci_networks_trials import Facts

Array = NDArray[np.float64]
Results = Mapping[str, Facts]
"""Facts by table."""

SURE = 2.0
"""Standard errors that make a difference."""
UNITS = {"nll": "nats a row", "rmse": "of the root mean squared error"}


def split_error(values: Array) -> float:
    r"""Standard error of a mean over random splits of one table, which share most of their rows.

    .. math:: s \sqrt{\tfrac1S + \tfrac{n_\mathrm{test}}{n_\mathrm{train}}}

    Nadeau and Bengio (2003); with the first term alone errors are too small by half.
    """
    s = len(values)
    return float(values.std(ddof=1) * np.sqrt(1.0 / s + HELD / (1.0 - HELD))) if s > 1 else float("nan")


@dataclass(frozen=True)
class Compared:
    """One method less another over tables, paired by split; below 0 the first is better.

    Args:
        means: of each table.
        errors: of these, by :func:`split_error`.
        unit: of the differences.
    """

    means: Array
    errors: Array
    unit: str

    @property
    def each(self) -> Array:
        """z of each table."""
        return np.divide(self.means, self.errors, out=np.zeros_like(self.means), where=self.errors > 0.0)

    @property
    def z(self) -> float:
        """Of all tables together: the sum over the root of their number (Stouffer)."""
        return float(self.each.sum() / np.sqrt(len(self.means)))

    @property
    def lower(self) -> bool:
        """Whether the first is surely lower: over all tables together, and in the mean."""
        return self.z < -SURE and self.mean < 0.0

    @property
    def mean(self) -> float:
        """Over tables."""
        return float(self.means.mean())

    @property
    def error(self) -> float:
        """Of the mean, as tables differ."""
        n = len(self.means)
        return float(self.means.std(ddof=1) / np.sqrt(n)) if n > 1 else float(self.errors[0])

    def __str__(self) -> str:
        better, worse = int((self.each < -SURE).sum()), int((self.each > SURE).sum())
        told = f"{self.mean:+.1%}" if self.unit.startswith("of") else f"{self.mean:+.3f}"
        return (
            f"{told} {self.unit}, z = {self.z:+.1f}; surely lower on {better} and higher on {worse} of "
            f"{len(self.means)} tables"
        )


def compared(results: Results, method: str, base: str, measure: str = "nll", of_base: str = "") -> Compared:
    """Differences of log-likelihoods, or of logarithms of errors.

    Args:
        results: facts by table.
        method: that is compared.
        base: with which.
        measure: ``"nll"`` or ``"rmse"``, with or without ``" at scale 1"``.
        of_base: measure of the base, where it is another.
    """
    word = measure.split(" ")[0]
    values = []
    for facts in results.values():
        one, other = (
            np.asarray(facts[who][what]) for who, what in ((method, measure), (base, of_base or measure))
        )
        values.append(np.log(one / other) if word == "rmse" else one - other)
    means, errors = np.array([v.mean() for v in values]), np.array([split_error(v) for v in values])
    return Compared(means, errors, UNITS[word])
