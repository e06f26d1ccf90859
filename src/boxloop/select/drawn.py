"""The candidates of a search as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from boxloop.figures import COLOURS, curves, forest, short
from boxloop.select.results import label

MEASURES = {"log_likelihood": "held-out log-likelihood a row", "aic": "-AIC / 2n", "bic": "-BIC / 2n"}

MOST = 40
"""Candidates that are shown as rows: the best."""


def draw_candidates(found: Mapping[str, Any], best: int, criterion: Any, ax: Axes | None) -> Axes:
    """Lines over the one number that varies; where there is none, or too many lines, one row a candidate.

    Args:
        found: ``Select.results_``.
        best: place of the chosen candidate.
        criterion: what it was chosen by.
        ax: where to draw.
    """
    measure = f"{MEASURES[criterion] if isinstance(criterion, str) else 'score'}, less the best's"
    value, error, params = 0.0 - found["gap"], found["gap_error"], found["parameters"]
    number = varying_number(params)
    lines = {} if number is None else by_line(params, number)
    if number is None or len(lines) > len(COLOURS):
        order = np.argsort(np.nan_to_num(-value, nan=np.inf), kind="stable")[:MOST]
        names, heads = told_apart(params)
        return forest(
            [names[j] for j in order],
            value[order],
            error[order],
            ax,
            marked=(order == best).tolist(),
            title="Candidates; the chosen one is marked",
            across=measure,
            up=short(heads, 50),
        )
    return curves(
        {
            name: ([params[j][number] for j in places], value[places], error[places])
            for name, places in lines.items()
        },
        ax,
        best=(params[best][number], value[best]),
        told=f"chosen: {label(params[best])}" if len(lines) == 1 else "chosen",
        title="Candidates of the search",
        across=number,
        up=measure,
    )


def varying_number(params: Sequence[Mapping[str, Any]]) -> str | None:
    """The one parameter that takes several numbers and no other values; None where there is no such, or several.

    Example:
        >>> varying_number([{"k": 1, "shape": "full"}, {"k": 2, "shape": "full"}])
        'k'
        >>> varying_number([{"k": 1, "tol": 0.1}, {"k": 2, "tol": 0.2}])
    """
    names = [
        name
        for name in params[0]
        if all(isinstance(one.get(name), Real) and not isinstance(one[name], bool) for one in params)
        and len({one[name] for one in params}) > 1
    ]
    return names[0] if len(names) == 1 else None


def told_apart(params: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """A short name for every candidate, of what differs between them; and the parameters that these are values of.

    Example:
        >>> told_apart([{"k": 1, "shape": "full"}, {"k": 2, "shape": "full"}])
        (['1', '2'], 'k')
    """
    every = list(dict.fromkeys(name for one in params for name in one))
    heads = [name for name in every if len({repr(one.get(name)) for one in params}) > 1]
    names = [", ".join(str(one.get(name, "-")) for name in heads) or label(one) for one in params]
    return names, ", ".join(heads)


def by_line(params: Sequence[Mapping[str, Any]], number: str) -> dict[str, list[int]]:
    """Places of the candidates that agree in all else, by rising number.

    Example:
        >>> by_line([{"k": 2, "shape": "full"}, {"k": 1, "shape": "full"}, {"k": 1, "shape": "diag"}], "k")
        {'shape=full': [1, 0], 'shape=diag': [2]}
    """
    lines: dict[str, list[int]] = {}
    for j, one in enumerate(params):
        lines.setdefault(label({name: v for name, v in one.items() if name != number}), []).append(j)
    return {name: sorted(places, key=lambda j: params[j][number]) for name, places in lines.items()}
