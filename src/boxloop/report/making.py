"""A report in one call: its result, and the files that it is written to."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from boxloop.data import check_count, check_list, fingerprint_file
from boxloop.numeric import format_number, single_threaded
from boxloop.persist import write_atomic
from boxloop.report import tables
from boxloop.report.answers import Line, write_lines
from boxloop.report.examine import Finalist, Findings, Tell, examine
from boxloop.report.explain import Explanation, explain
from boxloop.report.outliers import Outlying, outlying
from boxloop.report.pages import template, versions
from boxloop.report.pictures import Picture, overview, pictures
from boxloop.report.read import MOST_ROWS, Table, read_table
from boxloop.report.text import plain
from boxloop.report.verdict import Misfit, Verdict, judge, misfits

SUFFIXES = (".md", ".json", ".png", ".boxloop")


def page_files(page: Path) -> list[Path]:
    """The page and the files beside it.

    Raises:
        ValueError: a name that does not end in ``.html``.
    """
    if page.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{page}: the name of a page must end in .html")
    return [page, *(page.with_suffix(suffix) for suffix in SUFFIXES)]


def check_replaceable(files: Iterable[Path], record: Path) -> None:
    """Refuse to replace files that no report wrote, or that have changed since.

    Args:
        files: those that are there and would be replaced.
        record: the JSON file of the earlier report, which holds the SHA-256 of the others.

    Raises:
        FileExistsError: one that is not as a report wrote it, or a link that leads nowhere; nothing has been written.
    """
    written = _digests(record)
    for file in files:
        if not file.is_symlink() and not file.exists():
            continue
        ours = (
            file.exists()
            and written is not None
            and (file == record or written.get(file.suffix) == fingerprint_file(file))
        )
        if not ours:
            raise FileExistsError(
                f"{file}: not written by a report, or changed since; give another name for the page, or --force "
                "(force=True) to replace it"
            )


def _digests(record: Path) -> dict[str, Any] | None:
    """What a report noted of the files beside it; None where the file is none of a report."""
    try:
        facts = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or "verdict" not in facts or not isinstance(facts.get("files"), dict):
        return None
    found: dict[str, Any] = facts["files"]
    return found


OTHERS = 10
"""Misfits shown of each finalist that was not taken."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Findings and all that is said about them.

    Args:
        found: the findings.
        command: what a reader types to have the same report.
        verdict: what it comes to.
        parts: its components, factors or codes.
        outlying: the strangest rows.
    """

    found: Findings
    command: str
    verdict: Verdict
    parts: Explanation
    outlying: Outlying

    @property
    def lines(self) -> tuple[Line, ...]:
        """The verdict as questions and answers."""
        return write_lines(self.verdict)

    @property
    def misfits(self) -> tuple[Misfit, ...]:
        """The moments in which the chosen model fails."""
        return self.verdict.misfits

    @property
    def estimator(self) -> Any:
        """The model taken, fitted to the rows that chose it."""
        return self.found.model.estimator

    def __str__(self) -> str:
        return "\n".join(f"{line.question} {line.answer}" for line in self.lines)

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
        page, markdown, numbers, picture, model = page_files(Path(path))
        if not force:
            check_replaceable([markdown, numbers, picture, model], numbers)
        self.estimator.save(model)
        write_atomic(page, as_html(self, model.name).encode())
        write_atomic(markdown, as_markdown(self, model.name).encode())
        write_atomic(picture, overview(self.found))
        digests = {file.suffix: fingerprint_file(file) for file in (page, markdown, picture, model)}
        write_atomic(numbers, as_json(self, digests).encode())
        return [page, markdown, numbers, picture, model]


def written_up(found: Findings, command: str) -> Report:
    """Work out all that the page will say.

    Args:
        found: what :func:`boxloop.report.examine.examine` gave.
        command: that reproduces it.
    """
    strange = outlying(found)
    return Report(found, command, judge(found, strange), explain(found), strange)


def as_html(report: Report, model: str) -> str:
    """One page with nothing to fetch from elsewhere.

    Args:
        report: what to say.
        model: name of the model file beside the page.
    """
    return _render("report.html.jinja", report, model, pictures(report.found, report.parts, report.outlying))


def as_markdown(report: Report, model: str) -> str:
    """The same without pictures."""
    return _render("report.md.jinja", report, model, {})


def _render(name: str, report: Report, model: str, drawn: dict[str, Picture]) -> str:
    found = report.found
    return template(name).render(
        report=report,
        found=found,
        table=found.table,
        chosen=found.trials[found.chosen].candidate,
        pictures=drawn,
        candidates=tables.candidate_table(found),
        finalists=tables.finalist_table(found),
        misfits=tables.misfit_table(report.misfits),
        others=[
            (place, f.trial.candidate.name, tables.misfit_table(misfits(f)[:OTHERS]))
            for place, f in enumerate(found.finalists)
            if place
        ],
        parts=tables.part_table(report.parts),
        outliers=tables.outlier_table(report.outlying),
        columns=tables.column_table(found),
        number=format_number,
        versions=versions(),
        model=model,
    )


def facts(report: Report) -> dict[str, Any]:
    """All numbers, for programs."""
    found = report.found
    return {
        "format": 1,
        "data": {"label": found.table.label, "sha256": found.table.digest, "rows": found.table.n_rows},
        "rows": {"used": len(found.table.rows), "first": len(found.first), "second": len(found.second)},
        "values": found.table.kind,
        "seed": found.seed,
        "folds": found.folds,
        "command": report.command,
        "versions": versions(),
        "verdict": [asdict(line) for line in report.lines],
        "columns": [asdict(column) for column in found.table.columns],
        "candidates": [_trial(found, place) for place in range(len(found.trials))],
        "not_tried": {"autoencoder": found.without} if found.without else {},
        "finalists": [_finalist(f) for f in found.finalists],
        "path": {"breakpoints": found.path.breakpoints, "chosen": found.path.chosen},
        "misfits": [{"what": misfit.what, **asdict(misfit)} for misfit in report.misfits],
        "parts": {
            key: getattr(report.parts, key)
            for key in (
                "word",
                "meaning",
                "names",
                "values",
                "errors",
                "weights",
                "spread",
                "explained",
                "notes",
            )
        },
        "outliers": {
            "flagged": report.outlying.flagged,
            "threshold": report.outlying.threshold,
            "rows": [asdict(row) for row in report.outlying.rows],
        },
    }


def as_json(report: Report, files: Mapping[str, str]) -> str:
    """The same as text, with the SHA-256 of the files beside it; what is not finite is null."""
    return json.dumps(plain({**facts(report), "files": files}), indent=1, ensure_ascii=False) + "\n"


def _trial(found: Findings, place: int) -> dict[str, Any]:
    trial = found.trials[place]
    behind, error = found.behind[place]
    return {
        "name": trial.candidate.name,
        "family": trial.candidate.family,
        "size": trial.candidate.size,
        "used": trial.candidate.used,
        "lower_bound": trial.candidate.bounded,
        "n_parameters": trial.n_parameters,
        "log_likelihood": trial.score[0],
        "error": trial.score[1],
        "behind": behind,
        "behind_error": error,
        "aic": trial.aic,
        "bic": trial.bic,
        "chosen": place == found.chosen,
        "set_aside": place in found.set_aside,
        "warnings": trial.troubles,
        "failure": trial.failure,
    }


def _finalist(finalist: Finalist) -> dict[str, Any]:
    criticism = finalist.criticism
    return {
        "name": finalist.trial.candidate.name,
        "log_likelihood": finalist.score[0],
        "error": finalist.score[1],
        "p_value": criticism.p_value,
        "training_error": criticism.parameter_error,
        "p_values": {gap.name: gap.p_value for gap in criticism.gaps},
        "norms": {gap.name: gap.norm() for gap in criticism.gaps},
    }


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
    tell: Tell = lambda what, share: None,
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
        tell: told what is being done, and which share of the whole is done.

    Returns:
        The report: print it for the verdict, ``save`` it for the page.

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
    command = spelled(data, columns, drop, rows, random_state, deep)
    return report_on(table, command, random_state, jobs, deep, tell)


def report_on(table: Table, command: str, seed: int, jobs: int | None, deep: bool, tell: Tell) -> Report:
    """The report on rows that were read.

    Args:
        table: what :func:`boxloop.report.read.read_table` gave.
        command: that reproduces the report.
        seed: of every random choice.
        jobs: fits at the same time; all cores when None.
        deep: whether to try a small variational autoencoder, too.
        tell: told what is being done, and which share of the whole is done.
    """
    found = examine(table, seed, jobs or os.cpu_count(), tell, deep)
    tell("writing", 0.99)
    return written_up(found, command)


def spelled(
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
