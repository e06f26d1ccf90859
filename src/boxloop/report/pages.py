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
from boxloop.report.examine import Findings
from boxloop.report.explain import Explanation
from boxloop.report.outliers import Outliers
from boxloop.report.text import escape_controls
from boxloop.report.verdict import Misfit
from boxloop.version import __version__

BOUND = "The score of an autoencoder is a lower bound of its log-likelihood: it may be better than it looks."
MOST_LINES = 40
"""Most columns, or misfits, that a table lists."""


@dataclass(frozen=True)
class TextTable:
    """Heads and cells, all of them text; ``marked`` is the row to look at first."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None
    note: str = ""


def tabulate_candidates(found: Findings) -> TextTable:
    """Every candidate, best first; those that were not considered come after all others."""
    lag = np.where(np.isfinite(found.behind_best[:, 0]), found.behind_best[:, 0], np.inf)
    order = np.lexsort((lag, ~found.eligible)).tolist()
    rows = []
    for place in order:
        trial = found.trials[place]
        behind = "best" if place == found.best else format_with_error(*found.behind_best[place])
        level = "-" if trial.failure else format_with_error(*trial.score)
        size = f"{trial.n_parameters:.0f}" if np.isfinite(trial.n_parameters) else "-"
        cells = [size, level, "-" if trial.failure else behind]
        remark = _name_problem(found, place)
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
    note = BOUND if any(trial.candidate.is_lower_bound for trial in found.trials) else ""
    return TextTable(heads, rows, order.index(found.chosen), note)


def _name_problem(found: Findings, place: int) -> str:
    trial = found.trials[place]
    if trial.reason_unusable:
        return "failed"
    if place in found.set_aside:
        return "set aside: collapsed"
    return "collapsed" if trial.has_collapsed else "warned" if trial.warnings else ""


def tabulate_finalists(found: Findings) -> TextTable:
    """The finalists on the held-out rows."""
    rows = []
    for finalist in found.finalists:
        criticism = finalist.criticism
        chances = [format_p_value(gap.p_value) for gap in criticism.gaps] + [
            format_p_value(criticism.p_value)
        ]
        remark = "" if criticism.parameter_error == "included" else "error of the fit left out: p too small"
        rows.append([finalist.trial.candidate.name, format_with_error(*finalist.score), *chances, remark])
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
    note = BOUND if any(f.trial.candidate.is_lower_bound for f in found.finalists) else ""
    return TextTable(heads, rows, 0, note)


def format_p_value(value: float | None) -> str:
    """A p-value.

    Example:
        >>> format_p_value(0.0404), format_p_value(0.002), format_p_value(None)
        ('0.04', '0.002', '-')
    """
    return "-" if value is None else f"{value:.2g}"


def tabulate_misfits(misfits: Sequence[Misfit]) -> TextTable:
    """The moments that misfit, worst first."""
    rows = [
        [
            m.description,
            *m.format_values(),
            f"{m.z:+.1f}",
            format_p_value(m.p_value),
            format_p_value(m.p_adjusted),
        ]
        for m in misfits[:MOST_LINES]
    ]
    left = len(misfits) - len(rows)
    note = f"{left} more are in report.json." if left > 0 else ""
    return TextTable(["moment", "data", "model", "z", "p-value", "false-discovery rate"], rows, None, note)


def tabulate_parts(parts: Explanation) -> TextTable:
    """Components or factors by column."""
    shown = parts.order[:MOST_LINES]
    rows = []
    if parts.weights is not None:
        shares = zip(*parts.weights, strict=True)
        rows.append(["weight", *(f"{x:.1%}" + (f" ± {e:.1%}" if np.isfinite(e) else "") for x, e in shares)])
    for j in shown:
        pairs = zip(parts.values[:, j].tolist(), parts.errors[:, j].tolist(), strict=True)
        extra = [] if parts.explained is None else [f"{parts.explained[j]:.0%}"]
        rows.append([parts.names[j], *(format_with_error(*pair) for pair in pairs), *extra])
    idle = [bool(np.isnan(line).all()) for line in parts.values]
    heads = ["", *(f"{parts.kind} {k}{' (not in use)' if idle[k] else ''}" for k in range(len(idle)))]
    left = len(parts.order) - len(shown)
    note = f"{left} columns that distinguish the {parts.kind}s least are left out." if left > 0 else ""
    return TextTable([*heads, *(["explained"] if parts.explained is not None else [])], rows, None, note)


def tabulate_outliers(found: Outliers) -> TextTable:
    """The least likely rows and the columns that make them so."""
    rows = [
        [
            str(row.row),
            format_number(row.log_density),
            format_p_value(row.p_value),
            "yes" if row.flagged else "",
            "; ".join(f"{name} = {value:.4g} (-{drop:.1f})" for name, value, drop in row.reasons),
        ]
        for row in found.rows
    ]
    heads = ["row", "log-density", "p-value", "outlier", "columns that make it so (drop in log-density)"]
    return TextTable(heads, rows)


def tabulate_columns(found: Findings) -> TextTable:
    """Every column of the data."""
    rows = []
    for column in found.table.columns:
        c = column
        numbers = (c.mean, c.std, c.lowest, c.highest, c.skewness, c.excess_kurtosis)
        remark = f"left out: {column.left_out}" if column.left_out else ", ".join(column.notes)
        cells = [format_number(value, 3) for value in numbers]
        rows.append([column.name, *cells, f"{column.missing:.1%}", str(column.distinct or "-"), remark])
    heads = [
        "column",
        "mean",
        "std",
        "lowest",
        "highest",
        "skewness",
        "tails",
        "missing",
        "values",
        "remarks",
    ]
    return TextTable(heads, rows)


def load_template(name: str) -> Template:
    """A template by its file name; those of pages escape every value."""
    environment = Environment(
        loader=PackageLoader("boxloop.report"),
        autoescape=name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_escape_value,
    )
    environment.filters["data"] = lambda png: base64.b64encode(png).decode()
    environment.filters["markdown"] = escape_markdown
    environment.filters["shown"] = escape_controls
    return environment.get_template(name)


def _escape_value(value: object) -> object:
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


def list_versions() -> dict[str, str]:
    """Versions of all that numbers may depend on."""
    return {
        "boxloop": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
