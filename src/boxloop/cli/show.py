"""``boxloop show``: what a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxloop.cli.options import json_option, model_argument, with_examples
from boxloop.cli.output import check_outputs, echo_facts, echo_table, tell

if TYPE_CHECKING:
    from boxloop.cli.describe import Fitted


MOST_NAMES = 16


@with_examples("boxloop show model.boxloop", "boxloop show model.boxloop --json")
@model_argument
@json_option
def command(model: Path, json_to: str | None) -> None:
    """Print what a model file holds."""
    from boxloop.cli.describe import Networks, TwoViews, column_names, facts, load_any
    from boxloop.cli.parts import parameters, readable

    check_outputs([json_to], model)
    estimator = load_any(model)
    if isinstance(estimator, TwoViews):
        from boxloop.cli.two_views import show_views

        show_views(model, estimator, json_to)
        return
    if isinstance(estimator, Networks):
        from boxloop.cli.network import show_network

        show_network(model, estimator, json_to)
        return
    kind, names = type(estimator).__name__, column_names(estimator)
    options = estimator.get_params(deep=False)
    held = {"model": model, "estimator": kind, "options": options, "columns": names}

    def show() -> None:
        echo_facts(f"{model}: {kind}", lines(estimator, names))
        echo_table(*readable(estimator))

    tell({**held, **facts(estimator), **parameters(estimator)}, json_to, show)


def lines(estimator: Fitted, names: list[str]) -> list[tuple[str, str]]:
    """The facts worth a line each; options only where they are not the usual ones."""
    from boxloop.cli.describe import bound, bound_word
    from boxloop.numeric import format_number

    usual: dict[str, Any] = type(estimator)().get_params(deep=False)
    chosen = estimator.get_params(deep=False)
    options = [f"{name}={value!r}" for name, value in chosen.items() if value != usual[name]]
    ended = (
        "interrupted" if estimator.interrupted_ else "converged" if estimator.converged_ else "not converged"
    )
    found = [
        ("options", ", ".join(options) or "as usual"),
        (
            f"{len(names)} columns",
            ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else ""),
        ),
        (bound_word(estimator), format_number(bound(estimator), 6)),
        ("iterations", f"{estimator.n_iter_}, {ended}"),
    ]
    return found + [("note", event) for event in estimator.events_]
