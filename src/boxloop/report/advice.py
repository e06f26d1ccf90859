"""What to try next, by what the verdict holds: which moments misfit, of which columns, and which way."""

from __future__ import annotations

from collections.abc import Iterator

from boxloop.numeric import join_words
from boxloop.report.misfits import Misfit
from boxloop.report.sentences import counted
from boxloop.report.verdict import Verdict

NAMED = 6
"""Most columns or candidates that a sentence names."""
FEW_ROWS = 1000
"""Rows below which more of them are worth asking for."""


def advise(found: Verdict) -> tuple[str, ...]:
    """What to try next, the most promising first, as sentences without their full stop."""
    return tuple(_steps(found)) or tuple(_conclusions(found))


def _steps(found: Verdict) -> Iterator[str]:
    """What may mend the model or settle the choice."""
    logarithms = _named(m for m in found.misfits if m.columns[0] in found.skewed and _is_shape(m))
    if logarithms:
        shape = "its shape" if len(logarithms) == 1 else "their shapes"
        yield f"Take the logarithm of {_list(logarithms)}: positive and skewed, and the model misses {shape}"
    if found.fit == "bad" and found.fitting:
        moments = "its moments" if len(found.fitting) == 1 else "their moments"
        yield f"Look at {_list(found.fitting)}: on the same rows {moments} show no misfit"
    if found.at_limit:
        yield f"Try more {found.unit}s: {found.size}, the most on offer, are taken"
    yield from _covariances(found)
    yield from _tails(found, logarithms)
    if found.counts:
        yield from _counts(found)
    lag, error = found.lead
    if found.fitted_rows < FEW_ROWS and found.best != found.model and lag > 0.5 * error:
        yield f"Collect more rows: {found.fitted_rows} cannot settle between the chosen and the best candidate"


def _covariances(found: Verdict) -> Iterator[str]:
    pairs = sum(m.moment == "covariance" for m in found.misfits)
    missed = f"{counted(pairs, 'covariance')} {'is' if pairs == 1 else 'are'} not accounted for"
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
        yield f"Try another kind of model: {missed} by {counted(found.size, found.unit)}"


def _tails(found: Verdict, settled: tuple[str, ...]) -> Iterator[str]:
    tails = [m for m in found.misfits if m.moment == "tails" and m.columns[0] not in settled]
    heavier, lighter = _named(m for m in tails if m.z > 0), _named(m for m in tails if m.z < 0)
    if heavier:
        larger = found.unit == "component" and not found.larger_tried
        first = (
            "Look at the outliers below"
            if found.flagged and not found.too_many_flagged
            else f"Try {'more components, or ' if larger else ''}a transformation that draws in extreme values"
        )
        yield f"{first}: the tails of {_list(heavier)} are heavier than the model's"
    if lighter:
        yield (
            f"See whether {_list(lighter)} {'is' if len(lighter) == 1 else 'are'} bounded or cut off: the tails are "
            "lighter than the model's"
        )


def _counts(found: Verdict) -> Iterator[str]:
    variances = [m for m in found.misfits if m.moment == "variance"]
    more, less = _named(m for m in variances if m.z > 0), _named(m for m in variances if m.z < 0)
    remedy = "try square roots of the counts, which are then taken for measurements"
    if more:
        yield f"Counts of {_list(more)} vary more than the model's Poisson distributions: {remedy}"
    if less:
        yield (
            f"Counts of {_list(less)} vary less than the model's Poisson distributions, whose variance is at least "
            f"their mean: {remedy}"
        )


def _conclusions(found: Verdict) -> Iterator[str]:
    """What to do where nothing is left to try."""
    if found.fit == "bad":
        yield "None of the kinds of model tried fits: decide whether what is missed matters for what the model is for"
    elif found.fit == "partial":
        yield "Decide whether what is missed matters for what the model is for"
    elif found.fit == "unknown":
        yield "Judge the model on new rows before it is used"
    elif found.troubles:
        yield "Look at the trouble in the fit, below, before the model is used"
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


def _is_shape(misfit: Misfit) -> bool:
    """Whether a positive column that is skewed to the right may misfit so for want of a logarithm."""
    return misfit.moment == "share" or (misfit.moment in ("skewness", "tails") and misfit.z > 0)


def _named(misfits: Iterator[Misfit]) -> tuple[str, ...]:
    """The columns, each once, in order."""
    return tuple(dict.fromkeys(misfit.columns[0] for misfit in misfits))


def _list(names: tuple[str, ...]) -> str:
    return join_words(names, most=NAMED)
