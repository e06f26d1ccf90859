"""A report in one call: its result, and the files that it is written to."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from boxloop.data import check_count, check_list, fingerprint_file
from boxloop.numeric import format_number, single_threaded
from boxloop.persist import write_atomic
from boxloop.report.answers import Line, answer_questions
from boxloop.report.examine import Finalist, Findings, ProgressCallback, examine_table
from boxloop.report.explain import Explanation, explain_model
from boxloop.report.outliers import Outliers, find_outliers
from boxloop.report.pages import (
    list_versions,
    load_template,
    tabulate_candidates,
    tabulate_columns,
    tabulate_finalists,
    tabulate_misfits,
    tabulate_outliers,
    tabulate_parts,
)
from boxloop.report.pictures import Picture, draw_overview, draw_pictures
from boxloop.report.read import MOST_ROWS, Table, read_table
from boxloop.report.text import to_json_values
from boxloop.report.verdict import Misfit, Verdict, judge_findings, list_misfits

SUFFIXES = (".md", ".json", ".png", ".boxloop")
"""Of the files beside the page."""
OTHERS = 10
"""Misfits shown of each finalist that was not taken."""
PART_KEYS = ("kind", "meaning", "names", "values", "errors", "weights", "error_kind", "explained", "notes")
"""What the JSON says of the parts of the model."""


@single_threaded
def make_report(
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    rows: int = MOST_ROWS,
    random_state: int = 0,
    jobs: int | None = None,
    deep: bool = False,
    tell: ProgressCallback = lambda what, share: None,
) -> Report:
    """Try models on a table, choose one on rows held out, and find where it fails on rows that took no part.

    Args:
        data: a path (CSV, Parquet, ``.npy``, or a folder of these), the name of a bundled data set, a data frame
            (pandas, polars, Arrow), an array, a Dask DataFrame or array, or a source: of the last two only the rows
            that are drawn come here. NaN marks a missing value; columns that no model can use are left out, with the
            reason.
        columns: the columns to look at; all when omitted.
        drop: columns to leave out.
        rows: most rows to work with; of more, so many are drawn.
        random_state: seed of every random choice: the same one gives the same report.
        jobs: fits at the same time; all cores when omitted.
        deep: try a small variational autoencoder, too, which takes longer; its score is a lower bound.
        tell: called with what is being done, and which share of the whole is done.

    Returns:
        The report: print it for the verdict, which a notebook shows by itself; ``save`` it for the page.

    Raises:
        ValueError: a table that cannot be read or has weights, too few rows, or no column that can be used.

    Example:
        >>> from boxloop import make_report
        >>> report = make_report("iris", columns=["petal length (cm)"], jobs=1)
        >>> print(str(report).split(":")[0])
        Which model? Bayesian Gaussian mixture, at most 10 components (uses 2)
    """
    for name, value in (("columns", columns), ("drop", drop)):
        if value is not None:
            check_list(value, name, "names")
    check_count(rows, "rows", 20)
    if jobs is not None:
        check_count(jobs, "jobs")
    table = read_table(data, columns, drop or (), rows, random_state)
    command = spell_command(data, columns, drop, rows, random_state, deep)
    return report_on_table(table, command, random_state, jobs, deep, tell)


def report_on_table(
    table: Table, command: str, seed: int, jobs: int | None, deep: bool, tell: ProgressCallback
) -> Report:
    """The report on rows that were read; ``command`` is what reproduces it."""
    found = examine_table(table, seed, jobs or os.cpu_count(), tell, deep)
    tell("writing", 0.99)
    outliers = find_outliers(found)
    return Report(found, command, judge_findings(found, outliers), explain_model(found), outliers)


def spell_command(
    data: Any, columns: Sequence[str] | None, drop: Sequence[str], rows: int, seed: int, deep: bool
) -> str:
    """The command, or the call, that gives the same report."""
    if not isinstance(data, str | PathLike):
        given = f", columns={list(columns)}" if columns else ""
        left = f", drop={list(drop)}" if drop else ""
        more = ", deep=True" if deep else ""
        return f"boxloop.make_report(data{given}{left}, rows={rows}, random_state={seed}{more})"
    words = ["boxloop", "report", str(data)]
    if columns:
        words += ["--columns", ",".join(f'"{c}"' if "," in c else c for c in columns)]
    for name in drop:
        words += ["--drop", name]
    return shlex.join([*words, "--rows", str(rows), "--seed", str(seed), *(["--deep"] if deep else [])])


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A report: print it for the verdict, ``save`` it for the page; a notebook shows the verdict.

    Args:
        findings: all that was found.
        command: what a reader types to have the same report.
        verdict: what the findings come to.
        parts: components, factors or codes of the chosen model.
        outliers: the rows of lowest density.
    """

    findings: Findings
    command: str
    verdict: Verdict
    parts: Explanation
    outliers: Outliers

    @property
    def lines(self) -> tuple[Line, ...]:
        """The verdict as questions and answers."""
        return answer_questions(self.verdict)

    @property
    def misfits(self) -> tuple[Misfit, ...]:
        """The moments in which the chosen model fails."""
        return self.verdict.misfits

    @property
    def estimator(self) -> Any:
        """The model taken, fitted to the rows that chose it."""
        return self.findings.model.estimator

    def __str__(self) -> str:
        return "\n".join(f"{line.question} {line.answer}" for line in self.lines)

    def _repr_html_(self) -> str:
        """The verdict, for notebooks: every text is escaped, and nothing runs or is fetched."""
        return load_template("verdict.html.jinja").render(report=self, table=self.findings.table)

    def save(self, path: str | PathLike[str], *, force: bool = False) -> list[Path]:
        """Write the page, and beside it the same as Markdown, all numbers as JSON, a picture and the model.

        Args:
            path: of the page, ``report.html`` say; a page of this name is replaced.
            force: whether to replace files beside it that no report wrote, or that have changed since.

        Returns:
            The paths written.

        Raises:
            ValueError: a name that does not end in ``.html``.
            FileExistsError: without ``force``, a file beside the page that no report wrote; nothing is written.
        """
        page, markdown, numbers, picture, model = list_page_files(Path(path))
        if not force:
            check_replaceable([markdown, numbers, picture, model], numbers)
        self.estimator.save(model)
        drawn = draw_pictures(self.findings, self.parts, self.outliers)
        write_atomic(page, _render("report.html.jinja", self, model.name, drawn).encode())
        write_atomic(markdown, _render("report.md.jinja", self, model.name, {}).encode())
        write_atomic(picture, draw_overview(self.findings))
        digests = {file.suffix: fingerprint_file(file) for file in (page, markdown, picture, model)}
        text = json.dumps(
            to_json_values({**report_to_dict(self), "files": digests}), indent=1, ensure_ascii=False
        )
        write_atomic(numbers, f"{text}\n".encode())
        return [page, markdown, numbers, picture, model]


