"""What a report came to, as facts: every sentence of its first screen is derived from this one object.

So no two sentences can disagree: what is good, what is doubtful and what is bad is decided here, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal

import numpy as np
from scipy import stats

from boxloop.criticise import BelowStatistic, Gap
from boxloop.numeric import count_significant_digits, format_number
from boxloop.report.candidates import LIMITS
from boxloop.report.examine import Finalist, Findings
from boxloop.report.outliers import RATE, Outliers
from boxloop.report.read import COUNTS

WORSE = 2.0
"""Standard errors by which a candidate must predict held-out rows worse to count as worse."""
MANY = 0.1
"""Share of the rows from which flagged rows count against the model."""

Fit = Literal["good", "partial", "bad", "unknown"]
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
    """A moment in which data and model differ: of one column, of a covariance two.

    ``z`` is data less model in units of its error. Of a share, ``threshold`` is the value up to which rows count, and
    ``scale`` the standard deviation of the column under the model.
    """

    moment: Moment
    columns: tuple[str, ...]
    data: float
    model: float
    z: float
    p_value: float
    p_adjusted: float
    threshold: float | None = None
    scale: float | None = None

    @property
    def description(self) -> str:
        """The moment, in words."""
        at = self.threshold
        value = "" if at is None else f"{at:.{count_significant_digits(at, self.scale or 0.0)}g}"
        return WORDS[self.moment].format(*self.columns, at=value)

    def format_values(self, digits: int = 4) -> tuple[str, str]:
        """The data's value and the model's, with digits enough to distinguish them."""
        gap = self.data - self.model
        data, model = (
            format_number(value, count_significant_digits(value, gap, digits))
            for value in (self.data, self.model)
        )
        return data, model

    @property
    def sentence(self) -> str:
        """The misfit as a person would say it."""
        size = "too small" if self.z > 0 else "too large"
        data, model = self.format_values(3)
        return (
            f"the model's {self.description} is {size}: {model} where the data have {data} "
            f"({'over 999' if abs(self.z) > 999 else f'{abs(self.z):.1f}'} standard errors)"
        )


def list_misfits(finalist: Finalist) -> tuple[Misfit, ...]:
    """The moments in which a model differs from its held-out rows, worst first."""
    # A label is for people, and a column may be named like one: entries are matched with their z-scores, too.
    entries = {
        (gap.name, label, z): entry
        for gap in finalist.criticism.gaps
        for label, z, entry in zip(gap.labels, gap.z.tolist(), _describe_entries(gap), strict=True)
    }
    found = []
    for row in finalist.criticism.misfits(RATE).to_dict("records"):
        moment, columns, at, scale = entries[row["function"], row["entry"], row["z"]]
        data, model, z, p_value, p_adjusted = (
            float(row[key]) for key in ("data", "model", "z", "p_value", "p_adjusted")
        )
        found.append(Misfit(moment, columns, data, model, z, p_value, p_adjusted, at, scale))
    return tuple(found)


def _describe_entries(gap: Gap) -> Iterator[tuple[Moment, tuple[str, ...], float | None, float | None]]:
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


@dataclass(frozen=True)
class SetAside:
    """Candidates that were not considered, as their components shrank onto few rows or one value.

    ``higher`` is how many of them have a higher held-out log-likelihood than the best candidate considered; ``columns``
    are those in which one value is so frequent that components may shrink onto it.
    """

    total: int = 0
    higher: int = 0
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Autoencoder:
    """How an autoencoder did: how far behind the best at most, None where it is the best; or why none was tried."""

    name: str = ""
    obstacle: str = ""
    behind: tuple[float, float] | None = None


@dataclass(frozen=True)
class Verdict:
    """What a report came to.

    Args:
        model: name of the chosen candidate.
        unit: what its size counts: component, factor or code.
        size: how many of them it uses.
        at_limit: whether no candidate on offer could have had more of them.
        larger_tried: whether candidates of its kind with more of them were considered.
        independent: whether its columns are unrelated within a component.
        best: name of the candidate considered that predicts held-out rows best; the chosen one's where it does.
        lead: how far the best is ahead of the chosen one, with the error of this paired difference.
        considered: how many candidates the chosen one was compared with, itself included.
        as_good: candidates considered, but for the chosen one, that do not predict held-out rows worse; the best first.
        single_component: whether one of these has a single component.
        set_aside: candidates that were not considered.
        failed: names of the candidates that could not be fitted, and why the first could not.
        p_value: of all moments together on the held-out rows; None where it was not worked out.
        test_rows: number of held-out rows.
        error_known: whether the error of the fit is part of this test.
        detectable: gap of a mean in standard deviations, or of a correlation, that is noticed with chance one half.
        misfits: moments that stand out, worst first.
        fitting: finalists, but for the chosen one, whose moments stand out neither together nor alone.
        outliers: numbers of the rows flagged, the worst first; not all where they are many.
        flagged: how many rows are flagged.
        rows: of how many.
        counts: whether the values are counts.
        skewed: columns that are positive and skewed to the right.
        fitted_rows: how many rows chose the model.
        warnings: what the fit of the chosen model warned of.
        left_out: columns that were not used, and why.
        missing: columns with missing values, and the share of these.
        read: how many rows were worked with, and how many there are.
        autoencoder: how it did, where one was asked for.
    """

    model: str
    unit: str
    size: int
    at_limit: bool
    larger_tried: bool
    independent: bool
    best: str
    lead: tuple[float, float]
    considered: int
    as_good: tuple[str, ...]
    single_component: bool
    set_aside: SetAside
    failed: tuple[tuple[str, ...], str]
    p_value: float | None
    test_rows: int
    error_known: bool
    detectable: float
    misfits: tuple[Misfit, ...]
    fitting: tuple[str, ...]
    outliers: tuple[int, ...]
    flagged: int
    rows: int
    counts: bool
    skewed: frozenset[str]
    fitted_rows: int
    warnings: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, float], ...]
    read: tuple[int, int]
    autoencoder: Autoencoder

    @property
    def fit(self) -> Fit:
        """Whether the model describes the rows: the test of all moments, single moments and outliers taken together."""
        if self.p_value is not None and self.p_value < RATE:
            return "bad"
        if self.misfits or self.has_too_many_outliers:
            return "partial"
        return "unknown" if self.p_value is None else "good"

    @property
    def is_certain(self) -> bool:
        """Whether the model fits, every other candidate predicts held-out rows worse, and larger ones were on offer."""
        return self.fit == "good" and self.considered > 1 and not self.as_good and not self.at_limit

    @property
    def has_too_many_outliers(self) -> bool:
        """Whether so many rows are flagged that the model is at fault, and not the rows."""
        return self.flagged > MANY * self.rows


def judge_findings(found: Findings, outliers: Outliers) -> Verdict:
    """What findings come to."""
    chosen, best = found.trials[found.chosen], found.trials[found.best]
    others = [
        place
        for place in np.argsort(found.behind_best[:, 0]).tolist()
        if found.eligible[place] and place != found.chosen
    ]
    as_good = [found.trials[place].candidate for place in others if not _predicts_worse(found, place)]
    candidate, criticism, table = chosen.candidate, found.model.criticism, found.table
    failed = [trial for trial in found.trials if trial.reason_unusable]
    used = [column for column in table.columns if column.used]
    return Verdict(
        model=candidate.name,
        unit=candidate.unit,
        size=candidate.size_in_use,
        at_limit=candidate.size_in_use in (LIMITS.get(candidate.unit), candidate.max_components),
        larger_tried=any(
            found.trials[place].candidate.family == candidate.family
            and found.trials[place].candidate.size > candidate.size
            for place in others
        ),
        independent=candidate.has_independent_columns,
        best=best.candidate.name,
        lead=(float(found.behind_best[found.chosen, 0]), float(found.behind_best[found.chosen, 1])),
        considered=int(found.eligible.sum()),
        as_good=tuple(other.name for other in as_good),
        single_component=any(other.unit == "component" and other.size_in_use == 1 for other in as_good),
        set_aside=_summarise_set_aside(found),
        failed=(tuple(trial.candidate.name for trial in failed), failed[0].reason_unusable if failed else ""),
        p_value=criticism.p_value if isfinite(criticism.p_value or 0.0) else None,
        test_rows=criticism.n_rows,
        error_known=criticism.parameter_error == "included",
        detectable=_smallest_detectable_gap(criticism.n_rows, sum(len(gap.labels) for gap in criticism.gaps)),
        misfits=list_misfits(found.model),
        fitting=tuple(f.trial.candidate.name for f in found.finalists[1:] if is_adequate(f)),
        outliers=tuple(row.row for row in outliers.rows if row.flagged),
        flagged=outliers.flagged,
        rows=len(outliers.log_density),
        counts=table.kind == COUNTS,
        skewed=frozenset(column.name for column in used if column.is_right_skewed),
        fitted_rows=len(found.fit_rows),
        warnings=chosen.warnings,
        left_out=tuple((column.name, column.left_out) for column in table.columns if not column.used),
        missing=tuple((column.name, column.missing) for column in used if column.missing > 0),
        read=(len(table.rows), table.n_rows),
        autoencoder=_summarise_autoencoder(found),
    )


def _predicts_worse(found: Findings, place: int) -> bool:
    """Whether a candidate predicts held-out rows worse than the chosen one, beyond chance."""
    chosen, other = found.trials[found.chosen].log_density, found.trials[place].log_density
    assert chosen is not None
    assert other is not None
    lag, error = other.measure_gap_to(chosen)
    return lag > WORSE * error


def is_adequate(finalist: Finalist) -> bool:
    """Whether its moments stand out neither together nor alone."""
    p_value = finalist.criticism.p_value
    return p_value is not None and p_value >= RATE and not list_misfits(finalist)


def _summarise_set_aside(found: Findings) -> SetAside:
    aside = found.set_aside
    higher = sum(bool(found.behind_best[place, 0] < 0.0) for place in aside)
    tied = tuple(column.name for column in found.table.columns if column.used and column.is_mostly_one_value)
    return SetAside(len(aside), higher, tied if aside else ())


def _smallest_detectable_gap(rows: int, entries: int) -> float:
    """The largest of so many z-scores of a true model is below this with chance 1 - RATE, in units of one row's."""
    return float(stats.norm.isf(0.5 * RATE / max(entries, 1))) / sqrt(max(rows, 1))


def _summarise_autoencoder(found: Findings) -> Autoencoder:
    for place, trial in enumerate(found.trials):
        if trial.candidate.is_lower_bound and not trial.reason_unusable:
            lag, error = (float(value) for value in found.behind_best[place])
            return Autoencoder(trial.candidate.name, "", None if place == found.best else (lag, error))
    return Autoencoder(obstacle=found.autoencoder_obstacle)
