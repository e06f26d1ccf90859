"""``boxloop relate``: what one set of columns tells of another."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.names import complete_data
from boxloop.cli.options import (
    checkpoint_option,
    compute_options,
    data_argument,
    drop_option,
    figure_option,
    json_option,
    names_option,
    output_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)
from boxloop.cli.output import check_outputs, tell, write_figure

if TYPE_CHECKING:
    from boxloop.cli.relate_read import Side
    from boxloop.estimators import RelevantFeatures

KINDS = ("auto", "linear", "fourier", "network")
USUAL = 10
"""Pairs of variables, where the features allow as many."""
SHARE, MOST_JUDGES, FEWEST = 0.2, 100_000, 20
"""Rows set apart: this share, at most so many; and the fewest rows of a table."""

WAYS = {"both": ["y", "x"], "y_given_x": ["y"], "x_given_y": ["x"]}
"""Views that are inferred from the other, in each direction."""

_kind = click.Choice(KINDS)
_own_kind = click.Choice([*KINDS, "finite"])


@with_examples(
    "boxloop relate wine --y alcohol,proline --features linear",
    "boxloop relate iris --y target --features linear -o species.boxloop --figure relevance.png",
    "boxloop relate genes.csv proteins.parquet -k 20 --features fourier --json",
)
@data_argument
@click.argument("other", required=False, shell_complete=complete_data)
@names_option("--y", "Columns of the second view; all of OTHER if omitted.")
@names_option("--x", "Columns of the first view; all others of DATA if omitted.")
@drop_option
@click.option(
    "-k",
    "--variables",
    "n_features",
    type=click.IntRange(min=1),
    help="Pairs of variables.  [default: 10, or as many as the features allow]",
)
@click.option(
    "--features",
    type=_kind,
    default="auto",
    show_default=True,
    help="Of columns: linear, fourier (a kernel), or learned by a network, as is auto. Labels have their own.",
)
@click.option(
    "--x-features", type=_own_kind, help="Of the first view alone; finite takes a column for labels."
)
@click.option("--y-features", type=_own_kind, help="Of the second view alone.")
@click.option(
    "--direction",
    type=click.Choice(list(WAYS)),
    default="both",
    show_default=True,
    help="Which view to infer from the other.",
)
@click.option(
    "--permutations",
    default=999,
    show_default=True,
    type=click.IntRange(min=1),
    help="Random orders of the rows behind the p-values.",
)
@click.option(
    "--rate",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="False-discovery rate of what is called significant.",
)
@click.option("--max-iter", type=click.IntRange(min=1), help="Most passes of a network over the rows.")
@seed_option
@compute_options
@threads_option
@checkpoint_option
@watch_options
@output_option("The model file, by custom *.boxloop.")
@figure_option
@json_option
def command(
    data: str,
    other: str | None,
    x: list[str] | None,
    y: list[str] | None,
    drop: tuple[str, ...],
    direction: str,
    permutations: int,
    rate: float,
    checkpoint: Path | None,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    figure: Path | None,
    json_to: str | None,
    **options: Any,
) -> None:
    """What one set of columns tells of another, and how surely.

    The columns of DATA are split by --y; or OTHER is a second table, row by row of the same things. Pairs of variables,
    one a function of each view, are found such that each can be inferred from its partner as well as possible: with
    linear features, canonical correlations. A text column that is a view alone is taken for labels; --y target is the
    class, or response, of bundled data.

    One fifth of the rows is set apart, and judges what the others found: how relevant each pair is, which columns it
    goes with, and how much of each column can be inferred from the other view. Cells must not be empty.
    """
    from boxloop.cli.relate_judge import judge
    from boxloop.cli.relate_read import read_sides, set_apart
    from boxloop.cli.relate_show import show

    check_outputs([output, figure, checkpoint, json_to], *(place for place in (data, other) if place))
    if permutations < 1.0 / rate - 1.0 - 1e-9:
        raise click.UsageError(f"--permutations {permutations} cannot show a --rate of {rate:g}: take more")
    left, right = read_sides(data, other, x, y, drop)
    if left.n_rows < FEWEST:
        raise ValueError(f"{data}: {left.n_rows} rows are too few to fit and to judge: {FEWEST} are needed")
    options |= {"checkpoint": checkpoint, "verbose": int(watching(quiet, progress))}
    estimator, left, right = prepared(left, right, options)
    mask = set_apart(left, right, SHARE, MOST_JUDGES, options["seed"])
    begun = time.perf_counter()
    fit(estimator, left.taken(~mask), right.taken(~mask), left, right)
    seconds = time.perf_counter() - begun
    judges = left.taken(mask), right.taken(mask)
    told, found = judge(estimator, *judges, WAYS[direction], permutations, rate)
    if output is not None:
        estimator.save(output)
    write_figure(figure, lambda: found.plot())
    head = facts(estimator, {"data": data, "other": other, "rate": rate, "permutations": permutations})
    head |= {"rows": {"fit": int((~mask).sum()), "judged": int(mask.sum())}, "seed": options["seed"]}
    head |= {**told, "seconds": seconds, "output": output, "figure": figure}
    tell(head, json_to, lambda: show(head), quiet)


def prepared(left: Side, right: Side, options: dict[str, Any]) -> tuple[RelevantFeatures, Side, Side]:
    """The estimator that the options ask for, and the views as it will take them."""
    from boxloop.cli.relate_judge import allowed
    from boxloop.estimators import RelevantFeatures

    sides, kinds = [left, right], []
    for place, word in enumerate(("x", "y")):
        own = options[f"{word}_features"]
        kind = own or options["features"]
        if kind == "finite":
            sides[place] = sides[place].as_labels(f"--{word}-features")
        elif sides[place].labels is not None and own not in (None, "auto"):
            name = sides[place].names[0]
            raise click.UsageError(f"--{word}-features {own}: column {name!r} holds labels, which are finite")
        kinds.append("finite" if sides[place].labels is not None else "network" if kind == "auto" else kind)
    most = min(allowed(side, kind) for side, kind in zip(sides, kinds, strict=True))
    if most < 1:
        raise ValueError("a view has the same label in every row: there is nothing to tell")
    if options["n_features"] is not None and options["n_features"] > most:
        raise click.UsageError(f"-k {options['n_features']}: these features give at most {int(most)} pairs")
    given = {name: options[name] for name in ("n_features", "max_iter", "device", "dtype")}
    made = {name: value for name, value in given.items() if value is not None}
    made |= {"checkpoint": None if options["checkpoint"] is None else str(options["checkpoint"])}
    made |= {"random_state": options["seed"], "verbose": options["verbose"]}
    made = {"n_features": int(min(USUAL, most)), **made}
    if "network" not in kinds and (options["max_iter"] is not None or options["checkpoint"] is not None):
        raise click.UsageError("--max-iter and --checkpoint are for networks; these features need no passes")
    return RelevantFeatures(x_features=kinds[0], y_features=kinds[1], **made), sides[0], sides[1]


def fit(estimator: RelevantFeatures, X: Any, Y: Any, left: Side, right: Side) -> None:
    """Fit, and call the column of a view of labels by its name."""
    from boxloop.cli.errors import continued

    with continued(estimator.checkpoint):
        estimator.fit(X, Y)
        if estimator.interrupted_:
            raise KeyboardInterrupt  # half a fit is nothing to judge
    estimator.set_params(verbose=0, checkpoint=None)  # who watched is no part of the model
    for name, side in (("x_schema_", left), ("y_schema_", right)):
        if side.labels is not None:
            setattr(estimator, name, replace(getattr(estimator, name), names=side.names))


def facts(estimator: RelevantFeatures, asked: dict[str, Any]) -> dict[str, Any]:
    """What was related, and how the fit went."""
    views = {
        word: {"columns": list(edge.names), "labels": edge.values, "features": kind}
        for word, edge, kind in (
            ("x", estimator.x_schema_, estimator.x_features),
            ("y", estimator.y_schema_, estimator.y_features),
        )
    }
    return {
        **asked,
        **views,
        "rounds": estimator.n_iter_,
        "converged": estimator.converged_,
        "ridge": estimator.ridge_,
        "events": list(estimator.events_),
    }
