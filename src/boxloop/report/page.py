"""Pages: one HTML file with its pictures inside, readable anywhere and for ever.

Whatever comes from data (names of columns, of classes) is escaped by the template engine.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from boxloop.report.figures import draw_groups, draw_held_out, draw_loadings, panel
from boxloop.report.numbers import number, with_error
from boxloop.report.study import Study
from boxloop.report.words import correlation, on_factors, on_groups
from boxloop.version import __version__


@dataclass(frozen=True)
class Table:
    """Heads and cells, all of them text; ``marked`` is the row to look at first."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None


def demo_page(study: Study) -> str:
    """The demonstration as one page of HTML.

    Args:
        study: what was found.

    Returns:
        The page, with nothing to fetch from elsewhere.
    """
    environment = Environment(
        loader=PackageLoader("boxloop.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("demo.html.jinja").render(
        study=study,
        sentences=[_unbroken(sentence) for sentence in (*on_groups(study), *on_factors(study))],
        held_table=held_table(study),
        component_table=component_table(study),
        loading_table=loading_table(study),
        held_picture=_embedded(panel(study, draw_held_out)),
        group_picture=_embedded(panel(study, draw_groups)),
        loading_picture=_embedded(panel(study, draw_loadings, 5.4)),
        version=__version__,
    )


def held_table(study: Study) -> Table:
    """Every size: its held-out log-likelihood, how far that is below the best, and how many fits drew a warning."""
    held = study.held
    rows = []
    for place, size in enumerate(held.sizes):
        short, error = held.gap(place)
        level = with_error(float(held.mean[place]), float(held.error[place]))
        below = "best" if place == held.best else with_error(short, error)
        rows.append([str(size), level, below, str(held.troubled[place])])
    return Table(["components", "log-likelihood a row", "below the best", "warnings"], rows, held.best)


def component_table(study: Study) -> Table:
    """Every component: its weight, and mean and standard deviation of each column."""
    mixture = study.mixture
    rows = [["weight", *(f"{weight:.0%}" for weight in mixture.weights_)]]
    spread = np.sqrt(np.diagonal(mixture.covariances_, axis1=1, axis2=2))
    for j, name in enumerate(study.columns):
        pairs = zip(mixture.means_[:, j].tolist(), spread[:, j].tolist(), strict=True)
        rows.append([name, *(f"{number(mean, 3)} ({number(sd, 2)})" for mean, sd in pairs)])
    return Table(["component", *map(str, range(len(mixture.weights_)))], rows)


def loading_table(study: Study) -> Table:
    """Every column: its loadings with their errors, and how much of it the factors explain."""
    share = study.factors.communalities_
    rows = []
    for j in share.argsort()[::-1].tolist():
        pairs = zip(study.loadings[:, j].tolist(), study.errors[:, j].tolist(), strict=True)
        rows.append([study.data.names[j], *(correlation(*pair) for pair in pairs), f"{share[j]:.0%}"])
    return Table(["column", *(f"factor {k}" for k in range(len(study.loadings))), "explained"], rows)


def _unbroken(sentence: str) -> str:
    """A sentence whose numbers stay on one line with their errors."""
    return sentence.replace(" ± ", "\u00a0±\u00a0")


def _embedded(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
