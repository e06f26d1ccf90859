"""``boxloop posterior``: draws of the parameters of a model from their posterior."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared

if TYPE_CHECKING:
    from boxloop.sample import FactorPosterior, MixturePosterior

    Posterior = MixturePosterior | FactorPosterior

KINDS = ("gaussian-mixture", "factor-analysis")

MAX_LINES = 120
"""Most quantities of the printed table; JSON has all of them."""

MULTIMODAL_R_HAT = 1.1
"""R-hat from which chains are more likely in different modes than too short."""

_count = click.IntRange(min=1)


@shared.with_examples(
    "boxloop posterior iris --model gaussian-mixture -k 2",
    "boxloop posterior wine --model factor-analysis -k 2 --draws 4000 --figure trace.png",
    "boxloop posterior data.csv --model gaussian-mixture -k 3 --checkpoint c.boxloop -o draws.parquet",
)
@shared.data_argument
@click.option("--model", required=True, type=click.Choice(KINDS), metavar="NAME", help=", ".join(KINDS) + ".")
@click.option("-k", "--components", required=True, type=_count, help="Number of components or factors.")
@click.option(
    "--covariance", type=click.Choice(["full", "diag"]), help="Covariance of components; full if omitted."
)
@click.option("--chains", default=4, show_default=True, type=_count, help="Chains, each from its own start.")
@click.option("--draws", default=1000, show_default=True, type=_count, help="Draws of each chain.")
@click.option(
    "--warmup",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Steps of each chain before the first draw.",
)
@shared.column_options
@shared.seed_option
@shared.threads_option
@shared.checkpoint_option
@shared.watch_options
@shared.output_option("One row per draw: .csv or .parquet.")
@shared.safe_csv_option
@shared.figure_option
@shared.json_option
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
    """Draw parameters from their posterior.

    Gaussian mixtures and factor analysis, by Gibbs sampling under priors scaled to the variance of each column.
    Component labels and rotations of factors are not identified: the summary marks each quantity as invariant to
    them, or as relabelled or aligned over the draws. Missing values are refused.

    Ctrl-C reports the draws made so far. With --checkpoint, the same command continues, also for more --draws.
    """
    from boxloop.cli.errors import announce_checkpoint
    from boxloop.data import open_table, write_table

    if how["covariance"] is not None and model != "gaussian-mixture":
        raise click.UsageError(f"{model} has no option --covariance")
    console.check_outputs([output, checkpoint, figure, json_to], data)
    console.check_table_name(output)
    source = open_table(data, columns=columns, drop=drop)
    with announce_checkpoint(checkpoint):
        begun = time.perf_counter()
        posterior = _sample_posterior(
            model, source, how, checkpoint, shared.is_progress_shown(quiet, progress)
        )
        seconds = time.perf_counter() - begun
        if posterior.draws.n_draws == 0:
            raise KeyboardInterrupt  # in warm-up: there is nothing to report
        if output is not None:
            write_table(output, console.escape_csv_formulas(output, draws_table(posterior)))
        console.write_figure(figure, lambda: posterior.plot(kind="trace"))
        inputs = {"data": data, "model": model, "rows": source.n_rows, "columns": list(source.names)}
        found = {**inputs, **_posterior_to_dict(posterior, how, checkpoint), "seconds": seconds}
        found |= {"output": output, "figure": figure}
        console.write_findings(found, json_to, lambda: _print_summary(found), quiet)
        if posterior.draws.interrupted:
            raise KeyboardInterrupt


def _sample_posterior(
    model: str, source: Any, how: dict[str, Any], checkpoint: Path | None, show: bool
) -> Posterior:
    from boxloop.sample import sample_factors, sample_mixture

    lengths = {name: how[name] for name in ("chains", "draws", "warmup")}
    options = {**lengths, "random_state": how["seed"], "checkpoint": checkpoint, "verbose": show}
    if model == "factor-analysis":
        return sample_factors(source, how["components"], **options)
    return sample_mixture(source, how["components"], covariance=how["covariance"] or "full", **options)


def draws_table(posterior: Posterior) -> dict[str, Any]:
    """One row per draw: its chain and number, and every quantity of the summary under its name.

    Components that hold rows are counted in some draws alone; ``occupied`` is NaN in the others.
    """
    import torch

    from boxloop.sample import OCCUPIED_DRAWS, MixturePosterior, select_spaced_indices

    c, n = posterior.draws.n_chains, posterior.draws.n_draws
    values = dict(posterior.invariant.values)
    if isinstance(posterior, MixturePosterior):
        counted = torch.full((c, n), torch.nan, dtype=torch.float64)
        counted[:, select_spaced_indices(n, OCCUPIED_DRAWS)] = posterior.occupied().double().cpu()
        values |= {"occupied": counted, **posterior.by_component.values}
    else:
        values |= posterior.aligned.values
    index = {"chain": torch.arange(c).repeat_interleave(n), "draw": torch.arange(n).repeat(c)}
    return {name: value.flatten().cpu().numpy() for name, value in {**index, **values}.items()}


def _posterior_to_dict(posterior: Posterior, how: dict[str, Any], checkpoint: Path | None) -> dict[str, Any]:
    from boxloop.sample import MixturePosterior

    mixture = isinstance(posterior, MixturePosterior)
    summary = posterior.summary()
    names = map(str, summary.index)
    lines = [{"quantity": name, **line} for name, line in zip(names, summary.to_dict("records"))]
    identification = posterior.labels if isinstance(posterior, MixturePosterior) else posterior.alignment
    return {
        "components": how["components"],
        "covariance": (how["covariance"] or "full") if mixture else None,
        "chains": posterior.draws.n_chains,
        "draws": posterior.draws.n_draws,
        "warmup": posterior.draws.warmup,
        "seed": how["seed"],
        "interrupted": posterior.draws.interrupted,
        "converged": posterior.converged,
        "identification": " ".join(str(identification).split()),
        "summary": lines,
        "concerns": list(posterior.concerns),
        "advice": advise_on_chains(posterior, lines, checkpoint),
    }


def advise_on_chains(posterior: Posterior, lines: list[dict[str, Any]], checkpoint: Path | None) -> list[str]:
    """What to do about the concerns, in options of this command; empty if there are none."""
    from boxloop.sample import ESS_LIMIT, MIN_DRAWS, R_HAT_LIMIT, MixturePosterior

    draws = posterior.draws
    resume = "--checkpoint FILE saves progress" if checkpoint is None else f"it continues from {checkpoint}"
    if draws.interrupted:
        return [f"run the same command to its end; {resume}"]
    if draws.n_draws < MIN_DRAWS:
        return ["draw more: --draws 1000"]
    # Concerns rest on invariant quantities; NaN, of a quantity without R-hat or effective sample size, never compares.
    invariant = [
        line
        for line in lines
        if line["identification"].endswith("-invariant") and line["quantity"] != "occupied"
    ]
    r_hat = max((line["r_hat"] for line in invariant if line["r_hat"] > R_HAT_LIMIT), default=1.0)
    sizes = [min(line["ess_bulk"], line["ess_tail"]) for line in invariant]
    ess = min((size for size in sizes if size < ESS_LIMIT), default=None)
    found = []
    if draws.n_chains == 1:
        found.append(
            "run several chains: --chains 4; convergence shows only between chains from different starts"
        )
    if r_hat > MULTIMODAL_R_HAT and draws.n_draws >= ESS_LIMIT:
        found.append(
            "chains are in different modes, and longer chains may stay there: look at --figure, try another -k, or run "
            "more --chains to see how many modes there are"
        )
    if ess is not None or r_hat > 1.0:
        times = max(2, 1 if ess is None else -int(-ESS_LIMIT // max(ess, 1.0)))
        found.append(f"draw longer: --draws {times * draws.n_draws}; {resume}")
    if posterior.concerns and not found:
        found.append("look at --figure: it shows chains that do not move, or diverge")
    if isinstance(posterior, MixturePosterior) and not posterior.labels.converged:
        found.append("use the label-invariant quantities alone, or try a smaller -k")
    return found


def _print_summary(found: dict[str, Any]) -> None:
    from boxloop.numeric import format_number

    rows = [
        [
            line["quantity"],
            format_number(line["mean"]),
            format_number(line["low"], 3),
            format_number(line["high"], 3),
            format_number(min(line["ess_bulk"], line["ess_tail"]), 1),
            "-" if math.isnan(line["r_hat"]) else f"{line['r_hat']:.3f}",
            line["identification"],
        ]
        for line in found["summary"][:MAX_LINES]
    ]
    word = "components" if found["model"] == "gaussian-mixture" else "factors"
    title = f"{found['model']} of {found['data']}, {word}: {found['components']}, rows: {found['rows']}"
    title += f"; {found['chains']} chains of {found['draws']} draws after {found['warmup']} steps"
    if len(rows) < len(found["summary"]):
        title += f"; the first {len(rows)} of {len(found['summary'])} quantities, --json has all"
    console.echo_table(title, ["quantity", "mean", "low", "high", "ESS", "R-hat", "identification"], rows)
    console.echo_text(
        "low, high: central 95% interval. ESS: effective sample size, the smaller of bulk and tail."
    )
    note = found["identification"]
    console.echo_text(f"{note[0].upper()}{note[1:]}.")
    console.echo_written(found["output"], found["figure"])
    if not found["concerns"]:
        console.echo_text("No concerns: chains agree, and the effective sample size is large enough.")
        return
    for head, items in (("Concerns:", found["concerns"]), ("What to do:", found["advice"])):
        console.echo_text("\n".join([head, *(f"- {item}" for item in items)]))
