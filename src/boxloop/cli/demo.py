"""``boxloop demo``: today's main job on bundled data, from rows to a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from boxloop.report.study import Study


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder for the picture, the page and the models; made if it is not there.",
)
@click.option(
    "--page", type=click.Path(dir_okay=False, path_type=Path), help="The page; report.html in the folder."
)
def command(output: Path, page: Path | None) -> None:
    """Show what the library does, on bundled data.

    Fits Gaussian mixtures of 1 to 6 components to a table of wines and judges each on rows it did not see, then
    runs a factor analysis with standard errors. Prints what was found; writes demo.png, report.html and the models.
    """
    from boxloop.cli.output import check_output
    from boxloop.report.study import DATA

    output.mkdir(parents=True, exist_ok=True)
    page = page or output / "report.html"
    check_output(page)
    study = watched()
    written = write(study, output, page)
    show(study)
    for path in written:
        click.echo(f"Written: {path}")
    model = written[-2]
    click.echo(f"Look further: boxloop show {model}")
    click.echo(f"Where it fails: boxloop criticise {model} {DATA} --train {DATA}")


def watched() -> Study:
    """Run the study under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from boxloop.report.study import run_study, steps

    console = Console(stderr=True)
    parts = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps())
        told = 0

        def tell(what: str) -> None:
            nonlocal told
            bar.update(task, completed=told, description=what)
            told += 1

        return run_study(tell)


def write(study: Study, folder: Path, page: Path) -> list[Path]:
    """Write the picture, the page and the two models; returns their paths."""
    from boxloop.persist import write_atomic
    from boxloop.report.figures import picture
    from boxloop.report.page import demo_page

    write_atomic(folder / "demo.png", picture(study))
    write_atomic(page, demo_page(study).encode())
    study.mixture.save(folder / "mixture.boxloop")
    study.factors.save(folder / "factors.boxloop")
    return [folder / "demo.png", page, folder / "mixture.boxloop", folder / "factors.boxloop"]


def show(study: Study) -> None:
    """Print the study: its numbers as tables, what they mean in sentences."""
    from boxloop.cli.output import echo_table
    from boxloop.report.page import held_table, loading_table
    from boxloop.report.words import on_factors, on_groups

    n, d = study.data.rows.shape
    held, loadings = held_table(study), loading_table(study)
    echo_table(
        f"{study.name}, {n} rows: Gaussian mixtures of {', '.join(study.columns)}", held.heads, held.rows
    )
    echo_table(f"{study.name}, {d} columns in standard units: loadings", loadings.heads, loadings.rows)
    for sentence in (*on_groups(study), *on_factors(study)):
        click.echo(f"- {sentence}")
    click.echo()
