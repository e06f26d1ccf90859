"""What a study found, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from boxloop.report.numbers import with_error
from boxloop.report.study import HeldOut, Study

LOADED = 0.5
"""A column is said to load on a factor from this correlation on."""


def on_groups(study: Study) -> list[str]:
    """How many components, how sure that is, and whether they are the classes that no fit saw."""
    held = study.held
    size, level = held.sizes[held.best], with_error(float(held.mean[held.best]), float(held.error[held.best]))
    said = [f"Held-out rows prefer {counted(size, 'component')}: their log-likelihood is {level} a row."]
    rivals = [place for place in (held.best - 1, held.best + 1) if 0 <= place < len(held.sizes)]
    if rivals:
        said.append(f"That is {listed([_rival(held, place) for place in rivals])}.")
    if study.data.classes:
        n, agreed = len(study.rows), study.agreed()
        said.append(
            f"{agreed} of {n} rows ({agreed / n:.0%}) lie in the component of their class "
            f"({', '.join(study.data.classes)}), which no fit saw."
        )
    troubled = [
        f"{count} with {size}" for size, count in zip(held.sizes, held.troubled, strict=True) if count
    ]
    if troubled:
        said.append(
            f"Some fits drew a warning ({listed(troubled)} components): a component that shrinks onto a few rows "
            "looks good on the rows it saw and fails on those held out."
        )
    return said


def on_factors(study: Study) -> list[str]:
    """Which columns load on which factor, and what the factors leave unexplained."""
    names, loadings, errors = study.data.names, study.loadings, study.errors
    said = []
    for k, (line, error) in enumerate(zip(loadings, errors, strict=True)):
        strong = [j for j in np.argsort(-np.abs(line)) if abs(line[j]) >= LOADED]
        columns = [f"{names[j]} ({correlation(line[j], error[j])})" for j in strong]
        said.append(f"Factor {k} is carried by {listed(columns) if columns else 'no column in particular'}.")
    share = study.factors.communalities_
    most, least = int(share.argmax()), int(share.argmin())
    said.append(
        f"Together the factors explain most of {names[most]} ({share[most]:.0%} of its variance) and least of "
        f"{names[least]} ({share[least]:.0%})."
    )
    return said


def correlation(value: float, error: float) -> str:
    """A loading in standard units with its standard error, to two decimals.

    Example:
        >>> correlation(0.8765, 0.0561), correlation(-0.003, 0.07)
        ('0.88 ± 0.06', '0.00 ± 0.07')
    """
    return f"{value:z.2f} ± {error:.2f}"


def sureness(gap: float, error: float) -> str:
    """How far apart two sizes are, in a word.

    Example:
        >>> [sureness(gap, 1.0) for gap in (0.5, 1.5, 2.5, 3.5)]
        ['no better than', 'slightly better than', 'probably better than', 'clearly better than']
    """
    ratio = gap / error if error > 0.0 else np.inf
    words = ("no better than", "slightly better than", "probably better than", "clearly better than")
    return words[min(3, int(ratio))]


def listed(items: Sequence[str]) -> str:
    """Items as a sentence lists them.

    Example:
        >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
        ('a', 'a and b', 'a, b and c')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def counted(count: int, what: str) -> str:
    """A number of things, in the plural where it is due.

    Example:
        >>> counted(1, "component"), counted(3, "component")
        ('1 component', '3 components')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rival(held: HeldOut, place: int) -> str:
    gap, error = held.gap(place)
    apart = f"{with_error(gap, error)}, {gap / error:.1f} standard errors"
    return f"{sureness(gap, error)} {held.sizes[place]} (by {apart})"
