"""``boxloop network``: predict a column by a network with error bars, and find out whether to believe them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from boxloop.cli.options import (
    column_options,
    compute_options,
    data_argument,
    figure_option,
    json_option,
    output_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    widths,
    with_examples,
)
from boxloop.cli.output import check_outputs, tell, write_figure

if TYPE_CHECKING:
    from boxloop.report import Network, NetworkFindings

METHODS = ("factor", "gradient", "swag", "swa", "full")
KINDS = ("auto", "regression", "classification")

UNSAID = ("output", "page", "figure", "json_to", "quiet", "progress")
"""Options on which findings do not depend."""

_count = click.IntRange(min=1)


@with_examples(
    "boxloop network diabetes --target target -o network.boxloop --page network.html",
    "boxloop network wine --target target --members 5",
    "boxloop network data.csv --target price --drop id --hidden 64,64 --json",
)
@data_argument
@click.option("--target", required=True, metavar="COLUMN", help="Column to predict: numbers, or labels.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="auto",
    show_default=True,
    help="Of the target: auto takes text and two whole numbers for classes.",
)
@column_options
@click.option(
    "--held-out",
    "share",
    type=click.FloatRange(0.0, 0.9, min_open=True),
    default=0.2,
    show_default=True,
    help="Share of the rows that judge; they take no part in the fit.",
)
@click.option("--hidden", metavar="N,N,...", callback=widths, help="Widths of the layers: 50 if omitted.")
@click.option("--members", type=_count, help="Networks from different starts, as an ensemble: 1 if omitted.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How the weights are followed: factor if omitted; swa is their mean alone.",
)
@click.option("--rank", type=_count, help="Directions of the covariance of the weights: 10 if omitted.")
@click.option("--draws", "n_draws", type=_count, help="Networks that a prediction averages: 30 if omitted.")
@click.option("--epochs", type=_count, help="Passes of the training; about 2000 steps if omitted.")
@click.option("--collect", type=_count, help="Passes in which weights are observed; half as many if omitted.")
@click.option(
    "--prior-precision",
    type=click.FloatRange(0.0, min_open=True),
    help="Of every weight, in standard units: it sets the weight decay.",
)
@click.option(
    "--chains",
    type=click.IntRange(min=0),
    help="Of Monte Carlo over all weights, to compare with; by default where the network is small.",
)
@seed_option
@compute_options
@threads_option
@watch_options
@output_option("The model file, by custom *.boxloop.")
@click.option("--page", type=click.Path(path_type=Path), help="One page of the findings: .html.")
@figure_option
@json_option
def command(
    data: str,
    target: str,
    kind: str,
    columns: list[str] | None,
    drop: tuple[str, ...],
    share: float,
    chains: int | None,
    seed: int,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    page: Path | None,
    figure: Path | None,
    json_to: str | None,
    **options: Any,
) -> None:
    """Predict a column by a network with error bars, and find out whether to believe them.

    A network is trained on four fifths of the rows; weights that the training passes through at its end give a law over
    weights, and networks drawn from it the error bars. On the rows held out, its predictions stand beside those of its
    mean network alone, of a linear or logistic regression, and of no model at all. An audit says how far the law is
    from a posterior, and what to worry about.

    --target target is the class, or response, of bundled data. Columns of text are not predicted from. Cells must not
    be empty.
    """
    from boxloop.cli.network_read import read_problem
    from boxloop.cli.network_show import show
    from boxloop.report import judge_network, network_facts

    check_outputs([output, page, figure, json_to], data)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"{page}: the name of a page must end in .html")
    problem = read_problem(data, target, columns, drop, kind, share, seed)
    begun = time.perf_counter()
    network = fitted(problem, {**options, "random_state": seed}, watching(quiet, progress))
    found = judge_network(problem, network, chains=chains, seed=seed)
    seconds = time.perf_counter() - begun
    write(found, output, page, figure)
    facts = {"data": data, **network_facts(found), "seconds": seconds}
    facts |= {"output": output, "page": page, "figure": figure}
    tell(facts, json_to, lambda: show(found, facts), quiet)


def fitted(problem: Any, options: dict[str, Any], watch: bool) -> Network:
    """The network that the options ask for, fitted to the rows that do not judge."""
    from boxloop.estimators import NetworkClassifier, NetworkRegressor

    given = {name: value for name, value in options.items() if value is not None}
    kind: Any = NetworkRegressor if problem.kind == "regression" else NetworkClassifier
    network: Network = kind(**given, verbose=int(watch))
    network.fit(*problem.trained)
    if network.interrupted_:
        raise KeyboardInterrupt  # half a fit is nothing to judge
    network.set_params(verbose=0)  # who watched is no part of the model
    return network


def write(found: NetworkFindings, output: Path | None, page: Path | None, figure: Path | None) -> None:
    """The files that were asked for."""
    from boxloop.persist import write_atomic
    from boxloop.report import as_page

    if output is not None:
        found.network.save(output)
    if page is not None:
        said = spelled(click.get_current_context())
        write_atomic(page, as_page(found, said, None if output is None else str(output)).encode())
    write_figure(figure, lambda: found.audit.plot()[0, 0])


def spelled(context: click.Context) -> str:
    """The call, as far as findings depend on it."""
    words = ["boxloop", "network", str(context.params["data"])]
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if (
            isinstance(param, click.Option)
            and source is ParameterSource.COMMANDLINE
            and param.name not in UNSAID
        ):
            value = context.params[param.name]
            if param.multiple:
                words += [word for one in value for word in (param.opts[-1], str(one))]
            elif isinstance(value, list | tuple):
                names = [f'"{one}"' if "," in str(one) else str(one) for one in value]
                words += [param.opts[-1], ",".join(names)]
            else:
                words += [param.opts[-1], str(value)]
    return shlex.join(words)
