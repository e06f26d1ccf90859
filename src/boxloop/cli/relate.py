"""``boxloop relate``: what one set of columns predicts of another."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared
from boxloop.cli.names import complete_data

if TYPE_CHECKING:
    from boxloop.cli.columns import SelectedColumns
    from boxloop.estimators import RelevantFeatures

KINDS = ("auto", "linear", "fourier", "network")
DEFAULT = 10
"""Pairs of variables, where the features have as many."""
HELD_OUT, MOST_HELD_OUT, FEWEST = 0.2, 100_000, 20
"""Share of held-out rows, their largest number; and the smallest number of rows of a table."""

WAYS = {"both": ["y", "x"], "y_given_x": ["y"], "x_given_y": ["x"]}
"""Views that are inferred from the other, in each direction."""

_kind = click.Choice(KINDS)
_own_kind = click.Choice([*KINDS, "finite"])


@shared.with_examples(
    "boxloop relate wine --y alcohol,proline --features linear",
    "boxloop relate iris --y target --features linear -o species.boxloop --figure relevance.png",
    "boxloop relate genes.csv proteins.parquet -k 20 --features fourier --json",
)
@shared.data_argument
@click.argument("other", required=False, shell_complete=complete_data)
@shared.names_option("--y", "Columns of the second view; all of OTHER if omitted.")
@shared.names_option("--x", "Columns of the first view; all others of DATA if omitted.")
@shared.drop_option
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
    help="Of columns: linear, fourier (a kernel), network (learned), or auto (a network). Labels have their own.",
)
@click.option(
    "--x-features", type=_own_kind, help="Of the first view alone; finite reads a column as labels."
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
    help="Number of permutations behind the p-values.",
)
@click.option(
    "--rate",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="False-discovery rate of significance.",
)
@click.option("--max-iter", type=click.IntRange(min=1), help="Largest number of epochs of a network.")
@shared.seed_option
@shared.compute_options
@shared.threads_option
@shared.checkpoint_option
@shared.watch_options
@shared.output_option("Model file; its usual suffix is .boxloop.")
@shared.figure_option
@shared.json_option
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
    """What one set of columns predicts of another, with errors.

    --y splits the columns of DATA; or OTHER is a second table with the same rows in the same order. The command finds
    pairs of variables, one a function of each view, that are correlated as strongly as possible: with linear features,
    canonical correlations. A text column that is a view alone is read as labels; --y target is the class, or response,
    of bundled data.

    One fifth of the rows is held out. On these rows the command tests how relevant each pair is, which columns it is
    correlated with, and what share of each column the other view explains. Cells must not be empty.
    """
    from boxloop.cli.two_views import assess_on_held_out, hold_out_rows, print_findings, read_views

    console.check_outputs([output, figure, checkpoint, json_to], *(place for place in (data, other) if place))
    if permutations < 1.0 / rate - 1.0 - 1e-9:
        raise click.UsageError(f"--permutations {permutations} cannot reach a --rate of {rate:g}: raise it")
    left, right = read_views(data, other, x, y, drop)
    if left.n_rows < FEWEST:
        raise ValueError(f"{data}: {left.n_rows} rows are too few to fit and to test: {FEWEST} are needed")
    options |= {"checkpoint": checkpoint, "verbose": int(shared.is_progress_shown(quiet, progress))}
    estimator, left, right = make_estimator(left, right, options)
    mask = hold_out_rows(left, right, HELD_OUT, MOST_HELD_OUT, options["seed"])
    begun = time.perf_counter()
    fit_views(estimator, left.select(~mask), right.select(~mask), left, right)
    seconds = time.perf_counter() - begun
    test = left.select(mask), right.select(mask)
    findings, significance = assess_on_held_out(estimator, *test, WAYS[direction], permutations, rate)
    if output is not None:
        estimator.save(output)
    console.write_figure(figure, lambda: significance.plot())
    head = describe_fit(estimator, {"data": data, "other": other, "rate": rate, "permutations": permutations})
    head |= {"rows": {"fit": int((~mask).sum()), "held_out": int(mask.sum())}, "seed": options["seed"]}
    head |= {**findings, "seconds": seconds, "output": output, "figure": figure}
    console.write_findings(head, json_to, lambda: print_findings(head), quiet)


def make_estimator(
    left: SelectedColumns, right: SelectedColumns, options: dict[str, Any]
) -> tuple[RelevantFeatures, SelectedColumns, SelectedColumns]:
    """The estimator of the options, and the views in the form that it takes."""
    from boxloop.cli.two_views import max_variables
    from boxloop.estimators import RelevantFeatures

    views, kinds = [left, right], []
    for place, word in enumerate(("x", "y")):
        own = options[f"{word}_features"]
        kind = own or options["features"]
        if kind == "finite":
            views[place] = views[place].to_labels(f"--{word}-features")
        elif views[place].labels is not None and own not in (None, "auto"):
            name = views[place].names[0]
            raise click.UsageError(
                f"--{word}-features {own}: column {name!r} holds labels: leave the option out"
            )
        kinds.append("finite" if views[place].labels is not None else "network" if kind == "auto" else kind)
    most = min(
        max_variables(kind, None if view.labels is None else range(view.n_labels), len(view.names))
        for view, kind in zip(views, kinds, strict=True)
    )
    if most < 1:
        raise ValueError("a view has the same label in every row: choose another column")
    if options["n_features"] is not None and options["n_features"] > most:
        raise click.UsageError(f"-k {options['n_features']}: these features have at most {int(most)} pairs")
    chosen = {name: options[name] for name in ("n_features", "max_iter", "device", "dtype")}
    parameters = {name: value for name, value in chosen.items() if value is not None}
    parameters |= {"checkpoint": None if options["checkpoint"] is None else str(options["checkpoint"])}
    parameters |= {"random_state": options["seed"], "verbose": options["verbose"]}
    parameters = {"n_features": int(min(DEFAULT, most)), **parameters}
    if "network" not in kinds and (options["max_iter"] is not None or options["checkpoint"] is not None):
        raise click.UsageError("--max-iter and --checkpoint are for networks; these features are not trained")
    return RelevantFeatures(x_features=kinds[0], y_features=kinds[1], **parameters), views[0], views[1]


def fit_views(
    estimator: RelevantFeatures, X: Any, Y: Any, left: SelectedColumns, right: SelectedColumns
) -> None:
    """Fit, and set the column name of a view of labels."""
    from boxloop.cli.errors import announce_checkpoint

    with announce_checkpoint(estimator.checkpoint):
        estimator.fit(X, Y)
        if estimator.interrupted_:
            raise KeyboardInterrupt  # an unfinished fit is not tested
    estimator.set_params(verbose=0, checkpoint=None)  # these are no part of the model
    for name, view in (("x_schema_", left), ("y_schema_", right)):
        if view.labels is not None:
            setattr(estimator, name, replace(getattr(estimator, name), names=view.names))


def describe_fit(estimator: RelevantFeatures, options: dict[str, Any]) -> dict[str, Any]:
    """The views, and how the fit went."""
    views = {
        word: {"columns": list(schema.names), "labels": schema.values, "features": kind}
        for word, schema, kind in (
            ("x", estimator.x_schema_, estimator.x_features),
            ("y", estimator.y_schema_, estimator.y_features),
        )
    }
    return {
        **options,
        **views,
        "iterations": estimator.n_iter_,
        "converged": estimator.converged_,
        "ridge": estimator.ridge_,
        "events": list(estimator.events_),
    }
