"""What pages are made of: tables of text, and templates that escape what they are given."""

from __future__ import annotations

import base64
import html
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sklearn
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from boxloop.numeric import format_number, format_with_error
from boxloop.report.examine import Finalist, Findings
from boxloop.report.explain import Explanation
from boxloop.report.outliers import Outlying
from boxloop.report.read import Array
from boxloop.report.text import escape_controls
from boxloop.report.verdict import Misfit
from boxloop.version import __version__

BOUND = "The score of an autoencoder is a lower bound of its log-likelihood: it may be better than it looks."
MOST_ROWS = 40
"""Most columns, or misfits, that a table lists."""


@dataclass(frozen=True)
class Table:
    """Heads and cells, all of them text; ``marked`` is the row to look at first."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None
    note: str = ""


def candidate_table(found: Findings) -> Table:
    """Every candidate, best first; those that were not considered come after all others."""
    lag = np.where(np.isfinite(found.behind[:, 0]), found.behind[:, 0], np.inf)
    order = np.lexsort((lag, ~found.sound)).tolist()
    rows = []
    for place in order:
        trial = found.trials[place]
        behind = "best" if place == found.best else format_with_error(*found.behind[place])
        level = "-" if trial.failure else format_with_error(*trial.score)
        size = f"{trial.n_parameters:.0f}" if np.isfinite(trial.n_parameters) else "-"
        cells = [size, level, "-" if trial.failure else behind]
        remark = _remark(found, place)
        rows.append(
            [trial.candidate.name, *cells, format_number(trial.aic, 6), format_number(trial.bic, 6), remark]
        )
    heads = [
        "candidate",
        "parameters",
        "held-out log-likelihood per row",
        "behind the best",
        "AIC",
        "BIC",
        "fits",
    ]
    note = BOUND if any(trial.candidate.bounded for trial in found.trials) else ""
    return Table(heads, rows, order.index(found.chosen), note)


def _remark(found: Findings, place: int) -> str:
    trial = found.trials[place]
    if trial.unusable:
        return "failed"
    if place in found.set_aside:
        return "set aside: collapsed"
    return "collapsed" if trial.collapsed else "warned" if trial.troubles else ""


def finalist_table(found: Findings) -> Table:
    """The finalists on the rows that judge."""
    rows = [[f.trial.candidate.name, format_with_error(*f.score), *_gaps(f)] for f in found.finalists]
    heads = [
        "finalist",
        "log-likelihood per row",
        "means",
        "covariances",
        "skewness",
        "tails",
        "shape",
        "together",
        "note",
    ]
    note = BOUND if any(f.trial.candidate.bounded for f in found.finalists) else ""
    return Table(heads, rows, 0, note)


def _gaps(finalist: Finalist) -> list[str]:
    found = finalist.criticism
    cells = [chance(gap.p_value) for gap in found.gaps] + [chance(found.p_value)]
    return [*cells, "" if found.parameter_error == "included" else "error of the fit left out: p too small"]


def chance(value: float | None) -> str:
    """A p-value.

    Example:
        >>> chance(0.0404), chance(0.002), chance(None)
        ('0.04', '0.002', '-')
    """
    return "-" if value is None else f"{value:.2g}"


def misfit_table(misfits: Sequence[Misfit]) -> Table:
    """The moments that misfit, worst first."""
    rows = [
        [m.what, *m.values(), f"{m.z:+.1f}", chance(m.p_value), chance(m.discovery)]
        for m in misfits[:MOST_ROWS]
    ]
    left = len(misfits) - len(rows)
    note = f"{left} more are in report.json." if left > 0 else ""
    return Table(["moment", "data", "model", "z", "p-value", "false-discovery rate"], rows, None, note)


def part_table(parts: Explanation) -> Table:
    """Components or factors by column."""
    shown = parts.order[:MOST_ROWS]
    rows = []
    if parts.weights is not None:
        rows.append(["weight", *(_share(*pair) for pair in zip(*parts.weights, strict=True))])
    for j in shown:
        pairs = zip(parts.values[:, j].tolist(), parts.errors[:, j].tolist(), strict=True)
        extra = [] if parts.explained is None else [f"{parts.explained[j]:.0%}"]
        rows.append([parts.names[j], *(format_with_error(*pair) for pair in pairs), *extra])
    heads = ["", *(_head(parts.word, k, line) for k, line in enumerate(parts.values))]
    left = len(parts.order) - len(shown)
    note = f"{left} columns that tell the {parts.word}s apart least are left out." if left > 0 else ""
    return Table([*heads, *(["explained"] if parts.explained is not None else [])], rows, None, note)


def _head(word: str, place: int, values: Array) -> str:
    return f"{word} {place}{' (not in use)' if np.isnan(values).all() else ''}"


def _share(value: float, error: float) -> str:
    return f"{value:.1%}" if not np.isfinite(error) else f"{value:.1%} ± {error:.1%}"


def outlier_table(found: Outlying) -> Table:
    """The strangest rows and why."""
    rows = [
        [
            str(row.place),
            format_number(row.score),
            chance(row.p_value),
            "yes" if row.flagged else "",
            "; ".join(f"{name} = {value:.4g} (-{drop:.1f})" for name, value, drop in row.reasons),
        ]
        for row in found.rows
    ]
    heads = ["row", "log-density", "p-value", "outlier", "columns that make it so (drop in log-density)"]
    return Table(heads, rows)


def column_table(found: Findings) -> Table:
    """Every column of the data."""
    rows = []
    for column in found.table.columns:
        numbers = (
            column.mean,
            column.deviation,
            column.lowest,
            column.highest,
            column.skewness,
            column.tails,
        )
        said = f"left out: {column.aside}" if column.aside else ", ".join(column.notes)
        cells = [format_number(value, 3) for value in numbers]
        rows.append([column.name, *cells, f"{column.missing:.1%}", str(column.distinct or "-"), said])
    heads = [
        "column",
        "mean",
        "deviation",
        "lowest",
        "highest",
        "skewness",
        "tails",
        "missing",
        "values",
        "remarks",
    ]
    return Table(heads, rows)


def template(name: str) -> Template:
    """A template by its file name; those of pages escape every value.

    Args:
        name: such as ``report.html.jinja``.
    """
    environment = Environment(
        loader=PackageLoader("boxloop.report"),
        autoescape=name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_written_out,
    )
    environment.filters["data"] = lambda png: base64.b64encode(png).decode()
    environment.filters["markdown"] = escape_markdown
    environment.filters["shown"] = escape_controls
    return environment.get_template(name)


def _written_out(value: object) -> object:
    """A value of a template without control characters: on a page, too, they could turn the direction of words."""
    return escape_controls(value, keep="\n\t") if type(value) is str else value


def escape_markdown(text: object) -> str:
    r"""Text as Markdown shows it on one line, in a table or out of one: no markup, no tags, no cell of its own.

    Example:
        >>> escape_markdown("<b> a|b *c* $d$ my_column")
        '&lt;b&gt; a\\|b \\*c\\* \\$d\\$ my_column'
    """
    line = escape_controls(" ".join(str(text).split("\n")), keep="")
    line = re.sub(r"([\\`*\[\]|~$!]|(?<!\w)_|_(?!\w))", r"\\\1", line)
    return html.escape(line, quote=False)


def versions() -> dict[str, str]:
    """Of all that numbers may depend on."""
    return {
        "boxloop": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
