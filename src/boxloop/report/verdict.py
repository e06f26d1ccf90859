"""What a report found, in plain words: which model, how sure, what it misses, what to try next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from boxloop.numeric.written import number, with_error
from boxloop.report.candidates import RANKS, SIZES
from boxloop.report.columns import COUNTS
from boxloop.report.findings import Finalist, Findings, Trial
from boxloop.report.outlying import Outlying
from boxloop.report.sentences import counted, listed

Mood = Literal["good", "doubtful", "bad", "plain"]

RATE = 0.05
"""Rate of false discoveries among the misfits that are named."""
NAMED = 6
SURE = 2.0
MANY = 0.1
"""Share of the rows from which outliers are no outliers."""


@dataclass(frozen=True)
class Line:
    """One line of the verdict: a question, its answer, and whether that is good news."""

    question: str
    answer: str
    mood: Mood = "plain"


@dataclass(frozen=True)
class Misfit:
    """A moment in which data and model differ.

    Args:
        what: the moment, in words.
        columns: it is about.
        data: its value in the data.
        model: its value under the model.
        z: the difference in units of its error.
        p_value: of this moment by itself.
        discovery: rate of false discoveries at which it counts as a misfit.
    """

    what: str
    columns: tuple[str, ...]
    data: float
    model: float
    z: float
    p_value: float
    discovery: float

    @property
    def sentence(self) -> str:
        """The misfit as a person would say it."""
        more = "too small" if self.z > 0 else "too large"
        return (
            f"the model's {self.what} is {more}: {number(self.model, 3)} where the data have {number(self.data, 3)} "
            f"({'over 999' if abs(self.z) > 999 else f'{abs(self.z):.1f}'} standard errors)"
        )


def misfits(finalist: Finalist) -> tuple[Misfit, ...]:
    """The moments in which a model differs from the rows that judge it, worst first."""
    table = finalist.criticism.misfits(RATE)
    return tuple(_misfit(row) for row in table.to_dict("records"))


def _misfit(row: dict[str, Any]) -> Misfit:
    entry, kind = str(row["entry"]), str(row["function"])
    columns: tuple[str, ...] = (entry,)
    if kind == "second":
        one, other = entry.split(" x ", 1)
        columns = (one,) if one == other else (one, other)
        what = f"variance of {one}" if one == other else f"covariance of {one} and {other}"
    elif kind == "below":
        name, at = entry.rsplit(" <= ", 1)
        columns, what = (name,), f"share of {name} up to {at}"
    else:
        names = {"first": "mean", "third": "third moment (skewness)", "fourth": "fourth moment (tails)"}
        what = f"{names[kind]} of {entry}"
    return Misfit(what, columns, *(float(row[key]) for key in ("data", "model", "z", "p_value", "discovery")))


def verdict(found: Findings, outlying: Outlying) -> tuple[Line, ...]:
    """The whole verdict, line by line."""
    return (
        Line("Which model?", _which(found)),
        _how_sure(found),
        _does_it_fit(found),
        _what_it_misses(found),
        Line("What next?", " ".join(f"{said}." for said in advice(found))),
        _strange_rows(outlying),
        *_columns(found),
        *_autoencoder(found),
        *_troubles(found),
    )


def _which(found: Findings) -> str:
    chosen, best = found.trials[found.chosen], found.trials[found.best]
    said = f"{chosen.candidate.name}: "
    if found.chosen == found.best:
        return said + f"the best of {counted(len(found.trials), 'candidate')} on rows held out."
    gap, error = found.behind[found.chosen]
    return said + (
        f"the smallest of {len(found.trials)} candidates that rows held out do not tell from the best "
        f"({best.candidate.name}, ahead by {with_error(gap, error)} in log-likelihood a row)."
    )


def _how_sure(found: Findings) -> Line:
    """Whether other families are told apart from the chosen model."""
    chosen = found.trials[found.chosen]
    rivals = {f.trial.candidate.family: f.trial for f in found.finalists[1:]}
    close = [t.candidate.name for t in rivals.values() if not _told_apart(chosen, t)]
    if not rivals:
        return Line("How sure?", "There was no other kind of model to compare with.")
    if not close:
        said = (
            f"Sure: every other kind of model is more than {SURE:g} standard errors worse on the same rows."
        )
        return Line("How sure?", said, "good")
    return Line("How sure?", f"These rows do not tell it from: {'; '.join(close)}.", "doubtful")


def _told_apart(one: Trial, other: Trial) -> bool:
    assert one.density is not None
    assert other.density is not None
    apart, error = other.density.behind(one.density)
    return abs(apart) > SURE * error


def _does_it_fit(found: Findings) -> Line:
    criticism = found.model.criticism
    chance = criticism.p_value if criticism.p_value is not None else float("nan")
    rows = f"{criticism.n_rows} rows that took no part in the fit or the choice"
    if chance >= RATE:
        said = f"No misfit found on {rows}: a true model would show gaps as large in {chance:.0%} of tables."
        return Line("Does it fit?", said, "good")
    size = "fewer than 1 table in 100" if chance <= 0.01 else f"{chance:.0%} of tables"
    said = f"No: on {rows}, moments or shares differ more than they would in all but {size}."
    if criticism.training != "included":
        said += " The error of its fit is not known here and left out, so that this judge is too strict."
    return Line("Does it fit?", said, "bad")


def _what_it_misses(found: Findings) -> Line:
    worst = misfits(found.model)
    if not worst:
        return Line(
            "What does it miss?", f"No single moment stands out at {RATE:.0%} false discoveries.", "good"
        )
    said = "; ".join(misfit.sentence for misfit in worst[:NAMED])
    rest = f"; and {counted(len(worst) - NAMED, 'other moment')}" if len(worst) > NAMED else ""
    return Line("What does it miss?", f"{said[0].upper()}{said[1:]}{rest}.", "bad")


def advice(found: Findings) -> list[str]:
    """What to try next, the most promising first."""
    said_ = list(_advice(found))
    if not said_ and _does_it_fit(found).mood == "bad":
        return ["No candidate mends what is missed: decide whether that matters for what the model is for"]
    return said_ or ["Nothing urgent: use the model, and judge it again on new rows"]


def _advice(found: Findings) -> Iterator[str]:
    chosen, worst = found.trials[found.chosen].candidate, misfits(found.model)
    skewed = {c.name for c in found.table.columns if c.used and any("logarithm" in note for note in c.notes)}
    hit = [name for name in dict.fromkeys(c for m in worst for c in m.columns) if name in skewed]
    if hit:
        shape = "its shape" if len(hit) == 1 else "their shapes"
        yield f"Take the logarithm of {listed(hit[:NAMED])}: skewed and positive, and the model misses {shape}"
    if chosen.place in (SIZES[-1], RANKS[-1]):
        yield f"Try more {chosen.unit}s: the largest size on offer was taken"
    pairs = [m for m in worst if len(m.columns) == 2]
    if pairs and chosen.unit != "component":
        yield f"Try more {chosen.unit}s: {counted(len(pairs), 'covariance')} not accounted for"
    tails = [m for m in worst if "tails" in m.what and m.columns[0] not in hit]
    if tails:
        names = listed([m.columns[0] for m in tails[:NAMED]])
        yield f"Look at the outliers below before anything else: the tails of {names} are heavier than the model's"
    if found.table.kind == COUNTS and any("variance" in m.what for m in worst):
        yield "Counts vary more than Poisson laws allow: try the columns as measurements after a square root"
    gap, error = found.behind[found.chosen]
    if len(found.first) < 1000 and found.chosen != found.best and gap > 0.5 * error:
        yield f"Collect more rows: {len(found.first)} cannot settle between the chosen and the best candidate"


def _strange_rows(outlying: Outlying) -> Line:
    if not outlying.flagged:
        return Line("Strange rows?", "None, beyond what chance explains.", "good")
    if outlying.flagged > MANY * len(outlying.scores):
        share = outlying.flagged / len(outlying.scores)
        said = f"{share:.0%} of all rows are unlikely under the model: the model is at fault, not the rows."
        return Line("Strange rows?", said, "bad")
    rows = listed([f"{row.place}" for row in outlying.rows[: min(outlying.flagged, 5)]])
    more = f" and {outlying.flagged - 5} more" if outlying.flagged > 5 else ""
    are = "row" if outlying.flagged == 1 else "rows"
    said = f"{counted(outlying.flagged, 'row')} at {RATE:.0%} false discoveries: {are} {rows}{more}, counted from 0."
    return Line("Strange rows?", said, "doubtful")


def _columns(found: Findings) -> Iterator[Line]:
    aside = [f"{c.name} ({c.aside})" for c in found.table.columns if not c.used]
    if aside:
        rest = (
            [f"{counted(len(aside) - NAMED, 'other')} (all are listed under Columns)"]
            if len(aside) > NAMED
            else []
        )
        yield Line("Columns left out?", f"{listed([*aside[:NAMED], *rest])}.", "doubtful")
    holes = [c for c in found.table.columns if c.used and c.missing > 0]
    if holes:
        names = listed([f"{c.name} ({c.missing:.1%})" for c in holes[:NAMED]])
        yield Line("Missing values?", f"Taken as unknown, none filled in: {names}.")
    if len(found.table.rows) < found.table.n_rows:
        yield Line("All rows?", f"{len(found.table.rows)} of {found.table.n_rows} rows, drawn at random.")


def _autoencoder(found: Findings) -> Iterator[Line]:
    """What an autoencoder came to, or why none was tried."""
    if found.without:
        yield Line("Autoencoder?", f"Asked for and not tried: {found.without}.", "doubtful")
    for place, trial in enumerate(found.trials):
        if not trial.candidate.bounded or trial.failure:
            continue
        bound = "its score is a lower bound of the log-likelihood"
        if place == found.best:
            leads = "It leads" if place == found.chosen else f"{trial.candidate.name}: it leads"
            yield Line("Autoencoder?", f"{leads} by at least what the table says: {bound}.")
        else:
            gap = with_error(*found.behind[place])
            yield Line(
                "Autoencoder?", f"{trial.candidate.name}: behind the best by at most {gap} a row; {bound}."
            )


def _troubles(found: Findings) -> Iterator[Line]:
    chosen = found.trials[found.chosen]
    if chosen.troubles:
        yield Line(
            "Trouble in the fit?",
            " ".join(f"{said.rstrip('.')}." for said in chosen.troubles[:3]),
            "doubtful",
        )
    collapsed = sum(t.collapsed for t in found.trials)
    if collapsed and not chosen.collapsed:
        tied = [
            c.name for c in found.table.columns if c.used and any("of the values are" in n for n in c.notes)
        ]
        where = f" (look at {listed(tied[:NAMED])})" if tied else ""
        said = (
            f"{counted(collapsed, 'mixture')} shrank onto few rows or shared values{where}: not considered."
        )
        yield Line("Candidates set aside?", said, "doubtful")
    failed = [t.candidate.name for t in found.trials if t.failure]
    if failed:
        yield Line("Candidates that failed?", f"{listed(failed[:NAMED])}: {found_failure(found)}", "doubtful")


def found_failure(found: Findings) -> str:
    """Why the first candidate that failed did so."""
    return next(t.failure for t in found.trials if t.failure)
