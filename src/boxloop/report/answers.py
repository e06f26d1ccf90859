"""The first screen of a report: the verdict as questions and answers, and what to try next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from boxloop.numeric import format_number, format_with_error, join_words
from boxloop.report.outliers import RATE
from boxloop.report.text import count_of
from boxloop.report.verdict import WORSE, Misfit, Verdict

Level = Literal["good", "doubtful", "bad", "plain"]

NAMED, NAMED_ROWS, NAMED_RIVALS = 6, 5, 4
"""Most moments, columns or candidates, rows, and rivals that a line names."""
FEW_ROWS = 1000
"""Rows below which more of them are worth asking for."""


@dataclass(frozen=True)
class Line:
    """One line of the first screen: a question, its answer, and whether that is good news."""

    question: str
    answer: str
    level: Level = "plain"


def answer_questions(found: Verdict) -> tuple[Line, ...]:
    """The verdict, line by line; whether the model fits comes before how sure the choice is."""
    return (
        Line("Which model?", _answer_which_model(found)),
        _answer_fit(found),
        _answer_misfits(found),
        _answer_certainty(found),
        Line("What next?", " ".join(f"{sentence}." for sentence in advise_next_steps(found))),
        _answer_outliers(found),
        *_answer_columns(found),
        *_answer_autoencoder(found),
        *_answer_warnings(found),
    )


def _answer_which_model(found: Verdict) -> str:
    among = count_of(found.considered, "candidate")
    if found.best == found.model:
        answer = f"{found.model}: the best of {among} on held-out rows."
    else:
        answer = (
            f"{found.model}: the simplest of {among} within one standard error of the best ({found.best}, ahead by "
            f"{format_with_error(*found.lead)} in log-likelihood per row)."
        )
    if found.set_aside.higher:
        was = "scores higher and was" if found.set_aside.higher == 1 else "score higher and were"
        answer += f" {count_of(found.set_aside.higher, 'other candidate')} {was} set aside, see below."
    return answer


def _answer_fit(found: Verdict) -> Line:
    rows = f"{count_of(found.test_rows, 'row')} that took no part in the fit or the choice"
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
            why.append(f"{count_of(len(found.misfits), 'moment')} by {differ} more than chance allows")
        if found.has_too_many_outliers:
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


def _answer_misfits(found: Verdict) -> Line:
    question, worst = "What does it miss?", found.misfits
    if worst:
        answer = "; ".join(misfit.sentence for misfit in worst[:NAMED])
        rest = f"; and {count_of(len(worst) - NAMED, 'other moment')}" if len(worst) > NAMED else ""
        level: Level = "bad" if found.fit == "bad" else "doubtful"
        return Line(question, f"{answer[0].upper()}{answer[1:]}{rest}.", level)
    answer = f"No single moment stands out at {RATE:.0%} false discoveries"
    if found.fit == "bad":
        return Line(question, f"{answer}: the difference is distributed over many of them.", "doubtful")
    return Line(question, f"{answer}.", "good" if found.fit == "good" else "plain")


def _answer_certainty(found: Verdict) -> Line:
    """How many other candidates, of any kind and size, do as well; no certainty about a model that does not fit."""
    others = found.considered - 1
    if not others:
        return Line("How sure?", "There was no other candidate to compare with.")
    if found.as_good:
        names = [*found.as_good[:NAMED_RIVALS]]
        names += [f"{len(found.as_good) - NAMED_RIVALS} more"] * (len(found.as_good) > NAMED_RIVALS)
        predicts = "predicts" if len(found.as_good) == 1 else "predict"
        answer = (
            f"Not sure: {len(found.as_good)} of {count_of(others, 'other candidate')} {predicts} held-out rows as "
            f"well, within {WORSE:g} standard errors: {'; '.join(names)}."
        )
        if found.single_component and found.unit == "component" and found.size > 1:
            answer += " One of them has a single component: the components need not be groups of rows."
        return Line("How sure?", answer, "doubtful")
    every = "every other candidate considered" if found.set_aside.higher else "every other candidate"
    worse = f"{every} predicts held-out rows worse by more than {WORSE:g} standard errors"
    if found.is_certain:
        return Line("How sure?", f"Sure: {worse}.", "good")
    but = {
        "bad": "this one does not fit",
        "partial": "this one fits only in part",
        "unknown": "whether this one fits is not known",
        "good": f"more than {count_of(found.size, found.unit)} were not tried",
    }[found.fit]
    answer = f"{worse[0].upper()}{worse[1:]}, but {but}: rest no conclusion on its {found.unit}s alone."
    return Line("How sure?", answer, "doubtful")


def _answer_outliers(found: Verdict) -> Line:
    question = "Outliers?"
    if not found.flagged:
        return Line(question, "None, beyond what chance explains.", "good")
    if found.has_too_many_outliers:
        share = found.flagged / found.rows
        return Line(
            question,
            f"{share:.0%} of all rows are unlikely under the model: the model is at fault, not the rows.",
            "bad",
        )
    places = [str(place) for place in found.outliers[:NAMED_ROWS]]
    rows = "row" if found.flagged == 1 else "rows"
    answer = f"{count_of(found.flagged, 'row')} at {RATE:.0%} false discoveries: {rows} "
    answer += f"{join_words(places, total=found.flagged)}, counted from 0."
    if found.fit == "bad":
        answer += " The model does not fit, and may make outliers of good rows."
    return Line(question, answer, "doubtful")


def _answer_columns(found: Verdict) -> Iterator[Line]:
    if found.left_out:
        names = [f"{name} ({why})" for name, why in found.left_out[:NAMED]]
        if len(found.left_out) > NAMED:
            names.append(f"{count_of(len(found.left_out) - NAMED, 'other')} (all are listed under Columns)")
        yield Line("Columns left out?", f"{join_words(names)}.", "doubtful")
    if found.missing:
        names = [f"{name} ({share:.1%})" for name, share in found.missing[:NAMED]]
        if len(found.missing) > NAMED:
            names.append(count_of(len(found.missing) - NAMED, "other column"))
        yield Line("Missing values?", f"Taken as unknown, none filled in: {join_words(names)}.")
    used, rows = found.read
    if used < rows:
        yield Line("All rows?", f"{used} of {rows} rows were used.")


def _answer_autoencoder(found: Verdict) -> Iterator[Line]:
    """What an autoencoder came to, or why none was tried."""
    deep, question = found.autoencoder, "Autoencoder?"
    bound = "its score is a lower bound of the log-likelihood"
    if deep.obstacle:
        yield Line(question, f"Asked for and not tried: {deep.obstacle}.", "doubtful")
    elif deep.name and deep.behind is None:
        leads = "It leads" if deep.name == found.model else f"{deep.name}: it leads"
        yield Line(question, f"{leads} by at least what the table says: {bound}.")
    elif deep.name and deep.behind is not None:
        yield Line(
            question,
            f"{deep.name}: behind the best by at most {format_with_error(*deep.behind)} per row; {bound}.",
        )


def _answer_warnings(found: Verdict) -> Iterator[Line]:
    if found.warnings:
        answer = " ".join(f"{warning.rstrip('.')}." for warning in found.warnings[:3])
        yield Line("Warnings of the fit?", answer, "doubtful")
    aside = found.set_aside
    if aside.total:
        of_these = f" ({aside.higher} of them scored higher than the best considered)" if aside.higher else ""
        look = (
            f"; look at {join_words(list(aside.columns[:NAMED]))}, mostly one value" if aside.columns else ""
        )
        answer = (
            f"{count_of(aside.total, 'mixture')}{of_these}: components shrank onto few rows or a single value, and "
            f"such a score measures the floor under their variance, not the fit{look}."
        )
        yield Line("Candidates set aside?", answer, "doubtful")
    failed, why = found.failed
    if failed:
        yield Line("Candidates that failed?", f"{join_words(list(failed[:NAMED]))}: {why}", "doubtful")


def advise_next_steps(found: Verdict) -> tuple[str, ...]:
    """What to try next, the most promising first, as sentences without their full stop."""
    return tuple(_suggest_improvements(found)) or tuple(_suggest_conclusions(found))


def _suggest_improvements(found: Verdict) -> Iterator[str]:
    """What may mend the model or settle the choice."""
    logarithms = _columns_of(m for m in found.misfits if m.columns[0] in found.skewed and _is_shape_misfit(m))
    if logarithms:
        shape = "its shape" if len(logarithms) == 1 else "their shapes"
        yield f"Take the logarithm of {_join_names(logarithms)}: positive and skewed, and the model misses {shape}"
    if found.fit == "bad" and found.fitting:
        moments = "its moments" if len(found.fitting) == 1 else "their moments"
        yield f"Look at {_join_names(found.fitting)}: on the same rows {moments} show no misfit"
    if found.at_limit:
        yield f"Try more {found.unit}s: {found.size}, the most on offer, are taken"
    yield from _advise_on_covariances(found)
    yield from _advise_on_tails(found, logarithms)
    if found.counts:
        yield from _advise_on_counts(found)
    lag, error = found.lead
    if found.fitted_rows < FEW_ROWS and found.best != found.model and lag > 0.5 * error:
        yield f"Collect more rows: {found.fitted_rows} cannot settle between the chosen and the best candidate"


def _advise_on_covariances(found: Verdict) -> Iterator[str]:
    pairs = sum(m.moment == "covariance" for m in found.misfits)
    missed = f"{count_of(pairs, 'covariance')} {'is' if pairs == 1 else 'are'} not accounted for"
    if not pairs or (found.at_limit and not found.independent):
        return
    if found.independent:
        yield (
            f"Try full covariances or factors: {missed}, as this model takes columns to be unrelated within a component"
        )
    elif found.larger_tried:
        yield (
            f"Look for groups of rows, or relations that are not straight lines: {missed}, and more {found.unit}s "
            "do not predict held-out rows better"
        )
    else:
        yield f"Try another kind of model: {missed} by {count_of(found.size, found.unit)}"


def _advise_on_tails(found: Verdict, covered: tuple[str, ...]) -> Iterator[str]:
    tails = [m for m in found.misfits if m.moment == "tails" and m.columns[0] not in covered]
    heavier, lighter = _columns_of(m for m in tails if m.z > 0), _columns_of(m for m in tails if m.z < 0)
    if heavier:
        larger = found.unit == "component" and not found.larger_tried
        first = (
            "Look at the outliers below"
            if found.flagged and not found.has_too_many_outliers
            else f"Try {'more components, or ' if larger else ''}a transformation that draws in extreme values"
        )
        yield f"{first}: the tails of {_join_names(heavier)} are heavier than the model's"
    if lighter:
        yield (
            f"See whether {_join_names(lighter)} {'is' if len(lighter) == 1 else 'are'} bounded or cut off: the tails "
            "are lighter than the model's"
        )


def _advise_on_counts(found: Verdict) -> Iterator[str]:
    variances = [m for m in found.misfits if m.moment == "variance"]
    more, less = _columns_of(m for m in variances if m.z > 0), _columns_of(m for m in variances if m.z < 0)
    remedy = "try square roots of the counts, which are then taken for measurements"
    if more:
        yield f"Counts of {_join_names(more)} vary more than the model's Poisson distributions: {remedy}"
    if less:
        yield (
            f"Counts of {_join_names(less)} vary less than the model's Poisson distributions, whose variance is at "
            f"least their mean: {remedy}"
        )


def _suggest_conclusions(found: Verdict) -> Iterator[str]:
    """What to do where nothing is left to try."""
    if found.fit == "bad":
        yield "None of the kinds of model tried fits: decide whether what is missed matters for what the model is for"
    elif found.fit == "partial":
        yield "Decide whether what is missed matters for what the model is for"
    elif found.fit == "unknown":
        yield "Judge the model on new rows before it is used"
    elif found.warnings:
        yield "Look at the warnings of the fit, below, before the model is used"
    else:
        if found.flagged:
            yield "Look at the outliers below, and leave out those that are errors"
        if found.as_good:
            yield (
                f"Score or draw rows with the model, but rest no conclusion on its number of {found.unit}s: other "
                "candidates predict as well"
            )
        if not found.flagged and not found.as_good:
            yield "Nothing urgent: use the model, and judge it again on new rows"


def _is_shape_misfit(misfit: Misfit) -> bool:
    """Whether a positive column that is skewed to the right may misfit so for want of a logarithm."""
    return misfit.moment == "share" or (misfit.moment in ("skewness", "tails") and misfit.z > 0)


def _columns_of(misfits: Iterator[Misfit]) -> tuple[str, ...]:
    """The columns, each once, in order."""
    return tuple(dict.fromkeys(misfit.columns[0] for misfit in misfits))


def _join_names(names: tuple[str, ...]) -> str:
    return join_words(names, most=NAMED)
