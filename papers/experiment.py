"""What an experiment reports: claims of a paper beside our numbers, each with a verdict and a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal[
    "reproduced",
    "reproduced in distribution",
    "not reproduced",
    "target met",
    "target missed",
    "too few repetitions",
]
"""A target is our own, where the paper makes no claim. The last is for a claim that fails at a small size."""


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Args:
        claim: what is being compared.
        paper: the paper's number or statement, as text.
        ours: our number, or a short statement.
        error: standard error of our number, where it is an estimate.
        verdict: whether the claim holds.
        reason: why, in one sentence.
        exact: whether the size of the run cannot explain the verdict: an identity, or an error in the paper.
    """

    claim: str
    paper: str
    ours: str
    error: float | None
    verdict: Verdict
    reason: str
    exact: bool = False

    def at_quick_size(self) -> Finding:
        """The same from a small run, which can support a claim about averages but not contradict it."""
        if self.exact or self.verdict not in ("not reproduced", "target missed"):
            return self
        why = f"{self.reason} Run without --quick to judge it."
        return replace(self, verdict="too few repetitions", reason=why)


@dataclass(frozen=True)
class Report:
    """Findings, curves and figures of one experiment."""

    name: str
    title: str
    settings: dict[str, Any]
    findings: list[Finding]
    curves: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def at_quick_size(self) -> Report:
        """The same with the verdicts that a small run allows."""
        return replace(self, findings=[finding.at_quick_size() for finding in self.findings])

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [
            f"# {self.title}",
            "",
            f"`python -m papers {self.name}` with {_settings(self.settings)}.",
            "",
        ]
        lines += ["| claim | document | ours | verdict | why |", "| --- | --- | --- | --- | --- |"]
        for f in self.findings:
            ours = f.ours if f.error is None else f"{f.ours} ± {f.error:.2g}"
            lines.append(f"| {f.claim} | {f.paper} | {ours} | **{f.verdict}** | {f.reason} |")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write JSON, Markdown and PNG files; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "name": self.name,
            "title": self.title,
            "settings": self.settings,
            "findings": [asdict(f) for f in self.findings],
            "curves": self.curves,
        }
        paths = [folder / f"{self.name}.json", folder / f"{self.name}.md"]
        paths[0].write_text(json.dumps(facts, indent=1) + "\n")
        paths[1].write_text(self.markdown())
        for name, figure in self.figures.items():
            paths.append(folder / f"{self.name}-{name}.png")
            figure.savefig(paths[-1], dpi=150, bbox_inches="tight")
        return paths


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


@dataclass(frozen=True)
class Options:
    """How to run an experiment.

    Args:
        quick: a small size, for tests.
        seed: of the first repetition; the others follow it.
        data: folder of real data, for experiments that use them.
        progress: called with (done, total, description) as the work goes on.
    """

    quick: bool = False
    seed: int = 0
    data: Path | None = None
    progress: Callable[[int, int, str], None] = lambda done, total, what: None


Experiment = Callable[[Options], Report]
"""Every file of this folder that defines ``experiment`` is one, named after the file."""