def _render(name: str, report: Report, model: str, drawn: dict[str, Picture]) -> str:
    found = report.findings
    return load_template(name).render(
        report=report,
        found=found,
        table=found.table,
        chosen=found.trials[found.chosen].candidate,
        pictures=drawn,
        candidates=tabulate_candidates(found),
        finalists=tabulate_finalists(found),
        misfits=tabulate_misfits(report.misfits),
        others=[
            (place, f.trial.candidate.name, tabulate_misfits(list_misfits(f)[:OTHERS]))
            for place, f in enumerate(found.finalists)
            if place
        ],
        parts=tabulate_parts(report.parts),
        outliers=tabulate_outliers(report.outliers),
        columns=tabulate_columns(found),
        number=format_number,
        versions=list_versions(),
        model=model,
    )


def report_to_dict(report: Report) -> dict[str, Any]:
    """All numbers, for programs."""
    found = report.findings
    return {
        "format": 2,
        "data": {"label": found.table.label, "sha256": found.table.digest, "rows": found.table.n_rows},
        "rows": {"used": len(found.table.rows), "fit": len(found.fit_rows), "held_out": len(found.held_out)},
        "values": found.table.kind,
        "seed": found.seed,
        "folds": found.n_folds,
        "command": report.command,
        "versions": list_versions(),
        "verdict": [asdict(line) for line in report.lines],
        "columns": [asdict(column) for column in found.table.columns],
        "candidates": [_trial_to_dict(found, place) for place in range(len(found.trials))],
        "not_tried": {"autoencoder": found.autoencoder_obstacle} if found.autoencoder_obstacle else {},
        "finalists": [_finalist_to_dict(f) for f in found.finalists],
        "path": {"breakpoints": found.path.breakpoints, "chosen": found.path.chosen},
        "misfits": [{"description": misfit.description, **asdict(misfit)} for misfit in report.misfits],
        "parts": {key: getattr(report.parts, key) for key in PART_KEYS},
        "outliers": {
            "flagged": report.outliers.flagged,
            "threshold": report.outliers.threshold,
            "rows": [asdict(row) for row in report.outliers.rows],
        },
    }


def _trial_to_dict(found: Findings, place: int) -> dict[str, Any]:
    trial = found.trials[place]
    behind, error = found.behind_best[place]
    return {
        "name": trial.candidate.name,
        "family": trial.candidate.family,
        "size": trial.candidate.size,
        "used": trial.candidate.used,
        "lower_bound": trial.candidate.is_lower_bound,
        "n_parameters": trial.n_parameters,
        "log_likelihood": trial.score[0],
        "error": trial.score[1],
        "behind_best": behind,
        "behind_best_error": error,
        "aic": trial.aic,
        "bic": trial.bic,
        "chosen": place == found.chosen,
        "set_aside": place in found.set_aside,
        "warnings": trial.warnings,
        "failure": trial.failure,
    }


def _finalist_to_dict(finalist: Finalist) -> dict[str, Any]:
    criticism = finalist.criticism
    return {
        "name": finalist.trial.candidate.name,
        "log_likelihood": finalist.score[0],
        "error": finalist.score[1],
        "p_value": criticism.p_value,
        "parameter_error": criticism.parameter_error,
        "p_values": {gap.name: gap.p_value for gap in criticism.gaps},
        "norms": {gap.name: gap.norm() for gap in criticism.gaps},
    }


def list_page_files(page: Path) -> list[Path]:
    """The page and the files beside it."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{page}: the name of a page must end in .html")
    return [page, *(page.with_suffix(suffix) for suffix in SUFFIXES)]


def check_replaceable(files: Iterable[Path], record: Path) -> None:
    """Refuse to replace files that no report wrote, or that have changed since.

    ``record`` is the JSON file of the earlier report, which holds the SHA-256 of the others.
    """
    written = _read_digests(record)
    for file in files:
        if not file.is_symlink() and not file.exists():
            continue
        if written is None or not file.exists():
            ours = False
        else:
            ours = file == record or written.get(file.suffix) == fingerprint_file(file)
        if not ours:
            raise FileExistsError(
                f"{file}: not written by a report, or changed since; give another name for the page, or --force "
                "(force=True) to replace it"
            )


def _read_digests(record: Path) -> dict[str, Any] | None:
    """What a report noted of the files beside it; None where the file is none of a report."""
    try:
        facts = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or "verdict" not in facts or not isinstance(facts.get("files"), dict):
        return None
    found: dict[str, Any] = facts["files"]
    return found
