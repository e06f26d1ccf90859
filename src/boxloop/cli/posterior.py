"""``boxloop posterior``: what a table says about the parameters of a model, as draws."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.options import (
    checkpoint_option,
    column_options,
    data_argument,
    figure_option,
    json_option,
    output_option,
    safe_csv_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)
from boxloop.cli.output import (
    check_outputs,
    check_table,
    echo_table,
    echo_text,
    for_spreadsheets,
    tell,
    write_figure,
)

if TYPE_CHECKING:
    from boxloop.sample import FactorPosterior, MixturePosterior

    Posterior = MixturePosterior | FactorPosterior

KINDS = ("gaussian-mixture", "factor-analysis")

MOST_LINES = 120
"""Numbers of the table; JSON has all of them."""

FAR = 1.1
"""R-hat from which chains are rather in different places than too short."""

_count = click.IntRange(min=1)


@with_examples(
    "boxloop posterior iris --model gaussian-mixture -k 2",
    "boxloop posterior wine --model factor-analysis -k 2 --draws 4000 --figure trace.png",
    "boxloop posterior data.csv --model gaussian-mixture -k 3 --checkpoint c.boxloop -o draws.parquet",
)
@data_argument
@click.option("--model", required=True, type=click.Choice(KINDS), metavar="NAME", help=", ".join(KINDS) + ".")
@click.option("-k", "--components", required=True, type=_count, help="Components or factors.")
@click.option("--covariance", type=click.Choice(["full", "diag"]), help="Of components; full if omitted.")
@click.option("--chains", default=4, show_default=True, type=_count, help="Chains, from starts of their own.")
@click.option("--draws", default=1000, show_default=True, type=_count, help="Draws of each chain.")
@click.option(
    "--warmup",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Steps of each chain before the first draw.",
)
@column_options
@seed_option
@threads_option
@checkpoint_option
@watch_options
@output_option("One line for each draw: .csv or .parquet.")
@safe_csv_option
@figure_option
@json_option
def command(
    data: str,
    model: str,
    columns: list[str] | None,
    drop: tuple[str, ...],
    checkpoint: Path | None,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    figure: Path | None,
    json_to: str | None,
    **how: Any,
) -> None:
    """Draw parameters from their posterior: what the rows say, and how surely.

    Gaussian mixtures and factor analysis, by Gibbs sampling under priors taken from the spread of each column.
    Components have no order and factors no axes: each line of the summary says whether it is free of them, or
    relabelled or aligned over the draws. Cells must not be empty.

    Ctrl-C tells what was drawn so far. With --checkpoint, the same command continues, also for more --draws.
    """
    from boxloop.cli.errors import continued
    from boxloop.data import open_table, write_table

    if how["covariance"] is not None and model != "gaussian-mixture":
        raise click.UsageError(f"{model} has no option --covariance")
    check_outputs([output, checkpoint, figure, json_to], data)
    check_table(output)
    source = open_table(data, columns=columns, drop=drop)
    with continued(checkpoint):
        begun = time.perf_counter()
        posterior = _draw(model, source, how, checkpoint, watching(quiet, progress))
        seconds = time.perf_counter() - begun
        if posterior.draws.n_draws == 0:
            raise KeyboardInterrupt  # in warm-up: there is nothing to tell
        if output is not None:
            write_table(output, for_spreadsheets(output, draws_table(posterior)))
        write_figure(figure, lambda: posterior.plot(kind="trace"))
        given = {"data": data, "model": model, "rows": source.n_rows, "columns": list(source.names)}
        found = {**given, **_found(posterior, how, checkpoint), "seconds": seconds}
        found |= {"output": output, "figure": figure}
        tell(found, json_to, lambda: _show(found), quiet)
        if posterior.draws.interrupted:
            raise KeyboardInterrupt


def _draw(model: str, source: Any, how: dict[str, Any], checkpoint: Path | None, show: bool) -> Posterior:
    from boxloop.sample import sample_factors, sample_mixture

    lengths = {name: how[name] for name in ("chains", "draws", "warmup")}
    options = {**lengths, "random_state": how["seed"], "checkpoint": checkpoint, "verbose": show}
    if model == "factor-analysis":
        return sample_factors(source, how["components"], **options)
    return sample_mixture(source, how["components"], covariance=how["covariance"] or "full", **options)


def draws_table(posterior: Posterior) -> dict[str, Any]:
    """One line a draw: its chain and place there, and every number of the summary under its name.

    Components that hold rows are counted in some draws alone; the others are NaN.
    """
    import torch

    from boxloop.sample import COUNTED, MixturePosterior, evenly

    c, n = posterior.draws.n_chains, posterior.draws.n_draws
    values = dict(posterior._free.values)
    if isinstance(posterior, MixturePosterior):
        counted = torch.full((c, n), torch.nan, dtype=torch.float64)
        counted[:, evenly(n, COUNTED)] = posterior.occupied().double().cpu()
        values |= {"occupied": counted, **posterior._by_component.values}
    else:
        values |= posterior._aligned.values
    place = {"chain": torch.arange(c).repeat_interleave(n), "draw": torch.arange(n).repeat(c)}
    return {name: value.flatten().cpu().numpy() for name, value in {**place, **values}.items()}


def _found(posterior: Posterior, how: dict[str, Any], checkpoint: Path | None) -> dict[str, Any]:
    from boxloop.sample import MixturePosterior

    mixture = isinstance(posterior, MixturePosterior)
    summary = posterior.summary()
    names = map(str, summary.index)
    lines = [{"number": name, **line} for name, line in zip(names, summary.to_dict("records"))]
    said = posterior.labels if isinstance(posterior, MixturePosterior) else posterior.alignment
    return {
        "components": how["components"],
        "covariance": (how["covariance"] or "full") if mixture else None,
        "chains": posterior.draws.n_chains,
        "draws": posterior.draws.n_draws,
        "warmup": posterior.draws.warmup,
        "seed": how["seed"],
        "interrupted": posterior.draws.interrupted,
        "converged": posterior.converged,
        "labels": " ".join(str(said).split()),
        "summary": lines,
        "worries": list(posterior.worries),
        "advice": advice(posterior, lines, checkpoint),
    }


def advice(posterior: Posterior, lines: list[dict[str, Any]], checkpoint: Path | None) -> list[str]:
    """What to do about the worries, in options of this command; nothing where there are none."""
    from boxloop.sample import AGREED, ENOUGH, FEWEST, MixturePosterior

    draws = posterior.draws
    kept = "--checkpoint FILE keeps progress" if checkpoint is None else f"it continues from {checkpoint}"
    if draws.interrupted:
        return [f"run the same command to its end; {kept}"]
    if draws.n_draws < FEWEST:
        return ["draw more: --draws 1000"]
    # What the worries are told from; a number that has no R-hat or effective draws is not compared.
    judged = [line for line in lines if line["labels"] == "free" and line["number"] != "occupied"]
    apart = max((line["r_hat"] for line in judged if line["r_hat"] > AGREED), default=1.0)
    few = min((m for line in judged if (m := min(line["ess_bulk"], line["ess_tail"])) < ENOUGH), default=None)
    found = []
    if draws.n_chains == 1:
        found.append("run several chains: --chains 4; only chains that began apart can disagree")
    if apart > FAR and draws.n_draws >= ENOUGH:
        found.append(
            "chains are in different places, and longer ones may stay there: look at --figure, try another -k, or more "
            "--chains to see how many places there are"
        )
    if few is not None or apart > 1.0:
        times = max(2, 1 if few is None else -int(-ENOUGH // max(few, 1.0)))
        found.append(f"draw longer: --draws {times * draws.n_draws}; {kept}")
    if posterior.worries and not found:
        found.append("look at --figure: a chain that does not move, or runs away, shows there")
    if isinstance(posterior, MixturePosterior) and not posterior.labels.settled:
        found.append("use the lines that say free, or try a smaller -k")
    return found


def _show(found: dict[str, Any]) -> None:
    from boxloop.numeric import format_number

    rows = [
        [
            line["number"],
            format_number(line["mean"]),
            format_number(line["low"], 3),
            format_number(line["high"], 3),
            format_number(min(line["ess_bulk"], line["ess_tail"]), 1),
            "-" if math.isnan(line["r_hat"]) else f"{line['r_hat']:.3f}",
            line["labels"],
        ]
        for line in found["summary"][:MOST_LINES]
    ]
    word = "components" if found["model"] == "gaussian-mixture" else "factors"
    title = f"{found['model']} of {found['data']}, {word}: {found['components']}, rows: {found['rows']}"
    title += f"; {found['chains']} chains of {found['draws']} draws after {found['warmup']} steps"
    if len(rows) < len(found["summary"]):
        title += f"; the first {len(rows)} of {len(found['summary'])} numbers, --json has all"
    echo_table(title, ["number", "mean", "low", "high", "ess", "R-hat", "labels"], rows)
    echo_text("low to high: 95% of the draws. ess: how many independent draws they are worth.")
    echo_text(f"free: the same in whatever order components or axes stand; {found['labels']}.")
    for name in ("output", "figure"):
        if found[name] is not None:
            echo_text(f"Written: {found[name]}")
    if not found["worries"]:
        echo_text("Nothing speaks against these draws: chains agree, and are long enough.")
        return
    for head, said in (("Worries:", found["worries"]), ("What to do:", found["advice"])):
        echo_text("\n".join([head, *(f"- {line}" for line in said)]))
