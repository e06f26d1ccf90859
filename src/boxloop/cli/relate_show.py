"""The findings of ``boxloop relate`` as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boxloop.cli.output import echo_table, echo_text
from boxloop.cli.relate_judge import LOADINGS
from boxloop.numeric import format_number, format_with_error

MOST_LINES, MOST_NAMES = 20, 4


def show(found: Mapping[str, Any]) -> None:
    """Print what was found."""
    rows = found["rows"]
    other = "" if found["other"] is None else f" and {found['other']}"
    echo_text(f"x: {_view(found['x'])}\ny: {_view(found['y'])}")
    echo_text(
        f"of {found['data']}{other}: {rows['fit']} rows of the fit, {rows['judged']} set apart to judge it\n"
    )
    _variables(found)
    _columns(found)
    echo_text(
        "Relevance: squared correlation of a pair. Share: of the variance; below 0, the mean is a better guess."
    )
    echo_text(
        f"Both on the rows set apart, with p adjusted for their number (false discoveries: {found['rate']:g})."
    )
    for one in found["labels"]:
        right = format_with_error(100.0 * one["right"], 100.0 * one["right_error"])
        echo_text(
            f"{one['column']} is told right in {right}% of the rows; always the most common: "
            f"{100.0 * one['most_common']:.0f}%."
        )
    echo_text(f"Relevance of all pairs: {format_with_error(found['total'], found['total_error'])}.")
    echo_text(_sentence(found["verdict"]))
    if found["overfitted"]:
        trained = format_number(sum(one["fit_relevance"] for one in found["variables"]), 3)
        echo_text(
            f"The fit has learned its own rows, where the relevance is {trained}: more rows, a smaller -k or simpler "
            "--features help."
        )
    for name in ("output", "figure"):
        if found[name] is not None:
            echo_text(f"Written: {found[name]}")
    if found["worries"]:
        echo_text("\n".join(["Worries:", *(f"- {line}" for line in found["worries"])]))


def _view(view: Mapping[str, Any]) -> str:
    names = view["columns"]
    if view["labels"] is not None:
        labels = list(map(str, view["labels"]))
        return f"{names[0]}, {len(labels)} labels ({_some(labels)})"
    count = f"{len(names)} columns" if len(names) > 1 else "1 column"
    return f"{count} ({_some(names)}), {view['features']} features"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def _variables(found: Mapping[str, Any]) -> None:
    heads = ["pair", "relevance", "in the fit", "p", "columns, by their correlation with it"]
    shown = found["variables"][:MOST_LINES]
    rows = [
        [
            str(one["variable"]),
            format_with_error(one["relevance"], one["relevance_error"]),
            format_number(one["fit_relevance"], 2),
            _chance(one["adjusted"]),
            "\n".join(f"{side}: {_loaded(one[side][:LOADINGS])}" for side in "xy"),
        ]
        for one in shown
    ]
    title = "Pairs of variables, one of each view"
    if len(shown) < len(found["variables"]):
        title += f"; the first {len(shown)} of {len(found['variables'])}, --json has all"
    echo_table(title, heads, rows, words=heads[-1:], lines=True)


def _loaded(columns: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['column']} {one['loading']:+.2f}" for one in columns)


def _columns(found: Mapping[str, Any]) -> None:
    for way, given in (("y", "x"), ("x", "y")):
        lines = [line for line in found["columns"] if line["view"] == way]
        if not lines:
            continue
        best = sorted(lines, key=lambda line: -line["share"] if line["share"] == line["share"] else 2.0)
        rows = [
            [
                line["column"],
                "constant"
                if line["share"] != line["share"]
                else format_with_error(line["share"], line["error"]),
                _chance(line["adjusted"]),
                "" if line["significant"] else "not significant",
            ]
            for line in best[:MOST_LINES]
        ]
        title = f"Share of {way} inferred from {given}"
        if len(rows) < len(lines):
            title += f"; the first {len(rows)} of {len(lines)}"
        heads = ["column", "share", "p", ""]
        echo_table(title, heads, rows, words=heads[-1:])


def _chance(value: float) -> str:
    return format_number(value, 2) if value >= 1e-4 else "< 0.0001"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
