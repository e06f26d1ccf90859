"""Run an experiment of the documents: their numbers beside ours."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parent.parent / "replicate"


def experiments() -> dict[str, str]:
    """Name and first line of every experiment, read without importing it."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "experiment" for node in tree.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").splitlines()[0]
    return found


@click.command(short_help="Run an experiment of the documents: their numbers beside ours.")
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="A small size, seconds instead of minutes.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of real data."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the first repetition.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for tables (JSON, Markdown) and figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON.")
def command(
    names: tuple[str, ...], quick: bool, data: Path | None, seed: int, output: Path, as_json: bool
) -> None:
    """Run experiments by name; without a name, list them."""
    known = experiments()
    if not names:
        for name, line in known.items():
            click.echo(f"{name:<16}{line}")
        return
    for name in names:
        if name not in known:
            raise click.UsageError(f"no experiment {name!r}; there are: {', '.join(known)}")
    for name in names:
        _run(name, quick, data, seed, output, as_json)


def _run(name: str, quick: bool, data: Path | None, seed: int, output: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import Progress

    from boxloop.replicate.experiment import Options

    module = import_module(f"boxloop.replicate.{name.replace('-', '_')}")
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}: {what}")

        report: Any = module.experiment(Options(quick, seed, data, tell))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in report.findings], indent=1))
    else:
        _show(report)
    for path in report.write(output):
        click.echo(f"wrote {path}", err=True)


def _show(report: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=report.title, show_lines=True)
    for heading in ("claim", "document", "ours", "verdict", "why"):
        table.add_column(heading)
    for f in report.findings:
        ours = f.ours if f.error is None else f"{f.ours} ± {f.error:.2g}"
        colour = "red" if f.verdict in ("not reproduced", "target missed") else "green"
        table.add_row(f.claim, f.paper, ours, f"[{colour}]{f.verdict}[/{colour}]", f.reason)
    Console().print(table)
