"""The whole report in its three forms: a page, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from boxloop.data import fingerprint_file
from boxloop.numeric import format_number
from boxloop.persist import write_atomic
from boxloop.report import tables
from boxloop.report.explain import Explanation, explain
from boxloop.report.findings import Finalist, Findings
from boxloop.report.lines import Line, write_lines
from boxloop.report.misfits import Misfit, misfits
from boxloop.report.outlying import Outlying, outlying
from boxloop.report.pages import template, versions
from boxloop.report.pictures import Picture, overview, pictures
from boxloop.report.plain import plain
from boxloop.report.siblings import check_replaceable, page_files
from boxloop.report.verdict import Verdict, judge

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
