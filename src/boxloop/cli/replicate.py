"""Run an experiment of the documents: their numbers beside ours."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from boxloop.cli.names import complete_experiment, experiments
from boxloop.cli.options import (
    json_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)
from boxloop.cli.output import check_outputs, echo_table, echo_text, tell


@with_examples(
    "boxloop replicate",
    "boxloop replicate em-mixture --quick -o out",
    "boxloop replicate em-mixture --quick --json findings.json",
)
@click.argument("names", nargs=-1, shell_complete=complete_experiment)
@click.option(
    "--quick",
    is_flag=True,
    help="A small size, seconds or minutes, too few repetitions to contradict a claim.",
)
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of real data."
)
@seed_option
@watch_options
@threads_option
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for tables (JSON, Markdown) and figures.",
)
@json_option
def command(
    names: tuple[str, ...],
    quick: bool,
    data: Path | None,
    seed: int,
    quiet: bool,
    progress: bool | None,
    output: Path,
    json_to: str | None,
) -> None:
    """Run an experiment of the documents: their numbers beside ours.

    Without a name, list the experiments.
    """

    check_outputs([json_to], data, folders=[output])
    known = experiments()
    _check_known(names, known)
    if not names:
        heads, rows = ["name", "what it is"], [list(pair) for pair in known.items()]
        listed = [{"name": name, "what": line} for name, line in known.items()]
        tell(
            {"experiments": listed},
            json_to,
            lambda: echo_table("Experiments", heads, rows, words=heads),
            quiet,
        )
        return
    found = []
    for name in names:
        report = _run(name, quick, data, seed, watching(quiet, progress))
        written = report.write(output)
        found.append({"name": name, "title": report.title, "settings": report.settings})
        found[-1] |= {"findings": [asdict(finding) for finding in report.findings], "written": written}
        if json_to != "-" and not quiet:
            _show(report, written)
    tell({"experiments": found}, json_to, lambda: None)


def _check_known(names: tuple[str, ...], known: dict[str, str]) -> None:
    for name in names:
        if name not in known:
            from boxloop.data.checks import near_misses

            near = near_misses(name, known)
            raise click.UsageError(f"no experiment {name!r}{near}; there are: {', '.join(known)}")


def _run(name: str, quick: bool, data: Path | None, seed: int, show: bool) -> Any:
    from boxloop.cli.watch import watched
    from boxloop.replicate.experiment import Options

    module = import_module(f"boxloop.replicate.{name.replace('-', '_')}")
    with watched(name, show) as moved:
        report = module.experiment(
            Options(quick, seed, data, lambda done, total, what: moved(done, total, f"{name}: {what}"))
        )
    return report.at_quick_size() if quick else report


def _show(report: Any, written: list[Path]) -> None:

    heads = ["claim", "document", "ours", "verdict", "why"]
    rows = []
    for f in report.findings:
        ours = f.ours if f.error is None else f"{f.ours} ± {f.error:.2g}"
        rows.append([f.claim, f.paper, ours, f.verdict, f.reason])
    echo_table(report.title, heads, rows, words=heads, lines=True)
    for path in written:
        echo_text(f"Written: {path}")
