"""The first screen of a report: the verdict as questions and answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from boxloop.numeric import format_number, format_with_error, join_words
from boxloop.report.advice import advise
from boxloop.report.misfits import RATE
from boxloop.report.sentences import counted
from boxloop.report.verdict import WORSE, Verdict

Mood = Literal["good", "doubtful", "bad", "plain"]

NAMED, NAMED_ROWS, NAMED_RIVALS = 6, 5, 4
"""Most moments or columns, rows, and candidates that a line names."""


@dataclass(frozen=True)
class Line:
    """One line of the first screen: a question, its answer, and whether that is good news."""

    question: str
    answer: str
    mood: Mood = "plain"


def write_lines(found: Verdict) -> tuple[Line, ...]:
    """The verdict, line by line; whether the model fits comes before how sure the choice is."""
    return (
        Line("Which model?", _which(found)),
        _does_it_fit(found),
        _what_it_misses(found),
        _how_sure(found),
        Line("What next?", " ".join(f"{sentence}." for sentence in advise(found))),
        _outliers(found),
        *_columns(found),
        *_autoencoder(found),
        *_troubles(found),
    )


def _which(found: Verdict) -> str:
    among = counted(found.considered, "candidate")
    if found.best == found.model:
        answer = f"{found.model}: the best of {among} on held-out rows."
    else:
        answer = (
            f"{found.model}: the simplest of {among} within one standard error of the best ({found.best}, ahead by "
            f"{format_with_error(*found.lead)} in log-likelihood per row)."
        )
    if found.set_aside.higher:
        was = "scores higher and was" if found.set_aside.higher == 1 else "score higher and were"
        answer += f" {counted(found.set_aside.higher, 'other candidate')} {was} set aside, see below."
    return answer


def _does_it_fit(found: Verdict) -> Line:
    rows = f"{counted(found.test_rows, 'row')} that took no part in the fit or the choice"
    p_value = found.p_value
    if found.fit == "bad":
        assert p_value is not None
        rare = "in fewer than 1 table in 100" if p_value <= 0.01 else f"in {p_value:.0%} of tables"
        answer = f"No: on {rows}, a true model would show moments and shares as far off {rare}."
        if not found.error_known:
            answer += (
                " The test leaves out the error of the fit, which is not known, and so rejects too often."
            )
        return Line("Does it fit?", answer, "bad")
    if found.fit == "unknown":
        return Line("Does it fit?", f"Not known: all moments together were not tested on {rows}.", "doubtful")
    if found.fit == "partial":
        why = []
        if found.misfits:
            differ = "itself differs" if len(found.misfits) == 1 else "themselves differ"
            why.append(f"{counted(len(found.misfits), 'moment')} by {differ} more than chance allows")
        if found.too_many_flagged:
            why.append(f"{found.flagged / found.rows:.0%} of all rows are less likely than it allows")
        together = (
            "" if p_value is None else f", though all moments together do not stand out (p = {p_value:.2g})"
        )
        return Line("Does it fit?", f"Only in part: on {rows}, {join_words(why)}{together}.", "doubtful")
    answer = (
        f"No misfit found on {rows}: a true model would show gaps as large in {p_value:.0%} of tables. A mean off by "
        f"less than about {format_number(found.detectable, 2)} standard deviations, or a correlation off by as much, "
        "may go unnoticed."
    )
    return Line("Does it fit?", answer, "good")


def _what_it_misses(found: Verdict) -> Line:
    question, worst = "What does it miss?", found.misfits
    if worst:
        answer = "; ".join(misfit.sentence for misfit in worst[:NAMED])
        rest = f"; and {counted(len(worst) - NAMED, 'other moment')}" if len(worst) > NAMED else ""
        mood: Mood = "bad" if found.fit == "bad" else "doubtful"
        return Line(question, f"{answer[0].upper()}{answer[1:]}{rest}.", mood)
    answer = f"No single moment stands out at {RATE:.0%} false discoveries"
    if found.fit == "bad":
        return Line(question, f"{answer}: what differs is spread over many of them.", "doubtful")
    return Line(question, f"{answer}.", "good" if found.fit == "good" else "plain")


def _how_sure(found: Verdict) -> Line:
    """How many other candidates, of any kind and size, do as well; no certainty about a model that does not fit."""
    others = found.considered - 1
    if not others:
        return Line("How sure?", "There was no other candidate to compare with.")
    if found.as_good:
        names = [*found.as_good[:NAMED_RIVALS]]
        names += [f"{len(found.as_good) - NAMED_RIVALS} more"] * (len(found.as_good) > NAMED_RIVALS)
        predicts = "predicts" if len(found.as_good) == 1 else "predict"
        answer = (
            f"Not sure: {len(found.as_good)} of {counted(others, 'other candidate')} {predicts} held-out rows as well, "
            f"within {WORSE:g} standard errors: {'; '.join(names)}."
        )
        if found.ungrouped and found.unit == "component" and found.size > 1:
            answer += " One of them has a single component: the components need not be groups of rows."
        return Line("How sure?", answer, "doubtful")
    every = "every other candidate considered" if found.set_aside.higher else "every other candidate"
    worse = f"{every} predicts held-out rows worse by more than {WORSE:g} standard errors"
    if found.certain:
        return Line("How sure?", f"Sure: {worse}.", "good")
    but = {
        "bad": "this one does not fit",
        "partial": "this one fits only in part",
        "unknown": "whether this one fits is not known",
        "good": f"more than {counted(found.size, found.unit)} were not tried",
    }[found.fit]
    answer = f"{worse[0].upper()}{worse[1:]}, but {but}: rest no conclusion on its {found.unit}s alone."
    return Line("How sure?", answer, "doubtful")


def _outliers(found: Verdict) -> Line:
    question = "Strange rows?"
    if not found.flagged:
        return Line(question, "None, beyond what chance explains.", "good")
    if found.too_many_flagged:
        share = found.flagged / found.rows
        return Line(
            question,
            f"{share:.0%} of all rows are unlikely under the model: the model is at fault, not the rows.",
            "bad",
        )
    places = [str(place) for place in found.outliers[:NAMED_ROWS]]
    rows = "row" if found.flagged == 1 else "rows"
    answer = f"{counted(found.flagged, 'row')} at {RATE:.0%} false discoveries: {rows} "
    answer += f"{join_words(places, total=found.flagged)}, counted from 0."
    if found.fit == "bad":
        answer += " The model does not fit, and may make outliers of good rows."
    return Line(question, answer, "doubtful")


def _columns(found: Verdict) -> Iterator[Line]:
    if found.left_out:
        names = [f"{name} ({why})" for name, why in found.left_out[:NAMED]]
        if len(found.left_out) > NAMED:
            names.append(f"{counted(len(found.left_out) - NAMED, 'other')} (all are listed under Columns)")
        yield Line("Columns left out?", f"{join_words(names)}.", "doubtful")
    if found.missing:
        names = [f"{name} ({share:.1%})" for name, share in found.missing[:NAMED]]
        if len(found.missing) > NAMED:
            names.append(counted(len(found.missing) - NAMED, "other column"))
        yield Line("Missing values?", f"Taken as unknown, none filled in: {join_words(names)}.")
    used, rows = found.read
    if used < rows:
        yield Line("All rows?", f"{used} of {rows} rows were used.")


def _autoencoder(found: Verdict) -> Iterator[Line]:
    """What an autoencoder came to, or why none was tried."""
    deep, question = found.autoencoder, "Autoencoder?"
    bound = "its score is a lower bound of the log-likelihood"
    if deep.without:
        yield Line(question, f"Asked for and not tried: {deep.without}.", "doubtful")
    elif deep.name and deep.behind is None:
        leads = "It leads" if deep.name == found.model else f"{deep.name}: it leads"
        yield Line(question, f"{leads} by at least what the table says: {bound}.")
    elif deep.name and deep.behind is not None:
        yield Line(
            question,
            f"{deep.name}: behind the best by at most {format_with_error(*deep.behind)} per row; {bound}.",
        )


def _troubles(found: Verdict) -> Iterator[Line]:
    if found.troubles:
        answer = " ".join(f"{trouble.rstrip('.')}." for trouble in found.troubles[:3])
        yield Line("Trouble in the fit?", answer, "doubtful")
    aside = found.set_aside
    if aside.total:
        of_these = f" ({aside.higher} of them scored higher than the best considered)" if aside.higher else ""
        look = (
            f"; look at {join_words(list(aside.columns[:NAMED]))}, mostly one value" if aside.columns else ""
        )
        answer = (
            f"{counted(aside.total, 'mixture')}{of_these}: components shrank onto few rows or a single value, and "
            f"such a score measures the floor under their variance, not the fit{look}."
        )
        yield Line("Candidates set aside?", answer, "doubtful")
    failed, why = found.failed
    if failed:
        yield Line("Candidates that failed?", f"{join_words(list(failed[:NAMED]))}: {why}", "doubtful")
