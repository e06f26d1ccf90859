"""Run experiments: ``python -m papers NAME [--quick] [--data FOLDER]``, or list them without a name."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console

from papers.experiment import Options, Report

HERE = Path(__file__).parent


def list_experiments() -> dict[str, str]:
    """Name and first line of every file here that defines ``experiment``, read without importing it."""
    experiments = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "experiment" for node in tree.body):
            experiments[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").splitlines()[0]
    return experiments


def run_experiment(name: str, options: Options) -> Report:
    """Run one experiment; at the quick size its verdicts are those that a small run allows."""
    report: Report = import_module(f"papers.{name.replace('-', '_')}").experiment(options)
    return report.at_quick_size() if options.quick else report


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option(
    "--quick",
    is_flag=True,
    help="A small size: seconds or minutes, too few repetitions to contradict a claim.",
)
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of real data."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the first repetition; the others follow it."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for tables (JSON, Markdown) and figures.",
)
def main(names: tuple[str, ...], quick: bool, data: Path | None, seed: int, output: Path) -> None:
    """Run experiments of the papers behind boxloop: their numbers beside ours. Without a name, list them."""
    experiments = list_experiments()
    unknown = [name for name in names if name not in experiments]
    if unknown:
        raise click.UsageError(f"no experiment {unknown[0]!r}; there are: {', '.join(experiments)}")
    if not names:
        for name, line in experiments.items():
            click.echo(f"{name:<20} {line}")
    progress = Console(stderr=True)
    for name in names:
        with progress.status(name) as status:
            options = Options(
                quick, seed, data, lambda done, total, what: status.update(f"{what} ({done} of {total})")
            )
            report = run_experiment(name, options)
        click.echo(report.markdown())
        for path in report.write(output):
            click.echo(f"Written: {path}")


if __name__ == "__main__":
    main(prog_name="python -m papers")
