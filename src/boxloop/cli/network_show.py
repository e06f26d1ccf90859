"""The findings of ``boxloop network`` as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from boxloop.cli.output import echo_styled, echo_table, echo_text
from boxloop.numeric import format_number, format_with_error
from boxloop.report import LEVEL, NetworkFindings, measures, note

COLOURS = {"good": "green", "doubtful": "yellow", "bad": "red", "not run": "none"}


def show(found: NetworkFindings, facts: Mapping[str, Any]) -> None:
    """Print what was found."""
    problem, rows = found.problem, facts["rows"]
    count = f"{len(problem.names)} column{'' if len(problem.names) == 1 else 's'}"
    echo_text(f"{problem.target} from {count} of {problem.label}: {problem.told}")
    echo_text(f"{rows['fit']} rows of the fit, {rows['held_out']} held out to judge it")
    if problem.left_out:
        echo_text(f"Left out, as they hold no numbers: {', '.join(problem.left_out)}")
    echo_text()
    heads, lines = scored(found)
    echo_table("On the rows held out", heads, lines)
    echo_styled("", "none", explained(found))
    echo_text()
    for worry in found.worries:
        then = f" Next: {worry.next}." if worry.next else ""
        echo_styled(f"{worry.level}: {worry.what}. ", f"bold {COLOURS[worry.level]}", f"{worry.why}.{then}")
    for event in found.events:
        echo_styled("", "none", f"Of the fit: {event}.")
    for name in ("output", "page", "figure"):
        if facts[name] is not None:
            echo_text(f"Written: {facts[name]}")


def scored(found: NetworkFindings) -> tuple[list[str], list[list[str]]]:
    """The predictors side by side, in as many columns as a terminal has room for; JSON and the page have more."""
    numbers = found.problem.kind == "regression"
    lines = []
    for name, scores in found.scores.items():
        facts, lead = measures(scores), found.ahead.get(name)
        if numbers:
            own = [format_with_error(*facts["rmse"]), f"{facts['coverage'][0]:.0%}"]
        else:
            own = [
                format_with_error(*(100.0 * v for v in facts["accuracy"])),
                format_number(facts["miscalibration"][0], 2),
            ]
        told = "" if lead is None else format_with_error(lead.value, lead.standard_error)
        lines.append([name, own[0], format_with_error(*facts["log_score"]), own[1], told])
    heads = ["RMSE", "log score", f"in {LEVEL:.0%}"] if numbers else ["% right", "log score", "calibration"]
    return ["predictor", *heads, "network's lead"], lines


def explained(found: NetworkFindings) -> str:
    """What the columns are."""
    if found.problem.kind == "regression":
        return (
            "Log score: mean log-density of what was observed. In 90%: rows that lie in intervals which should "
            "hold 90% of them. Lead: in log score, over paired rows."
        )
    return f"{note(found)} Lead: in log score, over paired rows."
