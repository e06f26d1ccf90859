"""Topics from moments: what exact moments give, errors, intervals that cover, and real text (001)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from papers.experiment import Finding, Options, Report
from papers.topic_figures import draw_coverage, draw_growth, draw_rivals
from papers.topic_findings import (
    judge_coverage,
    judge_exact,
    judge_growth,
    judge_recovery,
    judge_rivals,
    judge_text,
)
from papers.topic_recovery import (
    CASES,
    CONCENTRATION,
    LENGTH,
    TOPICS,
    WORDS,
    against_n,
    covered,
    exact,
    recovered,
    rivals,
)
from papers.topic_text import compared, load

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """How much to do.

    Args:
        problems: drawn topics for errors and exact moments.
        n: documents of each.
        starts: random starts of each kind of each problem.
        sizes: numbers of documents along which the error is followed, for as many problems.
        coverage: numbers of documents at which intervals are counted.
        tables: problems of each.
        cases: problems on which diagonalisers meet, by name.
        shrink: divides their numbers of documents.
        repeats: problems of each.
        text_starts: random starts on text.
        text_seeds: seeds of the others.
    """

    problems: int = 20
    n: int = 100_000
    starts: int = 5
    sizes: tuple[int, ...] = (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    coverage: tuple[int, ...] = (10_000, 100_000)
    tables: int = 200
    cases: tuple[str, ...] = tuple(CASES)
    shrink: int = 1
    repeats: int = 20
    text_starts: int = 20
    text_seeds: int = 5


QUICK = Size(
    problems=2,
    starts=2,
    sizes=(1_000, 4_000, 16_000),
    coverage=(5_000,),
    tables=12,
    cases=("few documents", "many topics, alike"),
    shrink=4,
    repeats=2,
    text_starts=3,
    text_seeds=1,
)
"""A few seconds. Errors are judged at the full number of documents all the same: that is what their targets are for."""


class Progress:
    """Counts what has been done."""

    def __init__(self, tell: Callable[[int, int, str], None], total: int) -> None:
        self.tell, self.total, self.done = tell, total, 0

    def each(self, values: Sequence[T], what: str, work: Callable[[T], Any]) -> list[Any]:
        """``work`` of every value."""
        found = []
        for value in values:
            self.step(f"{what} {value}")
            found.append(work(value))
        return found

    def step(self, what: str) -> None:
        """One more begins."""
        self.tell(min(self.done, self.total), self.total, what)
        self.done += 1


def experiment(options: Options) -> Report:
    """All of it, in the order of the document: the lemma, estimates, their errors, and what can be made of text."""
    size = QUICK if options.quick else Size()
    texts = load(options.data, quick=options.quick, seed=options.seed)
    seeds = range(options.seed, options.seed + size.problems)
    fits = size.text_starts + 3 * size.text_seeds
    total = 3 * size.problems + len(size.coverage) * size.tables + len(size.cases) * size.repeats
    progress = Progress(options.progress, total + fits * len(texts))
    curves: dict[str, Any] = {
        "exact": progress.each(seeds, "exact moments, problem", exact),
        "errors": progress.each(seeds, "starts, problem", lambda s: recovered(s, size.n, size.starts)),
        "growth": progress.each(seeds, "error against n, problem", lambda s: against_n(s, size.sizes)),
    }
    tables = range(options.seed + 1000, options.seed + 1000 + size.tables)
    curves["coverage"] = {
        n: progress.each(tables, f"intervals, n = {n:,}, problem", partial(covered, n=n))
        for n in size.coverage
    }
    meets = range(options.seed + 2000, options.seed + 2000 + size.repeats)
    curves["rivals"] = {
        case: progress.each(meets, f"{case}, problem", partial(rivals, case, shrink=size.shrink))
        for case in size.cases
    }
    curves["text"] = {
        text.name: compared(text, size.text_starts, size.text_seeds, progress.step) for text in texts
    }
    settings = {
        "topics": TOPICS,
        "vocabulary": WORDS,
        "words a document": LENGTH,
        "concentration": CONCENTRATION,
        "documents": size.n,
        "problems": size.problems,
        "data": "; ".join(text.name for text in texts),
        "seed": options.seed,
    }
    findings = judge(curves, size) + [
        finding for text in texts for finding in judge_text(text.name, text.real, curves["text"][text.name])
    ]
    figures = {
        "growth": draw_growth(curves["growth"], size.sizes),
        "coverage": draw_coverage(curves["coverage"]),
        "rivals": draw_rivals(curves["rivals"]),
    }
    title = "Topics from the moments of distinct words"
    return Report("spectral-documents", title, settings, findings, curves, figures)


def judge(curves: dict[str, Any], size: Size) -> list[Finding]:
    """Findings on drawn documents."""
    return [
        *judge_exact(curves["exact"]),
        *judge_recovery(curves["errors"], size.n),
        *judge_growth(curves["growth"], size.sizes),
        *judge_coverage(curves["coverage"]),
        *judge_rivals(curves["rivals"]),
    ]
