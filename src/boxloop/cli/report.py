"""``boxloop report``: from a table to a page one can act on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster

if TYPE_CHECKING:
    from boxloop.report import Report


@shared.with_examples(
    "boxloop report wine",
    "boxloop report rows.csv -o report.html --drop id --seed 1",
    "boxloop report rows.csv --deep",
    "boxloop report folder/ --rows 20000 --json findings.json",
    "boxloop report s3://bucket/folder --cluster tcp://scheduler:8786",
)
@shared.data_argument
@shared.column_options
@click.option(
    "--rows",
    type=click.IntRange(min=20),
    default=50_000,
    show_default=True,
    help="Most rows to work with; of more, so many are drawn.",
)
@click.option("--deep", is_flag=True, help="Try a small variational autoencoder, too; takes longer.")
@click.option("--jobs", type=click.IntRange(min=1), help="Fits at the same time; all cores if omitted.")
@shared.seed_option
@shared.threads_option
@cluster_options
@shared.watch_options
@shared.output_option(
    "The page; all else goes beside it, under the same name.", default=Path("report.html"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace files beside the page, whoever wrote them.")
@shared.json_option
def command(
    data: str,
    columns: list[str] | None,
    drop: tuple[str, ...],
    rows: int,
    deep: bool,
    jobs: int | None,
    seed: int,
    workers: int | None,
    cluster: str | None,
    quiet: bool,
    progress: bool | None,
    output: Path,
    force: bool,
    json_to: str | None,
) -> None:
    """From a table to a page: models tried, one chosen, and where it fails.

    DATA is a CSV, Parquet or .npy file, a folder of such files, the URL of Parquet files, or a bundled data set (see
    boxloop datasets). Columns that no model can use are left out, with the reason. Rows are split: some choose the
    model, the others judge it.

    Writes the page, and beside it the same as Markdown, all numbers as JSON, a picture, and the model (*.boxloop).
    Files of these names that no report wrote, or that have changed since, are replaced only with --force.

    With --workers or --cluster the files are read where the workers are, and the rows that are drawn are sent here;
    models are fitted here, --jobs at the same time.
    """
    from boxloop.report import (
        check_replaceable,
        list_page_files,
        read_table,
        report_on_table,
        report_to_dict,
        spell_command,
    )

    files = list_page_files(output)
    console.check_outputs([*files, json_to], data)
    if not force:
        default = click.get_current_context().get_parameter_source("output") is ParameterSource.DEFAULT
        check_replaceable(files if default else files[1:], output.with_suffix(".json"))
    with console.show_progress("report", shared.is_progress_shown(quiet, progress)) as tell:
        with open_cluster(workers, cluster) as there:
            table = read_table(data, columns, drop, rows, seed, cluster=there)
        command = spell_command(data, columns, drop, rows, seed, deep)
        report = report_on_table(
            table, command, seed, jobs, deep, lambda what, share: tell(round(100 * share), 100, what)
        )
        written = report.save(output, force=force)
    console.write_findings(report_to_dict(report), json_to, lambda: print_verdict(report, written), quiet)


def print_verdict(report: Report, written: list[Path]) -> None:
    """Print the verdict."""
    colours = {"good": "green", "doubtful": "yellow", "bad": "red", "plain": "none"}
    for line in report.lines:
        console.echo_styled(f"{line.question} ", f"bold {colours[line.level]}", line.answer)
    console.echo_text()
    console.echo_written(*written)
    console.echo_text(f"Open {written[0]} in a browser; it explains each of these answers.")
